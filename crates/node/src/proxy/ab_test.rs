//! A/B tests of modes: a proxy gives a part of its users less than they ask for, and counts how long the transfers of
//! both take.
//!
//! A *transfer* is a time in which the payloads of a flow follow each other without a pause of a second. The proxy sees
//! neither requests nor their ends, since the connection inside is encrypted. It ends with the last payload in either
//! direction: the client acknowledges what came last.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, Instant},
};

use ring::digest::{Context, SHA256};
use serde_with::SerializeDisplay;

use super::users::Direction;

/// A transfer ends when no payload passes for this time. It is longer than the RTT of a satellite.
const PAUSE: Duration = Duration::from_secs(1);

/// What the users of one part get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arm {
    /// What they ask for: repair, and reports on the tunnel for the origin.
    Tecc,
    /// Repair without reports.
    Rmdt,
    /// Neither.
    Mdt,
}

impl Arm {
    /// All of them, in the order of [`Transfers`].
    pub const ALL: [Self; 3] = [Self::Tecc, Self::Rmdt, Self::Mdt];

    /// The name of the mode.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tecc => "tecc",
            Self::Rmdt => "rmdt",
            Self::Mdt => "mdt",
        }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which part of the users is in which arm. The same user is always in the same one, also after a restart and at
/// another machine, as long as the parts do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SerializeDisplay)]
pub struct AbTest {
    /// The part of each of [`Arm::ALL`], of which two at least are not 0.
    parts: [u32; 3],
}

/// The error for a text that is no [`AbTest`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AbTestError {
    /// A part is not written as it should be.
    #[error("{0:?} is not MODE=PART with one of tecc, rmdt, mdt and a number from 1 to 1000000")]
    Part(String),
    /// A mode is there twice.
    #[error("{0} is there twice")]
    Twice(&'static str),
    /// There is nothing to compare.
    #[error("an A/B test needs two modes at least, as in tecc=50,mdt=50")]
    Alone,
}

impl AbTest {
    /// The largest part.
    const PART_MAX: u32 = 1_000_000;

    /// The arm of a user. `user` is any name.
    pub fn arm(&self, user: &[u8]) -> Arm {
        let mut context = Context::new(&SHA256);
        context.update(self.to_string().as_bytes());
        context.update(&[0]);
        context.update(user);
        let digest = context.finish();
        let number = digest.as_ref().first_chunk().copied().map_or(0, u64::from_be_bytes);
        let all: u64 = self.parts.iter().map(|part| u64::from(*part)).sum();
        let mut left = number % all.max(1);
        for (arm, part) in Arm::ALL.into_iter().zip(self.parts) {
            if left < part.into() {
                return arm;
            }
            left -= u64::from(part);
        }
        Arm::Tecc // there are no parts, which `from_str` refuses
    }
}

impl fmt::Display for AbTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = Arm::ALL.into_iter().zip(self.parts).filter(|(_, part)| *part > 0);
        for (index, (arm, part)) in parts.enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{arm}={part}")?;
        }
        Ok(())
    }
}

impl FromStr for AbTest {
    type Err = AbTestError;

    fn from_str(text: &str) -> Result<Self, AbTestError> {
        let mut parts = [0; 3];
        for item in text.split(',') {
            let error = || AbTestError::Part(item.to_owned());
            let (name, part) = item.split_once('=').ok_or_else(error)?;
            let arms = Arm::ALL.into_iter().zip(&mut parts);
            let (arm, place) =
                arms.into_iter().find(|(arm, _)| arm.name() == name).ok_or_else(error)?;
            if *place != 0 {
                return Err(AbTestError::Twice(arm.name()));
            }
            let part = part.parse().ok().filter(|part| (1..=Self::PART_MAX).contains(part));
            *place = part.ok_or_else(error)?;
        }
        if parts.iter().filter(|part| **part > 0).count() < 2 {
            return Err(AbTestError::Alone);
        }
        Ok(Self { parts })
    }
}

/// How many transfers took how long, by arm and size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers([[TransferTimes; Transfers::SIZES.len()]; Arm::ALL.len()]);

/// The times of transfers of one arm and size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferTimes {
    /// How many transfers.
    pub count: u64,
    /// The sum of their times in microseconds.
    pub micros: u64,
    /// The sum of the natural logarithms of the times in microseconds, in millionths: the geometric mean and its
    /// confidence interval follow from this sum and the next one.
    pub logs: u64,
    /// The sum of the squares of these logarithms, in millionths.
    pub log_squares: u64,
}

impl Transfers {
    /// The sizes: the name, and the bytes to the client below which a transfer has it.
    pub const SIZES: [(&str, u64); 5] = [
        ("below 10 kB", 10_000),
        ("10 to 100 kB", 100_000),
        ("100 kB to 1 MB", 1_000_000),
        ("1 to 10 MB", 10_000_000),
        ("10 MB and more", u64::MAX),
    ];

    /// The times of each arm and size.
    pub fn rows(&self) -> impl Iterator<Item = (Arm, &'static str, TransferTimes)> {
        Arm::ALL.into_iter().zip(self.0).flat_map(|(arm, times)| {
            Self::SIZES.into_iter().zip(times).map(move |((size, _), times)| (arm, size, times))
        })
    }

