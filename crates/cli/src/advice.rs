//! Advice after a failure.

use std::io;

use tandem_node::{StrangerText, error::ClientError};
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
        | ClientError::Stdio(_)
        | ClientError::Protocol { .. }
        | ClientError::Interrupted => None,
        ClientError::NoAnswer { .. } => Some(
            "check host and port, that the server runs, and that UDP is let through on the way",
        ),
        ClientError::Tls { reason, .. } => Some(after_tls(reason.unescaped())),
        ClientError::ConnectionLost { .. } => Some("try again; -v shows what was going on"),
        ClientError::Unsupported { .. } => Some("check that it is a CONNECT-UDP proxy (RFC 9298)"),
        ClientError::LesserMode { .. } => Some(
            "take a proxy that knows this mode, such as tandem proxy, or another --mode, or leave \
             --require-mode out",
        ),
        ClientError::Refused { status, proxy_status, .. } => after_refusal(
            *status,
            proxy_status.as_ref().map(StrangerText::unescaped).unwrap_or_default(),
        ),
        ClientError::FlowClosed { .. } => {
            Some("check host and port of the target, and that it runs")
        }
        ClientError::Status { status, .. } => after_status(*status),
        ClientError::Redirected { .. } => Some("fetch that URL"),
        ClientError::Body { .. } => Some("try again"),
    };
    advice.map_or_else(String::new, |advice| format!("; {advice}"))
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
    } else if has("unknownissuer") || has("badsignature") || has("bad signature") {
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

fn after_refusal(status: u16, proxy_status: &str) -> Option<&'static str> {
    match status {
        401 | 407 => Some(
            "give a token that the proxy accepts with --token-file FILE, or for tandem connect the file \
             client.pem of its server",
        ),
        403 if proxy_status.contains("prohibited") => Some(
            "the proxy does not reach private addresses unless it is started with \
             --allow-target CIDR",
        ),
        403 if proxy_status.contains("connections to port") => {
            Some("the proxy reaches this port if it is started with --tcp-ports that contain it")
        }
        403 => Some("the proxy does not allow this target"),
        404 | 405 | 501 => Some("check the URI template in --via"),
        429 => Some(
            "wait for that time; if your token is right, another client at your address sends wrong ones",
        ),
        502 | 504 if proxy_status.contains("dns_") => Some("check the name of the target"),
        502 | 504 => Some("check host and port of the target"),
        _ => None,
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
            (
                refused(403, "p; details=\"this proxy opens no TCP connections to port 25\""),
                "--tcp-ports",
            ),
            (refused(429, "p; details=\"too many wrong tokens\""), "wait"),
            (ClientError::NoAnswer { peer: peer(), timeout: Duration::from_secs(1) }, "UDP"),
            (ClientError::Status { url: "https://o/".into(), status: 404 }, "path"),
            (ClientError::Status { url: "https://o/".into(), status: 405 }, "--takes-uploads"),
        ] {
            let advice = try_this(&error);
            assert!(advice.contains(expected), "{error}: {advice:?}");
        }
    }
}
