//! One congestion controller for all packets of a connection: those of the engine, and those of the sealed transport
//! beside it. Together they are one flow to the network.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use noq_proto::congestion::{Controller, ControllerFactory};
use tandem_congestion::{
    Ack, AcksEnd, Adapter, Algorithm, CongestionEvent, ControllerConfig, Factory, Feedback, Lost,
    Sent,
};
use tandem_units::{ByteCount, Rate};

/// Each side may always have this many packets in flight, however many the other side has.
const PACKETS_LEAST: u64 = 2;

/// Either side has at least this part of the window and of the pacing rate. Without it, a side that has filled the
/// window would keep the other one from beginning.
const SHARE_LEAST: u64 = 4;

/// The part of the pacing rate that is left free while both sides send. An acknowledgement of one side may come just
/// before one of the other side, so that an estimate of the bandwidth is too large by two packets in a round trip.
/// Without a margin the queue of the bottleneck grows until the window is full.
const MARGIN_PERCENT: u64 = 2;

/// The controller of a connection. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Control(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    config: ControllerConfig,
    feedback: Feedback,
    algorithm: Box<dyn Algorithm>,
    max_datagram_size: ByteCount,
    sides: [SideState; 2],
    /// How many controllers there have been: one for each network path.
    paths: u64,
}

/// What one side has in flight.
#[derive(Clone, Copy, Debug)]
struct SideState {
    in_flight: u64,
    is_app_limited: bool,
}

impl SideState {
    /// Whether the side could send more than it has to send.
    const fn is_idle(self) -> bool {
        self.is_app_limited || self.in_flight == 0
    }
}

/// Who sends a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Engine,
    Sealed,
}

impl Control {
    /// `None`: the controller is one of the engine's own, which nothing but the engine can drive.
    pub(super) fn new(config: &ControllerConfig, feedback: Feedback, now: Instant) -> Option<Self> {
        let max_datagram_size = ByteCount::new(1200);
        let algorithm = config.build(0, &feedback, now, max_datagram_size)?;
        let side = SideState { in_flight: 0, is_app_limited: true };
        Some(Self(Arc::new(Mutex::new(Shared {
            config: config.clone(),
            feedback,
            algorithm,
            max_datagram_size,
            sides: [side; 2],
            paths: 0,
        }))))
    }

    /// The factory for the engine. Each network path begins with a new controller, for both sides.
    pub(super) fn for_engine(&self) -> Factory {
        Arc::new(EngineFactory(self.clone()))
    }

    /// The controller for the sealed transport.
    pub(super) fn for_sealed(&self) -> Box<dyn Algorithm> {
        let mut shared = self.lock();
        *shared.side_mut(Side::Sealed) = SideState { in_flight: 0, is_app_limited: true };
        Box::new(OneSide { side: Side::Sealed, control: self.clone() })
    }

    /// Looks at the controller of both sides.
    pub(super) fn with<T>(&self, look: impl FnOnce(&dyn Algorithm) -> T) -> T {
        look(&*self.lock().algorithm)
    }

    /// The bytes in flight of the engine, and of the sealed transport.
    pub(super) fn in_flight(&self) -> (u64, u64) {
        let shared = self.lock();
        (shared.side(Side::Engine).in_flight, shared.side(Side::Sealed).in_flight)
    }

