//! Tests of users who share a busy thread, of which one wants more than its part.

use noq_proto::Dir;
use tandem_lab::{
    Handle, LinkConfig,
    endpoints::{Behaviour, TcpServer},
};
use tandem_node::{
    Proxy,
    node::{Input, Load},
    proxy::Access,
};

use crate::{
    bed::{Bed, MS, Serving, Setup},
    h3_bytes::{DATA, connect_udp_lines, control_stream, frame, headers, udp_datagram},
    raw_peer::RawPeer,
    users::{ALICE, BOB, tokens},
};

/// A proxy with a greedy client, which is the attacker, and a polite one.
struct Two {
    bed: Bed<Proxy>,
    polite: Handle<RawPeer>,
}

impl Two {
    fn new() -> Self {
        let access = Access::Tokens(tokens());
        let mut bed = Setup { access, ..Setup::default() }.proxy().with_control_stream();
        let polite = bed.add_peer(1);
        bed.run();
        let peer = bed.world.node_mut(polite);
        let control = peer.open(Dir::Uni);
        peer.send(control, control_stream(&[]));
        Self { bed, polite }
    }

    fn load(&mut self, load: Load) {
        self.bed.world.input(self.bed.node, Input::Load(load));
    }

    /// Opens a stream of each client with a request, that of the greedy one first.
    fn open(&mut self, lines: &[(&str, &str)]) -> (u64, u64) {
        let request = |token: &str| {
            let value = format!("Bearer {token}");
            headers(&[lines, &[("proxy-authorization", &value)]].concat())
        };
        let greedy = self.bed.open_with(Dir::Bi, request(ALICE));
        let peer = self.bed.world.node_mut(self.polite);
        let polite = peer.open(Dir::Bi);
        peer.send(polite, request(BOB));
        self.bed.run();
        (greedy, polite)
    }
}

/// How many payloads came to the target from each client.
fn came(two: &Two) -> (usize, usize) {
    let of = |byte| two.bed.at_target().iter().filter(|it| it.first() == Some(&byte)).count();
    (of(1), of(2))
}

#[test]
fn udp_of_who_is_ahead_is_dropped_while_the_thread_is_busy_and_that_of_others_never() {
    for (load, is_dropped) in [(None, false), (Some(Load::Busy), true)] {
        let mut two = Two::new();
        let (greedy, polite) = two.open(&connect_udp_lines("/.well-known/masque/udp/10.0.0.3/7/"));
        if let Some(load) = load {
            two.load(load);
        }
        for _ in 0..50 {
            let peer = two.bed.world.node_mut(two.polite);
            peer.datagram(udp_datagram(polite, &[2; 1000]));
            for _ in 0..20 {
                two.bed.peer().datagram(udp_datagram(greedy, &[1; 1000]));
            }
            two.bed.world.run_for(MS);
        }
        two.bed.run();
        let (of_greedy, of_polite) = came(&two);
        assert_eq!(of_polite, 50);
        let dropped = usize::try_from(two.bed.stats().dropped.over_share).expect("it fits");
        assert_eq!(of_greedy + dropped, 1000);
        assert_eq!(dropped > 500, is_dropped, "{dropped}");
        two.load(Load::Idle);
        assert_eq!(two.bed.echo(greedy, &[1; 10]).len(), 1, "it goes on when nobody wants more");
    }
}

#[test]
fn the_stream_of_who_is_ahead_is_not_read_until_the_thread_is_idle_or_the_round_is_over() {
    const ALL: usize = 400_000;
    for (load, waits) in [(None, false), (Some(Load::Busy), true)] {
        let mut two = Two::new();
        let target = TcpServer::new(7, Behaviour::Sink);
        let target = two.bed.world.add_host("TCP target", ["10.0.0.5"], target);
        let near = LinkConfig { delay: MS, ..LinkConfig::default() };
        two.bed.world.connect(two.bed.node, target, near);
        let (greedy, polite) = two.open(&[(":method", "CONNECT"), (":authority", "10.0.0.5:7")]);
        if let Some(load) = load {
            two.load(load);
        }
        let received = |two: &Two| -> Vec<u64> {
            two.bed.world.node(target).reports().map(|it| it.received).collect()
        };
        two.bed.world.node_mut(two.polite).send(polite, frame(DATA, &[2; 1000]));
        two.bed.world.run_for(5 * MS);
        two.bed.peer().send(greedy, frame(DATA, &vec![1; ALL]));
        two.bed.world.run_for(50 * MS);
        let of_greedy = received(&two).into_iter().find(|it| *it != 1000);
        assert_eq!(of_greedy < Some(ALL as u64), waits, "{of_greedy:?}");
        assert!(received(&two).contains(&1000));
        two.bed.world.node_mut(two.polite).send(polite, frame(DATA, &[2; 1000]));
        two.bed.world.run_for(20 * MS);
        assert!(received(&two).contains(&2000), "the polite user does not wait");
        assert_eq!(two.bed.stats().tcp.open, 2);
        two.load(Load::Idle);
        for _ in 0..20 {
            two.bed.run();
        }
        let mut all = received(&two);
        all.sort_unstable();
        assert_eq!(all, [2000, ALL as u64], "everything comes in the end");
        assert_eq!(two.bed.stats().shares.waits > 0, waits);
    }
}
