//! Where operators reach a server, and users a client.

use std::{fmt, net::SocketAddr, str::FromStr};

use serde_with::SerializeDisplay;
use tandem_files::setting::ValueError;
use tandem_net::admin::Address;

/// What stands before the path of a Unix socket.
const UNIX: &str = "unix:";

/// The address of an admin listener, which only this machine can reach.
#[derive(Clone, Debug, PartialEq, Eq, SerializeDisplay)]
pub struct AdminAddr(pub Address);

impl FromStr for AdminAddr {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = "a loopback address and a port, such as 127.0.0.1:9433, or unix:PATH";
        if let Some(path) = text.strip_prefix(UNIX) {
            let is_path = !path.is_empty();
            return is_path
                .then(|| Self(Address::Unix(path.into())))
                .ok_or(ValueError::Form { expected });
        }
        let address: SocketAddr = text.parse().map_err(|_| ValueError::Form { expected })?;
        if !address.ip().to_canonical().is_loopback() {
            let reason = format!(
                "other machines could reach {address}, and everybody who can reach this listener sees the \
                 users of a server, or the targets of a client; let a web server with authentication or `ssh -L` pass requests on to a \
                 loopback address"
            );
            return Err(ValueError::Part { reason, expected: expected.to_owned() });
        }
        Ok(Self(Address::Tcp(address)))
    }
}

impl fmt::Display for AdminAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_unix_sockets_are_allowed() {
        for text in
            ["127.0.0.1:9433", "127.9.9.9:1", "[::1]:9433", "unix:/run/tandem/admin", "unix:a"]
        {
            assert_eq!(text.parse::<AdminAddr>().unwrap().to_string(), text);
        }
        for text in ["0.0.0.0:9433", "[::]:9433", "192.0.2.1:9433", "[::ffff:192.0.2.1]:1"] {
            let error = text.parse::<AdminAddr>().unwrap_err().to_string();
            assert!(error.contains("other machines") && error.contains("ssh -L"), "{error}");
        }
        for text in ["", "unix:", "9433", "localhost:9433"] {
            assert!(matches!(text.parse::<AdminAddr>(), Err(ValueError::Form { .. })), "{text}");
        }
    }
}