    fn begin_path(&self, now: Instant, max_datagram_size: ByteCount) {
        let mut shared = self.lock();
        let Shared { config, feedback, paths, .. } = &*shared;
        if let Some(algorithm) = config.build(*paths, feedback, now, max_datagram_size) {
            shared.algorithm = algorithm;
        }
        shared.paths += 1;
        shared.max_datagram_size = max_datagram_size;
        shared.side_mut(Side::Engine).in_flight = 0;
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    const fn side(&self, side: Side) -> SideState {
        let [engine, sealed] = self.sides;
        match side {
            Side::Engine => engine,
            Side::Sealed => sealed,
        }
    }

    const fn side_mut(&mut self, side: Side) -> &mut SideState {
        let [engine, sealed] = &mut self.sides;
        match side {
            Side::Engine => engine,
            Side::Sealed => sealed,
        }
    }

    /// Notes whether one side could have sent more. Returns whether both could.
    const fn is_app_limited(&mut self, side: Side, is_app_limited: bool) -> bool {
        self.side_mut(side).is_app_limited = is_app_limited;
        is_app_limited && self.side(side.other()).is_idle()
    }
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Engine => Self::Sealed,
            Self::Sealed => Self::Engine,
        }
    }

    /// The number by which the controller knows a packet. The two sides have packet number spaces of their own.
    const fn number(self, packet_number: u64) -> u64 {
        match self {
            Self::Engine => packet_number,
            Self::Sealed => packet_number | 1 << 63,
        }
    }
}

struct EngineFactory(Control);

impl ControllerFactory for EngineFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        self.0.begin_path(now, ByteCount::new(current_mtu.into()));
        Box::new(Adapter(OneSide { side: Side::Engine, control: self.0.clone() }))
    }
}

/// The controller as one side sees it: its window is what the other side leaves.
#[derive(Clone, Debug)]
struct OneSide {
    side: Side,
    control: Control,
}

impl Algorithm for OneSide {
    fn on_packet_sent(&mut self, sent: Sent) {
        let mut shared = self.control.lock();
        shared.side_mut(self.side).in_flight += sent.bytes.get();
        let packet_number = self.side.number(sent.packet_number);
        shared.algorithm.on_packet_sent(Sent { packet_number, ..sent });
    }

    fn on_ack(&mut self, ack: Ack) {
        let mut shared = self.control.lock();
        let state = shared.side_mut(self.side);
        state.in_flight = state.in_flight.saturating_sub(ack.bytes.get());
        let is_app_limited = shared.is_app_limited(self.side, ack.is_app_limited);
        let packet_number = self.side.number(ack.packet_number);
        shared.algorithm.on_ack(Ack { packet_number, is_app_limited, ..ack });
    }

    fn on_acks_end(&mut self, end: AcksEnd) {
        let mut shared = self.control.lock();
        shared.side_mut(self.side).in_flight = end.bytes_in_flight.get();
        let other = ByteCount::new(shared.side(self.side.other()).in_flight);
        let is_app_limited = shared.is_app_limited(self.side, end.is_app_limited);
        shared.algorithm.on_acks_end(AcksEnd {
            bytes_in_flight: end.bytes_in_flight + other,
            is_app_limited,
            largest_acked: end.largest_acked.map(|number| self.side.number(number)),
            ..end
        });
    }

    fn on_packet_lost(&mut self, lost: Lost) {
        let mut shared = self.control.lock();
        let state = shared.side_mut(self.side);
        state.in_flight = state.in_flight.saturating_sub(lost.bytes.get());
        let packet_number = self.side.number(lost.packet_number);
        shared.algorithm.on_packet_lost(Lost { packet_number, ..lost });
    }

    fn on_congestion_event(&mut self, event: CongestionEvent) {
        let packet_number = self.side.number(event.packet_number);
        let mut shared = self.control.lock();
        shared.algorithm.on_congestion_event(CongestionEvent { packet_number, ..event });
    }

    fn on_spurious_congestion_event(&mut self) {
        self.control.lock().algorithm.on_spurious_congestion_event();
    }

    fn on_mtu_update(&mut self, max_datagram_size: ByteCount) {
        let mut shared = self.control.lock();
        if std::mem::replace(&mut shared.max_datagram_size, max_datagram_size) != max_datagram_size
        {
            shared.algorithm.on_mtu_update(max_datagram_size);
        }
    }

