//! Tests of packets that travel beside a tunnel's connection: forwarded ones
//! (draft-ietf-masque-quic-proxy) and sealed ones (`docs/design/wire.md`).

#![expect(clippy::unwrap_used, reason = "an error here fails the test")]

use bytes::Bytes;
use noq_proto::Dir;
use tandem_lab::LinkConfig;
use tandem_node::{
    Proxy,
    seal::{Opener, Sealer, Secrets},
};
use tandem_wire::{
    Capsule, CapsuleDecoder, CidCapsule, CidReason, Code, ConnectionId, ForwardingGrant,
    ForwardingRequest, ScrambleKey, SealField, Transform, VarInt,
    transform::{Decoder, Encoder},
};

use crate::{
    bed::{Bed, MS, Serving, proxy},
    h3_bytes::{DATA, connect_udp_lines, frame, headers},
    raw_peer::StreamEnd,
    target::Sprayer,
};

const PATH: &str = "/.well-known/masque/udp/10.0.0.3/7/";

/// The ID of both ends of the connection in the flow. The target sends packets back as they came, so that
/// those to it and those from it have the same ID.
pub(crate) const CID: [u8; 8] = *b"conn_id_";

/// A packet of the connection in the flow.
pub(crate) fn packet(first: u8) -> Vec<u8> {
    let mut packet = vec![first];
    packet.extend(CID);
    packet.extend((0..100).map(|number| number ^ first));
    packet
}

/// Asks for a flow with a field about packets beside the connection. Returns its stream and the field of
/// the answer.
pub(crate) fn ask_with(bed: &mut Bed<Proxy>, name: &str, value: &str) -> (u64, String) {
    bed.peer().came = Some(Vec::new());
    let mut lines = connect_udp_lines(PATH);
    lines.push((name, value));
    let stream = bed.open_with(Dir::Bi, headers(&lines));
    bed.run();
    let answer = bed.answer(stream);
    assert_eq!(answer.status(), 200);
    (stream, answer.field(name).to_owned())
}

/// Sends a packet beside the connection, and returns what came to the target.
pub(crate) fn send_raw(bed: &mut Bed<Proxy>, packet: Vec<u8>) -> Vec<Bytes> {
    let before = bed.at_target().len();
    bed.peer().send_raw(packet);
    bed.run();
    bed.at_target().get(before..).unwrap().to_vec()
}

/// The packets beside the connection that came with this ID.
pub(crate) fn with_id<'a>(came: &'a [Bytes], id: &'a [u8]) -> impl Iterator<Item = &'a Bytes> {
    came.iter().filter(move |it| it.get(1..).is_some_and(|rest| rest.starts_with(id)))
}

/// A flow that forwards.
pub(crate) struct Forwarding {
    pub(crate) bed: Bed<Proxy>,
    pub(crate) stream: u64,
    encoder: Encoder,
    decoder: Decoder,
}

impl Forwarding {
    pub(crate) fn new() -> Self {
        let mut bed = proxy();
        let key = ScrambleKey::new([7; 32]);
        let request = ForwardingRequest {
            transforms: vec![Transform::ScrambleDt],
            scramble_key: Some(key.clone()),
        };
        let request = request.encode();
        let request = request.to_str().unwrap();
        let (stream, field) = ask_with(&mut bed, ForwardingRequest::NAME, request);
        let grant = ForwardingGrant::parse(&field, &[Transform::ScrambleDt]).unwrap().unwrap();
        let encoder = Encoder::new(grant.transform, Some(&key)).unwrap();
        let decoder = Decoder::new(grant.transform, grant.scramble_key.as_ref()).unwrap();
        Self { bed, stream, encoder, decoder }
    }

    fn send(&mut self, capsule: &CidCapsule) {
        let mut encoded = Vec::new();
        capsule.encode(&mut encoded);
        self.bed.peer().send(self.stream, frame(DATA, &encoded));
        self.bed.run();
    }

