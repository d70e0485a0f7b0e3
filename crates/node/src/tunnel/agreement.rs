//! The header fields with which the request and the grant of a flow agree on how the tunnel works.
//! See `docs/design/wire.md`.
//!
//! Every field is optional. With a peer that knows none of them, a flow is plain RFC 9298.

use std::{borrow::Cow, fmt, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};
use tandem_wire::{
    CAPSULE_PROTOCOL_TRUE, FeedbackField, FieldError, GroupField, GroupFieldError, MAX_UDP_PAYLOAD,
    RepairField, RetransmissionLimit, Urgency, VarInt, parse_boolean_item,
};
use tracing::debug;

use super::contexts::{NUMBERED_BY_CLIENT, NUMBERED_BY_PROXY, REPORTS_OF_PROXY};
use crate::{fields::only_line, mode::Repair, proxy::Arm};

/// The header field of RFC 9297 §3.4.
pub(crate) const CAPSULE_PROTOCOL: HeaderName = HeaderName::from_static("capsule-protocol");

/// The header field of draft-yang-masque-dgram-retrans.
const DG_RETRANS: HeaderName = HeaderName::from_static("dg-retrans");

/// The size of UDP payloads that the client promised to the connection inside (an Integer, RFC 9651).
const PROMISED_SIZE: HeaderName = HeaderName::from_static("tandem-promised-size");

const TANDEM_REPAIR: HeaderName = HeaderName::from_static(RepairField::NAME);
const FEEDBACK: HeaderName = HeaderName::from_static(FeedbackField::NAME);
const GROUP: HeaderName = HeaderName::from_static(GroupField::NAME);

/// The structured Boolean "true".
const TRUE: HeaderValue = HeaderValue::from_static("?1");

/// The repair that the other end offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RepairOffer {
    /// The other end offers nothing that we understand.
    #[default]
    None,
    /// The other end speaks draft-yang-masque-dgram-retrans.
    Draft,
    /// The other end speaks our own protocol.
    Ours(RepairField),
}

/// The wishes that a client states in the request for a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wishes {
    /// The size of UDP payloads, in bytes, that the tunnel has to carry, in capsules if necessary.
    /// `None`: payloads that fit no datagram are dropped.
    pub(super) promised: Option<usize>,
    pub(super) urgency: Urgency,
    /// Share of the tunnel among flows of the same urgency.
    pub(super) weight: u8,
    pub(super) wants_reports: bool,
    pub(super) repair: Option<Repair>,
    /// How many request streams the flow wants, or the flow that this request stream joins.
    pub(super) group: Option<GroupField>,
}

/// The wishes in a request, as the proxy reads them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(super) promised: Option<usize>,
    pub(super) urgency: Urgency,
    /// The weight of a flow whose client wants reports.
    pub(super) weight: Option<u8>,
    pub(super) repair: RepairOffer,
    pub(crate) group: Option<GroupField>,
}

/// The wishes that a grant agrees to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Granted {
    /// Payloads up to this size pass, in capsules if necessary.
    pub(super) promised: Option<usize>,
    pub(super) repair: RepairOffer,
    /// The Context ID of reports.
    pub(super) reports: Option<VarInt>,
    pub(super) group: Option<GroupField>,
    /// Payloads travel beside the connection. The fields of that are not in this module.
    pub(super) beside: bool,
}

impl Wishes {
    /// Adds the fields to the headers of a request.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        // RFC 9297 §3.4: "When using the Capsule Protocol, HTTP endpoints SHOULD send the
        // Capsule-Protocol header field".
        headers.insert(CAPSULE_PROTOCOL, HeaderValue::from_static(CAPSULE_PROTOCOL_TRUE));
        if let Some(size) = self.promised {
            headers.insert(PROMISED_SIZE, HeaderValue::from(size));
        }
        if self.urgency != Urgency::default() {
            headers.insert(Urgency::FIELD, self.urgency.field_value());
        }
        if let Some(group) = self.group {
            headers.insert(GROUP, group.encode());
        }
        if let Some(repair) = self.repair {
            headers.insert(TANDEM_REPAIR, repair.to_field(NUMBERED_BY_CLIENT).encode());
            headers.insert(DG_RETRANS, TRUE);
        }
        if self.wants_reports || self.weight != 1 {
            headers.insert(FEEDBACK, FeedbackField::Request { weight: self.weight }.encode());
        }
    }
}

