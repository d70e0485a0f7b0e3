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

/// The domains of the last losses.
#[derive(Clone, Copy, Debug, Default)]
struct RecentLosses {
    count: u32,
    /// A bit for each loss of an unknown domain, the last one in the lowest bit.
    unknown: u32,
    /// A bit for each loss in the wired domain.
    wired: u32,
}

impl RecentLosses {
    /// The losses that count.
    const MEMORY: u32 = u32::BITS;

    /// Of how many losses one may be unknown, and one wired, if an unknown one is taken as one in the access
    /// domain.
    const UNKNOWN_OF: u32 = 4;
    const WIRED_OF: u32 = 16;

    fn add(&mut self, domain: Option<Domain>) {
        self.count = (self.count + 1).min(Self::MEMORY);
        self.unknown = self.unknown << 1 | u32::from(domain.is_none());
        self.wired = self.wired << 1 | u32::from(domain == Some(Domain::Wired));
    }

    /// Whether a loss of an unknown domain is like the others, nearly all of which are known and in the
    /// access domain: PEP-ACKs get lost without regard to the packets that they cover.
    const fn are_in_access(self) -> bool {
        self.count == Self::MEMORY
            && self.unknown.count_ones() * Self::UNKNOWN_OF <= self.count
            && self.wired.count_ones() * Self::WIRED_OF <= self.count
    }
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
    /// The RTT of the path if nothing waits in the access domain.
    rtt: Duration,
    /// The domain of the loss of which the controller will be told next.
    lost_in: Option<Domain>,
    recent: RecentLosses,
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
            rtt: Duration::ZERO,
            lost_in: None,
            recent: RecentLosses::default(),
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
        self.note_rtt(domains);
        if let Some(sent) = news.sent {
            let (is_limit, rtt) = (self.is_wired_the_limit(), self.rtt);
            self.wired.on_acked(now, (news.passed, sent), is_limit, rtt);
        }
        if let Some(sent) = news.missing {
            self.wired.on_congestion(now, sent, self.in_flight);
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
        self.follow(ack.now, domains);
        if self.is_followed {
            self.note_rtt(domains);
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
    }

    pub(super) fn on_lost(&mut self, lost: &Lost) {
        self.rates.on_packet_lost(lost);
        let domain = self.lost_in.take();
        self.recent.add(domain);
        let is_in_access = match domain {
            Some(domain) => domain == Domain::Access,
            None => self.recent.are_in_access(),
        };
        self.may_be_wired |= !is_in_access;
        if let AccessWindow::Model(access) = &mut self.access
            && is_in_access
        {
            access.on_lost(lost.bytes);
        }
    }

    pub(super) fn on_congestion_event(&mut self, event: &CongestionEvent) {
        let may_be_wired = std::mem::take(&mut self.may_be_wired);
        let is_marked = event.signal == CongestionSignal::Ecn;
        if !self.is_followed || may_be_wired || is_marked {
            self.wired.on_congestion(event.now, event.sent, self.in_flight);
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
        }
    }

    /// What waits before the PEP is not the access domain's.
    fn note_rtt(&mut self, domains: &Domains) {
        let (wired, access) = domains.rtts();
        self.rtt = wired.smoothed + access.least;
    }

    /// The window of the wired domain, and that of the access domain.
    fn windows(&self) -> (ByteCount, Option<ByteCount>) {
        let wired = self.wired.window();
        match &self.access {
            AccessWindow::Scalable(scalable) => (wired, Some(scalable.window())),
            AccessWindow::Model(access) if self.is_followed => (wired, access.window(self.rtt)),
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

    /// The pacing rate. `None`: the sender's own, as that of CUBIC: in the wired domain, a sender that
    /// spreads its packets more evenly than others loses more of them to full queues.
    pub(super) fn pacing_rate(&self) -> Option<Rate> {
        let (wired, window) = self.windows();
        match &self.access {
            AccessWindow::Model(access) if window.is_some_and(|window| window < wired) => {
                access.pacing_rate()
            }
            _ => None,
        }
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
