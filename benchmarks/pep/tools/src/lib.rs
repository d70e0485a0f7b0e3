//! What the programs of the benchmark share.

use tandem_pep::{Config, TcpForm};
use tandem_wire::{PepId, PepKey};

/// The port of the server.
pub const SERVER_PORT: u16 = 443;

/// The port of the client.
pub const CLIENT_PORT: u16 = 50_000;

/// Bytes of data in each TCP segment; `watch.bpf.c` has the same number.
pub const TCP_BYTES: u32 = 1180;

/// Bytes of the payload of each UDP packet.
pub const UDP_BYTES: usize = 1200;

/// The settings of all PEPs. They have a key, because MACs are a large part of the work.
pub fn config() -> Config {
    let key = Some(PepKey::new([9; PepKey::LEN]));
    Config { id: PepId(1), key, flows_max: 1000, tcp_form: TcpForm::Flagless }
}