/// The urgency that a request asks for (RFC 9218 §4).
pub(crate) fn urgency(headers: &HeaderMap) -> Urgency {
    let field = headers.get(Urgency::FIELD).and_then(|value| value.to_str().ok());
    field.map_or_else(Urgency::default, Urgency::parse_field)
}

impl Asked {
    /// Reads a request. Also returns how many of our fields in it were ignored.
    pub(crate) fn read(headers: &HeaderMap) -> (Self, u64) {
        let mut ignored = Ignored(0);
        let feedback = only_line(headers, &FEEDBACK)
            .map(|line| FeedbackField::parse_request(&line.map_err(FieldError::Syntax)?));
        let asked = Self {
            promised: promised_size(headers),
            urgency: urgency(headers),
            weight: match ignored.or_count("feedback", feedback.transpose()).flatten() {
                Some(FeedbackField::Request { weight }) => Some(weight),
                Some(FeedbackField::Grant { .. }) | None => None,
            },
            repair: ignored.repair(read_repair(headers, WrittenBy::Client)),
            group: ignored.or_count("group", read_group(headers)).flatten(),
        };
        (asked, ignored.0)
    }

    /// Whether the client asks for mode `tecc`.
    pub(crate) fn wants_tecc(&self) -> bool {
        self.weight.is_some() && self.repair != RepairOffer::None
    }

    /// Leaves out what users in this arm of an A/B test do not get.
    pub(crate) fn withhold(&mut self, arm: Arm) {
        if arm != Arm::Tecc {
            self.weight = None;
        }
        if arm == Arm::Mdt {
            self.repair = RepairOffer::None;
        }
    }
}

impl Granted {
    /// Adds the fields to the headers of the answer.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        if let Some(size) = self.promised {
            headers.insert(PROMISED_SIZE, HeaderValue::from(size));
        }
        match self.repair {
            RepairOffer::None => {}
            RepairOffer::Draft => {
                headers.insert(DG_RETRANS, TRUE);
            }
            RepairOffer::Ours(_) => {
                headers.insert(TANDEM_REPAIR, RepairField::new(NUMBERED_BY_PROXY).encode());
            }
        }
        if self.reports.is_some() {
            let field = FeedbackField::Grant { context_id: REPORTS_OF_PROXY };
            headers.insert(FEEDBACK, field.encode());
        }
        if let Some(group) = self.group {
            headers.insert(GROUP, group.encode());
        }
        headers.insert(CAPSULE_PROTOCOL, HeaderValue::from_static(CAPSULE_PROTOCOL_TRUE));
    }

    /// Reads an answer. Also returns how many of its repair fields were ignored. Other fields that
    /// cannot be parsed agree to nothing.
    pub(super) fn read(headers: &HeaderMap) -> (Self, u64) {
        let mut ignored = Ignored(0);
        let feedback = only_line(headers, &FEEDBACK).and_then(Result::ok);
        let granted = Self {
            promised: promised_size(headers),
            repair: ignored.repair(read_repair(headers, WrittenBy::Proxy)),
            reports: match feedback.and_then(|line| FeedbackField::parse_grant(&line).ok()) {
                Some(FeedbackField::Grant { context_id }) => Some(context_id),
                Some(FeedbackField::Request { .. }) | None => None,
            },
            group: read_group(headers).ok().flatten(),
            beside: false,
        };
        (granted, ignored.0)
    }
}

/// Counts fields that are ignored.
struct Ignored(u64);

impl Ignored {
    fn or_count<T>(&mut self, field: &str, result: Result<T, impl fmt::Display>) -> Option<T> {
        result
            .inspect_err(|error| {
                debug!(%error, field, "field ignored");
                self.0 += 1;
            })
            .ok()
    }

