//! The two domains of a path with a PEP, as the sender measures them: the *wired* domain from the sender
//! to the PEP, and the *access* domain from there to the receiver.
//!
//! The sender knows when each packet left and was acknowledged. A PEP-ACK adds how long the packet took
//! to the PEP, and back. The rest of the round trip belongs to the access domain.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tandem_units::ByteCount;
use tandem_wire::PepId;

use super::bottleneck::{Bottleneck, Judge};

/// The most packets whose fate is remembered: 700 ms at 1 Gbit/s.
const PACKETS_MAX: usize = 65_536;

/// A packet of which nothing was heard for this time is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(5);

/// RFC 9002's `kPacketThreshold`: a packet is missing at the PEP if one that was sent this much later has
/// passed.
const PACKET_THRESHOLD: u64 = 3;

/// A PEP-ACK whose number is smaller by at most this was overtaken by others. One that is further behind is that
/// of a PEP that has begun again to count, because it has restarted or had forgotten the flow.
const OVERTAKEN_MAX: u32 = 64;

/// A PEP holds a packet back for this time at most, in addition to the time on the path.
const PEP_DELAY: Duration = Duration::from_millis(2);

/// The least RTT of a domain is that of this time and of the same time before, because routes change.
const LEAST_RTT_TIME: Duration = Duration::from_secs(5);

/// One part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Between the sender and the PEP.
    Wired,
    /// Between the PEP and the receiver.
    Access,
}

/// The packets of a PEP-ACK that the sender has found among those that it has sent.
#[derive(Clone, Debug)]
pub struct Passed<'a> {
    /// The PEP.
    pub pep: PepId,
    /// Whether the MAC was right. Others are counted, and are never a reason to send faster.
    pub is_authentic: bool,
    /// Counts the PEP-ACKs of the PEP on this connection, modulo 2^32.
    pub sequence: u32,
    /// Each packet's number, and how long before the PEP-ACK left it had come to the PEP.
    pub packets: &'a [(u64, Duration)],
}

/// The RTT of a domain: its part of the connection's RTT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainRtt {
    /// The newest sample.
    pub latest: Duration,
    /// The moving average of RFC 9002 §5.3.
    pub smoothed: Duration,
    /// The least one of the last five to ten seconds.
    pub least: Duration,
    /// The least one since the present period of [`LEAST_RTT_TIME`] began, and the beginning.
    period: Option<(Duration, Instant)>,
    /// The least one of the period before.
    before: Option<Duration>,
}

impl DomainRtt {
    fn add(&mut self, now: Instant, sample: Duration) {
        let (least, since) = self.period.get_or_insert((sample, now));
        if now.saturating_duration_since(*since) > LEAST_RTT_TIME {
            self.before = Some(*least);
            (*least, *since) = (sample, now);
        }
        *least = sample.min(*least);
        self.least = self.before.map_or(*least, |before| before.min(*least));
        let is_first = self.smoothed.is_zero();
        self.smoothed = if is_first { sample } else { (self.smoothed * 7 + sample) / 8 };
        self.latest = sample;
    }

    /// Whether there are samples.
    pub const fn is_known(&self) -> bool {
        self.period.is_some()
    }

    /// How long the newest packet waited in queues.
    pub fn queue(&self) -> Duration {
        self.latest.saturating_sub(self.least)
    }

    /// Whether the least RTT is that of an earlier period, by more than `by`, although the present one
    /// will soon be over.
    pub(crate) fn is_stale(&self, now: Instant, by: Duration) -> bool {
        self.period.is_some_and(|(least, since)| {
            least > self.least + by && now.saturating_duration_since(since) > LEAST_RTT_TIME * 4 / 5
        })
    }
}

/// Packets that were lost, by domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Lost before the PEP.
    pub wired: u64,
    /// Lost behind it.
    pub access: u64,
    /// Lost, but a PEP-ACK that could tell where was lost too, or there was none yet.
    pub unknown: u64,
}

