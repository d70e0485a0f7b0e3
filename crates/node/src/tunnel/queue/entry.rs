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
        max_datagram_size: usize,
    ) -> (usize, usize) {
        let widest = self.widest.max(max_datagram_size);
        let numbered = self
            .outstanding
            .flow(stream)
            .and_then(|flow| Some((Ids::new(stream, flow.plan.context_id?)?, flow.next())));
        let room_in = |max| match numbered {
            Some((ids, next)) => ids.room(next, max),
            None => room_in(stream, max),
        };
        let room = room_in(max_datagram_size);
        (room, too_large.most(room, room_in(widest)))
    }

    /// The form in which a payload waits. The error is the largest payload of its flow, in bytes, that
    /// would fit.
    pub(super) fn to_item(
        &mut self,
        now: Instant,
        stream: StreamId,
        Payload { form, too_large, data }: Payload<'_>,
        max_datagram_size: usize,
    ) -> Result<Item, usize> {
        if form == Form::Capsule {
            return Ok(Item::Encoded(form, encode_payload(CONTEXT_ID_UDP, data)));
        }
        let ack_time = self.outstanding.ack_time();
        if let Some(flow) = self.outstanding.flow(stream)
            && flow.plan.context_id.is_some()
        {
            let most = self.sizes(stream, too_large, max_datagram_size).1;
            let ahead = self.flows.get(&stream).map_or(0, |flow| flow.bytes);
            let item = || Item::Unnumbered(Unnumbered::new(data, (now, ack_time), ahead));
            return (data.len() <= most).then(item).ok_or(most);
        }
        let (room, most) = self.sizes(stream, too_large, max_datagram_size);
        if data.len() <= room {
            let datagram = encode_datagram(stream, data).ok_or(0_usize)?;
            return Ok(Item::Encoded(form, datagram));
        }
        let capsule = || Item::Encoded(Form::Capsule, encode_payload(CONTEXT_ID_UDP, data));
        (data.len() <= most).then(capsule).ok_or(most)
    }
}
