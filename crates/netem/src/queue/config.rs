use std::{fmt, str::FromStr, time::Duration};

use serde_with::{DeserializeFromStr, SerializeDisplay};
use tandem_units::{ByteCount, HumanDuration, ParseUnitError};

/// The kind of a queue and its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SerializeDisplay, DeserializeFromStr)]
pub enum QueueConfig {
    /// Drop-tail: the queue drops a packet that does not fit.
    DropTail(QueueLimit),
    /// Drop-head: the queue takes a packet that does not fit, and drops the oldest packets until it
    /// fits.
    DropHead(QueueLimit),
    /// `CoDel` (RFC 8289). The queue also drops a packet that does not fit.
    CoDel {
        /// The limit of the queue.
        limit: QueueLimit,
        /// The acceptable standing delay of the queue.
        target: Duration,
        /// The time for which the delay may exceed the target before a packet is dropped; about one
        /// RTT.
        interval: Duration,
    },
    /// A queue without a limit.
    Infinite,
}

/// The maximum length of a queue. The packet in transmission has left the queue and does not count,
/// as in Mahimahi. On a trace each packet counts as 4 bytes more than its IP length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SerializeDisplay, DeserializeFromStr)]
pub struct QueueLimit {
    /// Limit in bytes of IP packets, if there is one.
    pub bytes: Option<ByteCount>,
    /// Limit in packets, if there is one.
    pub packets: Option<u64>,
}

/// The reason for which a text is not a queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQueueError {
    /// The word before the colon is unknown.
    #[error(
        "unknown queue {seen:?}; allowed: LIMIT, drop-tail:LIMIT, drop-head:LIMIT, codel:LIMIT, \
         codel:LIMIT,TARGET,INTERVAL and infinite, where LIMIT is for example 150kB, 100packets or \
         150kB,100packets"
    )]
    UnknownKind {
        /// That word.
        seen: String,
    },
    /// A limit of bytes or a duration is malformed.
    #[error(transparent)]
    Unit(#[from] ParseUnitError),
    /// A number of packets is malformed.
    #[error("{seen:?} is not a number of packets; allowed: 1packets to {}packets", u64::MAX)]
    Packets {
        /// The text.
        seen: String,
    },
    /// A limit or a duration is zero.
    #[error("{seen:?} is zero; a queue's limits and times must be above zero")]
    Zero {
        /// The text.
        seen: String,
    },
    /// There are too many parts, or a part is repeated.
    #[error(
        "{seen:?} is one part too many; a limit is bytes, packets or both, and codel also takes a \
         target and an interval"
    )]
    TooMany {
        /// The surplus part.
        seen: String,
    },
    /// No limit is given.
    #[error("{seen:?} has no limit; give bytes, packets or both, such as 150kB,100packets")]
    NoLimit {
        /// The text.
        seen: String,
    },
    /// A target is given without an interval.
    #[error("{seen:?} has a target, but no interval; give both or none, such as 5ms,100ms")]
    NoInterval {
        /// The text.
        seen: String,
    },
}

impl QueueLimit {
    /// A limit in bytes only.
    pub const fn bytes(bytes: ByteCount) -> Self {
        Self { bytes: Some(bytes), packets: None }
    }

    /// A limit in packets only.
    pub const fn packets(packets: u64) -> Self {
        Self { bytes: None, packets: Some(packets) }
    }

    /// Whether a queue of this length is within the limit.
    pub(crate) fn allows(&self, bytes: ByteCount, packets: u64) -> bool {
        self.bytes.is_none_or(|limit| bytes <= limit)
            && self.packets.is_none_or(|limit| packets <= limit)
    }
}

impl Default for QueueLimit {
    /// The default is 150 kB, or 100 full packets, a usual queue size of home and access routers.
    fn default() -> Self {
        Self::bytes(ByteCount::new(150_000))
    }
}

impl Default for QueueConfig {
    /// The default is drop-tail with the default limit.
    fn default() -> Self {
        Self::DropTail(QueueLimit::default())
    }
}

impl QueueConfig {
    /// The default target: RFC 8289 §4.3 and §4.2 recommend "5 ms" and "100 ms" for "normal
    /// Internet" use.
    pub const CODEL_TARGET: Duration = Duration::from_millis(5);
    /// The default interval; see [`Self::CODEL_TARGET`].
    pub const CODEL_INTERVAL: Duration = Duration::from_millis(100);

