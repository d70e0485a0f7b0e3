//! The ranges of settings, each with its reason, and what a setting is if nobody chose it.

use std::{ops::RangeInclusive, time::Duration};

use tandem_wire::GroupField;

/// Request streams of one flow in [`Mode::Msgt`](crate::mode::Mode::Msgt). One stream would be
/// [`Mode::Mst`](crate::mode::Mode::Mst); the field `tandem-group` holds no more than the upper limit.
pub const GROUP_STREAMS: RangeInclusive<u8> = 2..=GroupField::STREAMS_MAX;

/// Request streams of one flow if nobody chose a number. With eight, a lost packet holds up one in eight
/// of the payloads behind it.
pub const GROUP_STREAMS_DEFAULT: u8 = 8;

/// The interval between two reports on a tunnel. Shorter ones bring more reports than a sender
/// can follow; with longer ones, a sender follows a tunnel that has changed since.
pub const FEEDBACK_INTERVAL: RangeInclusive<Duration> =
    Duration::from_millis(5)..=Duration::from_secs(1);
