use std::time::{Duration, Instant};

use tandem_units::ByteCount;

use super::{CloseReason, PACKET_SIZE_MIN, Transport};
use crate::{
    fates::Source,
    frame::{self, DATAGRAM, DATAGRAM_LEN, PADDING, PING},
    pacer::Pace,
    protection::Protection,
    received::Ecn,
    seal::{HEADER_LEN_MAX, PACKET_NUMBER_MAX, TAG_LEN},
    sent::{DATAGRAMS_MAX, SentPacket, State},
};

/// A DATAGRAM frame with a length has so many bytes before its content; the length has two.
const DATAGRAM_LEN_HEADER: usize = 3;

/// A packet with less room than this gets no further datagram.
const ROOM_MIN: usize = 32;

/// A packet of a batch that is shorter than the first one by at most this part of it is padded, so that the batch goes
/// on.
const PADDING_SHARE: usize = 32;

/// An ACK frame that leaves alone with more ranges than this has a PING beside it, once in an RTT. When it is
/// acknowledged, old ranges are forgotten (RFC 9000 §13.2.4).
const RANGES_WITHOUT_PING: usize = 8;

/// The least time between such PINGs.
const PING_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Packets that leave together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The bytes that were appended to the buffer.
    pub size: usize,
    /// Each packet has so many bytes, and the last one at most (UDP generic segmentation offload).
    pub segment_size: usize,
    /// The ECN codepoint of all packets.
    pub ecn: Option<Ecn>,
}

/// What may leave.
struct Allowance {
    /// Bytes by pacing.
    budget: i64,
    /// Bytes by congestion control.
    window: u64,
}

/// A packet that was begun.
struct Begun {
    number: u64,
    start: usize,
    /// Where its payload must end.
    end: usize,
    /// The length of its ACK frame; 0: there is none.
    ack_len: usize,
    has_ping: bool,
    tags: u8,
    /// Whether a last frame without a length has ended it.
    is_ended: bool,
}

impl<P: Protection> Transport<P> {
    /// Appends packets to `out` that are to leave now, at most `max_segments` of them. `None`: there are none until
    /// something else happens. The caller asks again until then.
    pub fn poll_transmit<S: Source>(
        &mut self,
        now: Instant,
        out: &mut Vec<u8>,
        max_segments: usize,
        source: &mut S,
    ) -> Option<Transmit> {
        if !self.may_send || self.closed.is_some() {
            return None;
        }
        if self.recovery.sent.next_number() >= PACKET_NUMBER_MAX {
            self.close(CloseReason::Exhausted, source);
            return None;
        }
        self.tell_packet_size();
        let is_empty = source.is_empty();
        let mut allowance = self.allowance(now, is_empty);
        if is_empty && self.recovery.probes == 0 && !self.is_ack_due(now) {
            return None;
        }
        let start = out.len();
        let marks = self.recovery.ecn.marks();
        if allowance.budget > 0
            && let Some(size) = self.probe_size(now, &allowance)
        {
            return Some(self.send_probe_of_size(now, size, marks, out, source));
        }
        let max_segments = max_segments.min(self.send_quantum());
        let (mut segment_size, mut segments) = (self.packet_size(), 0);
        while segments < max_segments {
            self.skip_number(now);
            let is_first = segments == 0;
            let begun = self.begin(segment_size, out);
            let Some(begun) = self.fill(now, begun, &allowance, is_first, out, source) else {
                break;
            };
            let len = self.finish(now, &begun, marks, out, source);
            allowance.budget = allowance.budget.saturating_sub_unsigned(len as u64);
            segments += 1;
            if is_first {
                segment_size = len;
            }
            // While a probe is to leave, nothing follows it in its batch.
            if len < segment_size {
                break;
            }
        }
        let size = out.len() - start;
        (size > 0).then_some(Transmit { size, segment_size, ecn: marks.then_some(Ecn::Ect0) })
    }

    fn allowance(&mut self, now: Instant, is_empty: bool) -> Allowance {
        let window = self.recovery.controller.congestion_window().get();
        let has_window = self.recovery.bytes_in_flight + self.packet_size() as u64 <= window;
        self.recovery.is_app_limited = has_window && is_empty;
        // Without a place in the window, or without a datagram, no timer is needed for pacing.
        if is_empty || !has_window {
            self.pacer.until = None;
            return Allowance { budget: 0, window };
        }
        let pace = Pace {
            rate: self.recovery.controller.pacing_rate(),
            window,
            smoothed_rtt: self.recovery.rtt.smoothed,
            packet_size: self.packet_size() as u64,
        };
        Allowance { budget: self.pacer.budget(now, &pace), window }
    }

