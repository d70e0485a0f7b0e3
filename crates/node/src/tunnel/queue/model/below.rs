//! A model of the connection below a queue. Its user says how much it takes, and what becomes of
//! each datagram. It looks at everything that the queue sends.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use bytes::{Buf, Bytes};
use tandem_wire::{
    CONTEXT_ID_UDP, Capsule, CapsuleDecoder, Frame, FrameDecoder, HttpDatagram, Sequenced,
    StreamKind, VarInt, split_context_id,
};

use crate::{
    carrier::QueueCarrier,
    quic::{DatagramId, Delivery, SendDatagram, StreamGone, StreamId, Write},
};

/// The Context ID of numbered payloads.
pub(in crate::tunnel::queue) const NUMBERED: VarInt = VarInt::from_u32(2);

/// A model of a connection.
pub(in crate::tunnel::queue) struct Below {
    pub(in crate::tunnel::queue) now: Instant,
    /// Bytes of datagrams that the engine takes now.
    pub(in crate::tunnel::queue) room: usize,
    pub(in crate::tunnel::queue) max_datagram_size: usize,
    pub(in crate::tunnel::queue) smoothed_rtt: Duration,
    /// Datagrams that the engine has taken and not sent yet.
    pub(in crate::tunnel::queue) taken: VecDeque<DatagramId>,
    pub(in crate::tunnel::queue) in_flight: VecDeque<(DatagramId, Instant)>,
    last_sent: Option<(DatagramId, Instant)>,
    pub(in crate::tunnel::queue) reports: VecDeque<(DatagramId, Delivery)>,
    /// The request streams of open flows.
    pub(in crate::tunnel::queue) streams: BTreeMap<StreamId, Stream>,
}

/// A request stream of an open flow, and what was sent for the flow.
pub(in crate::tunnel::queue) struct Stream {
    /// Bytes of stream data that the engine takes now.
    pub(in crate::tunnel::queue) room: usize,
    pub(in crate::tunnel::queue) is_stopped: bool,
    /// Whether payloads may be missing that were never sent.
    pub(in crate::tunnel::queue) may_lack: bool,
    /// How often each payload was sent that the queue accepted.
    pub(in crate::tunnel::queue) sends: BTreeMap<u32, u32>,
    /// How often a payload may be sent.
    pub(in crate::tunnel::queue) sends_max: u32,
    /// The payload of each number.
    numbers: BTreeMap<u64, u32>,
    /// The highest repair floor that was sent in a datagram.
    floor: u64,
    frames: FrameDecoder,
    capsules: CapsuleDecoder,
}

impl Below {
    pub(in crate::tunnel::queue) fn new(now: Instant) -> Self {
        Self {
            now,
            room: 0,
            max_datagram_size: 1200,
            smoothed_rtt: Duration::ZERO,
            taken: VecDeque::new(),
            in_flight: VecDeque::new(),
            last_sent: None,
            reports: VecDeque::new(),
            streams: BTreeMap::new(),
        }
    }

    /// Sends datagrams that the engine has taken.
    pub(in crate::tunnel::queue) fn transmit(&mut self, count: usize) {
        for id in self.taken.drain(..count.min(self.taken.len())) {
            self.last_sent = Some((id, self.now));
            self.in_flight.push_back((id, self.now));
        }
    }

    /// Reports what became of `count` datagrams in flight.
    pub(in crate::tunnel::queue) fn resolve(
        &mut self,
        first: usize,
        count: usize,
        delivery: Delivery,
    ) {
        for _ in 0..count {
            let Some(index) = first.checked_rem(self.in_flight.len()) else { return };
            let id = self.in_flight.remove(index).map(|(id, _)| (id, delivery));
            self.reports.extend(id);
        }
    }

    /// Drops datagrams that the engine has taken, as if the path MTU had shrunk.
    pub(in crate::tunnel::queue) fn drop_taken(&mut self) {
        self.reports.extend(self.taken.drain(..).map(|id| (id, Delivery::Lost)));
    }

    fn stream(&mut self, stream: StreamId) -> &mut Stream {
        self.streams.get_mut(&stream).expect("only open flows send")
    }

