//! The frames in a packet: PADDING, PING, ACK ([RFC 9000 §19]) and DATAGRAM ([RFC 9221 §4]), and nothing else.
//!
//! [RFC 9000 §19]: https://www.rfc-editor.org/rfc/rfc9000#section-19
//! [RFC 9221 §4]: https://www.rfc-editor.org/rfc/rfc9221#section-4

use std::{ops::Range, ops::RangeInclusive, time::Duration};

use tandem_wire::VarInt;

/// The most ranges of packet numbers in an ACK frame.
pub const ACK_RANGES_MAX: usize = 64;

pub(crate) const PADDING: u8 = 0x00;
pub(crate) const PING: u8 = 0x01;
const ACK: u8 = 0x02;
const ACK_ECN: u8 = 0x03;
/// A DATAGRAM frame that ends with the packet.
pub(crate) const DATAGRAM: u8 = 0x30;
/// A DATAGRAM frame with a length.
pub(crate) const DATAGRAM_LEN: u8 = 0x31;

/// What an authentic packet of the peer contains and must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The packet has no frame (RFC 9000 §12.4).
    #[error("a packet has no frame")]
    NoFrame,
    /// The packet has a frame that is not one of this transport.
    #[error("a packet has a frame of another type than PADDING, PING, ACK and DATAGRAM")]
    UnknownFrame,
    /// A frame is longer than its packet.
    #[error("a frame is longer than its packet")]
    Truncated,
    /// The ranges of an ACK frame go below packet number 0 (RFC 9000 §19.3.1).
    #[error("an ACK frame has a range below packet number 0")]
    AckRange,
    /// An ACK frame has more ranges than [`ACK_RANGES_MAX`].
    #[error("an ACK frame has more than 64 ranges")]
    TooManyRanges,
    /// A packet has two ACK frames.
    #[error("a packet has two ACK frames")]
    SecondAck,
    /// An ACK frame acknowledges a packet that was never sent (RFC 9000 §13.1).
    #[error("an ACK frame acknowledges a packet that was never sent")]
    NeverSent,
}

/// A frame of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// PADDING: all bytes of it that stand together.
    Padding,
    /// PING.
    Ping,
    /// ACK, with or without counts of ECN marks.
    Ack(AckFrame<'a>),
    /// DATAGRAM: where its content is in the packet's payload.
    Datagram(Range<usize>),
}

/// The counts of packets with ECN marks that an end has received (RFC 9000 §19.3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EcnCounts {
    /// Packets with the mark ECT(0).
    pub(crate) ect0: u64,
    /// Packets with the mark ECT(1).
    pub(crate) ect1: u64,
    /// Packets with the mark ECN-CE.
    pub(crate) ce: u64,
}

/// An ACK frame whose ranges have been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AckFrame<'a> {
    /// The largest packet number that it acknowledges.
    pub(crate) largest: u64,
    /// The time from the arrival of this packet to the acknowledgement, in microseconds.
    pub(crate) delay: u64,
    /// How many packets before the largest the first range has.
    first_range: u64,
    /// The other ranges, encoded.
    ranges: &'a [u8],
    /// The counts of ECN marks.
    pub(crate) ecn: Option<EcnCounts>,
}

impl<'a> AckFrame<'a> {
    /// The ranges of packet numbers, from the highest.
    pub(crate) fn ranges(&self) -> AckRanges<'a> {
        let first = self.largest - self.first_range..=self.largest;
        AckRanges { next: Some(first), rest: self.ranges }
    }

    /// The delay as a duration.
    pub(crate) fn delay(&self) -> Duration {
        Duration::from_micros(self.delay)
    }

    fn decode(rest: &mut &'a [u8], has_ecn: bool) -> Result<Self, Violation> {
        let [largest, delay, count, first_range] = [int(rest)?, int(rest)?, int(rest)?, int(rest)?];
        if count >= ACK_RANGES_MAX as u64 {
            return Err(Violation::TooManyRanges);
        }
        let mut smallest = largest.checked_sub(first_range).ok_or(Violation::AckRange)?;
        let encoded = *rest;
        for _ in 0..count {
            let (gap, len) = (int(rest)?, int(rest)?);
            let below = smallest.checked_sub(gap + 2).ok_or(Violation::AckRange)?;
            smallest = below.checked_sub(len).ok_or(Violation::AckRange)?;
        }
        let ranges = encoded.get(..encoded.len() - rest.len()).unwrap_or_default();
        let ecn = if has_ecn {
            let [ect0, ect1, ce] = [int(rest)?, int(rest)?, int(rest)?];
            Some(EcnCounts { ect0, ect1, ce })
        } else {
            None
        };
        Ok(Self { largest, delay, first_range, ranges, ecn })
    }
}

