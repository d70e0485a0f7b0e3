//! UDP of programs that speak SOCKS5 (UDP ASSOCIATE, RFC 1928 §7). Each association has a local socket,
//! and a flow of its own through the tunnel for each target.
//!
//! Everybody on a host can send to a socket on loopback, also without the proxy port's password. So the datagrams
//! of a program on loopback are taken only from ports of the user who owns the program's TCP connection, of which the
//! driver knows (`owners`). Elsewhere only the program's IP address is known.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
};

use bytes::Bytes;
use tracing::{debug, trace, warn};

use super::{
    Context, Source,
    direct::Outcome,
    flows::Flows,
    owners::{DatagramVerdict, Owners},
};
use crate::{
    client::{
        FlowConfig,
        chain::Request,
        local::{decode_datagram, encode_datagram_header},
        rules::{Action, Carried},
    },
    error::FlowError,
    impossible::impossible,
    node::{Output, Received, SocketId, SocketKind, Transmit},
    seldom::Seldom,
    service::Service,
    tcp::{TcpId, TcpOutput},
};

/// The name of a flow of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::client) struct AssociateId {
    /// The socket of the association.
    pub(in crate::client) socket: SocketId,
    number: u64,
}

/// The associations of all programs.
#[derive(Debug, Default)]
pub(super) struct Associations {
    by_socket: BTreeMap<SocketId, Association>,
    by_flow: BTreeMap<AssociateId, FlowToTarget>,
    next_flow: u64,
    /// The connections of associations on loopback, and the ports of their users.
    owners: Owners,
    /// Limits the warnings about owners that are not known.
    warning: Seldom,
}

/// What is known of the flow to one target.
#[derive(Debug)]
struct FlowToTarget {
    /// The header of datagrams from the target to the program.
    header: Bytes,
    /// The address of the program that sent to the target last, which gets its answers. A program may have several.
    program: SocketAddr,
}

#[cfg(test)]
impl Associations {
    /// The address to which the answers of the only target go, once it is known.
    pub(super) fn program_of(&self, socket: SocketId) -> Option<SocketAddr> {
        let mut flows = self.by_flow.iter().filter(|(id, _)| id.socket == socket);
        flows.next().map(|(_, flow)| flow.program)
    }

    /// Whether nothing is kept for any program.
    pub(super) fn is_empty(&self) -> bool {
        self.by_socket.is_empty() && self.by_flow.is_empty() && self.owners.is_empty()
    }
}

/// One association. It lives as long as the program's TCP connection.
#[derive(Debug)]
struct Association {
    tcp: TcpId,
    /// The program's host, from which alone datagrams are taken.
    host: IpAddr,
    /// The only port that is served, if the program has said which one it will use. `None`: each port of its host.
    only: Option<u16>,
    /// The flow to each target, by the header that names it.
    flows: BTreeMap<Bytes, AssociateId>,
}

impl Associations {
    /// The TCP connection of the program whose association uses this socket.
    pub(super) fn tcp_of(&self, socket: SocketId) -> Option<TcpId> {
        Some(self.by_socket.get(&socket)?.tcp)
    }

    /// The TCP connection of the program whose association has this flow.
    pub(super) fn tcp_of_flow(&self, flow: AssociateId) -> Option<TcpId> {
        self.tcp_of(flow.socket)
    }

    /// Opens the socket of an association at this address, for a program on `host` that will send `from` there, as far
    /// as it knows.
    pub(super) fn open(
        &mut self,
        tcp: TcpId,
        host: IpAddr,
        from: SocketAddr,
        listen: IpAddr,
        cx: &mut Context<'_>,
    ) {
        let socket = cx.open_socket(SocketKind::Listen(SocketAddr::new(listen, 0)));
        // RFC 1928 §7: "The server MAY use this information to limit access to the association." Many programs say
        // where they want to send instead, or do not know their own address. On loopback the port's owner is known.
        let is_own = from.ip().to_canonical() == host.to_canonical() && from.port() != 0;
        let only = Some(from.port()).filter(|_| is_own && !host.to_canonical().is_loopback());
        let flows = BTreeMap::new();
        self.by_socket.insert(socket, Association { tcp, host, only, flows });
    }

