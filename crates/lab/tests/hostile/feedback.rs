//! Tests of reports on tunnels that are malformed, absurd, old, lost or false: `TUNNEL_INFO` at a
//! client, and `QUIC_INFO` at an origin.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "an error here fails the test")]

use std::time::Duration;

use bytes::Bytes;
use noq_proto::Dir;
use tandem_congestion::ControllerName;
use tandem_lab::{Contents, FileSet, Handle, LinkConfig, NameAnswer, Seed, World};
use tandem_node::{
    Client, ClientConfig, Event, Origin, OriginConfig, Stats,
    client::{HopConfig, Repair, TunnelMode},
    limits::Limits,
    quic::{Mtu, Transport},
};
use tandem_units::{ByteCount, Rate};
use tandem_wire::{Template, TunnelInfo};

use crate::{
    bed::{Bed, MS, Serving, Setup, certificate, fetch, granted, proxy},
    h3_bytes::{connect_udp_lines, control_stream, headers, http_datagram, open_channel, varint},
    raw_peer::StreamEnd,
    relaying_peer::{REPORTS, RelayingPeer},
};

const SECOND: Duration = Duration::from_secs(1);

/// A report with these fields.
fn fields(fields: [u64; 9]) -> Vec<u8> {
    fields.into_iter().flat_map(varint).collect()
}

/// A true report on the links of [`Loop`].
fn truth(sequence: u64) -> [u64; 9] {
    [1, sequence, 10_000, 10_000, 0, 0, 40_000, 40_000, 10_000]
}

/// Reports that must be ignored, whatever their sequence number is.
fn malformed(sequence: u64) -> Vec<Vec<u8>> {
    let mut all: Vec<_> = [
        (0, 0),
        (0, 2),
        (0, (1 << 62) - 1),
        (2, 0),
        (2, 1 << 30),
        (2, (1 << 62) - 1),
        (3, 1 << 30),
        (4, 1 << 30),
        (5, 10_001),
        (6, 0),
        (6, 60_000_001),
        (7, 0),
        (7, (1 << 62) - 1),
        (8, 1 << 30),
    ]
    .map(|(index, value)| {
        let mut report = truth(sequence);
        report[index] = value;
        fields(report)
    })
    .into();
    let whole = fields(truth(sequence));
    all.extend((0..whole.len()).map(|len| whole[..len].to_vec()));
    all
}

/// The field line of a report.
fn field_line(report: &[u8]) -> String {
    let info = TunnelInfo::decode(Bytes::copy_from_slice(report)).expect("a good report");
    info.to_field().to_str().expect("ASCII").to_owned()
}

fn get_with(lines: &[&str]) -> Vec<u8> {
    let mut all = vec![
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "peer.test"),
        (":path", "/file"),
    ];
    all.extend(lines.iter().map(|line| ("tandem-quic-info", *line)));
    headers(&all)
}

fn origin(controller: ControllerName) -> Bed<Origin> {
    Setup { controller, ..Setup::default() }.origin().with_control_stream()
}

#[test]
fn an_origin_takes_reports_on_one_request_of_a_connection() {
    let mut bed = origin(ControllerName::Tecc);
    let first = bed.open_with(Dir::Bi, open_channel());
    bed.run();
    assert_eq!(bed.answer(first).status(), 200);
    assert_eq!(bed.ask(open_channel()).status(), 409);
    bed.peer().datagram(http_datagram(first, 0, &fields(truth(0))));
    bed.run();
    assert_eq!(bed.stats().feedback.followed, 1, "the first request is unaffected");
    bed.peer().finish(first);
    bed.run();
    assert_eq!(bed.answer(first).end, Some(StreamEnd::Finished));
    assert_eq!(
        bed.ask(open_channel()).status(),
        200,
        "a new request is allowed after the end of the first"
    );
    bed.assert_serves("requests for reports");
}

#[test]
fn an_origin_that_does_not_listen_says_so_and_serves() {
    for controller in [ControllerName::Bbr1, ControllerName::NewReno, ControllerName::Off] {
        let mut bed = origin(controller);
        assert_eq!(bed.ask(open_channel()).status(), 501, "{controller}");
        let line = field_line(&fields(truth(0)));
        assert_eq!(bed.ask(get_with(&[&line])).status(), 200, "{controller}");
        let feedback = bed.stats().feedback;
        assert_eq!((feedback.followed, feedback.malformed), (0, 0), "{controller}");
        bed.assert_serves("a refusal");
    }
}

