//! The datagrams that wait for the transport, and what it says of them.

use std::{collections::VecDeque, time::Instant};

use bytes::Bytes;
use tandem_transport::{Fates, Source, Tag as TransportTag};
use tracing::trace;

use crate::{
    quic::{
        DatagramId, Delivery, StreamId, Tag,
        observed::Observer,
        qlog::{Metrics, Qlog, Who},
    },
    spare,
};

/// The tag of a datagram whose fate is not reported.
const UNTRACKED: TransportTag = TransportTag::MAX;

/// What the transport calls a tracked datagram.
fn tag(id: DatagramId) -> TransportTag {
    TransportTag::from(id.stream.0) << 64 | TransportTag::from(id.number)
}

#[expect(clippy::cast_possible_truncation, reason = "the halves are put together above")]
const fn id(tag: TransportTag) -> DatagramId {
    DatagramId { stream: StreamId((tag >> 64) as u64), number: tag as u64 }
}

/// The datagrams of one batch, and the fates of all tracked ones.
pub(super) struct Owner {
    datagrams: VecDeque<(TransportTag, Bytes)>,
    bytes: usize,
    verdicts: VecDeque<(DatagramId, Delivery)>,
    /// The tracked datagram that was sent last and when it was sent, while its fate is not known.
    newest: Option<(DatagramId, Instant)>,
    /// The time of the call.
    now: Option<Instant>,
    /// The tags of the packets inside the packet that is being made. `None`: they are not recorded.
    inner: Option<Vec<Tag>>,
    /// Where the qlog of the connection is. `None`: it has none.
    log: Option<Observer>,
}

impl Owner {
    /// `log`: where the qlog of the connection is, if it has one.
    pub(super) fn new(has_layer: bool, log: Option<Observer>) -> Self {
        Self {
            datagrams: VecDeque::new(),
            bytes: 0,
            verdicts: VecDeque::new(),
            newest: None,
            now: None,
            inner: has_layer.then(Vec::new),
            log,
        }
    }

    /// Writes in the qlog, if there is one.
    fn log(&self, write: impl FnOnce(&mut Qlog)) {
        if let (Some(log), Some(now)) = (&self.log, self.now) {
            log.log(|qlog| {
                qlog.set_now(now);
                write(qlog);
            });
        }
    }

    /// Writes in the qlog, if there is one, what has changed.
    pub(super) fn log_metrics(&self, metrics: impl FnOnce() -> Metrics) {
        self.log(|qlog| qlog.metrics_of_sealed(metrics()));
    }

    /// Sets the time of what the transport says next.
    pub(super) const fn set_now(&mut self, now: Instant) {
        self.now = Some(now);
    }

    /// The bytes that wait.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a datagram. `id`: its fate is reported.
    pub(super) fn push(&mut self, id: Option<DatagramId>, data: Bytes) {
        self.bytes += data.len();
        self.datagrams.push_back((id.map_or(UNTRACKED, tag), data));
    }

    /// Gives up the datagrams at the front that no longer fit a packet, because the path MTU has shrunk.
    pub(super) fn drop_larger_than(&mut self, max: usize) {
        while let Some((tag, _)) = self.take_front(|len| len > max) {
            self.report(tag, Delivery::Lost);
        }
    }

    /// Takes the first datagram, if its length is right.
    fn take_front(
        &mut self,
        is_right: impl FnOnce(usize) -> bool,
    ) -> Option<(TransportTag, Bytes)> {
        self.datagrams.front().filter(|(_, data)| is_right(data.len()))?;
        let (tag, data) = self.datagrams.pop_front()?;
        self.bytes -= data.len();
        Some((tag, data))
    }

    /// The next fate of a tracked datagram.
    pub(super) fn poll_verdict(&mut self) -> Option<(DatagramId, Delivery)> {
        let verdict = self.verdicts.pop_front();
        spare::give_back(&mut self.verdicts);
        verdict
    }

    pub(super) const fn newest(&self) -> Option<(DatagramId, Instant)> {
        self.newest
    }

    /// Takes the tags of the packets inside the packet that was made last.
    pub(super) fn take_inner(&mut self) -> Vec<Tag> {
        self.inner.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn report(&mut self, tag: TransportTag, delivery: Delivery) {
        if tag != UNTRACKED {
            self.newest.take_if(|(newest, _)| *newest == id(tag));
            self.verdicts.push_back((id(tag), delivery));
        }
    }
}

impl Fates for Owner {
    fn sent(&mut self, tag: TransportTag, _: u64) {
        if tag != UNTRACKED {
            self.newest = self.now.map(|now| (id(tag), now));
        }
    }

    fn acked(&mut self, tag: TransportTag) {
        self.report(tag, Delivery::Acked);
    }

    fn lost(&mut self, tag: TransportTag) {
        self.report(tag, Delivery::Lost);
    }

    fn late_acked(&mut self, tag: TransportTag) {
        if tag != UNTRACKED {
            self.verdicts.push_back((id(tag), Delivery::Late));
        }
    }

    fn packet_sent(&mut self, number: u64, frames: &[u8], size: usize) {
        trace!(number, size, "sealed packet sent");
        self.log(|qlog| qlog.sealed_packet(Who::Local, number, frames, size));
    }

    fn packet_received(&mut self, number: u64, frames: &[u8], size: usize) {
        trace!(number, size, "sealed packet received");
        self.log(|qlog| qlog.sealed_packet(Who::Remote, number, frames, size));
    }

    fn packet_lost(&mut self, number: u64, size: usize) {
        trace!(number, size, "sealed packet lost");
        self.log(|qlog| qlog.lost_sealed(number, size));
    }
}

impl Source for Owner {
    fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    fn next(&mut self, room: usize, out: &mut Vec<u8>) -> Option<TransportTag> {
        let (tag, data) = self.take_front(|len| len <= room)?;
        out.extend_from_slice(&data);
        if let Some(inner) = &mut self.inner {
            inner.push(Tag::of(&data));
        }
        Some(tag)
    }
}