/// What happened to a packet so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    InFlight,
    /// It came to the PEP after this part of the RTT.
    Passed(Duration),
    /// The PEP has acknowledged later packets, and not this one.
    Missing,
    /// PEP-ACKs were lost that could have covered it.
    Unknown,
    /// It was acknowledged, or counted as lost.
    Settled,
}

#[derive(Clone, Copy, Debug)]
struct FlyingPacket {
    number: u64,
    sent: Instant,
    bytes: u16,
    fate: Fate,
}

/// What a PEP-ACK has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// The bytes of packets that have passed the PEP.
    pub(crate) passed: ByteCount,
    /// When the newest of them was sent.
    pub(crate) sent: Option<Instant>,
    /// When the newest one was sent of the packets that are missing at the PEP since now.
    pub(crate) missing: Option<Instant>,
}

/// What is known of the two domains of a connection's path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainStats {
    /// The PEP that is listened to.
    pub pep: PepId,
    /// Whether its PEP-ACKs are authentic.
    pub is_authentic: bool,
    /// The RTT of the wired domain.
    pub wired: DomainRtt,
    /// The RTT of the access domain, with the receiver's delay before acknowledgements.
    pub access: DomainRtt,
    /// The packets that were lost.
    pub losses: Losses,
    /// The PEP-ACKs that were used.
    pub pep_acks: u64,
    /// PEP-ACKs without a right MAC.
    pub unauthentic: u64,
    /// The bytes of packets between the PEP and the receiver.
    pub behind_pep: ByteCount,
    /// Where the bottleneck is. `None`: nothing was observed for long enough.
    pub bottleneck: Option<Bottleneck>,
}

/// The measurements of one connection.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    /// In the order of their numbers.
    packets: VecDeque<FlyingPacket>,
    pep: Option<KnownPep>,
    stats: DomainStats,
    judge: Judge,
}

/// The PEP that is listened to.
#[derive(Clone, Copy, Debug)]
struct KnownPep {
    id: PepId,
    is_authentic: bool,
    /// The sequence number of the next PEP-ACK, if none is lost.
    next_sequence: u32,
    /// The largest number of a packet that has passed.
    newest: u64,
    /// All packets with smaller numbers have passed, or were looked at.
    looked_at: u64,
    last_heard: Instant,
    /// When the first packet was sent after the last PEP-ACK.
    first_unheard: Option<Instant>,
}

impl Domains {
    /// Notes a packet of which PEP-ACKs may tell. Numbers increase.
    pub(crate) fn on_sent(&mut self, now: Instant, number: u64, bytes: u16) {
        let is_full = self.packets.len() >= PACKETS_MAX;
        if is_full && let Some(oldest) = self.packets.pop_front() {
            self.leave(oldest);
        }
        self.packets.push_back(FlyingPacket { number, sent: now, bytes, fate: Fate::InFlight });
        if let Some(pep) = &mut self.pep {
            pep.first_unheard.get_or_insert(now);
        }
    }

    /// Notes the packets of a PEP-ACK.
    pub(crate) fn on_passed(&mut self, now: Instant, passed: &Passed<'_>) -> News {
        if !self.listens(now, passed) {
            self.stats.unauthentic += u64::from(!passed.is_authentic);
            return News::default();
        }
        self.stats.pep_acks += 1;
        self.stats.unauthentic += u64::from(!passed.is_authentic);
        let mut news = News::default();
        let mut numbers = None;
        for &(number, age) in passed.packets {
            let Some(packet) = find(&mut self.packets, number) else { continue };
            let took = now.saturating_duration_since(packet.sent).saturating_sub(age);
            if !matches!(packet.fate, Fate::InFlight | Fate::Missing | Fate::Unknown) {
                continue;
            }
            packet.fate = Fate::Passed(took);
            news.passed += ByteCount::new(packet.bytes.into());
            news.sent = news.sent.max(Some(packet.sent));
            let (first, last) = numbers.unwrap_or((number, number));
            numbers = Some((number.min(first), number.max(last)));
            self.stats.wired.add(now, took);
        }
        self.stats.behind_pep += news.passed;
        if let Some((first, last)) = numbers {
            news.missing = self.look(passed.sequence, (first, last));
        }
        if let Some(pep) = &mut self.pep {
            (pep.last_heard, pep.first_unheard) = (now, None);
        }
        news
    }