    fn note_datagram(&mut self, data: Bytes) {
        assert!(data.len() <= self.max_datagram_size, "the datagram fits no packet");
        let datagram = HttpDatagram::decode(data).expect("a sound datagram");
        let stream = self.stream(StreamId(datagram.quarter_stream_id.stream_id()));
        if let Some((number, floor)) = stream.note(datagram.context_id, datagram.payload) {
            assert!(number >= stream.floor, "{number} is below the floor that the peer knows");
            stream.floor = stream.floor.max(floor);
        }
    }
}

impl Stream {
    pub(in crate::tunnel::queue) fn new() -> Self {
        Self {
            room: 0,
            is_stopped: false,
            may_lack: false,
            sends: BTreeMap::new(),
            sends_max: 1,
            numbers: BTreeMap::new(),
            floor: 0,
            frames: FrameDecoder::new(StreamKind::Request, 0),
            capsules: CapsuleDecoder::new(2000),
        }
    }

    /// Counts a transmission of a payload. Returns its number and the repair floor, if it has them.
    fn note(&mut self, context_id: VarInt, data: Bytes) -> Option<(u64, u64)> {
        if context_id == CONTEXT_ID_UDP {
            self.count(data);
            return None;
        }
        assert_eq!(context_id, NUMBERED);
        let Sequenced { sequence, floor, payload } = Sequenced::decode(data).expect("numbers");
        let payload = self.count(payload);
        let known = *self.numbers.entry(sequence.get()).or_insert(payload);
        assert_eq!(known, payload, "two payloads have the number {sequence}");
        Some((sequence.get(), floor.get()))
    }

    fn count(&mut self, mut payload: Bytes) -> u32 {
        let id = payload.try_get_u32().expect("each payload begins with its ID");
        let sends = self.sends.get_mut(&id).expect("the queue accepted this payload");
        *sends += 1;
        assert!(*sends <= self.sends_max, "payload {id} is sent {sends} times");
        id
    }

    fn note_body(&mut self, data: Bytes) {
        self.frames.push(data);
        while let Some(frame) = self.frames.next().expect("sound frames") {
            let Frame::Data(data) = frame else { panic!("{frame:?} among capsules") };
            self.capsules.push(data);
            while let Some(capsule) = self.capsules.next().expect("sound capsules") {
                if let Capsule::Datagram(value) = capsule {
                    let (context_id, payload) = split_context_id(value).expect("a Context ID");
                    self.note(context_id, payload);
                }
            }
        }
    }
}

impl QueueCarrier for Below {
    fn max_datagram_size(&mut self) -> usize {
        self.max_datagram_size
    }

    fn has_room_for_datagram(&mut self, len: usize) -> bool {
        self.room >= len
    }

    fn send_datagram(&mut self, data: Bytes) -> SendDatagram {
        if data.len() > self.max_datagram_size {
            return SendDatagram::TooLarge;
        }
        let Some(room) = self.room.checked_sub(data.len()) else {
            return SendDatagram::Blocked(data);
        };
        self.room = room;
        self.note_datagram(data);
        SendDatagram::Taken
    }

    fn send_tracked_datagram(&mut self, id: DatagramId, data: Bytes) -> bool {
        if data.len() > self.max_datagram_size {
            return false;
        }
        let Some(room) = self.room.checked_sub(data.len()) else { return false };
        self.room = room;
        self.taken.push_back(id);
        self.note_datagram(data);
        true
    }

    fn poll_delivery(&mut self) -> Option<(DatagramId, Delivery)> {
        self.reports.pop_front()
    }

    fn newest_datagram(&self) -> Option<(DatagramId, Instant)> {
        self.last_sent.filter(|last| self.in_flight.contains(last))
    }

    fn smoothed_rtt(&self) -> Duration {
        self.smoothed_rtt
    }

    fn write_body(&mut self, stream: StreamId, data: &mut Bytes) -> Result<Write, StreamGone> {
        let stream = self.stream(stream);
        if stream.is_stopped {
            return Err(StreamGone);
        }
        let taken = data.split_to(stream.room.min(data.len()));
        stream.room -= taken.len();
        stream.note_body(taken);
        Ok(if data.is_empty() { Write::Done } else { Write::Blocked })
    }

    fn begin_frame(&mut self, _: StreamId) {}

    fn hold_two_windows(&mut self) {}

    fn hold_burst(&mut self) {}

    fn is_held(&mut self, _: StreamId) -> bool {
        false
    }

    fn finish(&mut self, _: StreamId) {}
}
