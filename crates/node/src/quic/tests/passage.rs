//! PEP-ACKs name the packets that they mean: two engines send each other datagrams, and every packet that
//! arrives shows which datagrams were in it.

use proptest::prelude::{ProptestConfig, prop_assert, proptest};
use tandem_wire::{PepAck, PepId, PepKey, SeenPacket, Slice};

use super::*;
use crate::quic::Peps;

const PEP: PepId = PepId(7);

fn key() -> PepKey {
    PepKey::new([5; PepKey::LEN])
}

fn listening() -> Transport {
    Transport { peps: Some(Peps([(PEP, Some(key()))].into())), ..Transport::default() }
}

/// What the sender thought of its packets, and what was in them.
#[derive(Debug, Default)]
struct Seen {
    /// Packets that arrived and had a known slice, with at least one tracked datagram.
    known: usize,
    /// Packets that arrived with tracked datagrams and had no known slice.
    unknown: usize,
}

/// What happens to a packet: it may be lost before the PEP, or behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Wired,
    Access,
    Arrives,
}

struct Case {
    sides: [Endpoint; 2],
    /// The sender's and the receiver's connection.
    ids: [Option<ConnectionId>; 2],
    now: Instant,
    random: StdRng,
    seen: Seen,
    /// The datagrams in each packet, by its number.
    datagrams: BTreeMap<u64, BTreeSet<u64>>,
    /// Packets with known slices that were lost before the PEP, and behind it.
    lost: [u64; 2],
    sequence: u32,
}

impl Case {
    #[expect(clippy::disallowed_methods, reason = "a test needs one time to count from")]
    fn new(seed: u64) -> Self {
        let (server_tls, client_tls) = tls();
        let limits = Limits::default();
        let now = Instant::now();
        let mut client = Endpoint::client(&client_tls, &listening(), &limits, Some(seed));
        let server = Endpoint::server(&server_tls, &Transport::default(), &limits, Some(seed + 1));
        let id = client.connect(now, SERVER, "localhost").unwrap();
        Self {
            sides: [client, server],
            ids: [Some(id), None],
            now,
            random: StdRng::seed_from_u64(seed),
            seen: Seen::default(),
            datagrams: BTreeMap::new(),
            lost: [0; 2],
            sequence: 0,
        }
    }

    /// Sends what one side has, and returns what the receiver got.
    fn carry(&mut self, from: usize, loss: u32) -> usize {
        let packets = transmit(&mut self.sides[from], self.now);
        let sender = self.ids[0].unwrap();
        if from == 0 {
            for (number, DatagramId { number: id, .. }) in
                self.sides[0].connection(sender).unwrap().hooks.deliveries.numbers()
            {
                self.datagrams.entry(number).or_default().insert(id);
            }
        }
        let mut passed = Vec::new();
        for packet in &packets {
            let end = match self.random.random_range(0..100) {
                roll if roll < loss => End::Wired,
                roll if roll < 2 * loss => End::Access,
                _ => End::Arrives,
            };
            let slice = Slice::of(packet);
            let known = slice.and_then(|slice| self.sides[0].peps.as_ref().unwrap().find(slice));
            if from == 0
                && end != End::Wired
                && let Some(slice) = slice
            {
                passed.push(SeenPacket { slice, age: 0 });
            }
            if from == 0 && known.is_some() && end != End::Arrives {
                self.lost[usize::from(end == End::Access)] += 1;
            }
            if end != End::Arrives {
                continue;
            }
            let address = if from == 0 { SocketAddr::new(SERVER.ip(), 1000) } else { SERVER };
            self.sides[1 - from].handle_datagram(
                self.now,
                (address, None),
                None,
                BytesMut::from(&**packet),
            );
            let got = self.receive(1 - from);
            if from == 0 && !got.is_empty() {
                let Some((_, number)) = known else {
                    self.seen.unknown += 1;
                    continue;
                };
                self.seen.known += 1;
                let sent = &self.datagrams[&number];
                assert!(got.is_subset(sent), "packet {number} has {got:?} instead of {sent:?}");
            }
        }
        for seen in passed.chunks(20) {
            self.tell(seen.to_vec());
        }
        packets.len()
    }