    /// Whether a PEP-ACK comes from the PEP that this connection listens to: the first one, unless it is
    /// silent, or only another one is authentic.
    fn listens(&mut self, now: Instant, passed: &Passed<'_>) -> bool {
        let is_same =
            |pep: KnownPep| (pep.id, pep.is_authentic) == (passed.pep, passed.is_authentic);
        if self.pep.is_some_and(is_same) {
            return true;
        }
        let is_better = self.pep.is_none_or(|pep| {
            (passed.is_authentic && !pep.is_authentic)
                || (self.is_silent(now) && passed.is_authentic == pep.is_authentic)
        });
        if is_better {
            let newest = passed.packets.iter().map(|&(number, _)| number).min().unwrap_or(0);
            self.pep = Some(KnownPep {
                id: passed.pep,
                is_authentic: passed.is_authentic,
                next_sequence: passed.sequence,
                newest,
                looked_at: newest,
                last_heard: now,
                first_unheard: None,
            });
            (self.stats.wired, self.stats.access) = (DomainRtt::default(), DomainRtt::default());
            for packet in self.packets.iter_mut().take_while(|packet| packet.number < newest) {
                if packet.fate == Fate::InFlight {
                    packet.fate = Fate::Unknown;
                }
            }
        }
        is_better
    }

    /// Looks for packets that are missing at the PEP. Returns when the newest one of them was sent.
    fn look(&mut self, sequence: u32, (first, last): (u64, u64)) -> Option<Instant> {
        let pep = self.pep.as_mut()?;
        let ahead = sequence.wrapping_sub(pep.next_sequence);
        if ahead > u32::MAX - OVERTAKEN_MAX {
            return None; // it was overtaken by later ones
        }
        pep.next_sequence = sequence.wrapping_add(1);
        if ahead > 0 {
            // PEP-ACKs were lost, and with them what they say of the packets until here; or the PEP has
            // begun again to count.
            let start = self.packets.partition_point(|packet| packet.number < pep.looked_at);
            for packet in self.packets.range_mut(start..) {
                if packet.number >= first {
                    break;
                }
                if packet.fate == Fate::InFlight {
                    packet.fate = Fate::Unknown;
                }
            }
            pep.looked_at = pep.looked_at.max(first);
        }
        pep.newest = pep.newest.max(last);
        let end = (pep.newest + 1).saturating_sub(PACKET_THRESHOLD);
        let start = self.packets.partition_point(|packet| packet.number < pep.looked_at);
        let mut missing = None;
        for packet in self.packets.range_mut(start..) {
            if packet.number >= end {
                break;
            }
            if packet.fate == Fate::InFlight {
                packet.fate = Fate::Missing;
                missing = Some(packet.sent);
            }
        }
        pep.looked_at = pep.looked_at.max(end);
        missing
    }

    /// Notes an acknowledgement of the receiver. Returns the RTT of the access domain, if the packet has
    /// passed the PEP.
    pub(crate) fn on_acked(
        &mut self,
        now: Instant,
        number: u64,
        sent: Instant,
    ) -> Option<Duration> {
        let packet = find(&mut self.packets, number).filter(|packet| packet.sent == sent)?;
        let before = *packet;
        packet.fate = Fate::Settled;
        self.leave(before);
        let rtt = match before.fate {
            Fate::Passed(took) => Some(now.saturating_duration_since(sent).saturating_sub(took)),
            _ => None,
        };
        if let Some(rtt) = rtt {
            self.stats.access.add(now, rtt);
        }
        self.forget(now);
        rtt
    }