#[test]
fn reports_that_an_origin_cannot_understand_are_ignored_and_counted() {
    let mut bed = origin(ControllerName::Tecc);
    let channel = bed.open_with(Dir::Bi, open_channel());
    bed.run();
    let reports = malformed(5);
    for report in &reports {
        bed.peer().datagram(http_datagram(channel, 0, report));
    }
    // This datagram has a context other than that of reports.
    bed.peer().datagram(http_datagram(channel, 1, &fields(truth(5))));
    bed.run();
    let stats = bed.stats();
    assert_eq!(stats.feedback.malformed, reports.len() as u64);
    assert_eq!((stats.feedback.followed, stats.dropped.unknown_context), (0, 1));
    let mut longer = fields(truth(5));
    longer.extend([0xff; 100]);
    for (report, used, stale) in [
        (longer, 1, 0),
        (fields(truth(5)), 1, 1),
        (fields(truth(4)), 1, 2),
        (fields(truth(0)), 1, 3),
        (fields(truth((1 << 62) - 1)), 2, 3),
        (fields(truth(6)), 2, 4),
    ] {
        bed.peer().datagram(http_datagram(channel, 0, &report));
        bed.run();
        let feedback = bed.stats().feedback;
        assert_eq!((feedback.followed, feedback.stale), (used, stale), "{report:?}");
    }
    assert_eq!(bed.answer(channel).end, None);
    bed.assert_serves("reports");
}

#[test]
fn field_lines_that_an_origin_cannot_understand_are_ignored_and_counted() {
    let good = field_line(&fields(truth(7)));
    let stale = field_line(&fields(truth(3)));
    for (lines, used, stale, malformed) in [
        (&[&*good][..], 1, 0, 0),
        (&[&*good, &*good], 0, 0, 1),
        (&[""], 0, 0, 1),
        (&["10000"], 0, 0, 1),
        (&["\"AQ==\""], 0, 0, 1),
        (&[":AQ==:"], 0, 0, 1),
        (&[":AgcAAAAAAAA=:"], 0, 0, 1),
        (&["::"], 0, 0, 1),
        (&[], 0, 0, 0),
    ] {
        let mut bed = origin(ControllerName::Tecc);
        assert_eq!(bed.ask(get_with(lines)).status(), 200, "{lines:?}");
        let seen = bed.stats().feedback;
        assert_eq!(
            (seen.followed, seen.stale, seen.malformed),
            (used, stale, malformed),
            "{lines:?}"
        );
    }
    let mut bed = origin(ControllerName::Tecc);
    bed.ask(get_with(&[&good]));
    assert_eq!(bed.ask(get_with(&[&stale])).status(), 200);
    assert_eq!(bed.stats().feedback.stale, 1);
}

#[test]
fn reports_for_a_request_that_takes_none_end_it_alone() {
    let mut bed = origin(ControllerName::Tecc);
    let refused = bed.open_with(Dir::Bi, open_channel());
    let second = bed.open_with(Dir::Bi, open_channel());
    bed.run();
    assert_eq!((bed.answer(refused).status(), bed.answer(second).status()), (200, 409));
    bed.peer().datagram(http_datagram(second, 0, &fields(truth(0))));
    bed.run();
    let stats = bed.stats();
    assert_eq!((stats.feedback.followed, stats.dropped.unknown_flow), (0, 1));
    bed.peer().datagram(http_datagram(refused, 0, &fields(truth(1))));
    bed.run();
    assert_eq!(bed.stats().feedback.followed, 1);
    bed.assert_serves("a report for a refused request");
}

#[test]
fn a_proxy_grants_reports_to_who_asks_well() {
    for (field, granted, ignored) in [
        ("1", true, 0),
        ("1;weight=64", true, 0),
        ("1;weight=1;more=?1", true, 0),
        ("1;weight=0", false, 1),
        ("1;weight=65", false, 1),
        ("1;weight=-1", false, 1),
        ("1;weight=many", false, 1),
        ("2", false, 1),
        ("?1", false, 1),
        ("", false, 1),
    ] {
        let mut bed = proxy();
        let mut lines = connect_udp_lines("/.well-known/masque/udp/10.0.0.3/7/");
        lines.extend([("capsule-protocol", "?1"), ("tandem-feedback", field)]);
        let answer = bed.ask(headers(&lines));
        assert_eq!(answer.status(), 200, "{field}");
        let expected = if granted { "1;context=3" } else { "" };
        assert_eq!(answer.field("tandem-feedback"), expected, "{field}");
        assert_eq!(bed.stats().fields_ignored, ignored, "{field}");
        bed.assert_serves("a wish for reports");
    }
}

/// A client that wants reports from its attacker, which has granted a flow with these fields.
fn client(grant: &[(&str, &str)]) -> Bed<Client> {
    granted(TunnelMode::Tecc(Repair::default()), grant)
}

