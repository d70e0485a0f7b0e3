//! When a transfer is given up that lasts too long, or in which nothing comes.

use std::time::{Duration, Instant};

use tandem_units::{ByteCount, HumanDuration, Rate};

use crate::error::TransferError;

/// The time without a byte after which a transfer is given up. A server that has nothing to send yet, or a tunnel that
/// is built again, takes seconds.
const STALL: Duration = Duration::from_secs(300);

/// The same if a least rate is asked for; curl's default too.
const TOO_SLOW: Duration = Duration::from_secs(30);

/// How often a transfer is looked at.
pub(crate) const LOOK: Duration = Duration::from_millis(250);

/// The flags about it. Their names are those of curl.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct PatienceSettings {
    /// Time for the whole transfer, from the start of the program, after which it is given up [default: no limit]
    #[arg(long, value_name = "TIME", env = "TANDEM_MAX_TIME")]
    max_time: Option<HumanDuration>,

    #[arg(
        long, value_name = "TIME", env = "TANDEM_SPEED_TIME",
        help = format!(
            "Time after which a transfer is given up that has carried no byte of the file in it, or less than \
             --speed-limit; 0 waits for ever [default: {}, or {} with --speed-limit]",
            HumanDuration(STALL), HumanDuration(TOO_SLOW),
        )
    )]
    speed_time: Option<HumanDuration>,

    /// Least rate of a transfer; one that is slower for --speed-time is given up [default: any]
    #[arg(long, value_name = "RATE", env = "TANDEM_SPEED_LIMIT")]
    speed_limit: Option<Rate>,
}

/// What is left of the patience with one transfer, all redirects included.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    began: Instant,
    max_time: Option<Duration>,
    speed_time: Option<Duration>,
    speed_limit: Option<Rate>,
    /// When the transfer was last fast enough, and the bytes that it had carried then.
    last: (Instant, u64),
}

/// Why a transfer was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GaveUp {
    /// It was not complete in time.
    MaxTime(Duration),
    /// It was too slow for so long.
    TooSlow {
        /// The bytes in this time.
        bytes: u64,
        /// The time.
        time: Duration,
    },
}

impl From<GaveUp> for TransferError {
    fn from(why: GaveUp) -> Self {
        match why {
            GaveUp::MaxTime(time) => Self::MaxTime { time: HumanDuration(time) },
            GaveUp::TooSlow { bytes, time } => {
                let time = HumanDuration(time);
                Self::TooSlow { bytes: ByteCount::new(bytes), time }
            }
        }
    }
}

impl PatienceSettings {
    /// Begins now.
    pub(crate) fn begin(&self, now: Instant) -> Patience {
        let default = if self.speed_limit.is_some() { TOO_SLOW } else { STALL };
        let speed_time = self.speed_time.map_or(default, Duration::from);
        Patience {
            began: now,
            max_time: self.max_time.map(Duration::from),
            speed_time: (!speed_time.is_zero()).then_some(speed_time),
            speed_limit: self.speed_limit,
            last: (now, 0),
        }
    }
}

impl Patience {
    /// One that never ends.
    #[cfg(feature = "lab")]
    pub(crate) const fn endless(now: Instant) -> Self {
        Self { began: now, max_time: None, speed_time: None, speed_limit: None, last: (now, 0) }
    }

    /// Begins with the bytes of another request.
    pub(crate) const fn restart(&mut self, now: Instant) {
        self.last = (now, 0);
    }

    /// Does not count the time until now, in which a tunnel was broken. How long that may last is another setting.
    pub(crate) const fn excuse(&mut self, now: Instant) {
        self.last.0 = now;
    }

    /// Looks at a transfer that has carried this many bytes. Returns why it is given up.
    pub(crate) fn look(&mut self, now: Instant, bytes: u64) -> Option<GaveUp> {
        if let Some(max) = self.max_time.filter(|&max| now >= self.began + max) {
            return Some(GaveUp::MaxTime(max));
        }
        let (since, before) = self.last;
        let (time, carried) = (now.saturating_duration_since(since), bytes.saturating_sub(before));
        let least = self.speed_limit.map_or(ByteCount::ZERO, |rate| rate.bytes_in(time));
        if carried > 0 && carried >= least.get() {
            self.last = (now, bytes);
            return None;
        }
        let over = self.speed_time.filter(|&speed_time| time >= speed_time);
        over.map(|time| GaveUp::TooSlow { bytes: carried, time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second in which a transfer is given up. The transfer has carried these bytes after each second.
    fn given_up(settings: &PatienceSettings, bytes: impl Fn(u64) -> u64) -> Option<(u64, GaveUp)> {
        let begin = tandem_net::clock::now();
        let mut patience = settings.begin(begin);
        (0..=1000).find_map(|second| {
            let now = begin + Duration::from_secs(second);
            Some((second, patience.look(now, bytes(second))?))
        })
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_transfer_without_a_byte_is_given_up() {
        let too_slow = |time, bytes| Some((time, GaveUp::TooSlow { bytes, time: seconds(time) }));
        let default = PatienceSettings::default();
        assert_eq!(given_up(&default, |_| 0), too_slow(300, 0));
        assert_eq!(given_up(&default, |second| second / 299), None, "a byte from time to time");
        let after_progress = given_up(&default, |second| second.min(20));
        assert_eq!(after_progress.map(|it| it.0), Some(320));
        let speed_time = |time| Some(HumanDuration(seconds(time)));
        let short = PatienceSettings { speed_time: speed_time(7), ..default.clone() };
        assert_eq!(given_up(&short, |_| 0), too_slow(7, 0));
        let endless = PatienceSettings { speed_time: speed_time(0), ..default.clone() };
        assert_eq!(given_up(&endless, |_| 0), None);
        let rate = Some(Rate::from_bps(8000).unwrap());
        let slow = PatienceSettings { speed_limit: rate, ..default };
        assert_eq!(given_up(&slow, |second| second * 1000), None);
        assert_eq!(given_up(&slow, |second| second * 999), too_slow(30, 30 * 999));
    }

    #[test]
    fn the_whole_time_is_limited_whatever_comes() {
        let settings =
            PatienceSettings { max_time: Some(HumanDuration(seconds(60))), ..Default::default() };
        let expected = Some((60, GaveUp::MaxTime(seconds(60))));
        assert_eq!(given_up(&settings, |second| second * 1_000_000), expected);
    }

    #[test]
    fn the_time_of_a_broken_tunnel_does_not_count() {
        let begin = tandem_net::clock::now();
        let mut patience = PatienceSettings::default().begin(begin);
        for second in 0..1000 {
            let now = begin + seconds(second);
            patience.excuse(now);
            assert_eq!(patience.look(now, 0), None);
        }
        assert!(patience.look(begin + seconds(1300), 0).is_some());
        assert_eq!(Patience::endless(begin).look(begin + seconds(100_000), 0), None);
    }
}