    fn repair(&mut self, (offer, error): (RepairOffer, Option<FieldError>)) -> RepairOffer {
        self.or_count("repair", error.map_or(Ok(()), Err));
        offer
    }
}

/// The value of `tandem-promised-size`, if it is there and allowed.
fn promised_size(headers: &HeaderMap) -> Option<usize> {
    let size = headers.get(PROMISED_SIZE)?.to_str().ok()?.parse().ok()?;
    (1200..=MAX_UDP_PAYLOAD).contains(&size).then_some(size)
}

fn read_group(headers: &HeaderMap) -> Result<Option<GroupField>, GroupFieldError> {
    let line = only_line(headers, &GROUP);
    let parse = |value: Cow<'_, str>| GroupField::parse(&value);
    line.map(|line| line.map_err(GroupFieldError::Syntax).and_then(parse)).transpose()
}

/// Which end wrote a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrittenBy {
    Client,
    Proxy,
}

/// Reads the repair that the other end offers. The error says why its `tandem-repair` is ignored.
fn read_repair(headers: &HeaderMap, writer: WrittenBy) -> (RepairOffer, Option<FieldError>) {
    let draft = headers.get(DG_RETRANS).and_then(|value| value.to_str().ok());
    let fallback = match draft.and_then(parse_boolean_item) {
        Some(true) => RepairOffer::Draft,
        Some(false) | None => RepairOffer::None,
    };
    let Some(line) = only_line(headers, &TANDEM_REPAIR) else { return (fallback, None) };
    let field = line.map_err(FieldError::Syntax);
    // RFC 9298 §4: clients allocate even Context IDs, proxies odd ones.
    let (is_even, allowed) = match writer {
        WrittenBy::Client => (true, "even, 2 to 2^30 - 2"),
        WrittenBy::Proxy => (false, "odd, 1 to 2^30 - 1"),
    };
    match field.and_then(|value| RepairField::parse(&value)) {
        Ok(field) if (field.context_id.get() % 2 == 0) == is_even => {
            (RepairOffer::Ours(field), None)
        }
        Ok(_) => (fallback, Some(FieldError::Parameter { name: "context", allowed })),
        Err(error) => (fallback, Some(error)),
    }
}

/// How often a peer that speaks the draft wants lost datagrams to be retransmitted. `None`: the
/// limit is for a Context ID under which this end sends nothing.
pub(super) fn wanted_limit(limit: RetransmissionLimit) -> Option<u8> {
    let concerns_us = limit.context_id.is_none_or(|context_id| context_id.get() == 0);
    concerns_us.then(|| u8::try_from(limit.limit.get()).unwrap_or(LIMIT_MAX).min(LIMIT_MAX))
}

/// How often the proxy next to the origin should retransmit a lost datagram: floor(RTT beyond the
/// proxy / RTT to the proxy). After that many times the origin itself would retransmit.
pub(super) fn limit_to_ask(end_to_end: Duration, tunnel: Duration) -> u8 {
    let beyond = end_to_end.saturating_sub(tunnel).as_nanos();
    let rounds = beyond / tunnel.as_nanos().max(1);
    u8::try_from(rounds).unwrap_or(LIMIT_MAX).clamp(LIMIT_LEAST, LIMIT_MAX)
}

/// The lowest retransmission limit that we ask for. We also ask for it while the RTT to the origin
/// is not known.
pub(super) const LIMIT_LEAST: u8 = 1;

/// The highest retransmission limit that we ask for or obey.
const LIMIT_MAX: u8 = 16;

#[cfg(test)]
mod tests {
    use tandem_wire::Order;

    use super::*;
    use crate::fields::test_headers as headers;

