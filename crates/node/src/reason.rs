//! What proxies say of a failure (`Proxy-Status`, RFC 9209), in words for people.

use tandem_wire::{ProxyStatus, StrangerText};

/// Says what a value of `Proxy-Status` means: the reason, and in parentheses the error type with the
/// details. A value that names no error is shown as it is.
pub(crate) fn explain(value: &StrangerText) -> StrangerText {
    // The proxy that is closest to the target comes first, and knows most.
    let statuses = ProxyStatus::parse(value.unescaped()).unwrap_or_default();
    let Some((status, error)) = statuses.iter().find_map(|it| Some((it, it.error.as_deref()?)))
    else {
        let details = statuses.into_iter().find_map(|status| status.details);
        return details.unwrap_or_else(|| format!("and says {}", value.unescaped())).into();
    };
    // "connection_refused: connection refused" would say it twice.
    let details = status.details.as_ref().filter(|text| text.replace(' ', "_") != error);
    let details = details.map_or_else(String::new, |text| format!(": {text}"));
    match sentence(error) {
        Some(sentence) => format!("{sentence} ({error}{details})").into(),
        None => format!("{error}{details}").into(),
    }
}

/// The meaning of an error type of RFC 9209 §2.3, for those that concern tunnels.
fn sentence(error: &str) -> Option<&'static str> {
    Some(match error {
        "dns_timeout" => "the name of the target could not be resolved in time",
        "dns_error" => "the name of the target could not be resolved",
        "destination_not_found" => "the proxy does not know the target",
        "destination_unavailable" => "the proxy cannot reach the target",
        "destination_ip_prohibited" => "the proxy does not allow the address of the target",
        "destination_ip_unroutable" => "the proxy has no route to the target",
        "connection_refused" => "the target refused the connection",
        "connection_terminated" => "the target ended the connection",
        "connection_timeout" | "connection_read_timeout" | "connection_write_timeout" => {
            "the target does not answer"
        }
        "connection_limit_reached" => "the proxy allows no further flow at present",
        "http_request_error" => "the proxy did not accept the request",
        "http_request_denied" => "the proxy does not permit the request",
        "proxy_internal_error" | "proxy_configuration_error" => {
            "the proxy has a failure of its own"
        }
        "proxy_loop_detected" => "the request came back to the proxy",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_status_is_told_in_words() {
        for (value, text) in [
            (
                "tandem;error=connection_refused;details=\"connection refused\"",
                "the target refused the connection (connection_refused)",
            ),
            (
                "p; error=dns_error; details=\"a.test: no address\"",
                "the name of the target could not be resolved (dns_error: a.test: no address)",
            ),
            ("a, b;error=connection_timeout", "the target does not answer (connection_timeout)"),
            ("p;error=tls_alert_received;details=\"x\"", "tls_alert_received: x"),
            ("tandem;details=\"a valid token is required\"", "a valid token is required"),
            ("masque.example", "and says masque.example"),
            ("\u{1b}[2J", "and says \\u{1b}[2J"),
            ("p;details=\"a\u{202e}b\"", "and says p;details=\"a\\u{202e}b\""),
        ] {
            assert_eq!(explain(&value.into()).to_string(), text, "{value}");
        }
        let long = explain(&"x".repeat(1000).into()).to_string();
        assert_eq!(long.len(), StrangerText::SHOWN_MAX);
    }
}