    /// Notes a packet that the sender has declared lost. Returns the domain of the loss, if it is known.
    pub(crate) fn on_lost(&mut self, number: u64, bytes: u16) -> Option<Domain> {
        let packet = find(&mut self.packets, number).filter(|packet| packet.bytes == bytes)?;
        let before = *packet;
        packet.fate = Fate::Settled;
        self.leave(before);
        // It has acknowledged a later one, or so much later ones that this one is missing.
        let is_heard = self.pep.is_some_and(|pep| number < pep.newest.max(pep.looked_at));
        let domain = match before.fate {
            Fate::Settled => return None,
            Fate::Passed(_) => Some(Domain::Access),
            Fate::Missing => Some(Domain::Wired),
            Fate::InFlight if is_heard => Some(Domain::Wired),
            Fate::InFlight | Fate::Unknown => None,
        };
        let counter = match domain {
            Some(Domain::Wired) => &mut self.stats.losses.wired,
            Some(Domain::Access) => &mut self.stats.losses.access,
            None => &mut self.stats.losses.unknown,
        };
        *counter += 1;
        domain
    }

    /// Ends the acknowledgements of one frame. `is_app_limited`: the application had nothing to send.
    pub(crate) fn on_acks_end(&mut self, now: Instant, is_app_limited: bool) {
        if self.is_known() {
            let queues = (self.stats.wired.queue(), self.stats.access.queue());
            let rtt = self.stats.wired.smoothed + self.stats.access.smoothed;
            self.judge.observe(now, queues, (self.stats.losses, is_app_limited), rtt);
        }
    }

    /// Takes a packet out of what is behind the PEP.
    fn leave(&mut self, packet: FlyingPacket) {
        if matches!(packet.fate, Fate::Passed(_)) {
            self.stats.behind_pep =
                self.stats.behind_pep.saturating_sub(ByteCount::new(packet.bytes.into()));
        }
    }

    fn forget(&mut self, now: Instant) {
        while let Some(&oldest) = self.packets.front() {
            let is_old = now.saturating_duration_since(oldest.sent) > FORGET_AFTER;
            if oldest.fate != Fate::Settled && !is_old {
                break;
            }
            self.packets.pop_front();
            self.leave(oldest);
        }
    }

    /// Whether both domains have been measured.
    const fn is_known(&self) -> bool {
        self.stats.wired.is_known() && self.stats.access.is_known()
    }

    /// Whether PEP-ACKs are authentic and still come, so that the sender may follow them.
    pub(crate) fn is_followed(&self, now: Instant) -> bool {
        self.is_known() && self.pep.is_some_and(|pep| pep.is_authentic) && !self.is_silent(now)
    }

    /// Whether nothing was heard of a packet for two round trips to the PEP.
    fn is_silent(&self, now: Instant) -> bool {
        let patience = self.stats.wired.smoothed * 2 + PEP_DELAY;
        let unheard = self.pep.and_then(|pep| pep.first_unheard);
        unheard.is_some_and(|sent| now.saturating_duration_since(sent) > patience)
    }

    /// What is known. `None`: no PEP has acknowledged a packet.
    pub(crate) fn stats(&self) -> Option<DomainStats> {
        let pep = self.pep?;
        Some(DomainStats {
            pep: pep.id,
            is_authentic: pep.is_authentic,
            bottleneck: self.judge.bottleneck(),
            ..self.stats
        })
    }

    /// The RTTs of the wired and of the access domain.
    pub(crate) const fn rtts(&self) -> (&DomainRtt, &DomainRtt) {
        (&self.stats.wired, &self.stats.access)
    }
}

fn find(packets: &mut VecDeque<FlyingPacket>, number: u64) -> Option<&mut FlyingPacket> {
    let index = packets.partition_point(|packet| packet.number < number);
    packets.get_mut(index).filter(|packet| packet.number == number)
}