    /// The size of a probe that is to leave now.
    fn probe_size(&self, now: Instant, allowance: &Allowance) -> Option<u16> {
        let size = self.recovery.mtu.probe(now)?;
        let has_window = self.recovery.bytes_in_flight + u64::from(size) <= allowance.window;
        (has_window && self.recovery.sent.has_room()).then_some(size)
    }

    /// Sends a probe for the size of packets: PING and PADDING ([RFC 9000 §14.4]).
    ///
    /// [RFC 9000 §14.4]: https://www.rfc-editor.org/rfc/rfc9000#section-14.4
    fn send_probe_of_size<S: Source>(
        &mut self,
        now: Instant,
        size: u16,
        marks: bool,
        out: &mut Vec<u8>,
        source: &mut S,
    ) -> Transmit {
        self.skip_number(now);
        let mut packet = self.begin(self.packet_size(), out);
        packet.end = packet.start + usize::from(size) - TAG_LEN;
        packet.has_ping = true;
        out.push(PING);
        out.resize(packet.end, PADDING);
        self.recovery.mtu.on_probe_sent(packet.number);
        let size = self.finish(now, &packet, marks, out, source);
        Transmit { size, segment_size: size, ecn: marks.then_some(Ecn::Ect0) }
    }

    /// How many packets the controller lets leave together.
    fn send_quantum(&self) -> usize {
        let quantum = self.recovery.controller.send_quantum().map_or(u64::MAX, ByteCount::get);
        usize::try_from(quantum / self.packet_size() as u64).unwrap_or(usize::MAX).max(1)
    }

    fn skip_number(&mut self, now: Instant) {
        if self.skipped.skips(self.recovery.sent.next_number()) {
            self.recovery.sent.push(SentPacket::done(now));
        }
    }

    fn begin(&self, size: usize, out: &mut Vec<u8>) -> Begun {
        let start = out.len();
        let header = [0; HEADER_LEN_MAX];
        out.extend_from_slice(header.get(..self.protection.header_len()).unwrap_or(&header));
        let number = self.recovery.sent.next_number();
        let end = start + size.min(self.packet_size()) - TAG_LEN;
        Begun { number, start, end, ack_len: 0, has_ping: false, tags: 0, is_ended: false }
    }

    /// Writes the frames of a packet. `None`: there is nothing to send, and the packet is taken back.
    fn fill<S: Source>(
        &mut self,
        now: Instant,
        mut packet: Begun,
        allowance: &Allowance,
        is_first: bool,
        out: &mut Vec<u8>,
        source: &mut S,
    ) -> Option<Begun> {
        let is_probe = self.recovery.probes > 0;
        let bytes_in_flight = self.recovery.bytes_in_flight;
        let is_open = allowance.budget > 0
            && bytes_in_flight + self.packet_size() as u64 <= allowance.window
            && self.recovery.sent.has_room();
        let has_news = self.ack_policy.has_news();
        let payload_start = out.len();
        if has_news && is_first && (is_open || is_probe) {
            self.write_ack(now, &mut packet, out);
        }
        // Of two probes the first is small. It shows that the path is there, if it has become too narrow for datagrams.
        let is_small = self.recovery.probes > 1 || self.recovery.mtu.is_suspect();
        if is_open || is_probe && !is_small {
            self.write_datagrams(&mut packet, out, source);
            if packet.tags == 0 && packet.ack_len > 0 {
                // A full datagram has no room beside an acknowledgement.
                out.truncate(payload_start);
                packet.ack_len = 0;
                self.write_datagrams(&mut packet, out, source);
            }
        }
        if packet.tags == 0 {
            if !(self.is_ack_due(now) || is_probe) {
                out.truncate(packet.start);
                return None;
            }
            if has_news && packet.ack_len == 0 {
                self.write_ack(now, &mut packet, out);
            }
            if is_probe || self.wants_ping(now) && out.len() < packet.end {
                out.push(PING);
                packet.has_ping = true;
                self.pinged = now;
            }
            if is_probe && std::mem::take(&mut self.pads_probe) {
                let size = usize::from(self.config.packet_size_min.max(PACKET_SIZE_MIN));
                let end = packet.end.min(packet.start + size - TAG_LEN);
                out.resize(end.max(out.len()), PADDING);
            }
            if out.len() == payload_start {
                out.truncate(packet.start);
                return None; // no room for the ACK frame behind smaller packets
            }
        }
        let missing = packet.end.saturating_sub(out.len());
        let is_padded = !is_first && packet.tags > 0 && !packet.is_ended;
        if is_padded && missing <= (packet.end - packet.start) / PADDING_SHARE {
            out.resize(packet.end, PADDING);
        }
        Some(packet)
    }

