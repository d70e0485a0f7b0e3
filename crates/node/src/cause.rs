//! Why a proxy refuses or ends a flow, for those who have to do something about it.

use tandem_wire::{ProxyStatus, StrangerText};

/// Why a proxy refuses or ends a flow, as far as a remedy depends on it.
///
/// A proxy says it with an error type of RFC 9209 §2.3. Where that type has several remedies, Tandem's proxies add the
/// parameter [`ProxyStatus::CAUSE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The request has no token, or a wrong one.
    Token,
    /// The token has expired, or is not valid yet.
    TokenExpired,
    /// The operator has removed the token.
    TokenRemoved,
    /// Too many wrong tokens came from the client's address.
    Guesses,
    /// The user has carried as many bytes in this month as it may.
    Month,
    /// The user has reached another of its limits.
    UserLimit,
    /// The user may not reach the target.
    UserTarget,
    /// The proxy does not reach the target's address.
    TargetAddress,
    /// The proxy does not reach the target's port.
    TargetPort,
    /// The proxy carries one service only.
    OneService,
    /// The target's name has no address.
    TargetName,
    /// The proxy's resolver does not answer.
    Resolver,
    /// The target refuses the connection, or no program listens there.
    TargetRefuses,
    /// The target does not answer.
    TargetSilent,
    /// The proxy has no route to the target.
    NoRoute,
    /// The target cannot be reached for another reason.
    TargetUnreachable,
    /// The proxy has no room for another flow at present, or a failure of its own.
    ProxyBusy,
    /// The request came back to the proxy.
    Loop,
    /// The proxy does not know what is asked for.
    NotServed,
    /// The proxy does not permit the request, and does not say why.
    Denied,
}

/// The causes that have a name in the parameter.
const NAMES: [(Cause, &str); 9] = [
    (Cause::TokenExpired, "token-expired"),
    (Cause::TokenRemoved, "token-removed"),
    (Cause::Guesses, "guesses"),
    (Cause::Month, "month"),
    (Cause::UserLimit, "user-limit"),
    (Cause::UserTarget, "user-target"),
    (Cause::TargetPort, "port"),
    (Cause::OneService, "one-service"),
    (Cause::NotServed, "not-served"),
];

impl Cause {
    /// The value of the parameter, for a cause that no error type tells.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(cause, _)| *cause == self).map(|(_, name)| *name)
    }

    /// The cause of an answer with this status code that is not a success.
    pub fn of_answer(status: u16, proxy_status: Option<&StrangerText>) -> Option<Self> {
        let told = proxy_status.and_then(Self::told);
        told.or(match status {
            401 | 407 => Some(Self::Token),
            403 => Some(Self::Denied),
            404 | 405 | 501 => Some(Self::NotServed),
            429 => Some(Self::Guesses),
            503 => Some(Self::ProxyBusy),
            502 => Some(Self::TargetUnreachable),
            504 => Some(Self::TargetSilent),
            _ => None,
        })
    }

    /// The cause that a value of `Proxy-Status` tells.
    pub(crate) fn told(value: &StrangerText) -> Option<Self> {
        // The proxy that is closest to the target comes first, and knows most.
        let statuses = ProxyStatus::parse(value.unescaped()).unwrap_or_default();
        statuses.iter().find_map(|status| {
            let named = status.cause.as_deref().and_then(Self::named);
            named.or(status.error.as_deref().and_then(Self::of_type))
        })
    }

    fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, known)| *known == name).map(|(cause, _)| *cause)
    }

    /// The cause that an error type of RFC 9209 §2.3 tells.
    fn of_type(error: &str) -> Option<Self> {
        Some(match error {
            "dns_error" => Self::TargetName,
            "dns_timeout" => Self::Resolver,
            "destination_ip_prohibited" => Self::TargetAddress,
            "destination_ip_unroutable" => Self::NoRoute,
            "connection_refused" => Self::TargetRefuses,
            "connection_timeout" | "connection_read_timeout" | "connection_write_timeout" => {
                Self::TargetSilent
            }
            "destination_not_found" | "destination_unavailable" | "connection_terminated" => {
                Self::TargetUnreachable
            }
            "connection_limit_reached" | "proxy_internal_error" | "proxy_configuration_error" => {
                Self::ProxyBusy
            }
            "proxy_loop_detected" => Self::Loop,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameter_goes_before_the_type_and_the_type_before_the_status() {
        for (status, value, cause) in [
            (407, "", Some(Cause::Token)),
            (407, "tandem;details=\"x\";tandem-cause=token-expired", Some(Cause::TokenExpired)),
            (403, "tandem;error=http_request_denied;tandem-cause=month", Some(Cause::Month)),
            (403, "p;error=http_request_denied", Some(Cause::Denied)),
            (
                403,
                "p;error=destination_ip_prohibited;tandem-cause=unknown",
                Some(Cause::TargetAddress),
            ),
            (429, "p;error=http_request_denied;tandem-cause=user-limit", Some(Cause::UserLimit)),
            (429, "p;details=\"too many wrong tokens\"", Some(Cause::Guesses)),
            (502, "a, b;error=connection_refused", Some(Cause::TargetRefuses)),
            (504, "p;error=dns_timeout", Some(Cause::Resolver)),
            (504, "not a list;;", Some(Cause::TargetSilent)),
            (418, "p", None),
        ] {
            assert_eq!(Cause::of_answer(status, Some(&value.into())), cause, "{status} {value}");
        }
        for (cause, name) in NAMES {
            assert_eq!((cause.name(), Cause::named(name)), (Some(name), Some(cause)));
        }
    }
}
