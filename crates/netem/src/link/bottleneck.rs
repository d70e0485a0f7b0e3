use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tandem_units::{ByteCount, Rate};

use crate::{Capacity, OPPORTUNITY, RateTrace, TRACE_OVERHEAD, queue::Queued};

/// The bottleneck of a link, which takes packets from the queue and sends them.
#[derive(Debug)]
pub(super) enum Bottleneck<T> {
    /// The link has no bottleneck.
    Unlimited,
    Constant(Transmitter<T>),
    Trace(TraceTransmitter<T>),
}

impl<T> Bottleneck<T> {
    /// A bottleneck on a path that starts at `start`.
    pub(super) fn new(capacity: &Capacity, start: Instant) -> Self {
        match capacity {
            Capacity::Unlimited => Self::Unlimited,
            Capacity::Constant(rate) => Self::Constant(Transmitter::new(*rate)),
            Capacity::Trace { trace, offset } => {
                Self::Trace(TraceTransmitter::new(trace.clone(), *offset, start))
            }
        }
    }

    /// The size that a packet counts with, in the queue and in transmission.
    pub(super) fn counted(&self, size: ByteCount) -> ByteCount {
        match self {
            Self::Unlimited | Self::Constant(_) => size,
            Self::Trace(_) => size + TRACE_OVERHEAD,
        }
    }

    /// The time at which the bottleneck next finishes a packet or opens an opportunity.
    pub(super) fn next_event(&self) -> Option<Instant> {
        match self {
            Self::Unlimited => None,
            Self::Constant(transmitter) => transmitter.done(),
            Self::Trace(transmitter) => transmitter.next,
        }
    }

    /// The largest IP packet that it can send.
    pub(super) fn mtu(&self) -> Option<ByteCount> {
        matches!(self, Self::Trace(_)).then(|| OPPORTUNITY - TRACE_OVERHEAD)
    }
}

/// Sends one packet at a time at a constant rate.
#[derive(Debug)]
pub(super) struct Transmitter<T> {
    rate: Rate,
    /// The packet in transmission, and the time at which its last bit leaves, rounded up to a
    /// nanosecond.
    in_transmission: Option<(Instant, Queued<T>)>,
    /// The amount by which that time was rounded up, in bits times nanoseconds. The next packet of
    /// a busy period starts earlier by this amount. A fast link would be slower than its rate if
    /// each packet took whole nanoseconds, and faster if each byte did.
    advance: u128,
}

impl<T> Transmitter<T> {
    const fn new(rate: Rate) -> Self {
        Self { rate, in_transmission: None, advance: 0 }
    }

    fn done(&self) -> Option<Instant> {
        self.in_transmission.as_ref().map(|(done, _)| *done)
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.in_transmission.is_none()
    }

    /// Takes the packet whose last bit has left by `now`.
    pub(super) fn take_sent(&mut self, now: Instant) -> Option<Queued<T>> {
        self.in_transmission.take_if(|(done, _)| *done <= now).map(|(_, packet)| packet)
    }

    pub(super) fn start_idle(&mut self, now: Instant, packet: Queued<T>) {
        self.advance = 0;
        self.start_back_to_back(now, packet);
    }

    pub(super) fn start_back_to_back(&mut self, now: Instant, packet: Queued<T>) {
        let work = u128::from(packet.size.get()) * 8 * 1_000_000_000;
        let left = work.saturating_sub(self.advance);
        let rate = u128::from(self.rate.bits_per_second());
        let nanos = left.div_ceil(rate);
        self.advance = self.advance.saturating_sub(work) + (nanos * rate - left);
        let took = Duration::from_nanos(nanos.try_into().unwrap_or(u64::MAX));
        self.in_transmission = Some((now + took, packet));
    }
}

/// Sends at the opportunities of a trace, as Mahimahi does. An opportunity carries only packets
/// that came before it. It carries bytes: small packets share an opportunity, and a large packet
/// may be spread over several. If the queue runs empty, the rest of the opportunity is lost.
#[derive(Debug)]
pub(super) struct TraceTransmitter<T> {
    trace: Arc<RateTrace>,
    /// The start of the path.
    start: Instant,
    /// The time in the trace at which the path starts.
    offset: Duration,
    /// The number of the next opportunity, counted from the beginning of the trace.
    number: u64,
    /// The time of that opportunity. It is known only while packets wait, so that an idle link costs
    /// nothing.
    next: Option<Instant>,
    /// A packet that has left the queue and is sent in part, and the number of bytes that remain.
    part_sent: Option<(Queued<T>, ByteCount)>,
    /// The bytes that remain of the open opportunity.
    room: ByteCount,
}

impl<T> TraceTransmitter<T> {
    const fn new(trace: Arc<RateTrace>, offset: Duration, start: Instant) -> Self {
        let room = ByteCount::ZERO;
        Self { trace, start, offset, number: 0, next: None, part_sent: None, room }
    }

    /// Looks up the next opportunity, because the queue is no longer empty.
    pub(super) fn wake(&mut self, now: Instant) {
        if self.next.is_none() {
            self.number = self.trace.opportunities_by(self.trace_time(now));
            self.next = self.opportunity(self.number);
        }
    }

    /// Opens the opportunity that is due.
    pub(super) fn open(&mut self) {
        self.room = OPPORTUNITY;
        self.number += 1;
        self.next = self.opportunity(self.number);
    }

    /// Sends packets that `pop` takes from the queue, and returns the next one that the open
    /// opportunity completes. It returns `None` once the opportunity is used up or the queue is
    /// empty.
    pub(super) fn send(&mut self, mut pop: impl FnMut() -> Option<Queued<T>>) -> Option<Queued<T>> {
        while !self.room.is_zero() {
            let head = self.part_sent.take();
            let (packet, left) = head.or_else(|| pop().map(Queued::with_size))?;
            let bytes = left.min(self.room);
            self.room -= bytes;
            if bytes == left {
                return Some(packet);
            }
            self.part_sent = Some((packet, left - bytes));
        }
        None
    }

    /// Forgets the next opportunity, because the queue is empty, unless a packet is sent in part.
    pub(super) fn sleep(&mut self) {
        if self.part_sent.is_none() {
            self.next = None;
        }
    }

    fn trace_time(&self, at: Instant) -> Duration {
        self.offset + at.duration_since(self.start)
    }

    fn opportunity(&self, number: u64) -> Option<Instant> {
        Some(self.start + self.trace.opportunity(number)?.saturating_sub(self.offset))
    }
}
