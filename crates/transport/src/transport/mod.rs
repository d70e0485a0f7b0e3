mod receive;
mod transmit;

use std::time::{Duration, Instant};

use tandem_congestion::Algorithm;
use tandem_units::{ByteCount, Rate};

use crate::{
    ack_policy::{AckPolicy, AckWait},
    fates::Fates,
    frame::Violation,
    mtu::Mtu,
    pacer::Pacer,
    protection::Protection,
    received::Received,
    recovery::{IDLE, Recovery, RecoveryCounts},
    rtt::Rtt,
    seal::{OpenError, TAG_LEN},
    skipped::SkippedNumbers,
};

pub use self::{receive::Datagrams, transmit::Transmit};

/// The smallest packet size of a path in bytes ([RFC 9000 §14]).
///
/// [RFC 9000 §14]: https://www.rfc-editor.org/rfc/rfc9000#section-14
pub const PACKET_SIZE_MIN: u16 = 1200;

/// The settings of a transport.
#[derive(Clone, Debug)]
pub struct Config {
    /// The largest packet in bytes of UDP payload: that of the QUIC connection. One below [`PACKET_SIZE_MIN`] becomes
    /// it.
    pub packet_size: u16,
    /// The smallest packet size that the path is known to carry, in bytes of UDP payload, at least [`PACKET_SIZE_MIN`].
    pub packet_size_min: u16,
    /// The RTT until there is a sample: that of the QUIC connection, or 333 ms (RFC 9002 §6.2.2, `kInitialRtt`).
    pub initial_rtt: Duration,
    /// The smallest RTT that the QUIC connection has seen on the first path. `None`: it has no sample.
    pub min_rtt: Option<Duration>,
    /// Whether packets get ECN marks, as long as the path and the peer can do with them.
    pub has_ecn: bool,
    /// How long acknowledgements wait. `None`: every second packet is acknowledged at once, and each 16th while packets
    /// come fast on a short path.
    pub ack_wait: Option<AckWait>,
    /// A number that the peer cannot guess.
    pub seed: u64,
}

/// Why a transport has ended. Its owner then sends datagrams in another form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The peer has sent what it must not. Nobody else can have, because the packet was authentic.
    #[error("violation of the protocol: {0}")]
    Violation(#[from] Violation),
    /// Too many packets were not authentic (RFC 9001 §6.6).
    #[error("too many packets were not authentic")]
    Forged,
    /// All packet numbers are used (RFC 9000 §12.3).
    #[error("all 2^62 packet numbers are used")]
    Exhausted,
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DropCause {
    /// It could not be opened. It may come from anybody.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The peer has sent what it must not, and the transport has ended with it.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The transport has ended before.
    #[error("the transport has ended")]
    Closed,
}

/// What was counted of the packets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Packets.
    pub packets: u64,
    /// Their bytes of UDP payload.
    pub bytes: u64,
    /// ACK frames in them.
    pub ack_frames: u64,
    /// The bytes of the ACK frames.
    pub ack_bytes: u64,
    /// Packets that need no acknowledgement, because they hold an ACK frame only.
    pub ack_only_packets: u64,
    /// Their bytes of UDP payload.
    pub ack_only_bytes: u64,
}

impl PacketCounts {
    /// Adds a packet. `ack_bytes`: the length of its ACK frame; 0: it has none.
    pub(crate) fn add(&mut self, size: usize, ack_bytes: usize, is_ack_eliciting: bool) {
        let (size, ack_bytes) = (size as u64, ack_bytes as u64);
        self.packets += 1;
        self.bytes += size;
        self.ack_frames += u64::from(ack_bytes > 0);
        self.ack_bytes += ack_bytes;
        if !is_ack_eliciting {
            self.ack_only_packets += 1;
            self.ack_only_bytes += size;
        }
    }
}

/// What a transport has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that were sent.
    pub sent: PacketCounts,
    /// Packets that were received and accepted.
    pub received: PacketCounts,
    /// Packets that could not be opened.
    pub dropped_packets: u64,
    /// What the sender's loss detection has counted.
    pub recovery: RecoveryCounts,
}