    /// The capsules that came on the stream of the flow.
    fn capsules(&self) -> Vec<CidCapsule> {
        let mut capsules = CapsuleDecoder::new(10_000);
        capsules.push(Bytes::from(self.bed.answer(self.stream).body));
        let mut seen = Vec::new();
        while let Some(capsule) = capsules.next().unwrap() {
            let Capsule::Cid(capsule) = capsule else { panic!("{capsule:?}") };
            seen.push(capsule);
        }
        seen
    }

    /// Registers an ID of the target, and returns the virtual one.
    pub(crate) fn register_target(&mut self, cid: &[u8]) -> ConnectionId {
        let (reason, cid) = (CidReason::DEFAULT, Bytes::copy_from_slice(cid));
        self.send(&CidCapsule::RegisterTarget { reason, cid, reset_token: None });
        let virtual_id = self.capsules().iter().rev().find_map(|capsule| match capsule {
            CidCapsule::AckTarget { vcid, .. } => Some(ConnectionId::try_from(&vcid[..]).unwrap()),
            _ => None,
        });
        virtual_id.unwrap()
    }

    /// Registers an ID of the client, and returns the virtual one.
    pub(crate) fn register_client(&mut self, cid: &[u8]) -> ConnectionId {
        let (reason, cid) = (CidReason::DEFAULT, Bytes::copy_from_slice(cid));
        self.send(&CidCapsule::RegisterClient { reason, cid });
        let virtual_id = self.capsules().iter().rev().find_map(|capsule| match capsule {
            CidCapsule::AckClient { vcid, .. } => Some(ConnectionId::try_from(&vcid[..]).unwrap()),
            _ => None,
        });
        virtual_id.unwrap()
    }

    /// Acknowledges the virtual ID of an ID of the client.
    pub(crate) fn acknowledge(&mut self, cid: &[u8], virtual_id: ConnectionId) {
        let (cid, vcid) = (Bytes::copy_from_slice(cid), virtual_id.into());
        self.send(&CidCapsule::AckClientVcid { cid, vcid, reset_token: None });
    }

    /// Sends a packet forwarded, and returns what came to the target.
    pub(crate) fn forward(&mut self, packet: &[u8], virtual_id: &ConnectionId) -> Vec<Bytes> {
        let mut forwarded = Vec::new();
        self.encoder.encode(packet, CID.len(), virtual_id, &mut forwarded).unwrap();
        self.send_raw(forwarded)
    }

    pub(crate) fn send_raw(&mut self, packet: Vec<u8>) -> Vec<Bytes> {
        send_raw(&mut self.bed, packet)
    }

    /// The packets that came back beside the connection.
    pub(crate) fn forwarded_back(&self, virtual_id: &ConnectionId) -> Vec<Vec<u8>> {
        let came = self.bed.seen().came.as_deref().unwrap();
        let restore = |packet: &Bytes| {
            let mut restored = Vec::new();
            let cid = ConnectionId::try_from(&CID[..]).unwrap();
            self.decoder.decode(packet, virtual_id.len(), &cid, &mut restored).unwrap();
            restored
        };
        with_id(came, virtual_id).map(restore).collect()
    }

    /// Asserts that the flow has ended with this code, and nothing else.
    fn assert_ended(&mut self, what: &str) {
        let end = self.bed.came(self.stream).end;
        assert_eq!(end, Some(StreamEnd::Reset(Code::H3_DATAGRAM_ERROR)), "{what}");
        self.bed.assert_serves(what);
    }
}

#[test]
fn packets_are_forwarded_both_ways_once_both_ids_are_mapped() {
    let mut flow = Forwarding::new();
    let to_target = flow.register_target(&CID);
    let to_client = flow.register_client(&CID);
    flow.acknowledge(&CID, to_client);
    assert!(to_target.len() == 8 && to_client.len() == 8 && to_target != to_client);
    let before = flow.bed.seen().datagrams.len();
    for first in [0x40, 0x43, 0x7f, 0x00] {
        assert_eq!(flow.forward(&packet(first), &to_target), [packet(first)]);
        assert_eq!(flow.forwarded_back(&to_client).last(), Some(&packet(first)));
    }
    assert_eq!(flow.bed.seen().datagrams.len(), before, "nothing came in the tunnel");
    let stats = flow.bed.stats();
    assert_eq!((stats.beside.received, stats.beside.sent, stats.beside.refused), (4, 4, 0));
    assert_eq!((stats.to_target_datagrams, stats.to_client_datagrams), (4, 4));
}

