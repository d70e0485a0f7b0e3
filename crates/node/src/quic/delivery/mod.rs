//! Delivery reports for datagrams. The engine tells congestion controllers which packets were
//! acknowledged or lost, and this module maps packets to the datagrams in them.
//!
//! The bytes of a tracked datagram note when they are dropped. The engine drops them when it has
//! written them into a packet, and then tells the controller the number of that packet before it
//! writes the next one.
//!
//! An acknowledgement of a packet that was declared lost before is not reported, because the engine
//! has forgotten the packet by then.

mod tracking;

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::StreamId;
use crate::spare;

pub(super) use self::tracking::tracking;

/// The flow of a tracked datagram, and its number in this flow. One that is sent again keeps its ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DatagramId {
    pub(crate) stream: StreamId,
    pub(crate) number: u64,
}

/// The delivery of a datagram. Each tracked datagram gets exactly one report each time that it is sent, and may get
/// [`Late`](Self::Late) besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The peer acknowledged the packet.
    Acked,
    /// The packet was declared lost, although it may have arrived late. Or the datagram was never
    /// sent, because the path MTU shrank before.
    Lost,
    /// More packets were in flight than are tracked.
    Unknown,
    /// It was reported as lost, and is acknowledged now: it was only late. This report comes besides the first one, and
    /// only from the sealed transport.
    Late,
}

/// The most packets in flight that are tracked: 700 ms at 1 Gbit/s, in 3 MB of memory.
const IN_FLIGHT_MAX: usize = 65_536;

/// The memory of a datagram in flight, and of its delivery report.
pub(crate) const IN_FLIGHT_MEMORY: usize =
    size_of::<InFlight>() + size_of::<(DatagramId, Delivery)>();

/// RFC 9002's `kPacketThreshold`, the engine's default.
const PACKET_THRESHOLD: u64 = 3;

/// The tracked datagrams of one connection. Clones share the state.
#[derive(Clone, Debug, Default)]
pub(super) struct Deliveries(Arc<SharedAccounts>);

#[derive(Debug, Default)]
struct SharedAccounts {
    /// How many datagrams have a delivery that was not polled. While there are none, packets are
    /// ignored.
    tracked: AtomicUsize,
    /// RFC 9002's `min_rtt` of the path that was acknowledged last, in nanoseconds. 0: not measured
    /// yet.
    min_rtt_nanos: AtomicU64,
    /// Whether a packet was sent after the last acknowledgement, or is in flight since then.
    awaits_ack: AtomicBool,
    /// Whether the next acknowledgement may let the connection send, because the congestion window kept
    /// it from doing so, or a packet was lost.
    is_held_back: AtomicBool,
    /// Bytes of packets in flight, as of the last acknowledgement, and those sent since.
    in_flight: AtomicU64,
    /// When the newest packet was sent that the peer has acknowledged.
    newest_acked: Mutex<Option<Instant>>,
    account: Mutex<FlightAccount>,
}

#[derive(Debug, Default)]
struct FlightAccount {
    /// Datagrams whose bytes the engine has dropped since the last packet.
    released: Vec<DatagramId>,
    /// The datagrams in flight, in the order of their packet numbers.
    in_flight: VecDeque<InFlight>,
    verdicts: VecDeque<(DatagramId, Delivery)>,
    /// How many controllers the connection has had: one for each network path.
    paths: u32,
    /// The path whose controller got the last acknowledgements, and the largest packet number in
    /// them.
    last_acked: Option<(u32, u64)>,
}

#[derive(Debug)]
struct InFlight {
    packet_number: u64,
    sent: Instant,
    bytes: u16,
    path: u32,
    /// `None` once the delivery is known.
    id: Option<DatagramId>,
}

