//! The proxy's end: the flows of all clients.

use std::{collections::BTreeMap, net::SocketAddr};

use bytes::BytesMut;
use http::HeaderMap;
use rand::Rng;
use ring::hmac;
use tandem_wire::{CidCapsule, ConnectionId, ForwardingRequest, PortSharing, SealField};
use tracing::debug;

use super::{
    Batch, FORWARDING, Outbox, PORT_SHARING, SEAL, VIRTUAL_LEN_MIN,
    ids::Ids,
    mapping::{Mapping, Reply},
    registry::Violation,
};
use crate::{
    fields::only_line,
    node::SocketId,
    quic::{self, ConnectionId as Connection, Generator, ResetSecret, StreamId},
    seal::{Opener, Sealer, Secrets},
    stats::BesideStats,
};

/// A flow of a client.
pub(crate) type FlowId = (Connection, StreamId);

/// Where a packet leaves, and its destination.
pub(crate) type Way = (SocketId, SocketAddr);

/// The wishes of a request.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    forwarding: Option<ForwardingRequest>,
    seal: Option<SealField>,
    /// Whether the client speaks of sharing the target's port.
    names_port_sharing: bool,
}

/// All flows with packets beside their connections.
pub(crate) struct BesideFlows {
    flows: BTreeMap<FlowId, Flow>,
    /// The flows of the IDs at which clients send packets.
    ids: Ids<FlowId>,
    outbox: Outbox<Way>,
    reset: Option<hmac::Key>,
    random: Generator,
    stats: BesideStats,
}

struct Flow {
    /// The address of the client when the IDs were agreed on. They are used on no other path.
    path: SocketAddr,
    kind: Kind,
}

enum Kind {
    Forward(Box<Mapping>),
    Seal(Box<Sealed>),
}

struct Sealed {
    sealer: Option<Sealer>,
    opener: Opener,
    id: ConnectionId,
}

/// What a packet that came from a client is.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// A packet of a connection.
    OfConnection(BytesMut),
    /// A packet beside a connection, which was dropped and counted.
    Dropped,
    /// A packet of a flow whose client has moved to another path.
    Moved(FlowId),
    /// The payload of a flow, of this length, which is on its way to the target.
    Relayed(FlowId, usize),
}

impl Asked {
    /// Reads the fields of a request. Also returns how many were ignored.
    pub(crate) fn read(headers: &HeaderMap) -> (Self, u64) {
        let mut ignored = 0;
        let mut ignore = |name, error: String| {
            debug!(name, error, "a field of a request is ignored");
            ignored += 1;
        };
        let names_port_sharing = headers.contains_key(PORT_SHARING);
        let mut asked = Self { names_port_sharing, ..Self::default() };
        match only_line(headers, &FORWARDING) {
            None => {}
            Some(Err(error)) => ignore(ForwardingRequest::NAME, error),
            Some(Ok(line)) => match ForwardingRequest::parse(&line) {
                Ok(request) => asked.forwarding = request,
                Err(error) => ignore(ForwardingRequest::NAME, error.to_string()),
            },
        }
        match only_line(headers, &SEAL) {
            None => {}
            Some(Err(error)) => ignore(SealField::NAME, error),
            Some(Ok(line)) => match SealField::parse(&line) {
                Ok(field) => asked.seal = Some(field),
                Err(error) => ignore(SealField::NAME, error.to_string()),
            },
        }
        (asked, ignored)
    }
}

impl BesideFlows {
    /// `reset_secret` is the secret of the endpoint's stateless resets.
    pub(crate) fn new(reset_secret: Option<&ResetSecret>, seed: Option<u64>) -> Self {
        Self {
            flows: BTreeMap::new(),
            ids: Ids::default(),
            outbox: Outbox::default(),
            reset: reset_secret
                .map(|ResetSecret(secret)| hmac::Key::new(hmac::HMAC_SHA256, secret)),
            random: quic::rng(seed.map(|seed| seed.wrapping_add(4))),
            stats: BesideStats::default(),
        }
    }