#[test]
fn nothing_is_forwarded_to_a_client_that_has_not_acknowledged_the_virtual_id() {
    let mut flow = Forwarding::new();
    let to_target = flow.register_target(&CID);
    let to_client = flow.register_client(&CID);
    flow.forward(&packet(0x40), &to_target);
    assert_eq!(flow.forwarded_back(&to_client), [[0_u8; 0]; 0]);
    assert_eq!(flow.bed.echoed(flow.stream), [packet(0x40)]);
    // An acknowledgement of other IDs is none.
    flow.acknowledge(&CID, to_target);
    flow.acknowledge(b"other_id", to_client);
    flow.forward(&packet(0x41), &to_target);
    assert_eq!(flow.forwarded_back(&to_client), [[0_u8; 0]; 0]);
}

#[test]
fn packets_with_long_headers_stay_in_the_tunnel() {
    let mut flow = Forwarding::new();
    let to_target = flow.register_target(&CID);
    let to_client = flow.register_client(&CID);
    flow.acknowledge(&CID, to_client);
    let mut long = packet(0xc0);
    long[1..9].copy_from_slice(&to_target);
    assert_eq!(flow.send_raw(long), Vec::<Bytes>::new());
    let long = packet(0xc0);
    assert_eq!(flow.bed.echo(flow.stream, &long), [long]);
    assert_eq!(flow.forwarded_back(&to_client), [[0_u8; 0]; 0]);
}

#[test]
fn forged_truncated_and_foreign_packets_reach_nobody() {
    let mut flow = Forwarding::new();
    let to_target = flow.register_target(&CID);
    let mut forwarded = Vec::new();
    flow.encoder.encode(&packet(0x40), CID.len(), &to_target, &mut forwarded).unwrap();
    // Shorter than the ID and the bytes that are scrambled after it.
    for len in [0, 1, 8, 9, 24] {
        assert_eq!(flow.send_raw(forwarded[..len].to_vec()), Vec::<Bytes>::new(), "{len} bytes");
    }
    for bit in 0..64 {
        let mut guessed = forwarded.clone();
        guessed[1 + bit / 8] ^= 1 << (bit % 8);
        assert_eq!(flow.send_raw(guessed), Vec::<Bytes>::new(), "bit {bit} of the ID");
    }
    // The right packet from another address.
    let sprayer = Sprayer::new("10.0.0.2:443".parse().unwrap());
    let sprayer = flow.bed.world.add_host("sprayer", ["10.0.0.9"], sprayer);
    let near = LinkConfig { delay: MS, ..LinkConfig::default() };
    flow.bed.world.connect(sprayer, flow.bed.node, near);
    for _ in 0..10 {
        flow.bed.world.node_mut(sprayer).spray(forwarded.clone());
    }
    flow.bed.run();
    assert!(flow.bed.at_target().is_empty());
    assert_eq!(flow.bed.world.node(sprayer).came, 0, "the proxy answers nothing");
    assert_eq!(flow.bed.stats().beside.refused, 10 + 2);
    assert_eq!(flow.forward(&packet(0x40), &to_target).len(), 1, "the flow goes on");
    flow.bed.assert_serves("forged packets");
}

#[test]
fn the_virtual_ids_of_one_client_are_useless_to_another() {
    let mut flow = Forwarding::new();
    let to_target = flow.register_target(&CID);
    let mut forwarded = Vec::new();
    flow.encoder.encode(&packet(0x40), CID.len(), &to_target, &mut forwarded).unwrap();
    let other = flow.bed.add_peer(5);
    flow.bed.run();
    flow.bed.world.node_mut(other).send_raw(forwarded);
    flow.bed.run();
    assert!(flow.bed.at_target().is_empty());
    assert_eq!(flow.bed.stats().beside.refused, 1);
}