impl Deliveries {
    /// Returns the same bytes, tracked. The caller must give them to the engine once. The engine's
    /// controller must report to this object.
    pub(super) fn track(&self, id: DatagramId, data: Bytes) -> Bytes {
        self.0.tracked.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Tracked { data, id, deliveries: self.clone() })
    }

    /// Ends the tracking of a datagram that the engine did not take.
    pub(super) fn untrack(&self, id: DatagramId) {
        let mut account = self.lock();
        let before = account.released.len();
        account.released.retain(|&other| other != id);
        self.forget(before - account.released.len());
    }

    /// Whether the peer has acknowledged a packet that was sent after this time.
    pub(super) fn has_acked_since(&self, time: Instant) -> bool {
        self.newest_acked().is_some_and(|sent| sent > time)
    }

    /// Notes when the newest packet was sent that is acknowledged now.
    fn set_newest_acked(&self, sent: Option<Instant>) {
        let mut newest = self.newest_acked();
        *newest = newest.max(sent);
    }

    fn newest_acked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.newest_acked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes whether the next acknowledgement may let the connection send.
    pub(super) fn take_held_back(&self) -> bool {
        self.0.is_held_back.swap(false, Ordering::Relaxed)
    }

    /// Notes that the next acknowledgement may let the connection send.
    fn hold_back(&self) {
        self.0.is_held_back.store(true, Ordering::Relaxed);
    }

    /// The next delivery report.
    pub(super) fn poll(&self) -> Option<(DatagramId, Delivery)> {
        if self.is_idle() {
            return None;
        }
        let mut account = self.lock();
        if account.verdicts.is_empty() && account.paths > 1 {
            account.settle_former_paths();
        }
        let verdict = account.verdicts.pop_front();
        spare::give_back(&mut account.verdicts);
        self.forget(verdict.iter().count());
        verdict
    }

    /// The datagram that was sent last and when it was sent, while its delivery is not known.
    pub(super) fn newest(&self) -> Option<(DatagramId, Instant)> {
        if self.is_idle() {
            return None;
        }
        let account = self.lock();
        let last = account.in_flight.back()?;
        Some((last.id?, last.sent))
    }

    /// The datagrams in flight, and the numbers of their packets.
    #[cfg(test)]
    pub(super) fn numbers(&self) -> Vec<(u64, DatagramId)> {
        let account = self.lock();
        let flights = account.in_flight.iter();
        flights.filter_map(|flight| Some((flight.packet_number, flight.id?))).collect()
    }

    /// RFC 9002's `min_rtt`, once it is measured.
    pub(super) fn min_rtt(&self) -> Option<Duration> {
        let nanos = self.0.min_rtt_nanos.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// Whether the peer has not acknowledged everything that was sent to it.
    pub(super) fn awaits_ack(&self) -> bool {
        self.0.awaits_ack.load(Ordering::Relaxed)
    }

    /// An upper bound for the bytes of packets in flight: packets that were lost since the last
    /// acknowledgement still count.
    pub(super) fn in_flight(&self) -> u64 {
        self.0.in_flight.load(Ordering::Relaxed)
    }

    fn set_min_rtt(&self, min_rtt: Duration) {
        let nanos = u64::try_from(min_rtt.as_nanos()).unwrap_or(u64::MAX);
        self.0.min_rtt_nanos.store(nanos, Ordering::Relaxed);
    }

    /// Reports datagrams as lost that the engine has dropped without sending them. The caller must
    /// call this before the engine makes packets.
    pub(super) fn settle_unsent(&self) {
        if self.is_idle() {
            return;
        }
        let mut account = self.lock();
        while let Some(id) = account.released.pop() {
            account.verdicts.push_back((id, Delivery::Lost));
        }
    }

    /// Counts a new controller of the connection. Returns the number of its path.
    fn add_path(&self) -> u32 {
        let mut account = self.lock();
        account.paths += 1;
        account.paths
    }

    fn on_packet_sent(&self, path: u32, sent: Instant, bytes: u16, packet_number: u64) {
        self.0.awaits_ack.store(true, Ordering::Relaxed);
        self.0.in_flight.fetch_add(bytes.into(), Ordering::Relaxed);
        if self.is_idle() {
            return;
        }
        let account = &mut *self.lock();
        for id in account.released.drain(..) {
            let id = Some(id);
            account.in_flight.push_back(InFlight { packet_number, sent, bytes, path, id });
        }
        while account.in_flight.len() > IN_FLIGHT_MAX {
            let oldest = account.in_flight.pop_front();
            if let Some(id) = oldest.and_then(|flight| flight.id) {
                account.verdicts.push_back((id, Delivery::Unknown));
            }
        }
    }

    /// Handles an acknowledgement. Handshake packets have a number space of their own, and differ
    /// in the time at which they were sent.
    fn on_acked(&self, packet_number: u64, sent: Instant) {
        if !self.is_idle() {
            self.lock().resolve(packet_number, Delivery::Acked, |flight| flight.sent == sent);
        }
    }

    /// Handles a loss. Handshake packets with the same number differ only in size here. If the size
    /// is the same too, a datagram is reported as lost that is not, which any loss detection may
    /// do.
    fn on_lost(&self, packet_number: u64, bytes: u16) {
        if !self.is_idle() {
            self.lock().resolve(packet_number, Delivery::Lost, |flight| flight.bytes == bytes);
        }
    }

    fn on_acks_end(&self, path: u32, in_flight: u64, largest_acked: Option<u64>) {
        self.0.awaits_ack.store(in_flight > 0, Ordering::Relaxed);
        self.0.in_flight.store(in_flight, Ordering::Relaxed);
        if let Some(largest_acked) = largest_acked
            && !self.is_idle()
        {
            self.lock().last_acked = Some((path, largest_acked));
        }
    }

    /// Whether no datagram is tracked. Only one thread works on a connection at a time, so that
    /// relaxed ordering is enough.
    fn is_idle(&self) -> bool {
        self.0.tracked.load(Ordering::Relaxed) == 0
    }

    fn forget(&self, datagrams: usize) {
        self.0.tracked.fetch_sub(datagrams, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, FlightAccount> {
        self.0.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FlightAccount {
    fn resolve(
        &mut self,
        packet_number: u64,
        delivery: Delivery,
        is_meant: impl Fn(&InFlight) -> bool,
    ) {
        let first = self.in_flight.partition_point(|flight| flight.packet_number < packet_number);
        let same = self.in_flight.range_mut(first..);
        for flight in same.take_while(|flight| flight.packet_number == packet_number) {
            if is_meant(flight)
                && let Some(id) = flight.id.take()
            {
                self.verdicts.push_back((id, delivery));
            }
        }
        self.forget_resolved();
    }

    fn forget_resolved(&mut self) {
        while self.in_flight.front().is_some_and(|flight| flight.id.is_none()) {
            self.in_flight.pop_front();
        }
        spare::give_back(&mut self.in_flight);
    }

    /// Settles packets that were sent on former network paths. For these the engine reports losses
    /// to the controller, but not acknowledgements. A packet that was not reported as lost, and is
    /// older than the largest acknowledged packet by the packet threshold, has been acknowledged.
    fn settle_former_paths(&mut self) {
        let Some((path, largest_acked)) = self.last_acked else { return }; // nothing was acknowledged
        for flight in &mut self.in_flight {
            if flight.packet_number.saturating_add(PACKET_THRESHOLD) > largest_acked {
                break;
            }
            if flight.path != path
                && let Some(id) = flight.id.take()
            {
                self.verdicts.push_back((id, Delivery::Acked));
            }
        }
        self.forget_resolved();
    }
}

/// Bytes that note when the engine drops them.
struct Tracked {
    data: Bytes,
    id: DatagramId,
    deliveries: Deliveries,
}

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.deliveries.lock().released.push(self.id);
    }
}
