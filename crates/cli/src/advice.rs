//! Advice after a failure.

use std::io;

use tandem_node::{Cause, error::ClientError};
use tandem_server::tls;
use x509_parser::prelude::ASN1Time;

/// A sentence to append to the error, beginning with "; ", or nothing.
pub(crate) fn try_this(error: &ClientError) -> String {
    let advice = match error {
        ClientError::Listen { error, .. } | ClientError::Socket(error)
            if error.kind == io::ErrorKind::Unsupported =>
        {
            Some(LACKS_CALLS)
        }
        ClientError::Listen { address, error }
            if error.kind == io::ErrorKind::PermissionDenied
                && address.port() < FIRST_FREE_PORT =>
        {
            Some(
                "ports below 1024 need a right: AmbientCapabilities=CAP_NET_BIND_SERVICE in the systemd \
                 unit, or `setcap cap_net_bind_service=+ep` on the program; or choose a higher port",
            )
        }
        ClientError::Listen { error, .. } => match error.kind {
            io::ErrorKind::AddrInUse
            | io::ErrorKind::AddrNotAvailable
            | io::ErrorKind::PermissionDenied => {
                Some("choose another address, or port 0 for any free port")
            }
            _ => None, // another address would not do either
        },
        ClientError::Refusing { .. } => Some("check host and port, and that the server runs"),
        ClientError::Resolve { .. } => Some("check the name, or use an IP address"),
        ClientError::Socket(_)
        | ClientError::Direct(_)
        | ClientError::Stdio(_)
        | ClientError::Protocol { .. }
        | ClientError::Interrupted => None,
        ClientError::NoAnswer { .. } => Some(
            "check host and port, that the server runs, and that UDP is let through on the way",
        ),
        ClientError::NoStream { .. } => Some("close some of the programs that use the tunnel"),
        ClientError::Tls { reason, .. } => Some(after_tls(reason.unescaped())),
        ClientError::ConnectionLost { .. } => Some("try again; -v shows what was going on"),
        ClientError::Unsupported { .. } => Some("check that it is a CONNECT-UDP proxy (RFC 9298)"),
        ClientError::LesserMode { .. } => Some(
            "take a proxy that knows this mode, such as tandem proxy, or another --mode, or leave \
             --require-mode out",
        ),
        ClientError::Refused { .. } => error.cause().map(remedy),
        ClientError::FlowClosed { cause, .. } => {
            Some(remedy(cause.unwrap_or(Cause::TargetUnreachable)))
        }
        ClientError::Status { status, .. } => after_status(*status),
        ClientError::Redirected { .. } => Some("fetch that URL"),
        ClientError::Ruled { .. } => Some("`tandem route HOST:PORT` says which rule it is"),
        ClientError::Body { .. } => Some("try again"),
    };
    advice.map_or_else(String::new, |advice| format!("; {advice}"))
}

/// The same for `tandem up`, whose user may have named a server that is no proxy. `is_pinned`: the link has a
/// fingerprint.
pub(crate) fn for_setup(error: &ClientError, is_pinned: bool) -> String {
    let advice = match error {
        ClientError::Tls { .. } if is_pinned => {
            "the link is for another certificate: ask the operator of the proxy for a new link; if there is none, somebody \
             else may answer in the proxy's place"
        }
        ClientError::Tls { reason, .. } if is_unknown_issuer(reason.unescaped()) => {
            "no trusted CA has signed the certificate: give its CA with --ca FILE, or a link with its fingerprint"
        }
        ClientError::Refusing { .. } => {
            "a proxy speaks HTTP/3, over UDP, and no program has this UDP port: check the name and the port; a web server \
             without HTTP/3 is no proxy"
        }
        ClientError::NoAnswer { .. } => {
            "a proxy speaks HTTP/3, over UDP: check the name and the port, and whether this network lets UDP through; a \
             web server without HTTP/3 is no proxy"
        }
        ClientError::Unsupported { .. } => {
            "this server speaks HTTP/3, but is no proxy: check the name and the port"
        }
        _ => return try_this(error),
    };
    format!("; {advice}")
}

/// Whether the text of rustls says that no trusted CA has signed a certificate.
fn is_unknown_issuer(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    ["unknownissuer", "badsignature", "bad signature"].iter().any(|words| reason.contains(words))
}

/// The same for a failure after which the program itself tries again.
pub(crate) fn while_trying(error: &ClientError) -> String {
    match error {
        ClientError::ConnectionLost { .. } => String::new(),
        _ => try_this(error),
    }
}

