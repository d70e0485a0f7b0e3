//! Which hosts a request may name.

use std::net::{IpAddr, Ipv6Addr};

use http::{Request, header::HOST, uri::Authority};

/// Whether a request names an address or a local name. A name of another site may lead to any address, and a
/// browser would let the site's pages read the answers.
pub(super) fn is_local<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(HOST).into_iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    // RFC 9112 §3.2.2: the host of an absolute target replaces the field.
    let target = request.uri().authority();
    host.iter().chain(target).all(|it| is_local_name(it.host())) && host.is_some()
}

fn is_local_name(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let in_brackets = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    in_brackets.map_or_else(
        || name.parse::<IpAddr>().is_ok() || name == "localhost" || name.ends_with(".localhost"),
        |address| address.parse::<Ipv6Addr>().is_ok(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_local_names_are_allowed() {
        for (hosts, uri, is_allowed) in [
            (&["localhost"][..], "/", true),
            (&["LocalHost:9433"], "/", true),
            (&["proxy.localhost."], "/", true),
            (&["127.0.0.1:9433"], "/", true),
            (&["[::1]:9433"], "/", true),
            (&["[::1]"], "http://localhost/metrics", true),
            (&["example.org"], "/", false),
            (&["example.org"], "http://localhost/", false),
            (&["localhost"], "http://example.org/", false),
            (&["localhost.example.org"], "/", false),
            (&["notlocalhost"], "/", false),
            (&["127.0.0.1.example.org"], "/", false),
            (&[""], "/", false),
            (&[], "/", false),
            (&["localhost", "example.org"], "/", false),
        ] {
            let mut request = Request::builder().uri(uri);
            for host in hosts {
                request = request.header(HOST, *host);
            }
            assert_eq!(is_local(&request.body(()).unwrap()), is_allowed, "{hosts:?} {uri}");
        }
    }
}
