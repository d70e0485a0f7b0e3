//! Targets of UDP flows and TCP connections, and the local addresses from which they are reached.

use std::{fmt, str::FromStr};

use serde_with::SerializeDisplay;
use tandem_node::client::FlowConfig;
use tandem_wire::{FeedbackField, Urgency, uri_template::check_host};

use super::{
    ValueError,
    values::{ListenAddr, NO_BRACKETS},
};

/// The host and the port of a target.
#[derive(Clone, Debug, PartialEq, Eq, SerializeDisplay)]
pub(crate) struct Target {
    /// A host name or an IP address without brackets.
    pub(crate) host: String,
    /// The port, which is not 0.
    pub(crate) port: u16,
}

impl Target {
    /// Parses `HOST:PORT`. An error is only the reason.
    fn read(text: &str) -> Result<Self, String> {
        let no_target = || format!("{text:?} is not a host and a port");
        let (host, port) = text.rsplit_once(':').ok_or_else(no_target)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        // Without brackets it is not clear where an IPv6 address ends.
        let is_ambiguous = bare.is_none() && host.contains(':');
        let host = bare.unwrap_or(host);
        check_host(host).map_err(|_| no_target())?;
        if is_ambiguous {
            return Err(format!("{text:?}: {NO_BRACKETS}"));
        }
        match port.parse() {
            Ok(port) if port != 0 => Ok(Self { host: host.to_owned(), port }),
            Ok(_) | Err(_) => Err(no_target()),
        }
    }

    /// A flow to this target with the default urgency and weight.
    pub(crate) fn to_flow(&self) -> FlowConfig {
        FlowConfig::new(&*self.host, self.port)
    }
}

impl FromStr for Target {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = "HOST:PORT, such as git.example:22 or [2001:db8::1]:22".to_owned();
        Self::read(text).map_err(|reason| ValueError::Part { reason, expected })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// A local address, and the target to which packets or connections that come there are tunnelled.
#[derive(Clone, Debug, PartialEq, Eq, SerializeDisplay)]
pub(crate) struct Forward {
    /// The local address.
    pub(crate) listen: ListenAddr,
    /// The target.
    pub(crate) target: Target,
    /// How urgent its payloads are among those of other listeners.
    pub(crate) urgency: Urgency,
    /// The share of its flows among those that are as urgent.
    pub(crate) weight: u8,
}

impl Forward {
    /// The flow of each local program.
    pub(crate) fn to_flow(&self) -> FlowConfig {
        FlowConfig { urgency: self.urgency, weight: self.weight, ..self.target.to_flow() }
    }

