//! Several proxies at one address, and packets that reach the wrong one: another thread, process or machine.

#![expect(clippy::unwrap_used, reason = "an error here fails the test")]

use std::{ops::Range, time::Duration};

use tandem_lab::{
    Contents, FileSet, Handle, LinkConfig, NameAnswer, Seed, World,
    endpoints::{Owner, SharedAddress},
};
use tandem_node::{
    Client, Event, Proxy,
    client::TunnelMode,
    node::FetchReport,
    quic::{
        DatagramTransport::{self, Quic, Sealed},
        Fleet, FleetSecret, Generation, Neighbours, OtherProcess, ResetSecret, Steering, Transport,
        Turn,
    },
};
use tandem_units::{ByteCount, Ratio};
use tandem_wire::RoutableIds;

use crate::{
    MS, SECOND, rmdt,
    scenario::{Scenario, certificate},
    tecc,
};

/// Nodes at one address.
struct Arrangement {
    what: &'static str,
    nodes: Vec<Transport>,
    owner: fn(&[u8]) -> Option<usize>,
    /// Which nodes get new connections.
    new: Range<usize>,
}

fn steered(index: u8, nodes: u8, turn: Turn, transport: Transport) -> Transport {
    Transport { steering: Steering::new(index, nodes, turn).unwrap(), ..transport }
}

fn alone() -> Transport {
    Transport { reset_secret: Some(ResetSecret([7; 32])), ..Transport::default() }
}

fn shared() -> Transport {
    let other_process = OtherProcess::default();
    other_process.set(true);
    Transport { other_process, ..alone() }
}

fn machine(server_id: u8) -> Transport {
    let ids = RoutableIds::new(0, 1, 8, None).unwrap();
    let generation = Generation { ids, secret: FleetSecret([9; 32]) };
    let fleet = Fleet::new(vec![server_id], vec![generation]).unwrap();
    let other = (vec![1 - server_id], "10.0.0.77:443".parse().unwrap());
    let fleet = Some(fleet.with_neighbours(Neighbours::new([other])));
    Transport { fleet, ..Transport::default() }
}

/// The byte of a connection ID at which a server receives packets, counted from 0.
fn byte(packet: &[u8], at: usize) -> Option<usize> {
    let id_at = match packet.first()? {
        0..0x80 => 1,
        first if first & 0x30 == 0x20 => 6, // a Handshake packet
        _ => return None,
    };
    packet.get(id_at + at).copied().map(usize::from)
}

fn arrangements() -> [Arrangement; 4] {
    let thread = |index| steered(index, 2, Turn::First, alone());
    let process = |turn| steered(0, 1, turn, shared());
    let takes_over = |index, turn| steered(index, 2, turn, shared());
    [
        Arrangement {
            what: "two threads",
            nodes: vec![thread(0), thread(1)],
            owner: |packet| byte(packet, 0).map(|it| it % 2),
            new: 0..2,
        },
        Arrangement {
            what: "a process that takes over",
            nodes: vec![process(Turn::First), process(Turn::Second)],
            owner: |packet| byte(packet, 0).map(|it| it % 2),
            new: 1..2,
        },
        Arrangement {
            what: "a process with two threads, from which another takes over",
            nodes: vec![
                takes_over(0, Turn::First),
                takes_over(1, Turn::First),
                takes_over(0, Turn::Second),
                takes_over(1, Turn::Second),
            ],
            owner: |packet| byte(packet, 0).map(|it| it % 4),
            new: 0..2,
        },
        Arrangement {
            what: "two machines",
            nodes: vec![machine(0), machine(1)],
            owner: |packet| byte(packet, 1),
            new: 0..2,
        },
    ]
}

/// Such proxies, a client that downloads through them, and an origin.
struct Shared {
    world: World,
    client: Handle<Client>,
    proxy: Handle<SharedAddress<Proxy>>,
    contents: Contents,
    what: String,
}