    fn count(&mut self, transfer: &Transfer) {
        let times = self.0.get_mut(transfer.arm as usize).and_then(|times| {
            let size = Self::SIZES.iter().position(|(_, end)| transfer.to_client < *end);
            times.get_mut(size.unwrap_or(Self::SIZES.len() - 1))
        });
        let Some(times) = times else { return }; // each arm and size has a place
        times.add(&TransferTimes::of(transfer.last.saturating_duration_since(transfer.began)));
    }
}

impl TransferTimes {
    /// The times of one transfer.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the logarithm of a time in microseconds is between 0 and 45"
    )]
    pub fn of(time: Duration) -> Self {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        let log = (micros as f64).ln();
        let [logs, log_squares] = [log, log * log].map(|it| (it * 1e6).round() as u64);
        Self { count: 1, micros, logs, log_squares }
    }

    /// Adds the times of other transfers.
    pub const fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.micros = self.micros.saturating_add(other.micros);
        self.logs += other.logs;
        self.log_squares += other.log_squares;
    }
}

/// A transfer that has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) arm: Arm,
    began: Instant,
    last: Instant,
    to_client: u64,
}

impl Transfer {
    pub(crate) const fn new(now: Instant, arm: Arm) -> Self {
        Self { arm, began: now, last: now, to_client: 0 }
    }

    /// Counts a payload that passes.
    pub(crate) fn on_payload(
        &mut self,
        now: Instant,
        (way, len): (Direction, usize),
        transfers: &mut Transfers,
    ) {
        if now.saturating_duration_since(self.last) >= PAUSE {
            self.end(transfers);
            *self = Self::new(now, self.arm);
        }
        self.last = now;
        if way == Direction::ToClient {
            self.to_client += len as u64;
        }
    }

    /// Counts the transfer, which has ended. One without a payload for the client is none.
    pub(crate) fn end(&self, transfers: &mut Transfers) {
        if self.to_client > 0 {
            transfers.count(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::test_start;

    fn parsed(text: &str) -> Result<AbTest, AbTestError> {
        text.parse()
    }

    #[test]
    fn parts_parse_and_errors_name_what_is_wrong() {
        for text in ["tecc=50,mdt=50", "rmdt=1,mdt=1000000", "tecc=1,rmdt=2,mdt=3"] {
            assert_eq!(parsed(text).map(|it| it.to_string()).as_deref(), Ok(text));
        }
        assert_eq!(parsed("mdt=1,tecc=2").map(|it| it.to_string()).as_deref(), Ok("tecc=2,mdt=1"));
        for (text, part) in [
            ("", ""),
            ("tecc", "tecc"),
            ("tecc=50,", ""),
            ("tecc=0,mdt=1", "tecc=0"),
            ("tecc=50,mst=50", "mst=50"),
            ("tecc=50%,mdt=50%", "tecc=50%"),
            ("tecc=1000001,mdt=1", "tecc=1000001"),
            ("tecc=1, mdt=1", " mdt=1"),
        ] {
            assert_eq!(parsed(text), Err(AbTestError::Part(part.to_owned())), "{text}");
        }
        assert_eq!(parsed("mdt=1,mdt=1"), Err(AbTestError::Twice("mdt")));
        assert_eq!(parsed("tecc=50"), Err(AbTestError::Alone));
    }

    #[test]
    fn users_are_divided_by_the_parts_and_stay_where_they_are() {
        let test = parsed("tecc=50,rmdt=30,mdt=20").unwrap();
        let arms: Vec<_> = (0..10_000).map(|user| test.arm(format!("{user}").as_bytes())).collect();
        for (arm, percent) in [(Arm::Tecc, 50), (Arm::Rmdt, 30), (Arm::Mdt, 20)] {
            let users = arms.iter().filter(|it| **it == arm).count();
            assert!(users.abs_diff(percent * 100) < 200, "{arm}: {users} of 10,000");
        }
        let again = parsed("mdt=20,rmdt=30,tecc=50").unwrap();
        assert!(
            arms.iter()
                .enumerate()
                .all(|(user, arm)| { again.arm(format!("{user}").as_bytes()) == *arm })
        );
        // Another test divides them in another way.
        let other = parsed("tecc=51,rmdt=30,mdt=19").unwrap();
        let moved = (0..10_000).filter(|user| {
            let user = format!("{user}");
            other.arm(user.as_bytes()) != test.arm(user.as_bytes())
        });
        assert!(moved.count() > 5000);
    }

    #[test]
    fn a_transfer_ends_with_a_pause_of_a_second() {
        let (start, mut transfers) = (test_start(), Transfers::default());
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut transfer = Transfer::new(start, Arm::Rmdt);
        for (time, payload) in [
            (100, (Direction::ToTarget, 100)),
            (150, (Direction::ToClient, 9_000)),
            (1_149, (Direction::ToClient, 5_000)),
            (1_200, (Direction::ToTarget, 50)), // the client acknowledges it
            (2_200, (Direction::ToTarget, 100)),
            (2_300, (Direction::ToClient, 2_000_000)),
            (4_000, (Direction::ToTarget, 30)), // nothing comes back
        ] {
            transfer.on_payload(at(time), payload, &mut transfers);
        }
        transfer.end(&mut transfers);
        let rows: Vec<_> = transfers.rows().filter(|(_, _, times)| times.count > 0).collect();
        let times = |milliseconds| TransferTimes::of(Duration::from_millis(milliseconds));
        assert_eq!(
            rows,
            [(Arm::Rmdt, "10 to 100 kB", times(1_200)), (Arm::Rmdt, "1 to 10 MB", times(100)),]
        );
    }
}
