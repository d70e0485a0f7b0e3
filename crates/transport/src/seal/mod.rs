//! Sealed packets: UDP payloads that travel beside a tunnel's QUIC connection, without
//! acknowledgements, congestion control and retransmissions (`docs/design/wire.md`, "Sealed packets").
//!
//! A [`Sealer`] makes the packets of one flow in one direction, and an [`Opener`] at the other end
//! checks and decrypts them. A packet looks like a QUIC packet with a short header, and its
//! protection is that of QUIC ([RFC 9001 §5]) with keys of its own. Both ends derive them from the
//! TLS session of the tunnel's connection ([`Secrets`]).
//!
//! Nothing here does I/O, reads a clock or draws a random number, and the memory of a flow is
//! constant. *ring* compares tags, and encrypts, in a time that does not depend on secrets.
//!
//! [RFC 9001 §5]: https://www.rfc-editor.org/rfc/rfc9001#section-5

mod header;
mod keys;
#[cfg(any(test, fuzzing))]
pub mod model;
mod opener;
mod replay;
mod sealer;
#[cfg(test)]
mod tests;

use std::num::NonZeroU64;

use self::replay::ReplayWindow;

pub use self::{
    keys::{Secret, Secrets},
    opener::{OpenError, Opener},
    sealer::{Exhausted, Sealer},
};
pub use tandem_wire::ConnectionId;

/// The largest packet number. Source: [RFC 9000 §12.3].
///
/// [RFC 9000 §12.3]: https://www.rfc-editor.org/rfc/rfc9000#section-12.3
pub const PACKET_NUMBER_MAX: u64 = (1 << 62) - 1;

/// The length of a packet before its ciphertext: the first byte, the receiver's connection ID, of these
/// bytes, and the packet number.
pub const fn header_len(id_len: usize) -> usize {
    1 + id_len + PACKET_NUMBER_LEN
}

/// The length of the longest header.
pub(crate) const HEADER_LEN_MAX: usize = header_len(ConnectionId::LEN_MAX);

/// The length of every packet number in bytes.
const PACKET_NUMBER_LEN: usize = 4;

/// The length of an authentication tag in bytes (RFC 9001 §5.3).
pub const TAG_LEN: usize = ring::aead::MAX_TAG_LEN;

/// Where the packet numbers of a direction begin, and its limits. Both ends have the same schedule.
/// Only tests use another one than [`Self::PROTOCOL`].
#[derive(Clone, Copy, Debug)]
struct Schedule {
    /// The number of the first packet.
    first_number: u64,
    /// How many packet numbers each generation of keys has.
    update_interval: NonZeroU64,
    /// The packet number within a generation from which on a receiver has the keys of the next generation instead of
    /// those of the previous one. It is smaller than the number of packets of a generation.
    late_max: u64,
    /// After this many packets that are not authentic, a receiver opens no more.
    failures_max: u64,
}

impl Schedule {
    /// The schedule of the protocol.
    ///
    /// With AES-128-GCM and packets of up to 2^16 bytes, [RFC 9001 §6.6] allows 2^23 packets
    /// with one key, and 2^52 packets that fail authentication.
    ///
    /// [RFC 9001 §6.6]: https://www.rfc-editor.org/rfc/rfc9001#section-6.6
    const PROTOCOL: Self = Self {
        first_number: 0,
        update_interval: NonZeroU64::new(1 << 20).expect("it is not 0"),
        late_max: ReplayWindow::LEN,
        failures_max: 1 << 36,
    };

    /// The generation of the keys that protect the packet with this number.
    fn generation(&self, number: u64) -> u64 {
        number / self.update_interval
    }

    /// When this is the number after the highest one, packets of the generation before can no
    /// longer be accepted.
    const fn next_from(&self, generation: u64) -> u64 {
        generation * self.update_interval.get() + self.late_max
    }
}