impl Shared {
    fn new(scenario: &Scenario, arrangement: &Arrangement) -> Self {
        let tls = certificate();
        let mut world = World::new(Seed(scenario.seed.0));
        let client = world.add_host("client", ["10.0.0.1"], scenario.client(Scenario::fetch()));
        let origin = world.add_host("origin", ["10.0.0.9"], scenario.origin(&tls));
        let nodes = arrangement.nodes.iter().zip(1..);
        let nodes = nodes.map(|(own, number)| scenario.proxy_with(&tls, number, own.clone()));
        let owner: Owner = Box::new(arrangement.owner);
        let shared = SharedAddress::new(nodes, owner, arrangement.new.clone());
        let proxy: Handle<SharedAddress<Proxy>> = world.add_host("proxy", ["10.0.0.2"], shared);
        for (name, ip) in [("proxy1.test", "10.0.0.2"), ("origin.test", "10.0.0.9")] {
            world.set_name(name, NameAnswer::After(Duration::ZERO, Ok(vec![ip.parse().unwrap()])));
        }
        let link = || LinkConfig { delay: 10 * MS, ..LinkConfig::default() };
        world.connect(client, proxy, LinkConfig { delay: 10 * MS, ..scenario.access.clone() });
        world.connect(proxy, origin, link());
        let contents = Contents::Generated { len: scenario.file, seed: Seed(1) };
        world.set_files(origin, FileSet::new().with("file", contents.clone()));
        let Scenario { mode, datagrams: [datagrams, _], seed, .. } = scenario;
        let what = format!("{}, {mode:?}, {datagrams:?}, {}", arrangement.what, seed.0);
        Self { world, client, proxy, contents, what }
    }

    /// Runs until this part of the file has come.
    fn run_until_percent(&mut self, percent: u64) {
        let (client, bytes) = (self.client, self.contents.len() * percent / 100);
        let came = |world: &World| world.body(client).bytes() >= bytes;
        assert!(self.world.run_until(60 * SECOND, came), "{}: it stalls", self.what);
    }

    fn node(&mut self) -> &mut SharedAddress<Proxy> {
        self.world.node_mut(self.proxy)
    }

    /// How often the tunnel was lost until now.
    fn lost(&self) -> usize {
        let events = self.world.events(self.client);
        events.iter().filter(|(_, event)| matches!(event, Event::HopLost { .. })).count()
    }

    /// Runs to the end. Returns what the client reports.
    fn finish(&mut self) -> FetchReport {
        let Self { world, client, contents, what, .. } = self;
        let client = *client;
        let ended = |world: &World| matches!(world.events(client), [.., (_, Event::Closed(_))]);
        assert!(world.run_until(60 * SECOND, ended), "{what}");
        let events = world.events(client);
        assert!(matches!(events, [.., (_, Event::Closed(Ok(())))]), "{what}: {events:?}");
        assert_eq!(world.body(client).sha256(), contents.sha256(), "{what}");
        let report = events.iter().find_map(|(_, event)| match event {
            Event::Fetched(report) => Some(report.clone()),
            _ => None,
        });
        report.unwrap()
    }

    /// How many packets reached a wrong node. Each of them is counted.
    fn strays(&mut self) -> u64 {
        let counted = |it: &mut Proxy| it.stats().unusable_packets.for_another;
        let counted: u64 = self.node().nodes_mut().map(counted).sum();
        assert_eq!(counted, self.node().strays(), "{}", self.what);
        counted
    }
}

/// The modes with datagrams, each with what carries these, and the other ones.
fn modes() -> [(TunnelMode, DatagramTransport); 10] {
    [
        (TunnelMode::Mdt, Quic),
        (TunnelMode::Mdt, Sealed),
        (TunnelMode::Forward, Quic),
        (TunnelMode::Uack { both_ways: true }, Quic),
        (TunnelMode::Mst, Quic),
        (TunnelMode::Msgt(4), Quic),
        (rmdt(), Quic),
        (rmdt(), Sealed),
        (tecc(), Quic),
        (tecc(), Sealed),
    ]
}