/// What to do without the system call that receives packets.
const LACKS_CALLS: &str = "this kernel or sandbox lacks the system call recvmmsg, with which packets are received: \
     let the sandbox permit it, or use a newer kernel (Linux 2.6.33)";

/// The first port that every program may listen on.
const FIRST_FREE_PORT: u16 = 1024;

/// Writes the UNIX times in an error of rustls as dates.
pub(crate) fn with_dates(text: &str) -> String {
    let Some((before, rest)) = text.split_once("verification time ") else {
        return text.to_owned();
    };
    let date = |word: &str| {
        let number = word.trim_end_matches(',');
        let time = ASN1Time::from_timestamp(number.parse().ok()?).ok()?;
        Some(word.replace(number, &tls::utc(time)))
    };
    // The last brackets hold the seconds between the two times.
    let (times, after) = match rest.split_once(" seconds ") {
        Some((times, after)) => (
            times.rsplit_once(" (").map_or(times, |(times, _)| times),
            after.split_once(')').map_or("", |(_, after)| after),
        ),
        None => (rest, ""),
    };
    let times = times.replace(" (UNIX)", "");
    let words = times.split(' ').map(|word| date(word).unwrap_or_else(|| word.to_owned()));
    let times = words.collect::<Vec<_>>().join(" ");
    format!("{before}verification time {times}{after}")
}

/// Finds the cause in the text of rustls, which is printed in any case.
fn after_tls(reason: &str) -> &'static str {
    let reason = reason.to_ascii_lowercase();
    let has = |word| reason.contains(word);
    if has("expired") {
        "the certificate has expired: renew it on the server, or use --insecure for a test"
    } else if has("not valid yet") || has("notvalidyet") {
        "the certificate is not valid yet: check the clocks of both sides"
    } else if is_unknown_issuer(&reason) {
        "no trusted CA has signed the certificate: give its CA with --ca FILE, or use --insecure \
         for a test"
    } else if has("not valid for name") || has("notvalidforname") {
        "use the name that the certificate is for, or make the certificate for this one"
    } else if has("sent no certificates") || has("certificate required") {
        "the server wants a client certificate: give --client-cert FILE --client-key FILE"
    } else if has("applicationverificationfailure") {
        "this is not the server of the pair: check --dest; if it is right, the server has a new \
         certificate, so copy its file client.pem here again, or somebody else answers in its place"
    } else if has("alpn") || has("application protocol") {
        "the server does not speak HTTP/3 (ALPN h3) at this port"
    } else {
        "check the certificates of both sides"
    }
}

/// What to do about the cause for which a proxy refuses or ends a flow.
const fn remedy(cause: Cause) -> &'static str {
    match cause {
        Cause::Token => {
            "give a token that the proxy accepts with --token-file FILE, or for tandem connect the file \
             client.pem of its server"
        }
        Cause::TokenExpired => "ask the operator of the proxy for a new token",
        Cause::TokenRemoved => {
            "the operator of the proxy has removed this token: ask for a new one"
        }
        Cause::Guesses => {
            "wait for that time; if your token is right, another client at your address sends wrong ones"
        }
        Cause::Month => {
            "wait for the next month, or ask the operator of the proxy for a higher limit"
        }
        Cause::UserLimit => {
            "close something that uses the proxy, or ask its operator for a higher limit"
        }
        Cause::UserTarget => "ask the operator of the proxy to permit this target",
        Cause::TargetAddress => {
            "the proxy does not reach private addresses unless it is started with \
             --allow-target CIDR"
        }
        Cause::TargetPort => {
            "the proxy reaches this port if it is started with --tcp-ports that contain it"
        }
        Cause::OneService => {
            "this proxy is the server of a pair: use it with tandem connect, or take another proxy"
        }
        Cause::TargetName => "check the name of the target",
        Cause::Resolver => "check the name of the target; if it is right, try again later",
        Cause::TargetRefuses | Cause::TargetUnreachable => {
            "check host and port of the target, and that it runs"
        }
        Cause::TargetSilent => {
            "check host and port of the target, that it runs, and that no firewall is before it"
        }
        Cause::NoRoute => "check the address of the target; the proxy may have IPv4 or IPv6 only",
        Cause::ProxyBusy => "try again later, or take another proxy",
        Cause::Loop => "let each proxy stand in --via only once",
        Cause::NotServed => {
            "check the URI template in --via, and the token: a proxy that is a web site shows itself only to those who \
             have a right to it"
        }
        Cause::Denied => "the proxy does not allow this target",
    }
}