#[test]
fn capsules_that_only_proxies_send_end_the_flow() {
    let id = || Bytes::from_static(&CID);
    for capsule in [
        CidCapsule::AckClient { cid: id(), vcid: id() },
        CidCapsule::AckTarget { cid: id(), vcid: id(), reset_token: None },
        CidCapsule::MaxConnectionIds(VarInt::from_u32(9)),
    ] {
        let mut flow = Forwarding::new();
        flow.send(&capsule);
        flow.assert_ended(&format!("{capsule:?}"));
    }
}

#[test]
fn registrations_beyond_the_limit_end_the_flow() {
    let mut flow = Forwarding::new();
    let register = |number: u8| {
        let (reason, cid) = (CidReason::DEFAULT, Bytes::copy_from_slice(&[number; 8]));
        CidCapsule::RegisterTarget { reason, cid, reset_token: None }
    };
    flow.send(&register(0));
    let permitted = flow.capsules().iter().find_map(|capsule| match capsule {
        CidCapsule::MaxConnectionIds(max) => Some(max.get()),
        _ => None,
    });
    let permitted = u8::try_from(permitted.unwrap()).unwrap();
    for number in 1..permitted {
        flow.send(&register(number));
    }
    assert_eq!(flow.bed.came(flow.stream).end, None);
    // A client that closes an ID may register another.
    let (reason, cid) = (CidReason::DEFAULT, Bytes::copy_from_slice(&[0; 8]));
    flow.send(&CidCapsule::CloseTarget { reason, cid });
    flow.send(&register(permitted));
    assert_eq!(flow.bed.came(flow.stream).end, None);
    flow.send(&register(permitted + 1));
    flow.assert_ended("a registration too many");
}

#[test]
fn a_client_that_reads_no_answers_about_ids_is_ended() {
    let mut flow = Forwarding::new();
    flow.bed.peer().reads = false;
    let register = || {
        let (reason, cid) = (CidReason::DEFAULT, Bytes::copy_from_slice(&CID));
        let mut encoded = Vec::new();
        CidCapsule::RegisterClient { reason, cid }.encode(&mut encoded);
        frame(DATA, &encoded)
    };
    // The same ID replaces itself, so that each registration permits another one. The window of the
    // stream holds some 30,000 answers.
    for _ in 0..50 {
        for _ in 0..1000 {
            flow.bed.peer().send(flow.stream, register());
        }
        flow.bed.run();
    }
    flow.bed.peer().reads = true;
    flow.bed.run();
    let ended = flow.bed.came(flow.stream).end;
    assert_eq!(ended, Some(StreamEnd::Reset(Code::H3_EXCESSIVE_LOAD)));
}

#[test]
fn a_virtual_id_that_is_too_short_is_replaced_by_a_longer_one() {
    let mut flow = Forwarding::new();
    let first = flow.register_client(&CID);
    assert_eq!(first.len(), 8);
    for len in 9..=ConnectionId::LEN_MAX {
        let (reason, cid) = (CidReason::TOO_SHORT, Bytes::copy_from_slice(&CID));
        flow.send(&CidCapsule::RegisterClient { reason, cid });
        let last = flow.capsules().into_iter().rev().find_map(|capsule| match capsule {
            CidCapsule::AckClient { vcid, .. } => Some(vcid.len()),
            _ => None,
        });
        assert_eq!(last, Some(len));
    }
    let (reason, cid) = (CidReason::TOO_SHORT, Bytes::copy_from_slice(&CID));
    flow.send(&CidCapsule::RegisterClient { reason, cid: cid.clone() });
    let closed = CidCapsule::CloseClient { reason, cid };
    assert!(flow.capsules().contains(&closed), "there is no longer one");
    flow.bed.assert_serves("a client that wants longer IDs");
}

#[test]
fn ids_that_cannot_be_told_apart_are_rejected() {
    let mut flow = Forwarding::new();
    flow.register_client(&CID);
    for (cid, expected) in [
        (&CID[..7], CidReason::CONFLICT),
        (b"conn_id_and_more", CidReason::CONFLICT),
        (b"", CidReason::CONFLICT),
        (&[7; 21], CidReason::DEFAULT),
    ] {
        let cid = Bytes::copy_from_slice(cid);
        flow.send(&CidCapsule::RegisterClient { reason: CidReason::DEFAULT, cid: cid.clone() });
        let capsules = flow.capsules();
        assert!(
            capsules.contains(&CidCapsule::CloseClient { reason: expected, cid }),
            "{capsules:?}"
        );
    }
    assert_eq!(flow.bed.came(flow.stream).end, None);
}