    fn is_ack_due(&self, now: Instant) -> bool {
        self.ack_policy.has_news() && self.ack_policy.is_due(now)
    }

    /// Whether an ACK frame that leaves alone gets a PING.
    fn wants_ping(&self, now: Instant) -> bool {
        let interval = self.recovery.rtt.smoothed.max(PING_INTERVAL_MIN);
        self.received.ranges_len() > RANGES_WITHOUT_PING && self.pinged + interval <= now
    }

    fn write_ack(&self, now: Instant, packet: &mut Begun, out: &mut Vec<u8>) {
        let delay = now.saturating_duration_since(self.received.largest_came);
        let (before, room) = (out.len(), packet.end - out.len());
        frame::encode_ack(self.received.ranges(), delay, self.received.ecn(), room, out);
        packet.ack_len = out.len() - before;
    }

    /// Fills a packet with datagrams.
    fn write_datagrams<S: Source>(
        &mut self,
        packet: &mut Begun,
        out: &mut Vec<u8>,
        source: &mut S,
    ) {
        while packet.tags < DATAGRAMS_MAX && !source.is_empty() {
            let start = out.len();
            let room = packet.end.saturating_sub(start);
            if packet.tags > 0 && room < ROOM_MIN || room == 0 {
                break;
            }
            let mut tag = None;
            if let Some(content) = room.checked_sub(DATAGRAM_LEN_HEADER) {
                out.extend_from_slice(&[DATAGRAM_LEN, 0, 0]);
                tag = source.next(content, out);
                let len = out.len() - start - DATAGRAM_LEN_HEADER;
                assert!(len <= content, "a source gave a datagram of more than {content} bytes");
                if let (Some([_, high, low]), Ok(len)) = (
                    out.get_mut(start..).and_then(|frame| frame.first_chunk_mut()),
                    u16::try_from(len),
                ) {
                    [*high, *low] = (TWO_BYTES | len).to_be_bytes();
                }
            }
            if tag.is_none() {
                out.truncate(start);
                if packet.tags > 0 {
                    break;
                }
                // The largest ones have room only without a length.
                out.push(DATAGRAM);
                tag = source.next(room - 1, out);
                assert!(
                    out.len() <= packet.end,
                    "a source gave a datagram of more than {room} bytes"
                );
                packet.is_ended = tag.is_some();
            }
            let Some(tag) = tag else {
                out.truncate(start);
                break;
            };
            packet.tags += 1;
            self.recovery.sent.push_tag(tag);
            source.sent(tag, packet.number);
            if packet.is_ended {
                break;
            }
        }
    }

    /// Protects a packet and notes it. Returns its length.
    fn finish<S: Source>(
        &mut self,
        now: Instant,
        packet: &Begun,
        is_marked: bool,
        out: &mut Vec<u8>,
        source: &mut S,
    ) -> usize {
        let is_ack_eliciting = packet.tags > 0 || packet.has_ping;
        let frames = out.get(packet.start + self.protection.header_len()..).unwrap_or_default();
        source.packet_sent(
            packet.number,
            frames,
            self.protection.header_len() + frames.len() + TAG_LEN,
        );
        let protected = self.protection.protect(packet.number, packet.start, out);
        protected.expect("there are more numbers");
        self.used = Some(now);
        let len = out.len() - packet.start;
        self.recovery.make_room(now, source);
        let ack_until =
            if packet.ack_len > 0 { self.received.largest().map_or(0, |it| it + 1) } else { 0 };
        self.recovery.on_sent(
            now,
            SentPacket {
                ack_until,
                size: u16::try_from(len).unwrap_or(u16::MAX),
                tags: packet.tags,
                state: if is_ack_eliciting { State::InFlight } else { State::Done },
                is_ack_eliciting,
                is_marked,
                ..SentPacket::done(now)
            },
        );
        if packet.ack_len > 0 {
            self.ack_policy.on_ack_sent(now);
        }
        if is_ack_eliciting {
            self.recovery.probes = self.recovery.probes.saturating_sub(1);
            self.pacer.on_sent(len as u64);
        }
        self.counts.sent.add(len, packet.ack_len, is_ack_eliciting);
        len
    }
}

/// The first bits of a variable-length integer of two bytes (RFC 9000 §16).
const TWO_BYTES: u16 = 0x4000;