/// The ranges of an [`AckFrame`], from the highest.
#[derive(Clone, Debug)]
pub(crate) struct AckRanges<'a> {
    next: Option<RangeInclusive<u64>>,
    rest: &'a [u8],
}

impl Iterator for AckRanges<'_> {
    type Item = RangeInclusive<u64>;

    fn next(&mut self) -> Option<RangeInclusive<u64>> {
        let range = self.next.take()?;
        if !self.rest.is_empty() {
            // The frame was checked when it was decoded.
            let (gap, len) = (int(&mut self.rest).ok()?, int(&mut self.rest).ok()?);
            let largest = range.start().checked_sub(gap + 2)?;
            self.next = Some(largest.checked_sub(len)?..=largest);
        }
        Some(range)
    }
}

/// Takes an integer off the front.
fn int(rest: &mut &[u8]) -> Result<u64, Violation> {
    VarInt::decode(rest).map(VarInt::get).map_err(|_| Violation::Truncated)
}

/// Takes the frame at `at` of a packet's payload, and moves `at` behind it. `None` at the end.
///
/// # Errors
///
/// The packet must not contain this. Nothing follows it.
pub(crate) fn decode<'a>(
    payload: &'a [u8],
    at: &mut usize,
) -> Option<Result<Frame<'a>, Violation>> {
    let (&frame_type, mut rest) = payload.get(*at..)?.split_first()?;
    let frame = match frame_type {
        PADDING => {
            let zeros = rest.iter().take_while(|&&byte| byte == PADDING).count();
            rest = rest.get(zeros..).unwrap_or_default();
            Ok(Frame::Padding)
        }
        PING => Ok(Frame::Ping),
        ACK | ACK_ECN => AckFrame::decode(&mut rest, frame_type == ACK_ECN).map(Frame::Ack),
        DATAGRAM => {
            let start = payload.len() - rest.len();
            rest = &[];
            Ok(Frame::Datagram(start..payload.len()))
        }
        DATAGRAM_LEN => decode_datagram(payload, &mut rest),
        _ => Err(Violation::UnknownFrame),
    };
    *at = if frame.is_ok() { payload.len() - rest.len() } else { payload.len() };
    Some(frame)
}

fn decode_datagram<'a>(payload: &[u8], rest: &mut &[u8]) -> Result<Frame<'a>, Violation> {
    let len = usize::try_from(int(rest)?).map_err(|_| Violation::Truncated)?;
    let start = payload.len() - rest.len();
    *rest = rest.get(len..).ok_or(Violation::Truncated)?;
    Ok(Frame::Datagram(start..start + len))
}

/// Appends an ACK frame with as many ranges as `room` bytes have place for; at most [`ACK_RANGES_MAX`], and at least
/// one. `ranges` come from the highest and do not touch each other. Appends nothing without a range or without room.
pub(crate) fn encode_ack(
    mut ranges: impl Iterator<Item = RangeInclusive<u64>>,
    delay: Duration,
    ecn: Option<EcnCounts>,
    room: usize,
    out: &mut Vec<u8>,
) {
    let Some(first) = ranges.next() else { return };
    let start = out.len();
    out.push(if ecn.is_some() { ACK_ECN } else { ACK });
    put(*first.end(), out);
    put(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX), out);
    let count_at = out.len();
    out.push(0);
    put(first.end() - first.start(), out);
    let ecn_len = ecn.map_or(0, |ecn| {
        [ecn.ect0, ecn.ect1, ecn.ce]
            .map(|count| VarInt::saturating_from(count).encoded_len())
            .iter()
            .sum()
    });
    if out.len() - start + ecn_len > room {
        return out.truncate(start);
    }
    let (mut smallest, mut count) = (*first.start(), 0_u8);
    for range in ranges.take(ACK_RANGES_MAX - 1) {
        let before = out.len();
        put(smallest - range.end() - 2, out);
        put(range.end() - range.start(), out);
        if out.len() - start + ecn_len > room {
            out.truncate(before);
            break;
        }
        (smallest, count) = (*range.start(), count + 1);
    }
    // It is at most 63, which has one byte.
    if let Some(place) = out.get_mut(count_at) {
        *place = count;
    }
    if let Some(EcnCounts { ect0, ect1, ce }) = ecn {
        for count in [ect0, ect1, ce] {
            put(count, out);
        }
    }
}