#[test]
fn empty_and_long_ids_are_forwarded_with_packets_of_another_size() {
    for cid in [&b""[..], &b"1"[..], &b"twenty_bytes_of_an_id"[..20]] {
        let mut flow = Forwarding::new();
        let to_target = flow.register_target(cid);
        assert_eq!(to_target.len(), cid.len().max(8));
        let mut packet = vec![0x40];
        packet.extend_from_slice(cid);
        packet.extend([9; 60]);
        let mut forwarded = Vec::new();
        flow.encoder.encode(&packet, cid.len(), &to_target, &mut forwarded).unwrap();
        assert_eq!(flow.send_raw(forwarded), [packet]);
    }
}

#[test]
fn closed_ids_are_used_no_longer() {
    let mut flow = Forwarding::new();
    let to_target = flow.register_target(&CID);
    let to_client = flow.register_client(&CID);
    flow.acknowledge(&CID, to_client);
    let (reason, cid) = (CidReason::DEFAULT, Bytes::from_static(&CID));
    flow.send(&CidCapsule::CloseClient { reason, cid: cid.clone() });
    flow.forward(&packet(0x40), &to_target);
    assert_eq!(flow.forwarded_back(&to_client), [[0_u8; 0]; 0]);
    flow.send(&CidCapsule::CloseTarget { reason, cid });
    assert_eq!(flow.forward(&packet(0x40), &to_target), Vec::<Bytes>::new());
    // The end of a flow ends the use of its IDs too.
    let mut flow = Forwarding::new();
    let to_target = flow.register_target(&CID);
    let stream = flow.stream;
    flow.bed.peer().finish(stream);
    flow.bed.run();
    assert_eq!(flow.forward(&packet(0x40), &to_target), Vec::<Bytes>::new());
    flow.bed.assert_serves("closed IDs");
}

#[test]
fn without_negotiation_capsules_with_ids_are_skipped() {
    let mut bed = proxy();
    let stream = bed.open_flow();
    let (reason, cid) = (CidReason::DEFAULT, Bytes::from_static(&CID));
    let mut encoded = Vec::new();
    CidCapsule::RegisterClient { reason, cid }.encode(&mut encoded);
    bed.peer().send(stream, frame(DATA, &encoded));
    bed.run();
    assert_eq!(bed.came(stream).end, None);
    assert!(bed.answer(stream).body.is_empty());
    assert_eq!(bed.echo(stream, b"still there?"), [b"still there?"]);
}

/// A flow whose payloads are sealed.
pub(crate) struct Sealing {
    pub(crate) bed: Bed<Proxy>,
    pub(crate) stream: u64,
    sealer: Sealer,
    opener: Opener,
}

impl Sealing {
    const OWN_ID: [u8; 8] = *b"own_id__";

    pub(crate) fn new() -> Self {
        let mut bed = proxy();
        let own = ConnectionId::try_from(&Self::OWN_ID[..]).unwrap();
        let request = SealField { id: Some(own) }.encode();
        let (stream, field) = ask_with(&mut bed, SealField::NAME, request.to_str().unwrap());
        let id = SealField::parse(&field).unwrap().id.unwrap();
        let peer = bed.peer();
        let secrets = Secrets::export(VarInt::try_from(stream).unwrap(), |out, label, context| {
            peer.export(out, label, context);
            Ok::<_, ()>(())
        });
        let Secrets { to_proxy, to_client } = secrets.unwrap();
        let opener = Opener::new(to_client, own.len());
        Self { bed, stream, sealer: Sealer::new(to_proxy, id), opener }
    }

    pub(crate) fn sealed(&mut self, payload: &[u8]) -> Vec<u8> {
        let mut packet = Vec::new();
        self.sealer.seal(payload, &mut packet).unwrap();
        packet
    }

    /// Sends a packet, and returns what came to the target.
    pub(crate) fn send(&mut self, packet: Vec<u8>) -> Vec<Bytes> {
        send_raw(&mut self.bed, packet)
    }

