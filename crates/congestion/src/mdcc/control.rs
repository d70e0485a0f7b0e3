//! The windows of the two domains, and what clocks them.

use std::time::{Duration, Instant};

use tandem_units::{ByteCount, Rate};

use super::{MdccConfig, access::Access, scalable::Scalable};
use crate::{
    Ack, AcksEnd, CongestionEvent, CongestionSignal, DeliveryRate, Factor, Lost, Sent,
    cubic::Cubic,
    segments::{Domain, Domains, News},
};

/// A window grows while it is not larger than this part of what the other domain takes.
const LIMIT: Factor = Factor::from_percent(125);

/// The pacing rate as a factor of the window over the least RTT.
const PACING: Factor = Factor::from_percent(110);

/// The least window in packets.
const PACKETS_LEAST: u64 = 4;

/// What clocks the access domain.
#[derive(Debug)]
enum AccessWindow {
    /// As the paper prints it.
    Scalable(Scalable),
    /// A model of the domain's rate.
    Model(Access),
}

/// The control of one connection.
#[derive(Debug)]
pub(crate) struct Control {
    packet: ByteCount,
    initial_window: ByteCount,
    wired: Cubic,
    access: AccessWindow,
    rates: DeliveryRate,
    in_flight: ByteCount,
    is_app_limited: bool,
    /// Whether PEP-ACKs clock the wired domain. Otherwise there is one domain.
    is_followed: bool,
    /// The least RTT of the whole path, and the smoothed one.
    rtts: (Duration, Duration),
    /// The window that may be waiting in the access domain's queue.
    queued: ByteCount,
    /// The domain of the loss of which the controller will be told next.
    lost_in: Option<Domain>,
    /// Whether a loss since the last congestion event was not certainly behind the PEP.
    may_be_wired: bool,
}

impl Control {
    pub(super) fn new(
        config: MdccConfig,
        now: Instant,
        initial_window: ByteCount,
        packet: ByteCount,
    ) -> Self {
        let access = if config.is_paper {
            AccessWindow::Scalable(Scalable::new(initial_window))
        } else {
            AccessWindow::Model(Access::new(config, packet))
        };
        Self {
            packet,
            initial_window,
            wired: Cubic::new(initial_window, packet),
            access,
            rates: DeliveryRate::new(now),
            in_flight: ByteCount::ZERO,
            is_app_limited: false,
            is_followed: false,
            rtts: (Duration::ZERO, Duration::ZERO),
            queued: ByteCount::ZERO,
            lost_in: None,
            may_be_wired: false,
        }
    }

    pub(super) fn on_sent(&mut self, sent: Sent, domains: &Domains) {
        self.rates.on_packet_sent(sent, self.in_flight);
        self.in_flight += sent.bytes;
        self.follow(sent.now, domains);
    }

    /// Notes what a PEP-ACK has changed.
    pub(crate) fn on_passed(&mut self, now: Instant, news: &News, domains: &Domains) {
        self.follow(now, domains);
        if !self.is_followed {
            return;
        }
        let (wired, access) = domains.rtts();
        self.rtts.0 = wired.least + access.least;
        self.queued = self.queued_behind(domains);
        if let Some(sent) = news.sent {
            let (is_limit, rtt) = (self.is_wired_the_limit(), self.rtts.0);
            self.wired.on_acked(now, (news.passed, sent), is_limit, rtt);
        }
        if let Some(sent) = news.missing {
            self.wired.on_congestion(now, sent, self.wired_in_flight());
        }
    }

    pub(crate) fn on_access_rtt(&mut self, rtt: Duration) {
        if let AccessWindow::Model(access) = &mut self.access {
            access.on_rtt(rtt);
        }
    }

    /// Notes in which domain the packet was lost of which [`Self::on_lost`] tells next.
    pub(crate) const fn on_lost_in(&mut self, domain: Option<Domain>) {
        self.lost_in = domain;
    }

    pub(super) fn on_ack(&mut self, ack: &Ack, domains: &Domains) {
        self.rates.on_ack(ack);
        self.is_app_limited = ack.is_app_limited;
        self.rtts = (ack.min_rtt.min(ack.latest_rtt()), ack.smoothed_rtt);
        self.follow(ack.now, domains);
        if self.is_followed {
            let (wired, access) = domains.rtts();
            self.rtts.0 = wired.least + access.least;
        } else {
            let is_limit = !ack.is_app_limited;
            self.wired.on_acked(ack.now, (ack.bytes, ack.sent), is_limit, ack.smoothed_rtt);
        }
        match &mut self.access {
            AccessWindow::Scalable(scalable) => {
                let is_limit =
                    !ack.is_app_limited && scalable.window() <= LIMIT.of_bytes(self.wired.window());
                scalable.on_acked(ack.bytes, ack.sent, is_limit);
            }
            AccessWindow::Model(access) => access.on_acked(ack.bytes),
        }
    }