    /// Sends a datagram of a program to its target. Datagrams that are not for an association are
    /// returned.
    pub(super) fn from_program(
        &mut self,
        received: Received,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) -> Option<Received> {
        let Some(association) = self.by_socket.get(&received.socket) else {
            return Some(received);
        };
        // RFC 1928 §7: "It MUST drop any datagrams arriving from any source IP address other than the
        // one recorded for the particular association."
        let (tcp, port) = (association.tcp, received.remote.port());
        let host = association.host.to_canonical();
        let is_other_host = received.remote.ip().to_canonical() != host;
        if is_other_host || association.only.is_some_and(|only| only != port) {
            cx.stats.dropped.unknown_flow += 1;
            return None;
        }
        if host.is_loopback() {
            match self.owners.verdict(tcp, port, cx.now, cx.limits) {
                DatagramVerdict::Serve => self.relay(received, flows, cx),
                DatagramVerdict::Ask => {
                    let is_held = self.owners.hold(tcp, received, cx.limits);
                    cx.stats.dropped.unknown_flow += u64::from(!is_held);
                }
            }
            self.ask_for_owners(cx);
        } else {
            self.relay(received, flows, cx);
        }
        None
    }

    /// Asks for the owners of ports, if that is due and no such question is open.
    fn ask_for_owners(&mut self, cx: &mut Context<'_>) {
        if let Some(tcp) = self.owners.next_question() {
            cx.outputs.push_back(Output::Tcp(TcpOutput::FindUdpPorts(tcp)));
        }
    }

    /// Handles the answer to which ports belong to the user of a program.
    pub(super) fn on_udp_ports(
        &mut self,
        tcp: TcpId,
        result: Result<Box<[u16]>, io::ErrorKind>,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        if let Err(error) = result
            && let Some(left_out) = self.warning.due(cx.now)
        {
            warn!(
                %error, left_out,
                "UDP of a program at the proxy port is refused: the system does not say to whom its ports belong"
            );
        }
        for (received, is_served) in self.owners.answer(cx.now, tcp, result) {
            if is_served {
                self.relay(received, flows, cx);
            } else {
                debug!(port = received.remote.port(), "a datagram of another user was dropped");
                cx.stats.dropped.unknown_flow += 1;
            }
        }
        self.ask_for_owners(cx);
    }

    /// Sends a datagram, which is known to be the program's, to its target.
    fn relay(&mut self, received: Received, flows: &mut Flows, cx: &mut Context<'_>) {
        let Some(association) = self.by_socket.get_mut(&received.socket) else {
            return impossible("what waits for the owner of a port goes with its association");
        };
        let (socket, program) = (received.socket, received.remote);
        let datagram = received.payload.freeze();
        let decoded = decode_datagram(&datagram);
        let target = decoded.ok().and_then(|(address, payload)| {
            Some((address.to_target().ok()?, datagram.slice_ref(payload)))
        });
        let Some((target, payload)) = target else {
            cx.stats.dropped.malformed += 1;
            return;
        };
        let header = datagram.slice(..datagram.len() - payload.len());
        let flow = if let Some(&flow) = association.flows.get(&header) {
            if let Some(known) = self.by_flow.get_mut(&flow) {
                known.program = program;
            }
            flow
        } else {
            let config = FlowConfig::new(target.host(), target.port());
            let program = (socket, program);
            let opened = match flows.direct.action(&config.host, config.port, Carried::Udp) {
                Action::Proxy => {
                    let opened = self.open_flow(program, &header, config, flows, cx);
                    opened
                        .inspect_err(|error| {
                            trace!(%error, "a datagram of a program was dropped");
                            cx.stats.dropped.too_many_flows += 1;
                        })
                        .ok()
                }
                Action::Direct => self.open_directly(program, &header, &config, flows, cx),
                Action::Refuse => {
                    debug!(
                        "a datagram of a program was dropped, because a rule refuses its target"
                    );
                    None
                }
            };
            let Some(flow) = opened else { return }; // the reason is logged
            flow
        };
        if flows.direct.has(Source::Associate(flow)) {
            if let Err(error) = flows.direct.send(Source::Associate(flow), payload, cx) {
                trace!(%error, "a datagram of a program was dropped");
            }
        } else if let Err(error) = flows.send(Source::Associate(flow), payload, cx) {
            trace!(%error, "a datagram of a program was dropped");
        }
    }

