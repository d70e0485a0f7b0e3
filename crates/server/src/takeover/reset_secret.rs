//! The secret of a server's stateless resets.

use std::{fs, net::SocketAddr};

use sha2::{Digest, Sha256};
use tandem_node::quic::ResetSecret;

/// The secret of the server that listens at this address of this machine.
///
/// Servers with one certificate often have one private key: a proxy and an origin, or the machines of one name. With
/// the same secret, each would answer a packet of another one's connection with the reset that ends it (RFC 9000
/// §21.11). After a restart a server has the same secret again, unless it listens at another address or the machine has
/// got another name. Then clients wait for their idle timeout.
pub(super) fn of_server(of_key: &ResetSecret, listens: SocketAddr) -> ResetSecret {
    let machine = MachineMarks {
        id: fs::read_to_string("/etc/machine-id").unwrap_or_default(),
        name: rustix::system::uname().nodename().to_bytes().to_vec(),
    };
    machine.secret(of_key, listens)
}

/// What tells a machine from others. Copies of a virtual machine may have one ID, and containers have none, or that of
/// their image.
struct MachineMarks {
    id: String,
    name: Vec<u8>,
}

impl MachineMarks {
    fn secret(&self, ResetSecret(of_key): &ResetSecret, listens: SocketAddr) -> ResetSecret {
        let mut hash = Sha256::new().chain_update(b"tandem: stateless resets of a server\0");
        let listens = listens.to_string();
        for part in [&of_key[..], listens.as_bytes(), self.id.as_bytes(), &self.name] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        ResetSecret(hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_with_a_key_has_a_secret_of_its_own() {
        let machine = |id: &str, name: &str| MachineMarks { id: id.to_owned(), name: name.into() };
        let (key, other_key) = (ResetSecret([1; 32]), ResetSecret([2; 32]));
        let at = |address: &str| address.parse().unwrap();
        let one = machine("a", "b").secret(&key, at("[::]:443"));
        assert_eq!(one, machine("a", "b").secret(&key, at("[::]:443")), "also after a restart");
        for (what, other) in [
            ("another key", machine("a", "b").secret(&other_key, at("[::]:443"))),
            ("another port", machine("a", "b").secret(&key, at("[::]:4433"))),
            ("another address", machine("a", "b").secret(&key, at("0.0.0.0:443"))),
            ("another machine", machine("c", "b").secret(&key, at("[::]:443"))),
            ("another container", machine("a", "c").secret(&key, at("[::]:443"))),
            ("the same bytes in other parts", machine("ab", "").secret(&key, at("[::]:443"))),
        ] {
            assert!(one != other, "{what}");
        }
        assert_eq!(of_server(&key, at("[::]:1")), of_server(&key, at("[::]:1")));
    }
}