    pub(super) fn on_acks_end(&mut self, end: &AcksEnd, domains: &Domains) {
        self.in_flight = end.bytes_in_flight;
        let sample = self.rates.on_acks_end(end.now);
        if end.is_app_limited {
            self.rates.on_app_limited(end.bytes_in_flight);
        }
        if let (AccessWindow::Model(access), Some(sample)) = (&mut self.access, sample) {
            let (_, rtt) = domains.rtts();
            access.on_sample(end.now, &sample, self.rates.delivered(), rtt);
        }
        self.queued = self.queued_behind(domains);
    }

    pub(super) fn on_lost(&mut self, lost: &Lost) {
        self.rates.on_packet_lost(lost);
        let domain = self.lost_in.take();
        self.may_be_wired |= domain != Some(Domain::Access);
        if let AccessWindow::Model(access) = &mut self.access
            && domain == Some(Domain::Access)
        {
            access.on_lost(lost.bytes);
        }
    }

    pub(super) fn on_congestion_event(&mut self, event: &CongestionEvent) {
        let may_be_wired = std::mem::take(&mut self.may_be_wired);
        let is_marked = event.signal == CongestionSignal::Ecn;
        if !self.is_followed || may_be_wired || is_marked {
            self.wired.on_congestion(event.now, event.sent, self.wired_in_flight());
        }
        let least = self.least();
        if let AccessWindow::Scalable(scalable) = &mut self.access {
            scalable.on_congestion(event.now, event.sent, least);
        }
        if event.signal == CongestionSignal::PersistentLoss {
            self.wired.restart(least);
            if let AccessWindow::Scalable(scalable) = &mut self.access {
                scalable.restart(least);
            }
        }
    }

    pub(super) fn on_mtu_update(&mut self, packet: ByteCount) {
        self.packet = packet;
        self.wired.set_smss(packet);
        if let AccessWindow::Model(access) = &mut self.access {
            access.set_packet(packet);
        }
    }

    /// Determines whether the sender still follows PEP-ACKs.
    fn follow(&mut self, now: Instant, domains: &Domains) {
        let followed = std::mem::replace(&mut self.is_followed, domains.is_followed(now));
        if followed && !self.is_followed {
            // One domain from now on, in which the window is what the path has carried.
            self.wired.lower_to(self.in_flight);
            self.queued = ByteCount::ZERO;
        }
    }

    /// The bytes that wait in the queue of the access domain.
    fn queued_behind(&self, domains: &Domains) -> ByteCount {
        let AccessWindow::Model(access) = &self.access else { return ByteCount::ZERO };
        let (_, rtt) = domains.rtts();
        let moving = access.rate().map(|rate| rate.bytes_in(rtt.least)).unwrap_or_default();
        domains.behind_pep().saturating_sub(moving)
    }

    /// How much is in flight without what waits in the access domain.
    fn wired_in_flight(&self) -> ByteCount {
        self.in_flight.saturating_sub(self.queued)
    }

    /// The window of the wired domain, as if nothing waited in the access domain; and that of the access
    /// domain.
    fn windows(&self) -> (ByteCount, Option<ByteCount>) {
        let wired = self.wired.window();
        match &self.access {
            AccessWindow::Scalable(scalable) => (wired, Some(scalable.window())),
            AccessWindow::Model(access) if self.is_followed => {
                (wired + self.queued, access.window(self.rtts.0))
            }
            AccessWindow::Model(_) => (wired, None),
        }
    }

    fn is_wired_the_limit(&self) -> bool {
        let (wired, access) = self.windows();
        !self.is_app_limited && access.is_none_or(|access| wired <= LIMIT.of_bytes(access))
    }

    const fn least(&self) -> ByteCount {
        self.packet.saturating_mul(PACKETS_LEAST)
    }

    pub(super) fn window(&self) -> ByteCount {
        let (wired, access) = self.windows();
        access.map_or(wired, |access| access.min(wired)).max(self.least())
    }

    pub(super) const fn initial_window(&self) -> ByteCount {
        self.initial_window
    }

    /// The pacing rate. `None`: the sender's own, a window per RTT.
    pub(super) fn pacing_rate(&self) -> Option<Rate> {
        let is_model = matches!(self.access, AccessWindow::Model(_));
        let rate = Rate::average(self.window(), self.rtts.0.max(Duration::from_millis(1)))?;
        (is_model && self.is_followed).then(|| PACING.of_rate(rate))
    }

    /// The largest rate of the access domain in the last rounds.
    pub(super) fn bandwidth(&self) -> Option<Rate> {
        match &self.access {
            AccessWindow::Model(access) if self.is_followed => access.rate(),
            _ => None,
        }
    }

    pub(super) fn ssthresh(&self) -> Option<ByteCount> {
        (!self.wired.is_in_slow_start()).then(|| self.wired.window())
    }
}