#[test]
fn a_client_takes_reports_under_the_context_that_it_was_told() {
    for (grant, used, unknown) in [
        (&[("tandem-feedback", "1;context=3")][..], 1, 0),
        (&[("tandem-feedback", "1;context=3;more")], 1, 0),
        (&[], 0, 1),
        (&[("tandem-feedback", "1")], 0, 1),
        (&[("tandem-feedback", "1;context=4")], 0, 1),
        (&[("tandem-feedback", "1;context=5")], 0, 1),
        (&[("tandem-feedback", "2;context=3")], 0, 1),
        (&[("tandem-feedback", "1;context=3"), ("tandem-feedback", "1;context=3")], 0, 1),
    ] {
        let mut bed = client(grant);
        bed.peer().datagram(http_datagram(0, REPORTS, &fields(truth(0))));
        bed.run();
        let stats = bed.stats();
        assert_eq!(
            (stats.feedback.received, stats.dropped.unknown_context),
            (used, unknown),
            "{grant:?}"
        );
        assert_eq!(bed.ended(), None);
    }
}

#[test]
fn reports_that_a_client_cannot_understand_are_ignored_and_counted() {
    let mut bed = client(&[("tandem-feedback", "1;context=3")]);
    let reports = malformed(5);
    for report in &reports {
        bed.peer().datagram(http_datagram(0, REPORTS, report));
    }
    for sequence in [5, 5, 4, 0, 6] {
        bed.peer().datagram(http_datagram(0, REPORTS, &fields(truth(sequence))));
    }
    bed.run();
    let feedback = bed.stats().feedback;
    assert_eq!((feedback.received, feedback.stale), (2, 3));
    assert_eq!(feedback.malformed, reports.len() as u64);
    assert_eq!(bed.ended(), None);
}

/// A download through a proxy that relays correctly and sends the reports of a test.
///
/// ```text
/// client --- 10 Mbit/s, 20 ms, 150 kB --- proxy --- 50 ms --- origin
/// ```
struct Loop {
    world: World,
    client: Handle<Client>,
    proxy: Handle<RelayingPeer>,
    origin: Handle<Origin>,
}

const LOOP_FILE: u64 = 4_000_000;

impl Loop {
    fn new(controller: ControllerName) -> Self {
        let tls = certificate();
        let mut world = World::new(Seed(1));
        let hop = HopConfig {
            transport: Transport { mtu: Mtu::TUNNEL, ..Transport::default() },
            mode: TunnelMode::Tecc(Repair::default()),
            ..HopConfig::new(Template::default_for("peer.test").unwrap(), tls.client())
        };
        let task = fetch("peer.test", 1);
        let config =
            ClientConfig { hops: vec![hop], task, limits: Limits::default(), seed: Some(1) };
        let client = world.add_host("client", ["10.0.0.2"], Client::new(config).unwrap());
        let target = "10.0.0.9:443".parse().unwrap();
        let proxy = world.add_host("proxy", ["10.0.0.1"], RelayingPeer::new(&tls, target));
        let config = OriginConfig {
            transport: Transport { controller: controller.into(), ..Transport::default() },
            seed: Some(2),
            ..OriginConfig::new("0.0.0.0:443".parse().unwrap(), tls.server())
        };
        let origin = world.add_host("origin", ["10.0.0.9"], Origin::new(config).unwrap());
        let access = LinkConfig {
            capacity: Rate::from_mbps(10).into(),
            delay: 20 * MS,
            queue: "150kB".parse().unwrap(),
            ..LinkConfig::default()
        };
        world.connect(client, proxy, access);
        world.connect(proxy, origin, LinkConfig { delay: 50 * MS, ..LinkConfig::default() });
        let contents = Contents::Generated { len: ByteCount::new(LOOP_FILE), seed: Seed(1) };
        world.set_files(origin, FileSet::new().with("file", contents));
        let answer = Ok(vec!["10.0.0.1".parse().unwrap()]);
        world.set_name("peer.test", NameAnswer::After(MS, answer));
        let mut it = Self { world, client, proxy, origin };
        it.grant();
        it
    }

    fn grant(&mut self) {
        let proxy = self.proxy;
        let is_connected = |world: &World| world.node(proxy).peer.is_connected();
        assert!(self.world.run_until(SECOND, is_connected), "no handshake");
        let peer = &mut self.world.node_mut(proxy).peer;
        let control = peer.open(Dir::Uni);
        peer.send(control, control_stream(&[]));
        let has_asked = |world: &World| world.node(proxy).peer.streams.contains_key(&0);
        assert!(self.world.run_until(SECOND, has_asked), "no request");
        let grant =
            [(":status", "200"), ("capsule-protocol", "?1"), ("tandem-feedback", "1;context=3")];
        self.world.node_mut(proxy).peer.send(0, headers(&grant));
    }

