//! Which datagrams arrived: the engine tells controllers of packets, and this maps packets back
//! to the datagrams in them.
//!
//! A datagram that is tracked notes its own end: the engine lets its bytes go when it has written
//! them into a packet, and names that packet to the controller before it writes the next.
//!
//! An acknowledgement of a packet that was declared lost before is not told: the engine has
//! forgotten the packet by then.

mod tracking;

#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;

pub(super) use self::tracking::tracking;

/// Names a tracked datagram. Its sender chooses it, and never uses it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DatagramId(pub(crate) u64);

/// What became of a datagram. Each tracked one gets exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The peer has acknowledged its packet.
    Acked,
    /// Its packet was declared lost, though it may have come late; or it was never sent, because
    /// the path's MTU shrank meanwhile.
    Lost,
    /// More packets were under way than are kept account of.
    Unknown,
}

/// Packets whose datagrams are kept account of at most: 700 ms at 1 Gbit/s, in 3 MB.
const IN_FLIGHT_MAX: usize = 65_536;

/// RFC 9002's `kPacketThreshold`, the engine's default.
const PACKET_THRESHOLD: u64 = 3;

/// The datagrams of one connection that are under way. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Deliveries(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Datagrams whose fate has not been polled. While there are none, packets are not looked at.
    tracked: AtomicUsize,
    /// RFC 9002's `min_rtt` of the path that was acknowledged last, in nanoseconds; 0: none yet.
    min_rtt_nanos: AtomicU64,
    account: Mutex<Account>,
}

#[derive(Debug, Default)]
struct Account {
    /// Datagrams whose bytes the engine has let go since the last packet.
    released: Vec<DatagramId>,
    /// In the order of packet numbers.
    in_flight: VecDeque<InFlight>,
    verdicts: VecDeque<(DatagramId, Delivery)>,
    /// Controllers made for the connection: one for each network path that it had.
    paths: u32,
    /// The last of them that heard of acknowledgements, and the largest packet number among them.
    last_acked: Option<(u32, u64)>,
}

#[derive(Debug)]
struct InFlight {
    packet_number: u64,
    sent: Instant,
    bytes: u16,
    path: u32,
    /// `None` once its fate is known.
    id: Option<DatagramId>,
}

impl Deliveries {
    /// The same bytes, tracked. They must go to the engine, once, and its packets must be made with
    /// a controller that reports here.
    pub(super) fn track(&self, id: DatagramId, data: Bytes) -> Bytes {
        self.0.tracked.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Tracked { data, id, deliveries: self.clone() })
    }

    /// A tracked datagram that the engine did not take has no fate.
    pub(super) fn untrack(&self, id: DatagramId) {
        let mut account = self.lock();
        let before = account.released.len();
        account.released.retain(|&other| other != id);
        self.forget(before - account.released.len());
    }

    /// The next datagram whose fate is known.
    pub(super) fn poll(&self) -> Option<(DatagramId, Delivery)> {
        if self.is_idle() {
            return None;
        }
        let mut account = self.lock();
        if account.verdicts.is_empty() && account.paths > 1 {
            account.settle_former_paths();
        }
        let verdict = account.verdicts.pop_front();
        self.forget(verdict.iter().count());
        verdict
    }

    /// The datagram that was sent last, and when, if its fate is not known.
    pub(super) fn newest(&self) -> Option<(DatagramId, Instant)> {
        if self.is_idle() {
            return None;
        }
        let account = self.lock();
        let last = account.in_flight.back()?;
        Some((last.id?, last.sent))
    }

    /// RFC 9002's `min_rtt`, once it is measured.
    pub(super) fn min_rtt(&self) -> Option<Duration> {
        let nanos = self.0.min_rtt_nanos.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    fn set_min_rtt(&self, min_rtt: Duration) {
        let nanos = u64::try_from(min_rtt.as_nanos()).unwrap_or(u64::MAX);
        self.0.min_rtt_nanos.store(nanos, Ordering::Relaxed);
    }

    /// To be called before the engine makes packets: what it let go since its last packet has not
    /// been sent.
    pub(super) fn settle_unsent(&self) {
        if self.is_idle() {
            return;
        }
        let mut account = self.lock();
        while let Some(id) = account.released.pop() {
            account.verdicts.push_back((id, Delivery::Lost));
        }
    }

    /// Names a new controller of the connection.
    fn add_path(&self) -> u32 {
        let mut account = self.lock();
        account.paths += 1;
        account.paths
    }

    fn on_packet_sent(&self, path: u32, sent: Instant, bytes: u16, packet_number: u64) {
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

    /// Packets of the handshake have numbers of their own, which the time tells apart.
    fn on_acked(&self, packet_number: u64, sent: Instant) {
        if !self.is_idle() {
            self.lock().resolve(packet_number, Delivery::Acked, |flight| flight.sent == sent);
        }
    }

    /// Of packets of the handshake only the size tells the difference. Should it be the same, a
    /// datagram is taken for lost that is not, as it may be by any detection of loss.
    fn on_lost(&self, packet_number: u64, bytes: u16) {
        if !self.is_idle() {
            self.lock().resolve(packet_number, Delivery::Lost, |flight| flight.bytes == bytes);
        }
    }

    fn on_acks_end(&self, path: u32, largest_acked: Option<u64>) {
        if let Some(largest_acked) = largest_acked
            && !self.is_idle()
        {
            self.lock().last_acked = Some((path, largest_acked));
        }
    }

    /// Only one thread works on a connection at a time, so that no order has to be kept here.
    fn is_idle(&self) -> bool {
        self.0.tracked.load(Ordering::Relaxed) == 0
    }

    fn forget(&self, datagrams: usize) {
        self.0.tracked.fetch_sub(datagrams, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Account> {
        self.0.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
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
    }

    /// The engine keeps acknowledgements of packets that took a former network path from the
    /// controller, but not their losses. What was not lost, and is behind what was acknowledged by
    /// as much as makes a loss, has been acknowledged.
    fn settle_former_paths(&mut self) {
        let Some((path, largest_acked)) = self.last_acked else { return };
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

/// Bytes that say when the engine lets them go.
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
