//! The fields of a message on its way through a gateway: which ones go no further, and which ones the gateway writes
//! (RFC 9110 §7.6, RFC 7239).

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// The fields that are about one connection (RFC 9110 §7.6.1), and that HTTP/3 forbids (RFC 9114 §4.2).
const OF_CONNECTION: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("http2-settings"),
];

/// What a client may not say of itself, because servers believe their gateway, and what is for the site and not for the
/// server behind it.
const OF_GATEWAY: [&str; 12] = [
    "forwarded",
    "x-forwarded-by",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-forwarded-ssl",
    "x-real-ip",
    "proxy-authorization",
    "expect",
];

/// What a gateway says of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin<'a> {
    /// The protocol in which it came, as `Via` has it.
    pub(super) via: &'static str,
    /// Who sent it, if that is known.
    pub(super) client: Option<IpAddr>,
    /// The host that it names.
    pub(super) host: Option<&'a str>,
}

/// Turns the fields of a client's request into those of the gateway's own.
pub(super) fn pass_request(fields: &mut HeaderMap, origin: &Origin<'_>) {
    strip_connection(fields);
    let forged: Vec<HeaderName> =
        fields.keys().filter(|name| is_of_gateway(name)).cloned().collect();
    for name in forged {
        fields.remove(name);
    }
    let mut insert = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            fields.insert(name, value);
        }
    };
    if let Some(host) = origin.host {
        insert("host", host);
    }
    insert("forwarded", &forwarded(origin));
    insert("x-forwarded-proto", "https");
    if let Some(client) = origin.client {
        insert("x-forwarded-for", &client.to_string());
    }
    // RFC 9110 §7.6.3: "An HTTP-to-HTTP gateway MUST send an appropriate Via header field in each inbound request
    // message".
    fields.append(header::VIA, HeaderValue::from_static(origin.via));
    // RFC 9114 §4.2.1: cookies that came in several lines become one.
    let lines: Vec<_> = fields.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..]))
    {
        fields.insert(header::COOKIE, joined);
    }
}

/// Whether only the gateway may say this. Servers that turn fields into variables (CGI, WSGI) do not tell "_" from "-".
fn is_of_gateway(name: &HeaderName) -> bool {
    let name = name.as_str();
    let is_same = |other: &&str| {
        let pairs = || name.bytes().zip(other.bytes());
        name.len() == other.len()
            && pairs().all(|(one, two)| one == two || (one, two) == (b'_', b'-'))
    };
    OF_GATEWAY.iter().any(is_same)
}

/// The value of `Forwarded` (RFC 7239 §4).
fn forwarded(origin: &Origin<'_>) -> String {
    let client = match origin.client {
        // RFC 7239 §6: "an IPv6 address is always enclosed in square brackets", and §4: with ":" it is quoted.
        Some(IpAddr::V6(client)) => format!("\"[{client}]\""),
        Some(IpAddr::V4(client)) => client.to_string(),
        None => "unknown".to_owned(),
    };
    let host = origin.host.filter(|host| !host.contains(['"', '\\']));
    let host = host.map_or_else(String::new, |host| format!(";host=\"{host}\""));
    format!("for={client}{host};proto=https")
}

/// Removes the fields that are about a connection, also those that `Connection` names.
///
/// RFC 9110 §7.6.1: "Intermediaries MUST parse a received Connection header field before a message is forwarded and,
/// for each connection-option in this field, remove any header or trailer field(s) from the message with the same name
/// as the connection-option".
pub(super) fn strip_connection(fields: &mut HeaderMap) {
    let named: Vec<HeaderName> = fields
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&OF_CONNECTION) {
        fields.remove(name);
    }
}

/// Removes the trailer fields that no recipient may take for fields of the message (RFC 9110 §6.5.1).
pub(super) fn strip_trailers(fields: &mut HeaderMap) {
    strip_connection(fields);
    for name in
        [header::CONTENT_LENGTH, header::HOST, header::CONTENT_ENCODING, header::CONTENT_TYPE]
    {
        fields.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut fields = HeaderMap::new();
        for &(name, value) in lines {
            fields.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        fields
    }

    #[test]
    fn fields_about_a_connection_go_no_further() {
        let mut fields = fields(&[
            ("connection", "close, X-Own"),
            ("connection", "x-other"),
            ("x-own", "1"),
            ("x-other", "1"),
            ("transfer-encoding", "chunked"),
            ("keep-alive", "timeout=5"),
            ("upgrade", "h2c"),
            ("te", "trailers"),
            ("content-type", "text/plain"),
            ("cookie", "a=b"),
        ]);
        strip_connection(&mut fields);
        let left: Vec<_> = fields.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["content-type", "cookie"]);
    }

    #[test]
    fn only_the_gateway_says_where_a_request_comes_from() {
        for (client, host, forwarded) in [
            (Some("192.0.2.1"), Some("a.example"), "for=192.0.2.1;host=\"a.example\";proto=https"),
            (
                Some("2001:db8::1"),
                Some("a.example:8443"),
                "for=\"[2001:db8::1]\";host=\"a.example:8443\";proto=https",
            ),
            (None, Some("a\"b"), "for=unknown;proto=https"),
            (None, None, "for=unknown;proto=https"),
        ] {
            let mut fields = fields(&[
                ("forwarded", "for=198.51.100.9"),
                ("x-forwarded-for", "198.51.100.9"),
                ("x_forwarded_for", "198.51.100.9"),
                ("x-forwarded_proto", "http"),
                ("x-real-ip", "198.51.100.9"),
                ("via", "1.1 earlier"),
            ]);
            let client = client.map(|it| it.parse().unwrap());
            pass_request(&mut fields, &Origin { via: "3.0 tandem", client, host });
            assert_eq!(fields["forwarded"], forwarded);
            assert_eq!(fields["x-forwarded-proto"], "https");
            assert!(!format!("{fields:?}").contains("198.51.100.9"), "{fields:?}");
            let via: Vec<_> = fields.get_all("via").iter().collect();
            assert_eq!(via, ["1.1 earlier", "3.0 tandem"]);
        }
    }
}