    /// The limit of the queue; `None` if it is infinite.
    pub const fn limit(&self) -> Option<QueueLimit> {
        match *self {
            Self::DropTail(limit) | Self::DropHead(limit) | Self::CoDel { limit, .. } => {
                Some(limit)
            }
            Self::Infinite => None,
        }
    }
}

impl FromStr for QueueLimit {
    type Err = ParseQueueError;

    fn from_str(text: &str) -> Result<Self, ParseQueueError> {
        let mut parts = text.split(',');
        let limit = parse_limit(text, &mut parts)?;
        let rest = parts.next().map(str::to_owned);
        rest.map_or(Ok(limit), |seen| Err(ParseQueueError::TooMany { seen }))
    }
}

impl FromStr for QueueConfig {
    type Err = ParseQueueError;

    fn from_str(text: &str) -> Result<Self, ParseQueueError> {
        let (kind, rest) = match text.trim() {
            "infinite" => return Ok(Self::Infinite),
            text if text.starts_with(|first: char| first.is_ascii_digit()) => ("drop-tail", text),
            text => text.split_once(':').unwrap_or((text, "")),
        };
        match kind.trim() {
            "drop-tail" => rest.parse().map(Self::DropTail),
            "drop-head" => rest.parse().map(Self::DropHead),
            "codel" => parse_codel(rest),
            seen => Err(ParseQueueError::UnknownKind { seen: seen.to_owned() }),
        }
    }
}

/// Takes the parts of a limit from the front of the parts.
fn parse_limit<'a>(
    text: &str,
    parts: &mut (impl Iterator<Item = &'a str> + Clone),
) -> Result<QueueLimit, ParseQueueError> {
    let mut limit = QueueLimit { bytes: None, packets: None };
    while let Some(part) = parts.clone().next().map(str::trim) {
        let seen = || part.to_owned();
        let packets = part.strip_suffix("packets").or_else(|| part.strip_suffix("packet"));
        if let Some(packets) = packets {
            let packets: u64 =
                packets.trim().parse().map_err(|_| ParseQueueError::Packets { seen: seen() })?;
            if packets == 0 {
                return Err(ParseQueueError::Zero { seen: seen() });
            }
            if limit.packets.replace(packets).is_some() {
                return Err(ParseQueueError::TooMany { seen: seen() });
            }
        } else {
            let is_duration = part.parse::<HumanDuration>().is_ok();
            if is_duration && limit != (QueueLimit { bytes: None, packets: None }) {
                break;
            }
            let bytes: ByteCount = part.parse()?;
            if bytes.is_zero() {
                return Err(ParseQueueError::Zero { seen: seen() });
            }
            if limit.bytes.replace(bytes).is_some() {
                return Err(ParseQueueError::TooMany { seen: seen() });
            }
        }
        parts.next();
    }
    if limit == (QueueLimit { bytes: None, packets: None }) {
        return Err(ParseQueueError::NoLimit { seen: text.to_owned() });
    }
    Ok(limit)
}

fn parse_codel(text: &str) -> Result<QueueConfig, ParseQueueError> {
    let mut parts = text.split(',');
    let limit = parse_limit(text, &mut parts)?;
    let (mut target, mut interval) = (QueueConfig::CODEL_TARGET, QueueConfig::CODEL_INTERVAL);
    if let Some(part) = parts.next() {
        target = parse_time(part)?;
        let no_interval = || ParseQueueError::NoInterval { seen: text.to_owned() };
        interval = parse_time(parts.next().ok_or_else(no_interval)?)?;
    }
    let rest = parts.next().map(str::to_owned);
    rest.map_or(Ok(QueueConfig::CoDel { limit, target, interval }), |seen| {
        Err(ParseQueueError::TooMany { seen })
    })
}

fn parse_time(text: &str) -> Result<Duration, ParseQueueError> {
    let HumanDuration(time) = text.trim().parse()?;
    if time.is_zero() {
        return Err(ParseQueueError::Zero { seen: text.to_owned() });
    }
    Ok(time)
}