fn put(value: u64, out: &mut Vec<u8>) {
    VarInt::saturating_from(value).encode(out);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames(payload: &[u8]) -> Vec<Result<Frame<'_>, Violation>> {
        let mut at = 0;
        std::iter::from_fn(|| decode(payload, &mut at)).collect()
    }

    #[test]
    fn frames_are_those_of_the_rfcs() {
        let ack = |largest, delay, ranges: &[RangeInclusive<u64>], ecn| {
            let mut out = Vec::new();
            let ranges = ranges.iter().cloned();
            encode_ack(ranges, Duration::from_micros(delay), ecn, usize::MAX, &mut out);
            let [Ok(Frame::Ack(frame))] = &frames(&out)[..] else { panic!("{out:?}") };
            assert_eq!((frame.largest, frame.delay), (largest, delay));
            out
        };
        let ecn = EcnCounts { ect0: 70, ect1: 0, ce: 1 };
        for (what, encoded, expected) in [
            ("one packet", ack(0, 0, &[0..=0], None), &[2, 0, 0, 0, 0][..]),
            ("a range", ack(9, 64, &[5..=9], None), &[2, 9, 0x40, 64, 0, 4]),
            ("two ranges", ack(9, 0, &[8..=9, 1..=5], None), &[2, 9, 0, 1, 1, 1, 4]),
            ("with ECN", ack(9, 0, &[8..=9], Some(ecn)), &[3, 9, 0, 0, 1, 0x40, 70, 0, 1]),
        ] {
            assert_eq!(encoded, expected, "{what}");
        }
        assert_eq!(
            frames(&[0, 0, 1, 0x31, 2, 7, 7, 0x30, 8, 8, 8]),
            [
                Ok(Frame::Padding),
                Ok(Frame::Ping),
                Ok(Frame::Datagram(5..7)),
                Ok(Frame::Datagram(8..11))
            ]
        );
        assert_eq!(frames(&[0x31, 0]), [Ok(Frame::Datagram(2..2))]);
        assert_eq!(frames(&[1, 0x1c, 1, 1]), [Ok(Frame::Ping), Err(Violation::UnknownFrame)]);
    }

    #[test]
    fn an_ack_frame_fits_its_room() {
        let ranges = || (0..40_u64).rev().map(|it| 100 * it..=100 * it + 9);
        let ecn = Some(EcnCounts { ect0: 1, ect1: 2, ce: 3 });
        for room in 0..150 {
            let mut out = vec![7];
            encode_ack(ranges(), Duration::ZERO, ecn, room, &mut out);
            let encoded = &out[1..];
            assert!(encoded.len() <= room);
            assert_eq!(encoded.is_empty(), room < 9, "{room}");
            if let [Ok(Frame::Ack(frame))] = &frames(encoded)[..] {
                assert!(frame.ranges().eq(ranges().take(frame.ranges().count())), "{room}");
                assert_eq!(frame.ecn, ecn);
            } else {
                assert!(encoded.is_empty());
            }
        }
    }

    proptest! {
        #[test]
        fn ranges_are_decoded_as_they_were(
            steps in prop::collection::vec((0..1_u64 << 40, 0..1_u64 << 30), 1..90),
            delay in 0..1_u64 << 40,
        ) {
            let mut smallest = 1_u64 << 48;
            let ranges: Vec<_> = steps
                .into_iter()
                .map_while(|(gap, len)| {
                    let last = smallest.checked_sub(gap + 2)?;
                    smallest = last.checked_sub(len)?;
                    Some(smallest..=last)
                })
                .collect();
            let mut out = Vec::new();
            let delay = Duration::from_micros(delay);
            encode_ack(ranges.iter().cloned(), delay, None, usize::MAX, &mut out);
            if let [Ok(Frame::Ack(frame))] = &frames(&out)[..] {
                prop_assert_eq!(frame.delay(), delay);
                let told: Vec<_> = frame.ranges().collect();
                prop_assert_eq!(&told[..], &ranges[..ranges.len().min(ACK_RANGES_MAX)]);
            } else {
                prop_assert!(ranges.is_empty() && out.is_empty());
            }
        }

        #[test]
        fn any_bytes_are_frames_within_them(payload in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut at = 0;
            while let Some(frame) = decode(&payload, &mut at) {
                prop_assert!(at <= payload.len());
                match frame {
                    Ok(Frame::Datagram(range)) => prop_assert!(range.end <= at),
                    Ok(Frame::Ack(ack)) => {
                        prop_assert!(ack.ranges().count() <= ACK_RANGES_MAX);
                        let ranges: Vec<_> = ack.ranges().collect();
                        prop_assert!(ranges.windows(2).all(|it| it[1].end() + 1 < *it[0].start()));
                    }
                    Ok(_) => {}
                    Err(_) => prop_assert_eq!(at, payload.len()),
                }
            }
        }
    }
}
