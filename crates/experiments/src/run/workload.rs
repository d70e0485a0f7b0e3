//! The transfers of a run.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tandem_units::{HumanDuration, Rate};

/// The transfers of a run. The text is `download`, `upload`, `long:60s`, `flows:4,2s`,
/// `sharing:8,30s,60s`, `parallel:10`, `requests:100,200ms`, `datagrams:1Mbit/s,10s` or `tcp:10s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// One download of [`size`](crate::run::Parameters::size) bytes.
    Download,
    /// One upload of the same number of bytes from the client to the origin.
    Upload,
    /// One download that lasts longer than this time. The bytes that arrive within it count.
    Long(HumanDuration),
    /// Downloads that arrive and depart: one begins in each interval. Each has a client with a
    /// tunnel of its own.
    Flows {
        /// The number of downloads.
        count: u64,
        /// The time from one start to the next.
        interval: HumanDuration,
    },
    /// Endless downloads that begin at the same time. Each has a client with a tunnel of its own.
    /// Their bytes are measured after a settling time.
    Sharing {
        /// The number of downloads.
        count: u64,
        /// The settling time before the measurement.
        settle: HumanDuration,
        /// The length of the measurement.
        duration: HumanDuration,
    },
    /// This number of simultaneous downloads, by local programs through one tunnel.
    Parallel(u64),
    /// Downloads of a local program through one tunnel, each with a new connection. Their start
    /// times are a Bernoulli process with steps of one millisecond. Their sizes have a heavy tail:
    /// a bounded Pareto distribution of shape 1, whose mean is the run's size and whose maximum is
    /// 1000 times its minimum.
    Requests {
        /// The number of downloads.
        count: u64,
        /// Mean time from one start to the next, in whole milliseconds.
        interval: HumanDuration,
    },
    /// UDP payloads of 1000 bytes at a constant rate from the origin to a local program.
    Datagrams {
        /// Rate of the IP packets that the origin sends.
        rate: Rate,
        /// The time for which they are sent.
        duration: HumanDuration,
    },
    /// One TCP connection of a local program through the tunnel to a target beside the origin, which
    /// sends for longer than this time. The bytes that the program receives within it count, from
    /// the moment when it connects.
    Tcp(HumanDuration),
}

impl Workload {
    /// Whether its flows have completion times.
    pub const fn has_completion(self) -> bool {
        match self {
            Self::Download
            | Self::Upload
            | Self::Flows { .. }
            | Self::Parallel(_)
            | Self::Requests { .. } => true,
            Self::Long(_) | Self::Sharing { .. } | Self::Datagrams { .. } | Self::Tcp(_) => false,
        }
    }
}

/// An error: a text is not a workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{seen:?} is not a workload; allowed: download, upload, long:TIME, flows:COUNT,INTERVAL, \
     sharing:COUNT,SETTLE,TIME, parallel:COUNT, requests:COUNT,INTERVAL, datagrams:RATE,TIME, \
     tcp:TIME"
)]
pub struct UnknownWorkload {
    /// The text.
    pub seen: String,
}

impl FromStr for Workload {
    type Err = UnknownWorkload;

    fn from_str(text: &str) -> Result<Self, UnknownWorkload> {
        parse(text).ok_or_else(|| UnknownWorkload { seen: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<Workload> {
    if text == "download" {
        return Some(Workload::Download);
    }
    if text == "upload" {
        return Some(Workload::Upload);
    }
    let (kind, rest) = text.split_once(':')?;
    match kind {
        "long" => return rest.parse().ok().map(Workload::Long),
        "tcp" => return rest.parse().ok().map(Workload::Tcp),
        "parallel" => return rest.parse().ok().map(Workload::Parallel),
        _ => {}
    }
    let (first, second) = rest.split_once(',')?;
    if kind == "sharing" {
        let (settle, duration) = second.split_once(',')?;
        let [settle, duration] = [settle, duration].map(|time| time.trim().parse().ok());
        let count = first.parse().ok()?;
        return Some(Workload::Sharing { count, settle: settle?, duration: duration? });
    }
    let time = second.trim().parse().ok()?;
    match kind {
        "flows" => Some(Workload::Flows { count: first.parse().ok()?, interval: time }),
        "requests" => Some(Workload::Requests { count: first.parse().ok()?, interval: time }),
        "datagrams" => Some(Workload::Datagrams { rate: first.parse().ok()?, duration: time }),
        _ => None,
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Download => f.pad("download"),
            Self::Upload => f.pad("upload"),
            Self::Long(duration) => write!(f, "long:{duration}"),
            Self::Flows { count, interval } => write!(f, "flows:{count},{interval}"),
            Self::Sharing { count, settle, duration } => {
                write!(f, "sharing:{count},{settle},{duration}")
            }
            Self::Parallel(count) => write!(f, "parallel:{count}"),
            Self::Requests { count, interval } => write!(f, "requests:{count},{interval}"),
            Self::Datagrams { rate, duration } => write!(f, "datagrams:{rate},{duration}"),
            Self::Tcp(duration) => write!(f, "tcp:{duration}"),
        }
    }
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Workload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_survives_conversion_to_text_and_back() {
        for text in [
            "download",
            "upload",
            "long:1min",
            "flows:4,2s",
            "sharing:8,30s,1min",
            "parallel:10",
            "requests:100,200ms",
            "datagrams:1 Mbit/s,10s",
            "tcp:10s",
        ] {
            let workload: Workload = text.parse().unwrap();
            assert_eq!(workload.to_string(), text);
        }
        assert_eq!("datagrams:1Mbit/s,10s".parse::<Workload>(), "datagrams:1 Mbit/s,10s".parse());
    }

    #[test]
    fn an_invalid_workload_is_refused_with_the_allowed_ones() {
        for text in [
            "",
            "upload:1MB",
            "long",
            "long:x",
            "flows:4",
            "flows:x,2s",
            "requests:1,2",
            "parallel:x",
            "sharing:8,30s",
            "tcp",
        ] {
            let error = text.parse::<Workload>().expect_err(text).to_string();
            assert!(error.contains("requests:COUNT,INTERVAL"), "{error}");
        }
    }
}
