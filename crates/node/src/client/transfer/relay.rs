//! Passes the reports on a tunnel on to the origin (`QUIC_INFO`, §4.2.2 of the TECC paper, see
//! `docs/guide/tecc.md`).
//!
//! Each request carries the newest report, so that the origin knows a rate before it sends its
//! first byte. Later reports are HTTP Datagrams of a separate extended CONNECT request. An origin
//! that does not know this request refuses it.

use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, Method, StatusCode};
use tandem_units::ByteCount;
use tandem_wire::{QuarterStreamId, RequestHead, TunnelInfo, VarInt};

use crate::{
    carrier::Carrier,
    client::chain::Peer,
    h3::End,
    impossible::impossible,
    quic::{SendDatagram, StreamId},
};

const QUIC_INFO: HeaderName = HeaderName::from_static(TunnelInfo::FIELD);

/// The path of the request for reports.
const PATH: &str = "/.well-known/tandem-quic-info";

/// The request on which reports go to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    /// The request has not been sent.
    None,
    /// The request was sent.
    Asked(StreamId),
    /// The origin accepted the request.
    Open(StreamId),
    /// The origin refused the request, or the request has ended.
    Closed,
}

/// Whether an origin may take reports.
///
/// RFC 9220 §3: a client "MUST NOT" use extended CONNECT before it has received the setting. RFC 9297 §2.1.1 says the
/// same about datagrams.
fn takes_reports(peer: &mut Peer) -> bool {
    let carrier = peer.carrier();
    let settings = carrier.as_ref().and_then(Carrier::peer_settings);
    settings.is_some_and(|settings| settings.enable_connect_protocol && settings.h3_datagram)
}

/// Passes reports on to one origin.
#[derive(Debug)]
pub(in crate::client) struct Relay {
    channel: Channel,
    /// Whether only origins hear of the tunnel that may understand what they are told, as their SETTINGS say.
    is_discreet: bool,
    latest: Option<TunnelInfo>,
    /// Whether the newest report has not gone to the origin.
    has_news: bool,
    /// When it goes without an acknowledgement.
    deadline: Option<Instant>,
    pace: ReportPace,
    acks: Acks,
    renumbered: Renumbered,
    /// How many reports went to the origin.
    pub(in crate::client) sent: u64,
}

impl Relay {
    pub(in crate::client) fn new(is_discreet: bool) -> Self {
        Self {
            channel: Channel::None,
            is_discreet,
            latest: None,
            has_news: false,
            deadline: None,
            pace: ReportPace::default(),
            acks: Acks::default(),
            renumbered: Renumbered::new(),
            sent: 0,
        }
    }

    /// Adds the newest report to a request.
    pub(in crate::client) fn add_to(&mut self, headers: &mut HeaderMap, peer: &mut Peer) {
        if self.is_discreet && !takes_reports(peer) {
            return;
        }
        if let Some(info) = self.next() {
            headers.insert(QUIC_INFO, info.to_field());
            self.sent += 1;
        }
    }

    /// Sends the request for reports, if the origin's SETTINGS allow it.
    pub(in crate::client) fn on_settings(&mut self, peer: &mut Peer) {
        let authority = peer.settings.authority.clone();
        if !takes_reports(peer) || self.channel != Channel::None {
            return;
        }
        let mut headers = HeaderMap::new();
        self.add_to(&mut headers, peer);
        let head = RequestHead {
            method: Method::CONNECT,
            scheme: Some("https".to_owned()),
            authority: Some(authority),
            path: Some(PATH.to_owned()),
            protocol: Some(TunnelInfo::PROTOCOL.to_owned()),
            headers,
        };
        if let Some(mut carrier) = peer.carrier()
            && let Some(stream) = carrier.request(&head, End::More)
        {
            self.channel = Channel::Asked(stream);
        }
    }

    /// Whether this is the stream of the request for reports.
    pub(in crate::client) fn owns(&self, stream: StreamId) -> bool {
        matches!(self.channel, Channel::Asked(own) | Channel::Open(own) if own == stream)
    }

    /// Whether the origin takes reports.
    pub(in crate::client) fn is_open(&self) -> bool {
        matches!(self.channel, Channel::Open(_))
    }

    /// Handles the answer to the request for reports.
    pub(in crate::client) fn on_response(&mut self, stream: StreamId, status: StatusCode) {
        self.channel = if status.is_success() { Channel::Open(stream) } else { Channel::Closed };
    }

    /// Notes that the request for reports has ended.
    pub(in crate::client) fn on_end(&mut self) {
        self.channel = Channel::Closed;
    }

    /// Takes a new report. It goes to the origin with the next request, or with an acknowledgement, or
    /// alone if none follows in time.
    pub(in crate::client) fn push(&mut self, now: Instant, info: TunnelInfo) {
        self.latest = Some(info);
        self.has_news = true;
        let wait = info.sending_rate.time_to_send(PACKETS);
        self.deadline.get_or_insert(now + wait.min(WAIT_MAX));
    }

    /// When a report is due that no acknowledgement has taken along.
    pub(in crate::client) fn next_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// Sends the report that is due.
    pub(in crate::client) fn handle_timeout(&mut self, now: Instant, peer: &mut Peer) {
        if self.deadline.take_if(|deadline| *deadline <= now).is_some() {
            self.pass_on(now, peer);
        }
    }