fn after_status(status: u16) -> Option<&'static str> {
    match status {
        404 | 410 => Some("check the path of the URL"),
        405 => Some("the origin refuses uploads; tandem origin accepts them with --takes-uploads"),
        401 | 403 => Some("the origin does not give this to every client"),
        500..=599 => Some("the origin failed; try again later"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_of_certificates_are_dates() {
        let at =
            |seconds| rustls::pki_types::UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let expired = rustls::CertificateError::ExpiredContext {
            time: at(1_700_000_000),
            not_after: at(1_609_459_200),
        };
        assert_eq!(
            with_dates(&format!("p: {expired}; more (words) follow")),
            "p: certificate expired: verification time 2023-11-14 22:13 UTC, but certificate is not valid \
             after 2021-01-01 00:00 UTC; more (words) follow"
        );
        let early = rustls::CertificateError::NotValidYetContext {
            time: at(1_609_459_200),
            not_before: at(1_700_000_000),
        };
        let text = with_dates(&early.to_string());
        assert!(text.ends_with("is not valid before 2023-11-14 22:13 UTC"), "{text}");
        assert_eq!(
            with_dates("a text without times 1700000000"),
            "a text without times 1700000000"
        );
    }

    #[test]
    fn only_low_ports_need_a_right() {
        for (port, kind, advice) in [
            (443, io::ErrorKind::PermissionDenied, "CAP_NET_BIND_SERVICE"),
            (4433, io::ErrorKind::PermissionDenied, "choose another address"),
            (443, io::ErrorKind::AddrInUse, "choose another address"),
            (443, io::ErrorKind::Unsupported, "recvmmsg"),
        ] {
            let address = ([0, 0, 0, 0], port).into();
            let said = try_this(&ClientError::Listen { address, error: kind.into() });
            assert!(said.contains(advice), "{port}, {kind}: {said}");
        }
    }

    #[test]
    fn each_failure_says_what_to_try() {
        let peer = || "p.example:443".to_owned();
        let tls = |reason: &str| ClientError::Tls { peer: peer(), reason: reason.into() };
        let refused = |status, proxy_status: &str| ClientError::Refused {
            peer: peer(),
            target: "t.example:53".into(),
            status,
            proxy_status: Some(proxy_status.into()),
            retry_after: None,
        };
        let closed = |cause| ClientError::FlowClosed {
            peer: peer(),
            target: "t.example:53".into(),
            reason: "its stream was reset".into(),
            cause,
        };
        for (error, expected) in [
            (tls(&rustls::CertificateError::Expired.to_string()), "renew"),
            (tls(&rustls::CertificateError::UnknownIssuer.to_string()), "--ca"),
            (tls(&rustls::CertificateError::NotValidForName.to_string()), "use the name"),
            (tls(&rustls::CertificateError::NotValidYet.to_string()), "clocks"),
            (
                tls(&rustls::CertificateError::ApplicationVerificationFailure.to_string()),
                "not the server of the pair: check --dest",
            ),
            (refused(407, ""), "--token-file"),
            (refused(403, "p; error=destination_ip_prohibited"), "--allow-target"),
            (refused(403, "p; error=http_request_denied; tandem-cause=port"), "--tcp-ports"),
            (refused(403, "p; error=http_request_denied; tandem-cause=month"), "next month"),
            (refused(403, "p; error=http_request_denied; tandem-cause=user-target"), "permit this"),
            (refused(429, "p; details=\"too many wrong tokens\""), "wait"),
            (refused(429, "p; error=http_request_denied; tandem-cause=user-limit"), "close"),
            (refused(401, "p; tandem-cause=token-expired"), "new token"),
            (closed(Some(Cause::Month)), "next month"),
            (closed(None), "host and port of the target"),
            (ClientError::NoAnswer { peer: peer(), timeout: Duration::from_secs(1) }, "UDP"),
            (ClientError::NoStream { peer: peer(), timeout: Duration::from_secs(1) }, "close"),
            (ClientError::Status { url: "https://o/".into(), status: 404 }, "path"),
            (ClientError::Status { url: "https://o/".into(), status: 405 }, "--takes-uploads"),
        ] {
            let advice = try_this(&error);
            assert!(advice.contains(expected), "{error}: {advice:?}");
        }
    }
}
