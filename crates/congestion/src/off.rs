use tandem_units::ByteCount;

use crate::{Algorithm, CongestionEvent};

/// No congestion control: the window is never full, and packets are not paced.
///
/// This is for experiments with a tunnel whose inner connections have congestion control of their
/// own, on a path that carries nothing else. It must not be used on the Internet (RFC 9002 §7).
#[derive(Clone, Copy, Debug, Default)]
pub struct Off;

/// 2^40 bytes (1.1 TB): more than any path holds. noq does not pace a sender whose window is above
/// 2^32 bytes. A very high pacing rate instead would make its pacer spin.
const WINDOW: ByteCount = ByteCount::new(1 << 40);

impl Algorithm for Off {
    fn on_congestion_event(&mut self, _event: CongestionEvent) {}

    fn on_mtu_update(&mut self, _max_datagram_size: ByteCount) {}

    fn congestion_window(&self) -> ByteCount {
        WINDOW
    }

    fn initial_window(&self) -> ByteCount {
        WINDOW
    }
}
