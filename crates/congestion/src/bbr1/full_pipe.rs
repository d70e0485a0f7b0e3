//! The detection of a full pipe, which ends Startup.

use tandem_units::{ByteCount, Rate};

use super::gain;
use crate::Factor;

/// The number of rounds without growth after which the pipe is full.
const FULL_BANDWIDTH_ROUNDS: u32 = 3;
/// The number of application-limited rounds without growth after which Startup ends.
const APP_LIMITED_ROUNDS: u32 = 8;
/// Application-limited rounds count only after this number of initial windows was delivered.
/// Requests and handshakes, which are always application-limited, therefore do not count.
const APP_LIMITED_INITIAL_WINDOWS: u64 = 20;
/// The least size of one of these windows, in datagrams.
const APP_LIMITED_WINDOW_PACKETS: u32 = 30;
/// The least share of loss that ends Startup after one round without growth: the queue overflows.
/// Startup then sends nearly three times as much as arrives, so that two packets of three are lost.
const OVERFLOW_LOSS: Factor = Factor::from_percent(40);
/// The least number of full packets that such a round loses. On slow paths a few lost packets are a
/// large share, and two more rounds cost little.
const OVERFLOW_PACKETS: u64 = 100;

/// `BBR.filled_pipe`, `BBR.full_bw` and `BBR.full_bw_count`, and what ends Startup beside them.
#[derive(Clone, Debug, Default)]
pub(super) struct FullPipe {
    is_filled: bool,
    bandwidth: Option<Rate>,
    /// The number of rounds without growth that were not application-limited.
    rounds: u32,
    /// The number of application-limited rounds without growth.
    app_limited_rounds: u32,
    /// The bytes lost and acknowledged in the present round.
    lost: ByteCount,
    acked: ByteCount,
}

/// What a round of Startup has shown when it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartupRound {
    pub(super) bandwidth: Rate,
    pub(super) is_app_limited: bool,
    /// All bytes that were delivered on the connection.
    pub(super) delivered: ByteCount,
    /// The initial window, in packets.
    pub(super) initial_window_packets: u32,
    /// The size of a full packet.
    pub(super) packet: ByteCount,
    /// Whether an overflowing queue ends Startup at once.
    pub(super) ends_at_overflow: bool,
}

impl FullPipe {
    pub(super) const fn is_filled(&self) -> bool {
        self.is_filled
    }

    /// Ends Startup, because something else has shown that the pipe is full.
    pub(super) const fn fill(&mut self) {
        self.is_filled = true;
    }

    /// Measures the growth of the bandwidth anew.
    pub(super) const fn restart(&mut self) {
        self.bandwidth = None;
    }

    /// Notes the bytes that an ACK frame acknowledges and declares lost.
    pub(super) fn on_acked(&mut self, acked: ByteCount, lost: ByteCount) {
        self.acked += acked;
        self.lost += lost;
    }

    /// Ends a round.
    pub(super) fn on_round(&mut self, round: StartupRound) {
        let (lost, acked) = (std::mem::take(&mut self.lost), std::mem::take(&mut self.acked));
        if self.bandwidth.is_none_or(|full| round.bandwidth >= gain::FULL_BANDWIDTH.of_rate(full)) {
            self.bandwidth = Some(round.bandwidth);
            (self.rounds, self.app_limited_rounds) = (0, 0);
            return;
        }
        if !round.is_app_limited {
            self.rounds += 1;
        } else if round.delivered > round.app_limited_limit() {
            self.app_limited_rounds += 1;
        }
        let overflows = round.ends_at_overflow
            && lost >= OVERFLOW_LOSS.of_bytes(lost + acked)
            && lost >= round.packet.saturating_mul(OVERFLOW_PACKETS);
        self.is_filled |= overflows
            || self.rounds >= FULL_BANDWIDTH_ROUNDS
            || self.app_limited_rounds >= APP_LIMITED_ROUNDS;
    }
}

impl StartupRound {
    fn app_limited_limit(&self) -> ByteCount {
        let window = self.initial_window_packets.max(APP_LIMITED_WINDOW_PACKETS);
        self.packet.saturating_mul(window.into()).saturating_mul(APP_LIMITED_INITIAL_WINDOWS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: ByteCount = ByteCount::new(1000);
    const FAST: StartupRound = StartupRound {
        bandwidth: Rate::from_mbps(10),
        is_app_limited: false,
        delivered: ByteCount::new(1_000_000),
        initial_window_packets: 10,
        packet: PACKET,
        ends_at_overflow: true,
    };

    /// Ends rounds that are alike, and returns after how many of them the pipe is full.
    fn rounds_until_full(round: StartupRound, (lost, acked): (u64, u64)) -> Option<usize> {
        let mut pipe = FullPipe::default();
        (1..=20).find(|_| {
            pipe.on_acked(PACKET.saturating_mul(acked), PACKET.saturating_mul(lost));
            pipe.on_round(round);
            pipe.is_filled()
        })
    }

    #[test]
    fn rounds_without_growth_fill_the_pipe() {
        let waiting = StartupRound { is_app_limited: true, ..FAST };
        let requests = StartupRound { delivered: ByteCount::new(600_000), ..waiting };
        // The first round is always growth.
        assert_eq!(rounds_until_full(FAST, (0, 100)), Some(4));
        assert_eq!(rounds_until_full(waiting, (0, 100)), Some(9));
        assert_eq!(rounds_until_full(requests, (0, 100)), None);
    }

    #[test]
    fn one_round_without_growth_that_loses_much_fills_the_pipe() {
        for (lost, acked, rounds) in [
            (100, 150, 2),
            (99, 148, 4),   // too few packets
            (100, 151, 4),  // less than two fifths
            (600, 1000, 4), // less than two fifths
            (2000, 1000, 2),
        ] {
            let found = rounds_until_full(FAST, (lost, acked));
            assert_eq!(found, Some(rounds), "{lost} lost, {acked} acknowledged");
        }
    }

    #[test]
    fn a_round_with_growth_loses_what_it_may() {
        let mut pipe = FullPipe::default();
        for mbps in [10, 13, 17, 22] {
            pipe.on_acked(PACKET.saturating_mul(100), PACKET.saturating_mul(900));
            pipe.on_round(StartupRound { bandwidth: Rate::from_mbps(mbps), ..FAST });
            assert!(!pipe.is_filled(), "{mbps} Mbit/s");
        }
        // Its losses do not count in the next round.
        pipe.on_acked(PACKET.saturating_mul(900), ByteCount::ZERO);
        pipe.on_round(StartupRound { bandwidth: Rate::from_mbps(22), ..FAST });
        assert!(!pipe.is_filled());
    }
}