    fn congestion_window(&self) -> ByteCount {
        let shared = self.control.lock();
        let other = shared.side(self.side.other()).in_flight;
        let window = shared.algorithm.congestion_window().get();
        let least = (shared.max_datagram_size.get() * PACKETS_LEAST).max(window / SHARE_LEAST);
        ByteCount::new(window.saturating_sub(other).max(least))
    }

    fn initial_window(&self) -> ByteCount {
        self.control.lock().algorithm.initial_window()
    }

    fn ssthresh(&self) -> Option<ByteCount> {
        self.control.lock().algorithm.ssthresh()
    }

    fn pacing_rate(&self) -> Option<Rate> {
        let shared = self.control.lock();
        let rate = shared.algorithm.pacing_rate()?;
        let other = shared.side(self.side.other());
        if other.in_flight == 0 {
            return Some(rate);
        }
        // What each side has in flight says which part of the rate it uses.
        let all = other.in_flight + shared.side(self.side).in_flight;
        let own = shared.side(self.side).in_flight.max(all / SHARE_LEAST);
        let rate = rate.bits_per_second() / 100 * (100 - MARGIN_PERCENT);
        let bps = u128::from(rate) * u128::from(own) / u128::from(all.max(1));
        Rate::from_bps(u64::try_from(bps).unwrap_or(u64::MAX).max(1))
    }

    fn send_quantum(&self) -> Option<ByteCount> {
        self.control.lock().algorithm.send_quantum()
    }

