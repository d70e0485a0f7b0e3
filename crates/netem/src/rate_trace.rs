use std::{
    fmt, fs,
    io::Read,
    num::NonZeroU64,
    path::{Path, PathBuf},
    time::Duration,
};

use tandem_units::{ByteCount, Rate};

/// The number of bytes that one line of a trace lets pass.
pub const OPPORTUNITY: ByteCount = ByteCount::new(1504);

/// The bytes that a packet counts with on a trace, in addition to its IP length. Mahimahi's TUN
/// device puts 4 bytes in front of each packet.
pub const TRACE_OVERHEAD: ByteCount = ByteCount::new(4);

/// The largest file in bytes: it holds [`LINES_MAX`] lines with times below a day.
const FILE_MAX: u64 = 36_000_000;

/// The largest number of lines. They last 48 s at 1 Gbit/s or eight minutes at 100 Mbit/s, and take
/// 16 MB of memory.
const LINES_MAX: usize = 4_000_000;

/// The longest duration in milliseconds: a day.
const LENGTH_MAX: u32 = 24 * 60 * 60 * 1000;

/// The times at which a link of varying rate can send: a trace in Mahimahi's format.
///
/// Each line is a time in whole milliseconds, at which [`OPPORTUNITY`] bytes can pass. Times never
/// fall; several lines with the same time are several opportunities. The last line is the length of
/// the trace, after which it starts again.
#[derive(Clone, PartialEq, Eq)]
pub struct RateTrace {
    /// The sorted lines. There is at least one, and the last is not zero.
    opportunities_ms: Vec<u32>,
    repeat: bool,
}

/// The reason for which a text is not a trace.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum RateTraceError {
    #[error("{}: {error}", file.display())]
    Unreadable { file: PathBuf, error: std::io::Error },
    #[error(
        "{}: the trace exceeds the limit of {FILE_MAX} bytes or {LINES_MAX} lines",
        file.display()
    )]
    TooLong { file: PathBuf },
    #[error("{}: the file is empty; a trace has at least one line", file.display())]
    Empty { file: PathBuf },
    #[error(
        "{}:{line}: {seen:?} is not a time; a line is a whole number of milliseconds, at most a day \
         ({LENGTH_MAX})",
        file.display()
    )]
    NotATime { file: PathBuf, line: usize, seen: String },
    #[error(
        "{}:{line}: {seen} comes after {before}; each line must be at least as large as the one before",
        file.display()
    )]
    Decreasing { file: PathBuf, line: usize, seen: u32, before: u32 },
    #[error("{}:{line}: the last line is 0; it is the length of the trace and must be above 0", file.display())]
    NoLength { file: PathBuf, line: usize },
}

impl RateTrace {
    /// Reads a file.
    pub fn read(file: &Path) -> Result<Self, RateTraceError> {
        let unreadable = |error| RateTraceError::Unreadable { file: file.to_owned(), error };
        let reader = fs::File::open(file).map_err(unreadable)?;
        let mut bytes = Vec::new();
        reader.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        Self::parse(file, &String::from_utf8_lossy(&bytes))
    }

    /// Reads a text. Errors name `file` as its source.
    pub fn parse(file: &Path, text: &str) -> Result<Self, RateTraceError> {
        let file = || file.to_owned();
        if text.len() as u64 > FILE_MAX {
            return Err(RateTraceError::TooLong { file: file() });
        }
        let mut opportunities_ms = Vec::new();
        let mut before = 0;
        for (line, text) in (1..).zip(text.lines()) {
            if line > LINES_MAX {
                return Err(RateTraceError::TooLong { file: file() });
            }
            let seen = parse_time(text).ok_or_else(|| RateTraceError::NotATime {
                file: file(),
                line,
                seen: text.chars().take(40).collect(),
            })?;
            if seen < before {
                return Err(RateTraceError::Decreasing { file: file(), line, seen, before });
            }
            opportunities_ms.push(seen);
            before = seen;
        }
        match opportunities_ms.last() {
            None => Err(RateTraceError::Empty { file: file() }),
            Some(0) => Err(RateTraceError::NoLength { file: file(), line: opportunities_ms.len() }),
            Some(_) => Ok(Self { opportunities_ms, repeat: true }),
        }
    }

    /// Makes a trace from its lines. The result is `None` if there are no lines, if the times fall,
    /// if the length is zero, or if a limit of [`Self::parse`] is exceeded.
    pub fn from_millis(opportunities_ms: Vec<u32>) -> Option<Self> {
        let last = *opportunities_ms.last()?;
        let is_sound = (1..=LENGTH_MAX).contains(&last)
            && opportunities_ms.len() <= LINES_MAX
            && opportunities_ms.is_sorted();
        is_sound.then_some(Self { opportunities_ms, repeat: true })
    }