    pub(crate) const fn stats(&self) -> &BesideStats {
        &self.stats
    }

    /// Grants what a request asks for, and adds the fields of the answer. `path` is the client's address.
    pub(crate) fn grant(
        &mut self,
        id: FlowId,
        asked: &Asked,
        (path, secrets): (SocketAddr, impl FnOnce() -> Option<Secrets>),
        headers: &mut HeaderMap,
    ) {
        if asked.names_port_sharing {
            // The draft's §4: a proxy that does not support it "SHOULD send "Proxy-QUIC-Port-Sharing"
            // with a value of "?0"."
            headers.insert(PORT_SHARING, PortSharing::Prohibited.encode());
        }
        if let Some(request) = &asked.forwarding
            && let Some((mapping, grant)) = Mapping::new(request, &mut self.random)
        {
            headers.insert(FORWARDING, grant.encode());
            let kind = Kind::Forward(Box::new(mapping));
            self.flows.insert(id, Flow { path, kind });
        } else if let Some(SealField { id: receiver }) = asked.seal
            && let Some(Secrets { to_proxy, to_client }) = secrets()
        {
            let own = new_id(&mut self.ids, &mut self.random, (VIRTUAL_LEN_MIN, id));
            headers.insert(SEAL, SealField { id: own.first_chunk().copied() }.encode());
            let sealer = receiver.map(|receiver| Sealer::new(to_client, receiver));
            let sealed = Sealed { sealer, opener: Opener::new(to_proxy), id: own };
            self.flows.insert(id, Flow { path, kind: Kind::Seal(Box::new(sealed)) });
        }
    }

    /// Handles a capsule about connection IDs from a client. Returns the answers.
    pub(crate) fn on_capsule(
        &mut self,
        id: FlowId,
        capsule: CidCapsule,
        path: SocketAddr,
    ) -> Result<Vec<CidCapsule>, Violation> {
        let Self { flows, ids, random, reset, .. } = self;
        let Some(Flow { path: agreed, kind: Kind::Forward(mapping) }) = flows.get_mut(&id) else {
            return Ok(Vec::new()); // nothing was negotiated, so that the type is unknown
        };
        if mapping.is_empty() {
            *agreed = path;
        }
        let mut answers = Vec::new();
        let mut reply = Reply {
            add: &mut |len| new_id(ids, random, (len, id)),
            token: &|id| reset.as_ref().and_then(|key| reset_token(key, id)),
            answers: &mut answers,
        };
        let removed = mapping.on_capsule(capsule, &mut reply)?;
        for id in removed {
            ids.remove(&id);
        }
        Ok(answers)
    }

    /// Handles a packet that came to the listening socket. `at` says the present path of a connection, and
    /// the way to the target of a flow.
    pub(crate) fn arrive(
        &mut self,
        mut packet: BytesMut,
        from: SocketAddr,
        at: impl FnOnce(FlowId) -> Option<(SocketAddr, Way)>,
    ) -> Arrived {
        let Some((virtual_id, &id)) = self.ids.find(&packet) else {
            return Arrived::OfConnection(packet);
        };
        let Self { flows, outbox, stats, .. } = self;
        let (Some(flow), Some((path, way))) = (flows.get_mut(&id), at(id)) else {
            stats.refused += 1;
            return Arrived::Dropped;
        };
        // An ID is good for one path only, on which it was agreed.
        if from != path {
            stats.refused += 1;
            return Arrived::Dropped;
        }
        if flow.path != path {
            return Arrived::Moved(id);
        }
        let relayed = match &mut flow.kind {
            Kind::Forward(mapping) => {
                outbox.add(way, |out| mapping.decode(&virtual_id, &packet, out))
            }
            Kind::Seal(sealed) => sealed.opener.open(&mut packet).ok().and_then(|range| {
                outbox.add(way, |out| {
                    out.extend_from_slice(packet.get(range.clone())?);
                    Some(range.len())
                })
            }),
        };
        match relayed {
            Some(len) => {
                stats.received += 1;
                Arrived::Relayed(id, len)
            }
            None => {
                stats.refused += 1;
                Arrived::Dropped
            }
        }
    }

