//! Explicit congestion notification of a sender: marks, and the validation of what the peer says of them
//! ([RFC 9000 §13.4.2]).
//!
//! [RFC 9000 §13.4.2]: https://www.rfc-editor.org/rfc/rfc9000#section-13.4.2

use crate::frame::EcnCounts;

/// The marks on one path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EcnValidation {
    state: State,
    /// Packets that left with a mark on this path.
    tested: u64,
    /// Packets that left with a mark, on any path, and that the peer has not counted.
    marked: u64,
    /// The counts of the newest ACK frame.
    counts: EcnCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The first packets are marked (RFC 9000 A.4).
    Testing,
    /// No more packets are marked until an acknowledgement tells.
    Unknown,
    Capable,
    Failed,
}

/// What an ACK frame means for congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EcnSignal {
    None,
    /// More packets had the mark ECN-CE.
    Congestion,
}

impl EcnValidation {
    /// How many packets are marked before the first acknowledgement (RFC 9000 A.4).
    const TESTING: u64 = 10;

    pub(crate) const fn new(is_on: bool) -> Self {
        let state = if is_on { State::Testing } else { State::Failed };
        let counts = EcnCounts { ect0: 0, ect1: 0, ce: 0 };
        Self { state, tested: 0, marked: 0, counts }
    }

    /// Validates marks again, because packets take another path now.
    pub(crate) const fn on_path_change(&mut self, is_on: bool) {
        *self = Self { marked: self.marked, counts: self.counts, ..Self::new(is_on) };
    }

    /// Whether packets get the mark ECT(0) now.
    pub(crate) fn marks(&self) -> bool {
        matches!(self.state, State::Testing | State::Capable)
    }

    pub(crate) fn on_marked(&mut self) {
        self.marked += 1;
        self.tested += 1;
        if self.state == State::Testing && self.tested >= Self::TESTING {
            self.state = State::Unknown;
        }
    }

    /// All packets that were marked first are lost, or time is over: the path may drop what is marked.
    pub(crate) fn on_probe_timeout(&mut self) {
        if matches!(self.state, State::Testing | State::Unknown) && self.tested > 0 {
            self.state = State::Failed;
        }
    }

    /// An ACK frame that raises the largest acknowledged number. `newly_marked`: how many packets it newly acknowledges
    /// that had left with a mark on this path.
    pub(crate) fn on_ack(&mut self, counts: Option<EcnCounts>, newly_marked: u64) -> EcnSignal {
        if self.state == State::Failed {
            return EcnSignal::None;
        }
        let Some(counts) = counts else {
            // §13.4.2.1: "If an ACK frame newly acknowledges a packet that the endpoint sent with either the ECT(0) or
            // ECT(1) codepoint set, ECN validation fails if the corresponding ECN counts are not present"
            if newly_marked > 0 {
                self.state = State::Failed;
            }
            return EcnSignal::None;
        };
        let before = self.counts;
        let (Some(ect0), Some(ect1), Some(ce)) = (
            counts.ect0.checked_sub(before.ect0),
            counts.ect1.checked_sub(before.ect1),
            counts.ce.checked_sub(before.ce),
        ) else {
            // ACK frames of different paths of the network overtake each other, but this one raises the largest number.
            self.state = State::Failed;
            return EcnSignal::None;
        };
        // "ECN validation also fails if the sum of the increase in ECT(0) and ECN-CE counts is less than the number of
        // newly acknowledged packets that were originally sent with an ECT(0) marking." It may fail, and here does, if
        // more are counted than were sent.
        let told = ect0.saturating_add(ce);
        if ect1 > 0 || told < newly_marked || told > self.marked {
            self.state = State::Failed;
            return EcnSignal::None;
        }
        self.marked -= told;
        self.counts = counts;
        if newly_marked > 0 {
            self.state = State::Capable;
        }
        if ce > 0 { EcnSignal::Congestion } else { EcnSignal::None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "an ACK frame may have none")]
    fn counts(ect0: u64, ect1: u64, ce: u64) -> Option<EcnCounts> {
        Some(EcnCounts { ect0, ect1, ce })
    }

    #[test]
    fn counts_that_cannot_be_true_end_the_marks() {
        use EcnSignal::{Congestion, None as Nothing};
        for (what, told, newly, signal, marks) in [
            ("all arrived with their mark", counts(4, 0, 0), 4, Nothing, true),
            ("one was congested", counts(3, 0, 1), 4, Congestion, true),
            ("more were counted than this frame acknowledges", counts(6, 0, 0), 4, Nothing, true),
            ("nothing newly acknowledged was marked", counts(0, 0, 0), 0, Nothing, false),
            ("the marks were removed", None, 4, Nothing, false),
            ("one mark was removed", counts(3, 0, 0), 4, Nothing, false),
            ("a mark was changed to ECT(1)", counts(3, 1, 0), 4, Nothing, false),
            ("more than were sent", counts(11, 0, 0), 4, Nothing, false),
            ("far more than were sent", counts(0, 0, u64::MAX), 4, Nothing, false),
        ] {
            let mut ecn = EcnValidation::new(true);
            for _ in 0..10 {
                assert!(ecn.marks());
                ecn.on_marked();
            }
            assert!(!ecn.marks(), "it waits for an acknowledgement");
            assert_eq!(ecn.on_ack(told, newly), signal, "{what}");
            assert_eq!(ecn.marks(), marks, "{what}");
        }
    }

    #[test]
    fn a_path_that_answers_nothing_gets_no_marks() {
        let mut ecn = EcnValidation::new(true);
        ecn.on_marked();
        ecn.on_probe_timeout();
        assert!(!ecn.marks());
    }

    #[test]
    fn counts_that_fall_end_the_marks() {
        let mut ecn = EcnValidation::new(true);
        (0..10).for_each(|_| ecn.on_marked());
        ecn.on_ack(counts(4, 0, 0), 4);
        assert!(ecn.marks());
        ecn.on_ack(counts(3, 0, 0), 0);
        assert!(!ecn.marks());
    }
}
