use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tandem_units::{ByteCount, Rate};

use crate::{Capacity, OPPORTUNITY, RateTrace, TRACE_OVERHEAD, queue::Queued};

/// What takes packets from a queue and sends them.
#[derive(Debug)]
pub(super) enum Bottleneck<T> {
    /// There is none.
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

    /// What a packet counts here, in the queue and in transmission.
    pub(super) fn counted(&self, size: ByteCount) -> ByteCount {
        match self {
            Self::Unlimited | Self::Constant(_) => size,
            Self::Trace(_) => size + TRACE_OVERHEAD,
        }
    }

    /// When it has sent something.
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
    /// A packet, and when its last bit has left, rounded up to a nanosecond.
    in_transmission: Option<(Instant, Queued<T>)>,
    /// By how much that was rounded up, in bits times nanoseconds: the next packet of a busy period
    /// starts earlier by this time. With whole nanoseconds per packet a fast link would be slower than
    /// its rate, and with whole nanoseconds per byte faster.
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

    /// What has been sent by now.
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

/// Sends at the opportunities of a trace, as Mahimahi does.
///
/// An opportunity is for what came before it. It carries bytes: small packets share one, and a
/// packet may be spread over several. What an empty queue leaves of one is lost.
#[derive(Debug)]
pub(super) struct TraceTransmitter<T> {
    trace: Arc<RateTrace>,
    /// When the trace began; its times count from here.
    start: Instant,
    /// Where in the trace that is.
    offset: Duration,
    /// The next opportunity, counted from the beginning of the trace, and when it is. Kept only
    /// while there is something to send, so that an idle link costs nothing.
    number: u64,
    next: Option<Instant>,
    /// A packet that an opportunity was too small for, and what is left of it. It has left the
    /// queue.
    part_sent: Option<(Queued<T>, ByteCount)>,
    /// What is left of the open opportunity, in bytes.
    room: ByteCount,
}

impl<T> TraceTransmitter<T> {
    const fn new(trace: Arc<RateTrace>, offset: Duration, start: Instant) -> Self {
        let room = ByteCount::ZERO;
        Self { trace, start, offset, number: 0, next: None, part_sent: None, room }
    }

    /// Something waits in the queue that was empty before.
    pub(super) fn wake(&mut self, now: Instant) {
        if self.next.is_none() {
            self.number = self.trace.opportunities_by(self.trace_time(now));
            self.next = self.opportunity(self.number);
        }
    }

    /// Begins to use the opportunity that is due.
    pub(super) fn open(&mut self) {
        self.room = OPPORTUNITY;
        self.number += 1;
        self.next = self.opportunity(self.number);
    }

    /// The next packet that the open opportunity finishes, from those that `pop` gives; `None` when
    /// it is used up or there are no more.
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

    /// Nothing waits in the queue any more.
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
