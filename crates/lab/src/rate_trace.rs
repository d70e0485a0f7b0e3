use std::{
    fmt, fs,
    io::Read,
    num::NonZeroU64,
    path::{Path, PathBuf},
    time::Duration,
};

use tandem_units::{ByteCount, Rate};

/// What one line of a trace lets pass.
pub const OPPORTUNITY: ByteCount = ByteCount::new(1504);

/// What a packet counts on a trace besides its IP length: Mahimahi's TUN device puts 4 bytes in
/// front of each.
pub const TRACE_OVERHEAD: ByteCount = ByteCount::new(4);

/// Longest file in bytes: [`LINES_MAX`] lines with times below a day.
const FILE_MAX: u64 = 36_000_000;

/// Most lines: six minutes at 1 Gbit/s, or an hour at 100 Mbit/s. 16 MB of memory.
const LINES_MAX: usize = 4_000_000;

/// The longest duration, a day in milliseconds.
const LENGTH_MAX: u32 = 24 * 60 * 60 * 1000;

/// When a link of varying rate can send: a trace in Mahimahi's format.
///
/// Each line is a time in whole milliseconds, at which [`OPPORTUNITY`] bytes can pass. Times never
/// fall; several lines with the same time are several opportunities. The last line is the length of
/// the trace, after which it starts again.
#[derive(Clone, PartialEq, Eq)]
pub struct RateTrace {
    /// At least one; the last is not zero.
    opportunities_ms: Vec<u32>,
    repeat: bool,
}

/// Why a text is no trace.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum RateTraceError {
    #[error("{}: {error}", file.display())]
    Unreadable { file: PathBuf, error: std::io::Error },
    #[error(
        "{}: longer than {FILE_MAX} bytes or {LINES_MAX} lines, which is the most for a trace",
        file.display()
    )]
    TooLong { file: PathBuf },
    #[error("{}: the file is empty; a trace has at least one line", file.display())]
    Empty { file: PathBuf },
    #[error(
        "{}:{line}: {seen:?} is no time; a line is a whole number of milliseconds, at most a day \
         ({LENGTH_MAX})",
        file.display()
    )]
    NotATime { file: PathBuf, line: usize, seen: String },
    #[error(
        "{}:{line}: {seen} comes after {before}; each line is at least as large as the one before",
        file.display()
    )]
    Decreasing { file: PathBuf, line: usize, seen: u32, before: u32 },
    #[error("{}:{line}: the last line is 0; it is the length of the trace, above 0", file.display())]
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

    /// Reads a text; `file` is what errors name.
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

    /// A trace from its lines. `None` if it would not be one: without lines, falling, of length
    /// zero, or above the limits of [`Self::parse`].
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

    /// How long until it starts again.
    pub fn duration(&self) -> Duration {
        Duration::from_millis(self.length_ms())
    }

    /// The rate over the whole length, headers and the 4 bytes per packet included. Rounded down,
    /// at least 1 bit/s.
    pub fn mean_rate(&self) -> Rate {
        let bits = OPPORTUNITY.get() * 8 * self.lines() * 1000; // below 2^46
        NonZeroU64::new(bits / self.length_ms()).unwrap_or(NonZeroU64::MIN).into()
    }

    /// The bytes that can pass after `from` up to `to`, that included, both counted from the start
    /// of the trace.
    pub fn bytes_between(&self, from: Duration, to: Duration) -> ByteCount {
        let opportunities = self.opportunities_by(to).saturating_sub(self.opportunities_by(from));
        OPPORTUNITY.saturating_mul(opportunities)
    }

    /// How long the opportunities after `from`, counted from the start of the trace, take to let so
    /// many bytes pass. [`TRACE_OVERHEAD`] per packet is up to the caller. [`Duration::MAX`] if they
    /// are too few.
    pub fn time_to_carry(&self, bytes: ByteCount, from: Duration) -> Duration {
        let Some(more) = bytes.get().div_ceil(OPPORTUNITY.get()).checked_sub(1) else {
            return Duration::ZERO;
        };
        let last = self.opportunities_by(from).saturating_add(more);
        self.opportunity(last).map_or(Duration::MAX, |at| at.saturating_sub(from))
    }

    /// How many opportunities there are from its start up to a time, that included.
    pub(crate) fn opportunities_by(&self, time: Duration) -> u64 {
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (round, rest_ms) = (time_ms / self.length_ms(), time_ms % self.length_ms());
        if !self.repeat && round > 0 {
            return self.lines();
        }
        let in_round = self.opportunities_ms.partition_point(|at| u64::from(*at) <= rest_ms);
        round.saturating_mul(self.lines()) + in_round as u64
    }

    /// When opportunity `number` is, counted from 0, after the start of the trace; `None` if the
    /// trace has ended before.
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