    /// The same trace, but after its last line there are no more opportunities.
    #[must_use]
    pub fn once(mut self) -> Self {
        self.repeat = false;
        self
    }

    /// The length of the trace, after which it starts again.
    pub fn duration(&self) -> Duration {
        Duration::from_millis(self.length_ms())
    }

    /// The mean rate over the whole length. It includes headers and the 4 bytes per packet. It is
    /// rounded down, but is at least 1 bit/s.
    pub fn mean_rate(&self) -> Rate {
        let bits = OPPORTUNITY.get() * 8 * self.lines() * 1000; // below 2^46
        NonZeroU64::new(bits / self.length_ms()).unwrap_or(NonZeroU64::MIN).into()
    }

    /// The bytes that can pass after `from` up to `to` (inclusive). Both times count from the start
    /// of the trace.
    pub fn bytes_between(&self, from: Duration, to: Duration) -> ByteCount {
        let opportunities = self.opportunities_by(to).saturating_sub(self.opportunities_by(from));
        OPPORTUNITY.saturating_mul(opportunities)
    }

    /// The time after `from` until the trace has let this number of bytes pass. `from` counts from
    /// the start of the trace. The caller adds [`TRACE_OVERHEAD`] for each packet. The result is
    /// [`Duration::MAX`] if the trace ends before.
    pub fn time_to_carry(&self, bytes: ByteCount, from: Duration) -> Duration {
        let Some(more) = bytes.get().div_ceil(OPPORTUNITY.get()).checked_sub(1) else {
            return Duration::ZERO;
        };
        let last = self.opportunities_by(from).saturating_add(more);
        self.opportunity(last).map_or(Duration::MAX, |at| at.saturating_sub(from))
    }

    /// The lines of the file: times in milliseconds from its start, never falling.
    pub fn lines_ms(&self) -> &[u32] {
        &self.opportunities_ms
    }

    /// Whether it starts again after the last line.
    pub const fn repeats(&self) -> bool {
        self.repeat
    }

    /// The number of opportunities from the start of the trace up to a time (inclusive).
    pub(crate) fn opportunities_by(&self, time: Duration) -> u64 {
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (round, rest_ms) = (time_ms / self.length_ms(), time_ms % self.length_ms());
        if !self.repeat && round > 0 {
            return self.lines();
        }
        let in_round = self.opportunities_ms.partition_point(|at| u64::from(*at) <= rest_ms);
        round.saturating_mul(self.lines()) + in_round as u64
    }

    /// The time of opportunity `number` after the start of the trace. Opportunities count from 0.
    /// The result is `None` if the trace ends before.
    pub(crate) fn opportunity(&self, number: u64) -> Option<Duration> {
        let (round, line) = (number / self.lines(), number % self.lines());
        if !self.repeat && round > 0 {
            return None;
        }
        let at = self.opportunities_ms.get(usize::try_from(line).ok()?)?;
        Some(Duration::from_millis(round.checked_mul(self.length_ms())? + u64::from(*at)))
    }

    fn lines(&self) -> u64 {
        self.opportunities_ms.len() as u64
    }

    fn length_ms(&self) -> u64 {
        self.opportunities_ms.last().copied().expect("a trace has a line").into()
    }
}

fn parse_time(text: &str) -> Option<u32> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits.then(|| text.parse().ok())?.filter(|time| *time <= LENGTH_MAX)
}

impl fmt::Display for RateTrace {
    /// The text of the file, with a newline at its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.opportunities_ms.iter().try_for_each(|at| writeln!(f, "{at}"))
    }
}

