//! Whether packets are marked for explicit congestion notification (ECN, RFC 9000 §13.4).
//!
//! Some paths drop packets with a mark. The engine validates marks by the counts that come back, which never happens if
//! nothing comes back. So a connection whose marked packets go unanswered sends without marks, which the engine then
//! takes for a path that removes marks. A server does not mark before its client has: a client on a path that drops
//! marks has found that out before it reaches the server.

use std::time::{Duration, Instant};

use super::observed::Progress;

/// The least silence after a marked packet after which the path is taken to drop marks. With the engine's first
/// estimate of the RTT of 100 ms, the second probe of a handshake leaves after 0.9 s, and the first one after 0.3 s.
const SILENCE: Duration = Duration::from_millis(500);

/// The same in round-trip times, of which one is not known in the handshake.
const SILENCE_RTTS: u32 = 3;

/// What is known of marks on the path of a connection.
#[derive(Clone, Debug)]
pub(super) struct EcnUse {
    pub(in crate::quic) marks: Marks,
    /// Whether marked packets have come. A client needs none.
    pub(super) is_asked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quic) enum Marks {
    /// No packet has been marked on this path.
    Untried,
    /// Packets have been marked since this time, and nothing has come that shows that one has arrived since the ends
    /// had come this far.
    Tried(Instant, Progress),
    /// Marked packets arrive.
    Arrive,
    /// They do not. Packets are not marked any longer on this path.
    Vanish,
}

impl EcnUse {
    pub(super) const fn new(is_client: bool) -> Self {
        Self { marks: Marks::Untried, is_asked: is_client }
    }

    /// Notes that something has come, so that the ends may have come further. A packet with keys of the handshake is an
    /// answer, and later an acknowledgement is.
    pub(super) fn on_arrived(&mut self, now: &Progress) {
        if let Marks::Tried(_, then) = self.marks {
            let is_answered = match then.largest_sent {
                None => now.received > then.received,
                Some(_) => now.largest_acked >= then.largest_sent,
            };
            if is_answered {
                self.marks = Marks::Arrive;
            }
        }
    }

    /// Notes that packets take another path from now on.
    pub(super) fn on_path_changed(&mut self) {
        self.marks = Marks::Untried;
    }

    /// Whether a packet that leaves now may be marked. `smoothed_rtt` is `None` in the handshake.
    pub(super) fn may_mark(
        &mut self,
        now: Instant,
        smoothed_rtt: Option<Duration>,
        progress: impl FnOnce() -> Progress,
    ) -> bool {
        if !self.is_asked {
            return false;
        }
        let silence = smoothed_rtt.map_or(SILENCE, |rtt| SILENCE.max(SILENCE_RTTS * rtt));
        match self.marks {
            Marks::Untried => self.marks = Marks::Tried(now, progress()),
            Marks::Tried(since, _) if since + silence <= now => self.marks = Marks::Vanish,
            Marks::Tried(..) | Marks::Arrive | Marks::Vanish => {}
        }
        self.marks != Marks::Vanish
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_start;

    const MS: Duration = Duration::from_millis(1);

    fn progress(received: u64, largest_sent: Option<u64>, largest_acked: Option<u64>) -> Progress {
        Progress { received, largest_sent, largest_acked }
    }

    #[test]
    fn unanswered_marks_end_and_answered_ones_go_on() {
        let start = test_start();
        let nothing = || progress(0, None, None);
        let mut silent = EcnUse::new(true);
        for (after, marked) in [(0, true), (300, true), (900, false), (2100, false)] {
            assert_eq!(silent.may_mark(start + after * MS, None, nothing), marked, "{after} ms");
        }
        silent.on_arrived(&progress(1, None, None));
        let later = start + 2200 * MS;
        assert!(!silent.may_mark(later, Some(50 * MS), nothing), "the engine has given marks up");

        let mut answered = EcnUse::new(true);
        assert!(answered.may_mark(start, None, nothing));
        answered.on_arrived(&progress(1, None, None));
        let later = start + 9000 * MS;
        assert!(answered.may_mark(later, Some(40 * MS), nothing));
        // On another path everything has to be found out again. What arrives may still belong to the path before.
        answered.on_path_changed();
        assert!(answered.may_mark(later, Some(40 * MS), || progress(50, Some(70), Some(60))));
        answered.on_arrived(&progress(55, Some(80), Some(69)));
        let (soon, later) = (later + 400 * MS, later + 600 * MS);
        assert!(answered.may_mark(soon, Some(40 * MS), nothing));
        let mut acknowledged = answered.clone();
        acknowledged.on_arrived(&progress(56, Some(80), Some(70)));
        assert!(acknowledged.may_mark(later, Some(40 * MS), nothing));
        assert!(!answered.may_mark(later, Some(40 * MS), nothing));
    }

    #[test]
    fn a_server_marks_when_its_client_does() {
        let start = test_start();
        let nothing = || progress(0, None, None);
        let mut server = EcnUse::new(false);
        assert!(!server.may_mark(start, None, nothing));
        server.is_asked = true;
        assert!(server.may_mark(start, None, nothing));
        assert!(!server.may_mark(start + 600 * MS, None, nothing), "the client hears nothing");
    }
}