impl fmt::Display for QueueLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.bytes, self.packets) {
            (Some(bytes), Some(packets)) => write!(f, "{bytes},{packets} packets"),
            (Some(bytes), None) => write!(f, "{bytes}"),
            (None, Some(packets)) => write!(f, "{packets} packets"),
            (None, None) => f.write_str("no limit"),
        }
    }
}

impl fmt::Display for QueueConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DropTail(limit) => write!(f, "{limit}"),
            Self::DropHead(limit) => write!(f, "drop-head:{limit}"),
            Self::CoDel { limit, target, interval } => {
                let (target, interval) = (HumanDuration(target), HumanDuration(interval));
                write!(f, "codel:{limit},{target},{interval}")
            }
            Self::Infinite => f.write_str("infinite"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn queues_are_read_and_printed() {
        let bytes = QueueLimit::bytes(ByteCount::new(150_000));
        let both = QueueLimit { packets: Some(100), ..bytes };
        let codel = |target_ms, interval_ms| QueueConfig::CoDel {
            limit: both,
            target: target_ms * MS,
            interval: interval_ms * MS,
        };
        for (text, queue, printed) in [
            ("150kB", QueueConfig::DropTail(bytes), "150 kB"),
            ("drop-tail:150 kB", QueueConfig::DropTail(bytes), "150 kB"),
            ("1packet", QueueConfig::DropTail(QueueLimit::packets(1)), "1 packets"),
            ("150kB,100packets", QueueConfig::DropTail(both), "150 kB,100 packets"),
            (
                "drop-head: 100 packets, 150kB",
                QueueConfig::DropHead(both),
                "drop-head:150 kB,100 packets",
            ),
            ("codel:150kB,100packets", codel(5, 100), "codel:150 kB,100 packets,5ms,100ms"),
            ("codel:150kB,100packets,1ms,20ms", codel(1, 20), "codel:150 kB,100 packets,1ms,20ms"),
            (" infinite ", QueueConfig::Infinite, "infinite"),
        ] {
            assert_eq!(text.parse(), Ok(queue), "{text}");
            assert_eq!(queue.to_string(), printed);
            assert_eq!(printed.parse(), Ok(queue));
            let json = serde_json::to_string(&queue).unwrap();
            assert_eq!(serde_json::from_str::<QueueConfig>(&json).unwrap(), queue);
        }
        assert_eq!(QueueConfig::default().to_string(), "150 kB");
    }

    #[test]
    fn errors_say_what_was_seen_and_what_is_allowed() {
        for (text, parts) in [
            ("", ["\"\"", "drop-head:LIMIT"]),
            ("fast", ["\"fast\"", "drop-head:LIMIT"]),
            ("red:1MB", ["\"red\"", "codel:LIMIT"]),
            ("150 KB", ["\"KB\"", "kB"]),
            ("-1packets", ["\"-1packets\"", "drop-head:LIMIT"]),
            ("drop-tail:-1packets", ["\"-1packets\"", "1packets to"]),
            ("0packets", ["\"0packets\"", "above zero"]),
            ("0", ["\"0\"", "above zero"]),
            ("codel:1MB,0ms,1ms", ["\"0ms\"", "above zero"]),
            ("1kB,2kB", ["\"2kB\"", "one part too many"]),
            ("1kB,5ms", ["\"5ms\"", "one part too many"]),
            ("codel:1kB,5ms", ["\"1kB,5ms\"", "no interval"]),
            ("codel:1kB,5ms,1ms,1ms", ["\"1ms\"", "one part too many"]),
            ("codel:5ms,100ms", ["\"ms\"", "kB"]),
        ] {
            let error = text.parse::<QueueConfig>().expect_err(text).to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn printed_queues_parse_to_themselves(
            bytes in 1..u64::MAX,
            packets in proptest::option::of(1..u64::MAX),
            times in (1..u64::MAX, 1..u64::MAX),
        ) {
            let limit = QueueLimit { bytes: Some(ByteCount::new(bytes)), packets };
            let (target, interval) =
                (Duration::from_nanos(times.0), Duration::from_nanos(times.1));
            for queue in [
                QueueConfig::DropTail(limit),
                QueueConfig::DropHead(limit),
                QueueConfig::CoDel { limit, target, interval },
            ] {
                prop_assert_eq!(queue.to_string().parse(), Ok(queue));
            }
        }
    }
}