impl fmt::Debug for RateTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateTrace")
            .field("duration", &self.duration())
            .field("mean_rate", &self.mean_rate())
            .field("repeat", &self.repeat)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn parse(text: &str) -> Result<RateTrace, RateTraceError> {
        RateTrace::parse(Path::new("my.trace"), text)
    }

    fn trace(opportunities_ms: &[u32]) -> RateTrace {
        RateTrace::from_millis(opportunities_ms.to_vec()).unwrap()
    }

    #[test]
    fn traces_are_read_and_written() {
        for text in ["1\n", "1", "0\n4\n4\n10\n", "0\r\n4\r\n4\r\n10\r\n", "86400000\n"] {
            let parsed = parse(text).expect(text);
            let text = text.replace('\r', "");
            assert_eq!(parsed.to_string().trim_end(), text.trim_end());
        }
        assert_eq!(parse("0\n4\n4\n10\n").unwrap(), trace(&[0, 4, 4, 10]));
    }

    #[test]
    fn an_invalid_trace_is_refused_with_file_and_line() {
        for (text, error) in [
            ("", "my.trace: the file is empty; a trace has at least one line"),
            (
                "0\n0\n",
                "my.trace:2: the last line is 0; it is the length of the trace and must be above 0",
            ),
            (
                "5\n4\n",
                "my.trace:2: 4 comes after 5; each line must be at least as large as the one before",
            ),
            ("1\n\n2\n", "my.trace:2: \"\" is not a time; "),
            ("1\n2\n\n", "my.trace:3: \"\" is not a time; "),
            (
                "1.5\n",
                "my.trace:1: \"1.5\" is not a time; a line is a whole number of milliseconds",
            ),
            ("+1\n", "my.trace:1: \"+1\" is not a time; "),
            (" 1\n", "my.trace:1: \" 1\" is not a time; "),
            ("1\n# end\n", "my.trace:2: \"# end\" is not a time; "),
            ("86400001\n", "my.trace:1: \"86400001\" is not a time; "),
            ("99999999999999999999\n", "my.trace:1: "),
        ] {
            let seen = parse(text).expect_err(text).to_string();
            assert!(seen.starts_with(error), "{text:?}: {seen}");
        }
        let error = parse(&"9".repeat(1000)).unwrap_err().to_string();
        assert!(error.len() < 200, "{error}");
        let error = RateTrace::read(Path::new("/nowhere/my.trace")).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/my.trace: No such file"), "{error}");
    }

    #[test]
    fn a_trace_has_a_limit_of_lines_and_bytes() {
        let longest = "1\n".repeat(LINES_MAX);
        assert_eq!(parse(&longest).unwrap().lines(), 4_000_000);
        for text in [longest + "1\n", "0".repeat(36_000_001)] {
            let error = parse(&text).unwrap_err();
            assert!(matches!(error, RateTraceError::TooLong { .. }), "{error}");
        }
    }

    #[test]
    fn the_mean_rate_counts_1504_bytes_a_line() {
        for (lines, bits_per_second, length) in [
            (&[1][..], 12_032_000, MS),
            (&[1, 3, 4, 5, 6], 10_026_666, 6 * MS),
            (&[0, 0, 1000], 36_096, 1000 * MS),
            (&[86_400_000], 1, 86_400_000 * MS),
        ] {
            let trace = trace(lines);
            assert_eq!(trace.mean_rate().bits_per_second(), bits_per_second, "{lines:?}");
            assert_eq!(trace.duration(), length);
        }
    }

    #[test]
    fn bytes_are_carried_by_the_opportunities_after_a_time() {
        let trace = trace(&[0, 4, 4, 10]);
        let bytes = |opportunities: u64| OPPORTUNITY.saturating_mul(opportunities);
        for (from_ms, opportunities, took_ms) in [
            (0, 0, 0),
            (0, 1, 4),
            (0, 2, 4),
            (0, 3, 10), // the last line and the first line of the next round have the same time
            (0, 4, 10),
            (0, 5, 14),
            (4, 1, 6),
            (9, 400, 995),
        ] {
            let took = trace.time_to_carry(bytes(opportunities), from_ms * MS);
            assert_eq!(took, took_ms * MS, "{opportunities} from {from_ms}");
        }
        assert_eq!(trace.time_to_carry(ByteCount::new(1), Duration::ZERO), 4 * MS);
        assert_eq!(trace.time_to_carry(bytes(1) + ByteCount::new(1), 4 * MS), 6 * MS);
        assert_eq!(trace.bytes_between(Duration::ZERO, 10 * MS), bytes(4));
        assert_eq!(trace.bytes_between(4 * MS, 19 * MS / 2), bytes(0));
        let once = trace.once();
        assert_eq!(once.time_to_carry(bytes(3), Duration::ZERO), 10 * MS);
        assert_eq!(once.time_to_carry(bytes(4), Duration::ZERO), Duration::MAX);
        assert_eq!(once.bytes_between(Duration::ZERO, 1000 * MS), bytes(3));
    }

    proptest! {
        /// The result equals that of a walk over the lines, one by one.
        #[test]
        fn opportunities_are_found_as_by_counting(
            gaps_ms in proptest::collection::vec(0..3_u32, 1..20),
            time_micros in 0..200_000_u64,
        ) {
            let times = gaps_ms.iter().chain([&1]).scan(0, |at, gap| {
                *at += gap;
                Some(*at)
            });
            let lines: Vec<u32> = times.collect();
            let trace = trace(&lines);
            let time = Duration::from_micros(time_micros);
            let mut walked = Vec::new();
            let mut base = Duration::ZERO;
            while walked.last().is_none_or(|at| *at <= time) {
                walked.extend(lines.iter().map(|line| base + *line * MS));
                base += *lines.last().unwrap() * MS;
            }
            walked.sort_unstable();
            let by = walked.iter().filter(|at| **at <= time).count() as u64;
            prop_assert_eq!(trace.opportunities_by(time), by);
            for (number, at) in (0..).zip(&walked) {
                prop_assert_eq!(trace.opportunity(number), Some(*at));
            }
        }
    }
}