/// One end of a sealed transport: a pure state machine.
///
/// Its owner gives it received packets ([`handle_packet`](Self::handle_packet)) and the time
/// ([`handle_timeout`](Self::handle_timeout) at [`next_timeout`](Self::next_timeout)). After each of these, and after
/// each new datagram in its queue, it asks for packets until there are none
/// ([`poll_transmit`](Self::poll_transmit)).
#[derive(Debug)]
pub struct Transport<P> {
    protection: P,
    config: Config,
    recovery: Recovery,
    received: Received,
    ack_policy: AckPolicy,
    pacer: Pacer,
    skipped: SkippedNumbers,
    /// When an ACK frame last had a PING with it, so that ranges can be forgotten.
    pinged: Instant,
    /// The packet size that the controller knows.
    told_size: usize,
    /// Whether the next packet that is only a probe is padded.
    pads_probe: bool,
    may_send: bool,
    /// When a packet was sealed or opened last. `None`: the memory of its keys was given back since.
    used: Option<Instant>,
    closed: Option<CloseReason>,
    counts: Counts,
}

impl Config {
    fn mtu(&self, packet_size: u16) -> Mtu {
        Mtu::new(self.packet_size_min.max(PACKET_SIZE_MIN), packet_size)
    }
}

impl<P: Protection> Transport<P> {
    /// Starts on a path, with the congestion controller of that path. Both ends start with packet number 0.
    pub fn new(
        config: Config,
        protection: P,
        controller: Box<dyn Algorithm>,
        now: Instant,
    ) -> Self {
        let smoothed = config.initial_rtt;
        let rtt = config.min_rtt.map_or(Rtt::new(smoothed), |min| Rtt::known(smoothed, min));
        let mtu = config.mtu(config.packet_size);
        let packet_size = mtu.size();
        let recovery = Recovery::new(now, rtt, mtu, controller, config.has_ecn);
        Self {
            protection,
            recovery,
            received: Received::new(now),
            ack_policy: AckPolicy::new(config.ack_wait),
            pacer: Pacer::new(now, packet_size.into()),
            skipped: SkippedNumbers::new(config.seed),
            pinged: now,
            told_size: packet_size.into(),
            pads_probe: false,
            may_send: true,
            used: None,
            closed: None,
            counts: Counts::default(),
            config,
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called, if nothing happens before.
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.closed.is_some() {
            return None;
        }
        let mut next = self.recovery.next_timeout(self.may_send);
        next = next.into_iter().chain(self.idle_time()).min();
        if self.may_send {
            for time in [self.ack_policy.until, self.pacer.until] {
                next = next.into_iter().chain(time).min();
            }
        }
        next
    }

    /// Does what is due at `now`. Packets may leave after that.
    pub fn handle_timeout(&mut self, now: Instant, fates: &mut (impl Fates + ?Sized)) {
        if self.closed.is_none() {
            self.recovery.handle_timeout(now, self.may_send, fates);
            if self.idle_time().is_some_and(|time| time <= now) {
                self.protection.release();
                self.used = None;
            }
        }
    }

    /// When keys are given back. A sender that waits for acknowledgements is not idle.
    fn idle_time(&self) -> Option<Instant> {
        self.used.filter(|_| self.recovery.in_flight == 0).map(|used| used + IDLE)
    }

    /// Whether packets may leave: not while the peer's address is not validated, or another path is used.
    pub fn set_may_send(&mut self, may_send: bool) {
        self.may_send = may_send;
    }

    /// The network path is another one, about which nothing is known, with this congestion controller. It is not
    /// called when only the port of an address has changed: what is known stays then ([RFC 9000 §9.4]).
    ///
    /// [RFC 9000 §9.4]: https://www.rfc-editor.org/rfc/rfc9000#section-9.4
    pub fn on_new_path(&mut self, now: Instant, controller: Box<dyn Algorithm>) {
        if self.closed.is_none() {
            let mtu = self.config.mtu(self.config.packet_size);
            self.pacer = Pacer::new(now, mtu.size().into());
            let Config { initial_rtt, has_ecn, .. } = self.config;
            self.recovery.on_new_path(initial_rtt, mtu, controller, has_ecn);
        }
    }

    /// Sends a packet that the peer has to acknowledge, also if the window is full.
    pub const fn ping(&mut self) {
        if self.recovery.probes == 0 {
            self.recovery.probes = 1;
        }
    }

    /// The same with a packet of the size that each path carries, if it has no datagram. A peer that has another
    /// address for this end since, or may have, can then send three times as much to validate it ([RFC 9000 §8]).
    ///
    /// [RFC 9000 §8]: https://www.rfc-editor.org/rfc/rfc9000#section-8
    pub const fn ping_padded(&mut self) {
        self.pads_probe = true;
        self.ping();
    }

    /// The QUIC connection has found another largest packet, in bytes of UDP payload. One below
    /// [`Config::packet_size_min`] becomes that.
    pub fn set_packet_size(&mut self, packet_size: u16) {
        if packet_size != self.config.packet_size {
            self.config.packet_size = packet_size;
            self.recovery.mtu.set_most(packet_size);
        }
    }

    /// Tells the controller of another packet size, whoever has found it.
    fn tell_packet_size(&mut self) {
        let size = self.packet_size();
        if std::mem::replace(&mut self.told_size, size) != size {
            self.recovery.controller.on_mtu_update(ByteCount::new(size as u64));
        }
    }

    /// The largest packet in bytes of UDP payload.
    pub fn packet_size(&self) -> usize {
        self.recovery.mtu.size().into()
    }

    /// The largest datagram in bytes that fits a packet.
    pub fn datagram_max(&self) -> usize {
        self.packet_size() - self.protection.header_len() - TAG_LEN - 1
    }

    /// Ends the transport. What is in flight is lost.
    fn close(&mut self, reason: CloseReason, fates: &mut (impl Fates + ?Sized)) {
        self.closed = Some(reason);
        self.recovery.lose_all(fates);
    }

    /// Why the transport has ended. `None`: it has not.
    pub const fn closed(&self) -> Option<CloseReason> {
        self.closed
    }

    /// The smoothed RTT. `None`: there is no sample on this path.
    pub fn smoothed_rtt(&self) -> Option<Duration> {
        self.recovery.rtt.has_sample.then_some(self.recovery.rtt.smoothed)
    }

    /// The smallest RTT. `None`: there is no sample on this path.
    pub fn min_rtt(&self) -> Option<Duration> {
        self.recovery.rtt.has_sample.then_some(self.recovery.rtt.min)
    }

    /// The bytes of packets in flight.
    pub const fn bytes_in_flight(&self) -> ByteCount {
        ByteCount::new(self.recovery.bytes_in_flight)
    }

    /// The controller's window.
    pub fn congestion_window(&self) -> ByteCount {
        self.recovery.controller.congestion_window()
    }

    /// The controller's pacing rate, if it has one.
    pub fn pacing_rate(&self) -> Option<Rate> {
        self.recovery.controller.pacing_rate()
    }

    /// The packet threshold of loss detection, which learns.
    pub const fn packet_threshold(&self) -> u64 {
        self.recovery.reordering.packets
    }

    /// Whether packets get ECN marks now.
    pub fn marks_ecn(&self) -> bool {
        self.recovery.ecn.marks()
    }

    /// What was counted.
    pub const fn counts(&self) -> Counts {
        Counts { recovery: self.recovery.counts, ..self.counts }
    }

    /// Bytes of memory, without what the controller has allocated itself.
    pub fn memory(&self) -> usize {
        size_of::<Self>()
            + size_of_val(&*self.recovery.controller)
            + self.recovery.sent.memory()
            + self.received.memory()
            + self.protection.memory()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tandem_congestion::CongestionEvent;

    use super::*;
    use crate::{
        Sealed,
        fates::{Source, Tag},
        seal::{
            ConnectionId, Opener, PACKET_NUMBER_MAX, Sealer, Secret, model::opener_with_failures,
        },
        sent::SentPackets,
        test_start,
    };

    /// A controller that notes of which packet sizes it is told.
    #[derive(Debug, Default)]
    struct Sizes(Arc<Mutex<Vec<u64>>>);

    impl Algorithm for Sizes {
        fn on_congestion_event(&mut self, _: CongestionEvent) {}

        fn on_mtu_update(&mut self, max_datagram_size: ByteCount) {
            self.0.lock().unwrap().push(max_datagram_size.get());
        }

        fn congestion_window(&self) -> ByteCount {
            ByteCount::new(100_000)
        }

        fn initial_window(&self) -> ByteCount {
            self.congestion_window()
        }
    }

    /// A source that has nothing.
    struct Nothing;

    impl Fates for Nothing {
        fn sent(&mut self, _: Tag, _: u64) {}

        fn acked(&mut self, _: Tag) {}

        fn lost(&mut self, _: Tag) {}

        fn late_acked(&mut self, _: Tag) {}
    }

    impl Source for Nothing {
        fn is_empty(&self) -> bool {
            true
        }

        fn next(&mut self, _: usize, _: &mut Vec<u8>) -> Option<Tag> {
            None
        }
    }

    fn sealed(controller: Sizes, now: Instant) -> Transport<Sealed> {
        let config = Config {
            packet_size: 1452,
            packet_size_min: 1200,
            initial_rtt: Duration::from_millis(50),
            min_rtt: None,
            has_ecn: false,
            ack_wait: None,
            seed: 1,
        };
        let id = ConnectionId::try_from(&b"receiver"[..]).unwrap();
        let sealer = Sealer::new(Secret::new(&[1; 32]), id);
        let protection = Sealed { sealer, opener: Opener::new(Secret::new(&[2; 32]), id.len()) };
        Transport::new(config, protection, Box::new(controller), now)
    }

    #[test]
    fn keys_and_numbers_that_are_at_their_limits_end_the_transport() {
        let now = test_start();
        let is_over = |transport: &mut Transport<Sealed>, reason| {
            assert_eq!(transport.closed(), Some(reason));
            assert_eq!(transport.poll_transmit(now, &mut Vec::new(), 1, &mut Nothing), None);
            assert_eq!(transport.next_timeout(), None);
        };
        let mut transport = sealed(Sizes::default(), now);
        transport.protection.opener = opener_with_failures(0);
        let dropped = transport.handle_packet(now, &mut [0x40; 100], None, &mut Nothing);
        assert_eq!(dropped.unwrap_err(), DropCause::Open(OpenError::Over));
        is_over(&mut transport, CloseReason::Forged);
        let mut transport = sealed(Sizes::default(), now);
        transport.recovery.sent = SentPackets::starting_at(PACKET_NUMBER_MAX);
        transport.ping();
        assert_eq!(transport.poll_transmit(now, &mut Vec::new(), 1, &mut Nothing), None);
        is_over(&mut transport, CloseReason::Exhausted);
    }

    #[test]
    fn a_padded_ping_has_the_size_that_each_path_carries_and_others_are_small() {
        let now = test_start();
        let mut transport = sealed(Sizes::default(), now);
        let size_of_next = |transport: &mut Transport<Sealed>| {
            transport.poll_transmit(now, &mut Vec::new(), 1, &mut Nothing).map(|it| it.size)
        };
        transport.ping_padded();
        assert_eq!(size_of_next(&mut transport), Some(1200));
        transport.ping();
        assert_eq!(size_of_next(&mut transport), Some(30));
        assert_eq!(size_of_next(&mut transport), None);
    }

    #[test]
    fn the_controller_hears_of_each_packet_size_whoever_has_found_it() {
        let (now, sizes) = (test_start(), Arc::default());
        let mut transport = sealed(Sizes(Arc::clone(&sizes)), now);
        let poll = |transport: &mut Transport<Sealed>| {
            transport.poll_transmit(now, &mut Vec::new(), 1, &mut Nothing);
            std::mem::take(&mut *sizes.lock().unwrap())
        };
        assert_eq!(poll(&mut transport), [], "it began with this size");
        transport.recovery.mtu = Mtu::new(1200, 1200); // as after a black hole
        assert_eq!(poll(&mut transport), [1200]);
        transport.recovery.mtu = Mtu::new(1200, 1400); // as after a probe that has passed
        assert_eq!(poll(&mut transport), [1400]);
        transport.set_packet_size(1300);
        assert_eq!(poll(&mut transport), [1300]);
        assert_eq!(poll(&mut transport), []);
    }
}