    #[test]
    fn a_field_that_cannot_be_parsed_counts_as_absent() {
        for (lines, offer, is_error) in [
            (&[][..], RepairOffer::None, false),
            (&[("dg-retrans", "?0")], RepairOffer::None, false),
            (&[("dg-retrans", "1")], RepairOffer::None, false),
            (&[("dg-retrans", "?1")], RepairOffer::Draft, false),
            (&[("dg-retrans", "?1"), ("tandem-repair", "2;context=2")], RepairOffer::Draft, true),
            (&[("tandem-repair", "1;context=3")], RepairOffer::None, true),
            (&[("tandem-repair", "1;context=2;limit=1000")], RepairOffer::None, true),
            (
                &[("tandem-repair", "1;context=2"), ("tandem-repair", "1;context=2")],
                RepairOffer::None,
                true,
            ),
        ] {
            let (asked, ignored) = Asked::read(&headers(lines));
            assert_eq!((asked.repair, ignored), (offer, u64::from(is_error)), "{lines:?}");
        }
    }

    fn wishes() -> Wishes {
        Wishes {
            promised: Some(1280),
            urgency: Urgency::default(),
            weight: 1,
            wants_reports: false,
            repair: None,
            group: None,
        }
    }

    #[test]
    fn our_two_ends_understand_each_other() {
        let repair = Repair {
            order: Order::Window,
            deadline: Some(Duration::from_millis(150)),
            limit: Some(0),
        };
        let group = Some(GroupField { streams: 8, first: None });
        let wishes = Wishes { repair: Some(repair), weight: 4, group, ..wishes() };
        let mut request = HeaderMap::new();
        wishes.write(&mut request);
        let (asked, 0) = Asked::read(&request) else { panic!("{request:?}") };
        let RepairOffer::Ours(field) = asked.repair else { panic!("{request:?}") };
        assert_eq!(Repair::from(field), repair);
        assert_eq!((asked.promised, asked.weight, asked.group), (Some(1280), Some(4), group));
        let mut answer = HeaderMap::new();
        let reports = Some(REPORTS_OF_PROXY);
        let granted =
            Granted { promised: None, repair: asked.repair, reports, group, beside: false };
        granted.write(&mut answer);
        let (granted, 0) = Granted::read(&answer) else { panic!("{answer:?}") };
        let RepairOffer::Ours(field) = granted.repair else { panic!("{answer:?}") };
        assert_eq!(field.context_id, NUMBERED_BY_PROXY);
        assert_eq!((granted.promised, granted.reports, granted.group), (None, reports, group));
        assert!(!answer.contains_key(DG_RETRANS));
    }

    #[test]
    fn a_request_without_wishes_has_few_fields() {
        let mut request = HeaderMap::new();
        wishes().write(&mut request);
        let names: Vec<_> = request.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["capsule-protocol", "tandem-promised-size"]);
        let (asked, ignored) = Asked::read(&HeaderMap::new());
        assert_eq!((asked.promised, asked.weight, asked.group, ignored), (None, None, None, 0));
    }

    #[test]
    fn invalid_groups_are_ignored_and_counted() {
        for (lines, is_read, is_error) in [
            (&[][..], false, false),
            (&["8"], true, false),
            (&["8", "8"], false, true),
            (&["99"], false, true),
        ] {
            let lines: Vec<_> = lines.iter().map(|&line| (GroupField::NAME, line)).collect();
            let (asked, ignored) = Asked::read(&headers(&lines));
            assert_eq!(
                (asked.group.is_some(), ignored),
                (is_read, u64::from(is_error)),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn limits_that_are_too_large_become_the_highest() {
        let limit = |context_id: Option<u32>, limit: u64| RetransmissionLimit {
            context_id: context_id.map(VarInt::from_u32),
            limit: VarInt::saturating_from(limit),
        };
        assert_eq!(wanted_limit(limit(None, 3)), Some(3));
        assert_eq!(wanted_limit(limit(Some(0), u64::MAX)), Some(LIMIT_MAX));
        assert_eq!(wanted_limit(limit(Some(2), 3)), None);
        let ms = Duration::from_millis;
        for (end_to_end, tunnel, asked) in [(140, 40, 2), (40, 40, 1), (30, 40, 1), (9000, 1, 16)] {
            assert_eq!(limit_to_ask(ms(end_to_end), ms(tunnel)), asked);
        }
        assert_eq!(limit_to_ask(ms(1), Duration::ZERO), LIMIT_MAX);
    }
}
