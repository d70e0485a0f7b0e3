//! What requests and grants say of repair: our own field, and that of
//! draft-yang-masque-dgram-retrans. See `docs/wire.md`.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tandem_wire::{
    FieldError, Order, RepairField, RetransmissionLimit, VarInt, parse_boolean_item,
};

use crate::fields::only_line;

/// The draft's field.
const DG_RETRANS: HeaderName = HeaderName::from_static("dg-retrans");

const TANDEM_REPAIR: HeaderName = HeaderName::from_static(RepairField::NAME);

/// A structured Boolean, true.
const TRUE: HeaderValue = HeaderValue::from_static("?1");

/// The Context ID of our numbered payloads if we are the client: even (RFC 9298 §4).
pub(crate) const CONTEXT_ID_OF_CLIENT: VarInt = VarInt::from_u32(2);

/// The same if we are the proxy: odd.
pub(crate) const CONTEXT_ID_OF_PROXY: VarInt = VarInt::from_u32(1);

/// How lost HTTP Datagrams of a client's flows are repaired, both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repair {
    /// In which order payloads leave the tunnel at its exits.
    pub order: Order,
    /// Payloads that waited longer are neither sent nor repaired.
    pub deadline: Option<Duration>,
    /// Payloads are sent again at most so many times; 0: never.
    pub limit: Option<u8>,
}

impl Default for Repair {
    fn default() -> Self {
        Self { order: Order::Ordered, deadline: None, limit: None }
    }
}

impl From<RepairField> for Repair {
    fn from(RepairField { order, deadline, limit, .. }: RepairField) -> Self {
        Self { order, deadline, limit }
    }
}

/// What the other end says of repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing that we understand.
    #[default]
    Nothing,
    /// It speaks the draft.
    Draft,
    /// It is one of ours.
    Ours(RepairField),
}

impl Said {
    pub(crate) const fn is_nothing(self) -> bool {
        matches!(self, Self::Nothing)
    }
}

/// Who wrote a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    Client,
    Proxy,
}

/// Reads what the other end says. The error says why its `tandem-repair` is ignored.
pub(crate) fn read(headers: &HeaderMap, writer: Writer) -> (Said, Option<FieldError>) {
    let draft = headers.get(DG_RETRANS).and_then(|value| value.to_str().ok());
    let else_said = match draft.and_then(parse_boolean_item) {
        Some(true) => Said::Draft,
        Some(false) | None => Said::Nothing,
    };
    let Some(line) = only_line(headers, &TANDEM_REPAIR) else { return (else_said, None) };
    let field = line.map_err(FieldError::Syntax);
    let (is_even, allowed) = match writer {
        Writer::Client => (true, "even, 2 to 2^30 - 2"),
        Writer::Proxy => (false, "odd, 1 to 2^30 - 1"),
    };
    match field.and_then(|value| RepairField::parse(&value)) {
        Ok(field) if (field.context_id.get() % 2 == 0) == is_even => (Said::Ours(field), None),
        Ok(_) => (else_said, Some(FieldError::Parameter { name: "context", allowed })),
        Err(error) => (else_said, Some(error)),
    }
}

/// Adds what a client says in its request.
pub(crate) fn ask(headers: &mut HeaderMap, repair: &Repair) {
    let field = RepairField {
        deadline: repair.deadline,
        limit: repair.limit,
        order: repair.order,
        ..RepairField::new(CONTEXT_ID_OF_CLIENT)
    };
    headers.insert(TANDEM_REPAIR, field.encode());
    headers.insert(DG_RETRANS, TRUE);
}

/// Adds what a proxy says in its grant.
pub(crate) fn grant(headers: &mut HeaderMap, said: Said) {
    match said {
        Said::Nothing => {}
        Said::Draft => {
            headers.insert(DG_RETRANS, TRUE);
        }
        Said::Ours(_) => {
            headers.insert(TANDEM_REPAIR, RepairField::new(CONTEXT_ID_OF_PROXY).encode());
        }
    }
}

/// How often the draft's other end wants lost datagrams again, if that is for all of them or for
/// UDP payloads, which are all that we send.
pub(crate) fn wanted_limit(limit: RetransmissionLimit) -> Option<u8> {
    let is_meant = limit.context_id.is_none_or(|context_id| context_id.get() == 0);
    is_meant.then(|| u8::try_from(limit.limit.get()).unwrap_or(LIMIT_MAX).min(LIMIT_MAX))
}

/// How often whoever is next to the origin is to repair for us: as long as the origin itself would
/// take, floor(RTT beyond the proxy / RTT to the proxy).
pub(crate) fn limit_to_ask(end_to_end: Duration, tunnel: Duration) -> u8 {
    let beyond = end_to_end.saturating_sub(tunnel).as_nanos();
    let rounds = beyond / tunnel.as_nanos().max(1);
    u8::try_from(rounds).unwrap_or(LIMIT_MAX).clamp(LIMIT_LEAST, LIMIT_MAX)
}

/// Least that we ask for, and all while the RTT to the origin is not known.
pub(crate) const LIMIT_LEAST: u8 = 1;

/// Most that we ask for, and do.
const LIMIT_MAX: u8 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for &(name, value) in lines {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn what_cannot_be_understood_is_as_if_it_were_not_there() {
        for (lines, said, is_error) in [
            (&[][..], Said::Nothing, false),
            (&[("dg-retrans", "?0")], Said::Nothing, false),
            (&[("dg-retrans", "1")], Said::Nothing, false),
            (&[("dg-retrans", "?1")], Said::Draft, false),
            (&[("dg-retrans", "?1"), ("tandem-repair", "2;context=2")], Said::Draft, true),
            (&[("tandem-repair", "1;context=3")], Said::Nothing, true),
            (&[("tandem-repair", "1;context=2;limit=1000")], Said::Nothing, true),
            (
                &[("tandem-repair", "1;context=2"), ("tandem-repair", "1;context=2")],
                Said::Nothing,
                true,
            ),
        ] {
            let (seen, error) = read(&headers(lines), Writer::Client);
            assert_eq!((seen, error.is_some()), (said, is_error), "{lines:?}");
        }
    }

    #[test]
    fn both_ends_of_ours_understand_each_other() {
        let repair = Repair {
            order: Order::Window,
            deadline: Some(Duration::from_millis(150)),
            limit: Some(0),
        };
        let mut request = HeaderMap::new();
        ask(&mut request, &repair);
        let (Said::Ours(field), None) = read(&request, Writer::Client) else {
            panic!("{request:?}")
        };
        assert_eq!(
            (field.order, field.deadline, field.limit),
            (repair.order, repair.deadline, repair.limit)
        );
        let mut answer = HeaderMap::new();
        grant(&mut answer, Said::Ours(field));
        let (Said::Ours(field), None) = read(&answer, Writer::Proxy) else { panic!("{answer:?}") };
        assert_eq!(field.context_id, CONTEXT_ID_OF_PROXY);
        assert!(!answer.contains_key(DG_RETRANS));
    }

    #[test]
    fn absurd_limits_become_the_largest() {
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