    fn bandwidth_estimate(&self) -> Option<Rate> {
        self.control.lock().algorithm.bandwidth_estimate()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tandem_congestion::{CongestionSignal, ControllerName};

    use super::*;

    const PACKET: ByteCount = ByteCount::new(1200);

    #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
    fn start() -> Instant {
        Instant::now()
    }

    /// Both sides of a connection with this controller, and the time at which it begins.
    fn sides(name: ControllerName) -> (Control, [OneSide; 2], Instant) {
        let now = start();
        let control = Control::new(&name.into(), Feedback::default(), now).unwrap();
        let one = |side| OneSide { side, control: control.clone() };
        (control.clone(), [one(Side::Engine), one(Side::Sealed)], now)
    }

    fn send(side: &mut OneSide, now: Instant, numbers: std::ops::Range<u64>) {
        for packet_number in numbers {
            side.on_packet_sent(Sent { now, packet_number, bytes: PACKET });
        }
    }

    fn ack(side: &mut OneSide, now: Instant, number: u64, left: u64, is_app_limited: bool) {
        let rtt = Duration::from_millis(50);
        side.on_ack(Ack {
            now: now + rtt,
            sent: now,
            packet_number: number,
            bytes: PACKET,
            is_app_limited,
            smoothed_rtt: rtt,
            min_rtt: rtt,
        });
        side.on_acks_end(AcksEnd {
            now: now + rtt,
            bytes_in_flight: PACKET.saturating_mul(left),
            is_app_limited,
            largest_acked: Some(number),
        });
    }

    #[test]
    fn two_sides_have_one_window() {
        let (control, [mut engine, mut sealed], now) = sides(ControllerName::NewReno);
        let window = control.with(Algorithm::congestion_window);
        assert_eq!((engine.congestion_window(), sealed.congestion_window()), (window, window));
        send(&mut engine, now, 0..4);
        assert_eq!(control.in_flight(), (4800, 0));
        assert_eq!(sealed.congestion_window(), window - PACKET.saturating_mul(4));
        assert_eq!(engine.congestion_window(), window, "what it has in flight is its own");
        // One side fills the window, and the other one can still begin.
        send(&mut sealed, now, 0..20);
        assert_eq!(engine.congestion_window().get(), (window.get() / 4).max(2400));
        ack(&mut sealed, now, 0, 19, false);
        assert_eq!(control.in_flight(), (4800, 19 * 1200));
        let lost = Lost { now, packet_number: 3, bytes: PACKET };
        engine.on_packet_lost(lost);
        assert_eq!(control.in_flight(), (3600, 19 * 1200));
    }

    #[test]
    fn a_loss_of_one_side_makes_both_slower() {
        for loses in [0, 1] {
            let (control, mut sides, now) = sides(ControllerName::NewReno);
            send(&mut sides[loses], now, 0..10);
            let before = control.with(Algorithm::congestion_window);
            sides[loses].on_congestion_event(CongestionEvent {
                now: now + Duration::from_millis(50),
                signal: CongestionSignal::Loss,
                sent: now,
                packet_number: 3,
                lost: PACKET,
            });
            let after = control.with(Algorithm::congestion_window);
            assert!(after < before, "side {loses}: {after} of {before}");
            // The same moment on the other side is a part of the same event.
            sides[1 - loses].on_congestion_event(CongestionEvent {
                now: now + Duration::from_millis(51),
                signal: CongestionSignal::Loss,
                sent: now,
                packet_number: 0,
                lost: PACKET,
            });
            assert_eq!(control.with(Algorithm::congestion_window), after, "side {loses}");
        }
    }

    #[test]
    fn the_pacing_rate_is_divided_by_what_is_in_flight() {
        let (control, [mut engine, mut sealed], now) = sides(ControllerName::Bbr1);
        send(&mut engine, now, 0..1);
        ack(&mut engine, now, 0, 0, true);
        let all = control.with(Algorithm::pacing_rate).unwrap().bits_per_second();
        let rate = |side: &OneSide| side.pacing_rate().unwrap().bits_per_second();
        assert_eq!((rate(&engine), rate(&sealed)), (all, all), "the other side sends nothing");
        send(&mut engine, now, 1..10);
        send(&mut sealed, now, 0..1);
        let parts = [rate(&engine), rate(&sealed)].map(|it| it * 100 / all);
        assert!((86..=89).contains(&parts[0]) && (23..=25).contains(&parts[1]), "{parts:?}");
        send(&mut sealed, now, 1..9);
        let parts = [rate(&engine), rate(&sealed)].map(|it| it * 100 / all);
        assert!(parts.iter().all(|it| (47..=50).contains(it)), "{parts:?}");
    }

    #[test]
    fn a_connection_is_limited_by_its_application_if_both_sides_are() {
        let (control, [mut engine, mut sealed], now) = sides(ControllerName::NewReno);
        let limited = |control: &Control, side: Side, own| control.lock().is_app_limited(side, own);
        assert!(limited(&control, Side::Engine, true));
        send(&mut sealed, now, 0..4);
        ack(&mut sealed, now, 0, 3, false);
        assert!(!limited(&control, Side::Engine, true), "the other side is busy");
        ack(&mut sealed, now, 1, 0, false);
        assert!(limited(&control, Side::Engine, true), "the other side has nothing in flight");
        send(&mut engine, now, 0..2);
        assert!(!limited(&control, Side::Sealed, false));
    }

    #[test]
    fn a_new_path_begins_anew_for_both_sides() {
        let (control, [mut engine, mut sealed], now) = sides(ControllerName::NewReno);
        send(&mut engine, now, 0..8);
        send(&mut sealed, now, 0..2);
        control.begin_path(now, PACKET);
        let window = control.with(Algorithm::initial_window);
        assert_eq!(control.with(Algorithm::congestion_window), window);
        drop(control.for_sealed());
        assert_eq!(control.in_flight(), (0, 0));
        assert_eq!(sealed.congestion_window(), window);
    }

    #[test]
    fn the_controllers_of_the_engine_cannot_be_shared() {
        for name in ControllerName::ALL {
            let control = Control::new(&name.into(), Feedback::default(), start());
            let is_of_engine = matches!(name, ControllerName::Cubic | ControllerName::Bbr3);
            assert_eq!(control.is_none(), is_of_engine, "{name}");
        }
    }
}