fn with_datagrams() -> impl Iterator<Item = (TunnelMode, DatagramTransport)> {
    let has = |mode: &TunnelMode| [TunnelMode::Mdt, rmdt(), tecc()].contains(mode);
    modes().into_iter().filter(move |(mode, _)| has(mode))
}

#[test]
fn a_node_that_gets_the_packets_of_others_ends_no_tunnel() {
    for arrangement in arrangements() {
        for (mode, datagrams) in modes() {
            for seed in 1..=2 {
                let (file, datagrams) = (ByteCount::new(300_000), [datagrams; 2]);
                let scenario = Scenario { file, mode, datagrams, ..Scenario::new(seed, 1) };
                let mut shared = Shared::new(&scenario, &arrangement);
                let report = shared.finish();
                let (strays, what) = (shared.strays(), &shared.what);
                assert_eq!(shared.lost(), 0, "{what}");
                assert_eq!(report.connections[0].datagrams, datagrams[0], "{what}");
                assert!(strays > 20, "{what}: {strays} packets went astray");
            }
        }
    }
}

/// Two processes, each with this number of threads. The second one starts later.
fn processes(threads: u8) -> (Arrangement, [OtherProcess; 2]) {
    let others = [OtherProcess::default(), OtherProcess::default()];
    let node = |turn: Turn, other: &OtherProcess, index| {
        steered(index, threads, turn, Transport { other_process: other.clone(), ..alone() })
    };
    let [old, new] = &others;
    let arrangement = Arrangement {
        what: "one process after the other",
        nodes: (0..threads)
            .map(|index| node(Turn::First, old, index))
            .chain((0..threads).map(|index| node(Turn::Second, new, index)))
            .collect(),
        owner: match threads {
            1 => |packet| byte(packet, 0).map(|it| it % 2),
            _ => |packet| byte(packet, 0).map(|it| it % 4),
        },
        new: 0..threads.into(),
    };
    (arrangement, others)
}

#[test]
fn datagrams_go_on_while_another_process_takes_over_and_after_the_old_one_has_died() {
    for threads in [1, 2] {
        for (mode, datagrams) in with_datagrams() {
            let (arrangement, others) = processes(threads);
            let (file, datagrams) = (ByteCount::new(2_000_000), [datagrams; 2]);
            let mut scenario = Scenario { file, mode, datagrams, ..Scenario::new(1, 1) };
            scenario.access.loss = Ratio::of(2, 100).into();
            let mut shared = Shared::new(&scenario, &arrangement);
            let (old, all) = (0..usize::from(threads), 0..2 * usize::from(threads));
            let new = old.end..all.end;
            shared.node().set_members(old.clone(), old);
            shared.run_until_percent(20);
            // The new process gets new connections, and the old one has its own.
            for other in &others {
                other.set(true);
            }
            shared.node().set_members(all, new.clone());
            shared.run_until_percent(60);
            assert_eq!(shared.lost(), 0, "{}", shared.what);
            assert!(shared.strays() > 20);
            // The old process dies before its connections have ended.
            others[1].set(false);
            shared.node().set_members(new.clone(), new);
            let died = shared.world.elapsed();
            let report = shared.finish();
            let what = &shared.what;
            assert_eq!(shared.lost(), 1, "{what}");
            assert_eq!(report.connections[0].datagrams, datagrams[0], "{what}");
            let built = shared.world.events(shared.client).iter().rev();
            let built = built.clone().find(|(_, event)| matches!(event, Event::HopUp { .. }));
            let waited = built.unwrap().0.saturating_sub(died);
            println!("{what}: {waited:?}");
            assert!(waited < SECOND, "{what}: {waited:?} until there was another tunnel");
        }
    }
}