    /// The payloads that came sealed since the last call.
    pub(crate) fn opened(&mut self) -> Vec<Vec<u8>> {
        let came = self.bed.peer().came.replace(Vec::new()).unwrap();
        let mut opened = Vec::new();
        for packet in with_id(&came, &Self::OWN_ID) {
            let mut packet = packet.to_vec();
            let range = self.opener.open(&mut packet).unwrap();
            opened.push(packet.get(range).unwrap().to_vec());
        }
        opened
    }
}

#[test]
fn sealed_payloads_pass_both_ways_without_acknowledgements() {
    let mut flow = Sealing::new();
    flow.opened();
    let acks = |flow: &mut Sealing| {
        let mut connections = flow.bed.world.node_mut(flow.bed.node).connections();
        connections.next().unwrap().sent_ack_frames
    };
    let before = acks(&mut flow);
    for payload in [&b"hello"[..], b"", &[7; 1100]] {
        let packet = flow.sealed(payload);
        assert_eq!(flow.send(packet), [payload]);
        assert_eq!(flow.opened(), [payload]);
    }
    assert_eq!(acks(&mut flow), before);
    let stats = flow.bed.stats();
    assert_eq!((stats.beside.received, stats.beside.sent, stats.beside.refused), (3, 3, 0));
    assert!(flow.bed.seen().datagrams.is_empty());
}

#[test]
fn sealed_packets_that_are_forged_replayed_or_truncated_reach_nobody() {
    let mut flow = Sealing::new();
    let packet = flow.sealed(b"hello");
    assert_eq!(flow.send(packet.clone()).len(), 1);
    assert_eq!(flow.send(packet), Vec::<Bytes>::new(), "a replay");
    let packet = flow.sealed(b"hello");
    for at in [0, 9, 12, 13, packet.len() - 1] {
        let mut forged = packet.clone();
        forged[at] ^= 1;
        assert_eq!(flow.send(forged), Vec::<Bytes>::new(), "byte {at}");
    }
    for len in [9, 13, 28, packet.len() - 1] {
        assert_eq!(flow.send(packet[..len].to_vec()), Vec::<Bytes>::new(), "{len} bytes");
    }
    assert_eq!(flow.bed.stats().beside.refused, 1 + 5 + 4);
    assert_eq!(flow.send(packet).len(), 1, "the right packet still arrives");
    let stream = flow.stream;
    flow.bed.peer().finish(stream);
    flow.bed.run();
    let packet = flow.sealed(b"after the end");
    assert_eq!(flow.send(packet), Vec::<Bytes>::new());
    flow.bed.assert_serves("forged sealed packets");
}

#[test]
fn a_payload_that_fits_no_sealed_packet_comes_in_the_tunnel() {
    let mut flow = Sealing::new();
    flow.opened();
    let stream = flow.stream;
    let payload = vec![7; 1150];
    assert_eq!(flow.bed.echo(stream, &payload), Vec::<Vec<u8>>::new());
    assert_eq!(flow.opened(), [payload], "what comes in the tunnel is answered sealed");
}

#[test]
fn fields_that_cannot_be_used_are_as_if_absent() {
    for (name, value, counts) in [
        (ForwardingRequest::NAME, "?1", 1),
        (ForwardingRequest::NAME, "?1;accept-transform=\"scramble-dt\"", 1),
        (ForwardingRequest::NAME, "?1;accept-transform=\"unknown\"", 0),
        (ForwardingRequest::NAME, "?0", 0),
        (ForwardingRequest::NAME, "1", 1),
        (SealField::NAME, "2;id=:AAECAwQFBgc=:", 1),
        (SealField::NAME, "1;id=:AAEC:", 1),
    ] {
        let mut bed = proxy();
        let mut lines = connect_udp_lines(PATH);
        lines.push((name, value));
        let answer = bed.ask(headers(&lines));
        assert_eq!(answer.status(), 200, "{name}: {value}");
        assert_eq!(answer.field(name), "", "{name}: {value}");
        assert_eq!(bed.stats().fields_ignored, counts, "{name}: {value}");
    }
}