    /// The PEP tells the sender of packets.
    fn tell(&mut self, seen: Vec<SeenPacket>) {
        let ack = PepAck { pep: PEP, sequence: self.sequence, time: 0, seen };
        self.sequence += 1;
        let mut payload = Vec::new();
        ack.encode(Some(&key()), &mut payload);
        self.sides[0].handle_datagram(self.now, (SERVER, None), None, BytesMut::from(&*payload));
    }

    /// The numbers of the datagrams that a side has received.
    fn receive(&mut self, side: usize) -> BTreeSet<u64> {
        let mut got = BTreeSet::new();
        while let Some((id, event)) = self.sides[side].poll_event() {
            assert!(!matches!(event, Event::Lost(_)), "{event:?}");
            self.ids[side] = Some(id);
            let connection = self.sides[side].connection(id).unwrap();
            while let Some(data) = connection.receive_datagram() {
                got.insert(u64::from_be_bytes(*data.first_chunk().unwrap()));
            }
        }
        got
    }

    /// Runs until both sides are silent for this time.
    fn run_for(&mut self, time: Duration, loss: u32) {
        let end = self.now + time;
        loop {
            let carried = self.carry(0, loss) + self.carry(1, 0);
            self.receive(0);
            if carried > 0 {
                self.now += Duration::from_millis(5);
            } else {
                let next = self.sides.iter().filter_map(Endpoint::next_timeout).min();
                self.now = next.unwrap_or(end).max(self.now + Duration::from_nanos(1));
            }
            if self.now > end {
                self.now = end;
                return;
            }
            let now = self.now;
            self.sides.iter_mut().for_each(|side| side.handle_timeout(now));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The map never gives a packet another number than its own, whatever is sent.
    #[test]
    fn a_slice_means_the_packet_that_has_it(seed: u64, loss in 0_u32..8, replies: bool) {
        let mut case = Case::new(seed % 1_000_000);
        case.run_for(Duration::from_millis(200), 0);
        let mut next = 0_u64;
        for round in 0..60_u64 {
            let burst = case.random.random_range(1..30);
            for side in 0..=usize::from(replies) {
                let Some(id) = case.ids[side] else { continue };
                for _ in 0..burst {
                    let connection = case.sides[side].connection(id).unwrap();
                    let full = connection.max_datagram_size().unwrap();
                    let mut data = vec![0; [8, 30, 700, full][case.random.random_range(0..4)]];
                    data[..8].copy_from_slice(&next.to_be_bytes());
                    if connection.has_room_for_datagram(data.len()) {
                        connection.send_tracked_datagram(datagram(next), Bytes::from(data));
                    }
                    next += 1;
                }
                if round % 20 == 10 {
                    case.sides[side].connection(id).unwrap().inner().force_key_update();
                }
            }
            case.run_for(Duration::from_millis(15), loss);
        }
        case.run_for(Duration::from_secs(3), 0);
        let Seen { known, unknown } = case.seen;
        prop_assert!(known > 100 && unknown < known / 2, "{known} known, {unknown} unknown");
        // What was lost is attributed to where it was lost.
        let stats = case.sides[0].connection(case.ids[0].unwrap()).unwrap().stats();
        let losses = stats.domains.unwrap().losses;
        let [wired, access] = case.lost;
        prop_assert!(losses.wired <= wired && losses.access <= access, "{losses:?} {:?}", case.lost);
        let told = losses.wired + losses.access;
        // The last packets of a burst may be lost before any PEP-ACK covers later ones.
        prop_assert!(told + 5 >= (wired + access) * 4 / 5, "{losses:?} {:?}", case.lost);
    }
}