    /// Runs to the end of the download, and returns its duration. Every 40 ms the proxy sends the
    /// reports that `reports` returns for the number of the interval.
    fn run(&mut self, mut reports: impl FnMut(u64) -> Vec<Vec<u8>>) -> Duration {
        let begin = self.world.elapsed();
        for number in 0..1500 {
            for report in reports(number) {
                self.world.node_mut(self.proxy).report(&report);
            }
            self.world.run_for(40 * MS);
            let events = self.world.events(self.client);
            if let Some((at, Event::Closed(result))) = events.last() {
                assert_eq!(result, &Ok(()));
                assert_eq!(self.world.body(self.client).bytes(), LOOP_FILE);
                return at.saturating_sub(begin);
            }
        }
        panic!("the download stalls after {} bytes", self.world.body(self.client).bytes());
    }

    fn stats(&mut self) -> (Stats, Stats) {
        let client = self.world.node_mut(self.client).stats();
        (client, self.world.node_mut(self.origin).stats())
    }
}

/// The duration of a download without reports.
fn without_reports() -> Duration {
    Loop::new(ControllerName::Tecc).run(|_| Vec::new())
}

#[test]
fn a_download_goes_on_whatever_a_proxy_says_wrongly() {
    let silent = without_reports();
    let mut it = Loop::new(ControllerName::Tecc);
    let took = it.run(|number| {
        let mut reports = malformed(2 * number);
        reports.push(fields(truth(0)));
        reports
    });
    let (client, origin) = it.stats();
    assert_eq!(client.feedback.received, 1);
    assert!(client.feedback.malformed > 1000 && client.feedback.stale > 50, "{client:?}");
    assert_eq!((origin.feedback.malformed, origin.feedback.stale), (0, 0), "{origin:?}");
    assert!(took < silent * 12 / 10, "{took:?}, and {silent:?} in silence");
}

#[test]
fn a_download_completes_whatever_becomes_of_the_reports() {
    let silent = without_reports();
    let one = |number| vec![fields(truth(number))];
    let all = Loop::new(ControllerName::Tecc).run(one);
    assert!(all < silent, "{all:?}, and {silent:?} in silence");
    // These are the reports that get through, out of eight.
    for (what, delivered) in [
        ("half are lost", &[1, 3, 5, 7][..]),
        ("three in a row are lost", &[3, 7]),
        ("they come in pairs, the newer first", &[1, 0, 3, 2, 5, 4, 7, 6]),
        ("they come twice", &[0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]),
        ("only old ones come", &[0, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        let mut it = Loop::new(ControllerName::Tecc);
        let took = it.run(|number| {
            let (eight, index) = (number / 8 * 8, number % 8);
            let per_step = delivered.len().div_ceil(8);
            let step = usize::try_from(index).unwrap() * per_step;
            let due = match delivered.len() {
                len if len >= 8 => delivered[step..step + per_step].to_vec(),
                _ => delivered.iter().copied().filter(|it| *it == index).collect(),
            };
            due.into_iter().map(|it| fields(truth(eight + it))).collect()
        });
        let (client, origin) = it.stats();
        println!("{what}: {took:?}, client {:?}, origin {:?}", client.feedback, origin.feedback);
        assert!(
            took < silent * 11 / 10,
            "{what}: {took:?}, {silent:?} in silence, {all:?} with all"
        );
        assert_eq!(origin.feedback.malformed, 0, "{what}");
    }
}

#[test]
fn a_download_completes_when_the_proxy_falls_silent() {
    let silent = without_reports();
    for last in [0, 10, 40] {
        let mut it = Loop::new(ControllerName::Tecc);
        let took =
            it.run(|number| if number <= last { vec![fields(truth(number))] } else { Vec::new() });
        println!("silent after {last}: {took:?}, {silent:?} in silence");
        assert!(took < silent * 11 / 10, "silent after {last}: {took:?}, {silent:?} in silence");
    }
}

#[test]
fn a_download_completes_from_an_origin_that_refuses_reports() {
    let mut it = Loop::new(ControllerName::Bbr1);
    it.run(|number| vec![fields(truth(number))]);
    let (client, origin) = it.stats();
    assert!(client.feedback.received > 50, "{client:?}");
    assert_eq!((origin.requests, origin.requests_refused), (2, 1));
    assert_eq!(
        client.feedback.sent, 2,
        "the client sends reports with the two requests, and no more afterwards"
    );
    assert_eq!(origin.feedback.followed, 0);
}
