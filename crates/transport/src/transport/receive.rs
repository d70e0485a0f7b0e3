use std::{ops::Range, time::Instant};

use super::{CloseReason, DropCause, Transport};
use crate::{
    fates::Fates,
    frame::{self, AckFrame, Frame, Violation},
    protection::Protection,
    received::Ecn,
    seal::OpenError,
};

/// The datagrams of a packet.
#[derive(Clone, Debug)]
pub struct Datagrams {
    /// The packet's payload.
    payload: Range<usize>,
    /// The first datagram in it.
    first: Option<Range<usize>>,
    /// Where the frame behind it begins.
    at: usize,
}

impl Datagrams {
    /// Where the next datagram is in the packet, which is the buffer that was handled.
    pub fn next(&mut self, packet: &[u8]) -> Option<Range<usize>> {
        let start = self.payload.start;
        let within = |range: Range<usize>| start + range.start..start + range.end;
        if let Some(first) = self.first.take() {
            return Some(within(first));
        }
        let payload = packet.get(self.payload.clone())?;
        while let Some(Ok(frame)) = frame::decode(payload, &mut self.at) {
            if let Frame::Datagram(range) = frame {
                return Some(within(range));
            }
        }
        None
    }
}

/// What an allowed packet contains.
struct Contents<'a> {
    is_ack_eliciting: bool,
    ack: Option<AckFrame<'a>>,
    /// The length of the ACK frame; 0: there is none.
    ack_len: usize,
    /// The first datagram, and where the frame behind it begins.
    first: Option<Range<usize>>,
    after_first: usize,
}

impl<P: Protection> Transport<P> {
    /// Takes a received packet, a whole UDP payload, which is decrypted in place. `ecn`: its codepoint in the IP
    /// header. Returns the datagrams in it.
    ///
    /// # Errors
    ///
    /// The packet was dropped.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        packet: &mut [u8],
        ecn: Option<Ecn>,
        fates: &mut (impl Fates + ?Sized),
    ) -> Result<Datagrams, DropCause> {
        if self.closed.is_some() {
            return Err(DropCause::Closed);
        }
        let (number, payload) = match self.protection.open(packet) {
            Ok(opened) => opened,
            Err(error) => {
                self.used.get_or_insert(now);
                self.counts.dropped_packets += 1;
                if error == OpenError::Over {
                    self.close(CloseReason::Forged, fates);
                }
                return Err(error.into());
            }
        };
        self.used = Some(now);
        let plaintext = packet.get(payload.clone()).unwrap_or_default();
        fates.packet_received(number, plaintext, packet.len());
        let contents = match self.read(plaintext) {
            Ok(contents) => contents,
            Err(violation) => {
                // RFC 9000 §11.1: an obvious violation of the protocol "MUST be signaled using a CONNECTION_CLOSE
                // frame". The owner does that on the QUIC connection.
                self.close(violation.into(), fates);
                return Err(violation.into());
            }
        };
        let Contents { is_ack_eliciting, ack, ack_len, first, after_first } = contents;
        let size = packet.len();
        self.counts.received.add(size, ack_len, is_ack_eliciting);
        let is_in_order = self.received.insert(number, now, ecn);
        if is_ack_eliciting {
            let is_urgent = !is_in_order || ecn == Some(Ecn::Ce);
            self.ack_policy.on_packet(now, is_urgent, self.recovery.rtt.smoothed);
        }
        if let Some(ack) = ack
            && let Some(largest) = self.recovery.on_ack(now, &ack, fates)
        {
            self.received.on_ack_acked(largest);
        }
        Ok(Datagrams { payload, first, at: after_first })
    }

    /// Reads all frames of a packet before any of them has an effect.
    fn read<'a>(&self, payload: &'a [u8]) -> Result<Contents<'a>, Violation> {
        let (mut at, mut frames) = (0, 0_u32);
        let mut contents = Contents {
            is_ack_eliciting: false,
            ack: None,
            ack_len: 0,
            first: None,
            after_first: payload.len(),
        };
        loop {
            let before = at;
            let Some(frame) = frame::decode(payload, &mut at) else { break };
            frames += 1;
            match frame? {
                Frame::Padding => {}
                Frame::Ping => contents.is_ack_eliciting = true,
                Frame::Ack(ack) => {
                    self.check(&ack)?;
                    if contents.ack.replace(ack).is_some() {
                        return Err(Violation::SecondAck);
                    }
                    contents.ack_len = at - before;
                }
                Frame::Datagram(range) => {
                    contents.is_ack_eliciting = true;
                    if contents.first.is_none() {
                        (contents.first, contents.after_first) = (Some(range), at);
                    }
                }
            }
        }
        // RFC 9000 §12.4: "An endpoint MUST treat receipt of a packet containing no frames as a connection error"
        if frames == 0 { Err(Violation::NoFrame) } else { Ok(contents) }
    }

    /// Whether all that a frame acknowledges was sent. RFC 9000 §13.1: "An endpoint SHOULD treat receipt of an
    /// acknowledgment for a packet it did not send as a connection error".
    fn check(&self, ack: &AckFrame<'_>) -> Result<(), Violation> {
        let is_skipped = || ack.ranges().any(|range| self.skipped.contains_any(&range));
        if ack.largest >= self.recovery.sent.next_number() || is_skipped() {
            return Err(Violation::NeverSent);
        }
        Ok(())
    }
}