    /// Opens a way to a target without the tunnel. `None`: it cannot be opened.
    fn open_directly(
        &mut self,
        (socket, program): (SocketId, SocketAddr),
        header: &Bytes,
        config: &FlowConfig,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) -> Option<AssociateId> {
        if !cx.is_running || flows.direct.udp() >= cx.limits.local_flows {
            trace!("a datagram of a program was dropped: there may be no more direct ways");
            cx.stats.dropped.too_many_flows += 1;
            return None;
        }
        let flow = self.add((socket, program), header);
        let (source, target) = (Source::Associate(flow), (&*config.host, config.port));
        if let Some(Outcome { result: Err(error), .. }) =
            flows.direct.open(source, target, program.ip(), cx)
        {
            debug!(%error, "a datagram of a program was dropped");
            self.forget(flow);
            return None;
        }
        Some(flow)
    }

    /// Adds a flow of an association.
    fn add(&mut self, (socket, program): (SocketId, SocketAddr), header: &Bytes) -> AssociateId {
        self.next_flow += 1;
        let flow = AssociateId { socket, number: self.next_flow };
        // The header must not keep the whole datagram in memory.
        let header = Bytes::copy_from_slice(header);
        if let Some(association) = self.by_socket.get_mut(&socket) {
            association.flows.insert(header.clone(), flow);
        }
        self.by_flow.insert(flow, FlowToTarget { header, program });
        flow
    }

    /// Passes a payload of a target that is reached directly to its program.
    pub(super) fn from_direct(
        &self,
        flow: AssociateId,
        payload: Bytes,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        flows.direct.on_received(Source::Associate(flow), cx.now);
        let Some(FlowToTarget { header, program }) = self.by_flow.get(&flow) else {
            return impossible("a way of UDP payloads ends with its association");
        };
        flows.direct.push(flow.socket, *program, (header.clone(), payload));
    }

    fn open_flow(
        &mut self,
        (socket, program): (SocketId, SocketAddr),
        header: &Bytes,
        config: FlowConfig,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) -> Result<AssociateId, FlowError> {
        if !cx.is_running {
            return Err(FlowError::NotOpen);
        }
        let service = Service::Udp;
        service.check_target(&config.host, config.port)?;
        if !flows.make_place(socket, cx) {
            return Err(FlowError::TooMany { most: cx.limits.local_flows });
        }
        let flow = self.add((socket, program), header);
        flows.insert(Source::Associate(flow), Request::new(service, config));
        flows.request_if_room(Source::Associate(flow), cx);
        cx.stats.flows += 1;
        Ok(flow)
    }

    /// Passes a payload to the program of an association. `None`: the program has ended.
    pub(super) fn to_program(
        &self,
        flow: AssociateId,
        payload: &[u8],
        buf: &mut Vec<u8>,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) -> Option<Output> {
        if let Some(flow) = flows.get_mut(Source::Associate(flow)) {
            flow.on_received(cx.now, payload.len());
        }
        let FlowToTarget { header, program } = self.by_flow.get(&flow)?;
        let (address, _) = decode_datagram(header).ok()?;
        encode_datagram_header(&address, buf);
        buf.extend_from_slice(payload);
        cx.stats.count_to_client(payload.len());
        let transmit = Transmit {
            destination: *program,
            src_ip: None,
            ecn: None,
            size: buf.len(),
            segment_size: None,
        };
        Some(Output::Transmit { socket: flow.socket, transmit })
    }

    /// Forgets a flow that the proxy has ended. The next datagram opens another one.
    pub(super) fn forget(&mut self, flow: AssociateId) {
        // The association may have ended before its flows.
        let Some(FlowToTarget { header, .. }) = self.by_flow.remove(&flow) else { return };
        if let Some(association) = self.by_socket.get_mut(&flow.socket) {
            association.flows.remove(&header);
        }
    }

    /// Ends the association of a program whose TCP connection has ended. RFC 1928 §6: "A UDP
    /// association terminates when the TCP connection that the UDP ASSOCIATE request arrived on
    /// terminates."
    pub(super) fn end(&mut self, tcp: TcpId, flows: &mut Flows, cx: &mut Context<'_>) {
        let mut associations = self.by_socket.iter();
        let found = associations.find(|(_, association)| association.tcp == tcp);
        let Some(socket) = found.map(|(&socket, _)| socket) else { return }; // most have none
        let Some(association) = self.by_socket.remove(&socket) else {
            return impossible("it was found a moment ago");
        };
        self.owners.forget(tcp);
        for flow in association.flows.into_values() {
            self.by_flow.remove(&flow);
            flows.direct.close(Source::Associate(flow), cx);
            flows.close(Source::Associate(flow), cx.now + cx.limits.last_words);
        }
        cx.outputs.push_back(Output::CloseSocket(socket));
    }
}
