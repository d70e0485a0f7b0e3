//! How a payload enters the queue: its form, and what fits.

use std::time::Instant;

use tandem_wire::CONTEXT_ID_UDP;

use super::{
    Form, Payload, Queue, TooLarge,
    item::{Ids, Item, Unnumbered, encode_datagram, room_in},
};
use crate::{quic::StreamId, tunnel::capsules::encode_payload};

impl Queue {
    /// The largest payload in bytes of this flow that fits a datagram now, and the largest that is
    /// not dropped.
    pub(in crate::tunnel) fn sizes(
        &mut self,
        stream: StreamId,
        too_large: TooLarge,
        max: usize,
    ) -> (usize, usize) {
        let widest = self.widest.max(max);
        match self.next_ids(stream) {
            Some((ids, next)) => too_large.sizes(|size| ids.room(next, size), max, widest),
            None => too_large.sizes(|size| room_in(stream, size), max, widest),
        }
    }

    /// The IDs and the number of a flow's next payload. `None`: the flow has no numbers.
    fn next_ids(&mut self, stream: StreamId) -> Option<(Ids, u64)> {
        let flow = self.outstanding.flow(stream)?;
        Some((flow.plan.ids(stream)?, flow.next()))
    }

    /// The form in which a payload waits. The error is the largest payload of its flow, in bytes, that
    /// would fit.
    pub(super) fn to_item(
        &mut self,
        now: Instant,
        stream: StreamId,
        Payload { form, too_large, data }: Payload<'_>,
        max: usize,
    ) -> Result<Item, usize> {
        if form == Form::Capsule {
            return Ok(Item::Encoded(form, encode_payload(CONTEXT_ID_UDP, data)));
        }
        if let Some((ids, next)) = self.next_ids(stream) {
            let room_in = |size| ids.room(next, size);
            let (_, most) = too_large.sizes(room_in, max, self.widest);
            let ack_time = self.outstanding.ack_time();
            let ahead = self.flows.get(&stream).map_or(0, |flow| flow.bytes);
            let item = || Item::Unnumbered(Unnumbered::new(data, (now, ack_time), ahead));
            return (data.len() <= most).then(item).ok_or(most);
        }
        let (room, most) = too_large.sizes(|size| room_in(stream, size), max, self.widest);
        if data.len() <= room {
            let datagram = encode_datagram(stream, data).ok_or(0_usize)?;
            return Ok(Item::Encoded(form, datagram));
        }
        if data.len() > most {
            return Err(most);
        }
        self.in_capsules += 1;
        Ok(Item::Encoded(Form::Capsule, encode_payload(CONTEXT_ID_UDP, data)))
    }
}