    /// Handles the arrival of a packet from the origin. If the client acknowledges it now, the
    /// newest report goes in the same packet, where it costs least.
    pub(in crate::client) fn on_packet(&mut self, now: Instant, peer: &mut Peer) {
        if self.has_news && self.acks.is_due(peer.stats().sent_ack_frames) {
            self.pass_on(now, peer);
        }
    }

    fn pass_on(&mut self, now: Instant, peer: &mut Peer) {
        let Channel::Open(stream) = self.channel else { return }; // the origin takes none
        let Some(mut carrier) = peer.carrier() else { return }; // it is lost
        if !self.has_news || !self.pace.allows(now, carrier.path_estimate().min_rtt) {
            return;
        }
        let Some(quarter_stream_id) = QuarterStreamId::from_stream_id(stream.0) else {
            return impossible("requests are on bidirectional streams of the client");
        };
        let Some(info) = self.next() else { return }; // there was none yet
        let is_sent = carrier.send_report(&info, quarter_stream_id, TunnelInfo::CONTEXT_ID);
        self.sent += u64::from(is_sent == SendDatagram::Taken);
    }

    fn next(&mut self) -> Option<TunnelInfo> {
        (self.has_news, self.deadline) = (false, None);
        self.latest.map(|info| self.renumbered.next(info))
    }
}

/// A report goes alone when these bytes could have arrived since it came: four packets. A client
/// acknowledges every second one, but the resequencer at the exit of the tunnel may hold them back.
const PACKETS: ByteCount = ByteCount::new(4 * 1350);

/// The longest wait of a report for an acknowledgement.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// Bounds how often reports go to the origin. It sees only after a whole end-to-end round trip what
/// its last change of rate has done. Two reports in a round trip are as many as it can use for long,
/// and some more while a tunnel finds its rate.
#[derive(Debug, Default)]
struct ReportPace {
    /// The time at which the reports that have gone would have gone at an even pace.
    even: Option<Instant>,
}

impl ReportPace {
    /// Reports that may go faster than the pace.
    const BURST: u32 = 16;

    /// Whether a report may go now, which then counts.
    fn allows(&mut self, now: Instant, least_rtt: Duration) -> bool {
        let step = least_rtt / 2;
        let even = self.even.unwrap_or(now).max(now);
        let is_allowed = even <= now + step * Self::BURST;
        if is_allowed {
            self.even = Some(even + step);
        }
        is_allowed
    }
}

/// Finds out when the next acknowledgement is due.
#[derive(Debug, Default)]
struct Acks {
    /// The ACK frames that have been sent.
    sent: u64,
    /// The packets that have arrived since, this one included.
    packets: u32,
}

impl Acks {
    /// Whether the packet that has just arrived is acknowledged at once. `sent` is the number of ACK
    /// frames so far.
    ///
    /// RFC 9000 §13.2.2: "A receiver SHOULD send an ACK frame after receiving at least two
    /// ack-eliciting packets." The engine does so.
    const fn is_due(&mut self, sent: u64) -> bool {
        if sent != self.sent {
            self.sent = sent;
            self.packets = 0;
        }
        self.packets = self.packets.saturating_add(1);
        self.packets >= 2
    }
}

/// Gives reports new sequence numbers. A tunnel that is rebuilt numbers its reports from 0 again,
/// but the origin needs increasing numbers.
#[derive(Debug)]
pub(in crate::client) struct Renumbered {
    next: VarInt,
}

impl Renumbered {
    pub(in crate::client) const fn new() -> Self {
        Self { next: VarInt::from_u32(0) }
    }

    pub(in crate::client) fn next(&mut self, info: TunnelInfo) -> TunnelInfo {
        let sequence = self.next;
        self.next = VarInt::saturating_from(sequence.get() + 1);
        TunnelInfo { sequence, ..info }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_start;

    #[test]
    fn every_second_packet_is_acknowledged_at_once() {
        let mut acks = Acks::default();
        // The first look finds no ACK frame of which it has not counted the packets since.
        let seen = [0, 0, 1, 1, 2, 2, 2].map(|sent| acks.is_due(sent));
        assert_eq!(seen, [false, true, false, true, false, true, true]);
    }

    #[test]
    fn two_reports_go_in_a_round_trip_after_a_burst() {
        let (mut pace, begin) = (ReportPace::default(), test_start());
        let rtt = Duration::from_millis(100);
        let mut count = |from: u64, to: u64| {
            let times = (from..to).map(|ms| begin + Duration::from_millis(ms));
            times.filter(|now| pace.allows(*now, rtt)).count()
        };
        assert_eq!(count(0, 50), 17);
        assert_eq!(count(50, 1050), 20);
        // After a pause there may be a burst again.
        assert_eq!(count(10_000, 10_050), 17);
    }

    #[test]
    fn reports_are_not_bounded_before_the_rtt_is_known() {
        let (mut pace, now) = (ReportPace::default(), test_start());
        assert!((0..100).all(|_| pace.allows(now, Duration::ZERO)));
    }
}