    /// What the help says of the suffix with urgency and weight.
    pub(crate) fn share_help() -> String {
        format!(
            "At its end, ;u=0 (first) to ;u=7 (last) sets the urgency among all listeners, and ;w={} to \
             ;w={} the share among listeners of the same urgency: one with ;w=2 has twice that of one \
             with ;w=1",
            FeedbackField::WEIGHT.start(),
            FeedbackField::WEIGHT.end(),
        )
    }
}

/// How a listener's flows share the tunnel: `u=` with an urgency and `w=` with a weight, each at most
/// once.
fn parse_share(text: &str) -> Result<(Urgency, u8), String> {
    let (mut urgency, mut weight) = (None, None);
    for part in text.split(';') {
        let is_first = if let Some(digits) = part.strip_prefix("w=") {
            let said = digits.parse().ok();
            let said = said.filter(|weight| FeedbackField::WEIGHT.contains(weight));
            let (least, most) = (FeedbackField::WEIGHT.start(), FeedbackField::WEIGHT.end());
            let refused = || format!("{part:?} is not a weight from {least} to {most}");
            weight.replace(said.ok_or_else(refused)?).is_none()
        } else {
            urgency.replace(part.parse().map_err(|error| format!("{error}"))?).is_none()
        };
        if !is_first {
            return Err(format!("{part:?} sets the same twice"));
        }
    }
    Ok((urgency.unwrap_or_default(), weight.unwrap_or(1)))
}

impl FromStr for Forward {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let form = "LISTEN=TARGET, LISTEN=TARGET;u=URGENCY or LISTEN=TARGET;w=WEIGHT, such as \
                    127.0.0.1:5353=dns.example:53;u=1";
        let refused = |reason: String| ValueError::Part { reason, expected: form.to_owned() };
        let (ends, (urgency, weight)) = match text.split_once(';') {
            None => (text, (Urgency::default(), 1)),
            Some((ends, share)) => (ends, parse_share(share).map_err(refused)?),
        };
        let (listen, target) = ends.split_once('=').ok_or(ValueError::Form { expected: form })?;
        let listen = listen.parse().map_err(|error| refused(format!("{listen:?} is {error}")))?;
        Ok(Self { listen, target: Target::read(target).map_err(refused)?, urgency, weight })
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listen, target, urgency, weight } = self;
        write!(f, "{listen}={target}")?;
        if *urgency != Urgency::default() {
            write!(f, ";{urgency}")?;
        }
        if *weight == 1 { Ok(()) } else { write!(f, ";w={weight}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_has_two_ends() {
        for (text, host) in [
            ("127.0.0.1:53=dns.example:53", "dns.example"),
            ("[::1]:53=[2001:db8::1]:53", "2001:db8::1"),
            ("127.0.0.1:0=192.0.2.1:443", "192.0.2.1"),
            ("127.0.0.1:0=192.0.2.1:443;u=0", "192.0.2.1"),
            ("127.0.0.1:0=192.0.2.1:443;w=64", "192.0.2.1"),
            ("127.0.0.1:0=192.0.2.1:443;u=1;w=4", "192.0.2.1"),
        ] {
            let forward: Forward = text.parse().expect(text);
            assert_eq!(forward.target.host, host);
            assert_eq!(forward.to_string(), text);
        }
        for text in [
            "127.0.0.1:53",
            "localhost:53=dns.example:53",
            "127.0.0.1:53=dns.example",
            "127.0.0.1:53=dns.example:0",
            "127.0.0.1:53=2001:db8::1:53",
            "127.0.0.1:53=:53",
            "127.0.0.1:53=dns.example:53;u=8",
            "127.0.0.1:53=dns.example:53;",
            "127.0.0.1:53=dns.example:53;u=1;u=1",
            "127.0.0.1:53=dns.example:53;w=0",
            "127.0.0.1:53=dns.example:53;w=65",
            "127.0.0.1:53=dns.example:53;w=2;w=2",
            "127.0.0.1:53=dns.example:53;w=",
            "127.0.0.1:53=dns.example:53;u=1;",
        ] {
            assert!(text.parse::<Forward>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_target_is_a_host_and_a_port() {
        for (text, host, port, printed) in [
            ("git.example:22", "git.example", 22, "git.example:22"),
            ("192.0.2.1:443", "192.0.2.1", 443, "192.0.2.1:443"),
            ("[2001:db8::1]:22", "2001:db8::1", 22, "[2001:db8::1]:22"),
            // With brackets around every host, one line serves names and addresses of both kinds.
            ("[git.example]:22", "git.example", 22, "git.example:22"),
        ] {
            let target: Target = text.parse().expect(text);
            assert_eq!((&*target.host, target.port), (host, port));
            assert_eq!(target.to_string(), printed);
        }
        for text in ["", "git.example", "git.example:", ":22", "git.example:0", "git.example:65536"]
        {
            let error = text.parse::<Target>().expect_err(text).to_string();
            assert!(error.contains("not a host and a port; allowed: HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn an_ipv6_address_without_brackets_is_told_what_it_lacks() {
        let error = "127.0.0.1:53=2001:db8::1:53".parse::<Forward>().unwrap_err().to_string();
        assert!(error.contains("brackets"), "{error}");
        let error = "2001:db8::1:22".parse::<Target>().unwrap_err().to_string();
        assert!(error.contains("brackets"), "{error}");
    }
}