    /// Whether the IDs of a flow were agreed on over another path than the client's present one.
    pub(crate) fn has_moved(&self, id: FlowId, path: SocketAddr) -> bool {
        self.flows.get(&id).is_some_and(|flow| flow.path != path)
    }

    /// Ends the use of all IDs of a flow, because its client has moved to another path. Returns the
    /// capsules that tell the client; it may then register its IDs again.
    ///
    /// The draft's §6.5: "In the event of active migration, the proxy removes forwarding rules in order to
    /// not send packets with the same connection ID bytes over multiple network paths."
    pub(crate) fn on_moved(&mut self, id: FlowId) -> Vec<CidCapsule> {
        let mut capsules = Vec::new();
        match self.flows.get_mut(&id).map(|flow| &mut flow.kind) {
            Some(Kind::Forward(mapping)) => {
                for id in mapping.close_all(&mut capsules) {
                    self.ids.remove(&id);
                }
            }
            Some(Kind::Seal(_)) => self.close(id),
            None => {}
        }
        capsules
    }

    /// Sends a packet of a target beside the connection, if the flow permits. `false`: it has to travel
    /// inside. `size_max` is the size of the connection's packets.
    pub(crate) fn send(
        &mut self,
        id: FlowId,
        payload: &[u8],
        (listen, path): Way,
        size_max: usize,
    ) -> bool {
        let Self { flows, outbox, stats, .. } = self;
        let Some(flow) = flows.get_mut(&id).filter(|flow| flow.path == path) else { return false };
        let sent = match &mut flow.kind {
            Kind::Forward(mapping) => mapping.client_of(payload).and_then(|client| {
                outbox.add((listen, path), |out| mapping.encode(payload, client, out))
            }),
            Kind::Seal(sealed) => match &mut sealed.sealer {
                Some(sealer) if payload.len() + Sealer::OVERHEAD <= size_max => {
                    outbox.add((listen, path), |out| sealer.seal(payload, out).ok())
                }
                _ => None,
            },
        };
        stats.sent += u64::from(sent.is_some());
        sent.is_some()
    }

    /// Takes the next packets that leave.
    pub(crate) fn poll(&mut self, buf: &mut Vec<u8>) -> Option<Batch<Way>> {
        self.outbox.poll(buf)
    }

    /// Forgets a flow.
    pub(crate) fn close(&mut self, id: FlowId) {
        match self.flows.remove(&id).map(|flow| flow.kind) {
            Some(Kind::Forward(mut mapping)) => {
                for id in mapping.close_all(&mut Vec::new()) {
                    self.ids.remove(&id);
                }
            }
            Some(Kind::Seal(sealed)) => drop(self.ids.remove(&sealed.id)),
            None => {}
        }
    }
}

/// A new ID of this length at which clients send packets of a flow.
fn new_id(
    ids: &mut Ids<FlowId>,
    random: &mut Generator,
    (len, flow): (usize, FlowId),
) -> ConnectionId {
    loop {
        let bytes: [u8; ConnectionId::LEN_MAX] = random.random();
        let id = bytes.get(..len).unwrap_or(&bytes);
        if let Ok(id) = ConnectionId::try_from(id)
            && ids.insert(id, flow)
        {
            return id;
        }
    }
}

/// The token with which the engine of a proxy that has forgotten everything resets such a packet. It
/// takes the first bytes for one of its own connection IDs.
fn reset_token(key: &hmac::Key, id: &ConnectionId) -> Option<tandem_wire::ResetToken> {
    let signature = hmac::sign(key, id.get(..VIRTUAL_LEN_MIN)?);
    signature.as_ref().first_chunk().copied().map(tandem_wire::ResetToken::new)
}
