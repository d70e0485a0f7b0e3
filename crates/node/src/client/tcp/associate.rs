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
    time::Instant,
};

use bytes::Bytes;
use tracing::{debug, trace, warn};

use super::{
    TcpService,
    owners::{Owners, Verdict},
};
use crate::{
    OsError,
    client::{
        Client, FlowConfig, FlowId,
        local::{Refusal, decode_datagram, encode_datagram_header},
        own::INTERNAL,
    },
    error::{ClientError, FlowError},
    node::{Output, Received, SocketId, SocketKind, Transmit},
    seldom::Seldom,
    tcp::{TcpId, TcpOutput},
};

/// The associations of all programs.
#[derive(Debug, Default)]
pub(super) struct Associations {
    by_socket: BTreeMap<SocketId, Association>,
    /// The association of each flow, and the header of its datagrams for the program.
    by_flow: BTreeMap<FlowId, (SocketId, Bytes)>,
    next_flow: u64,
    /// The connections of associations on loopback, and the ports of their users.
    owners: Owners,
    /// Limits the warnings about owners that are not known.
    warning: Seldom,
}

#[cfg(test)]
impl Associations {
    /// The program's address, once it is known.
    pub(super) fn program_of(&self, socket: SocketId) -> Option<SocketAddr> {
        self.by_socket.get(&socket)?.program
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
    /// The port of which the program has said that it will use it.
    stated: Option<u16>,
    /// The program's address, once it is known: on loopback the last one that its user has sent from, elsewhere the
    /// first one.
    program: Option<SocketAddr>,
    /// The flow to each target, by the header that names it.
    flows: BTreeMap<Bytes, FlowId>,
}

impl Client {
    /// Opens the socket of an association.
    pub(super) fn associate(&mut self, tcp: TcpId, from: SocketAddr) {
        let Some(program) = self.tcp.programs.get(&tcp) else { return };
        let Some(TcpService::Proxy { listen, .. }) = self.tcp.services.get(program.service) else {
            return;
        };
        let socket = SocketId(self.next_socket);
        self.next_socket += 1;
        let kind = SocketKind::Listen(SocketAddr::new(listen.ip(), 0));
        self.outputs.push_back(Output::OpenSocket { socket, kind });
        let host = program.host;
        // The program may not know its own address, or one behind a NAT.
        let stated = Some(from.port()).filter(|port| *port != 0);
        let program = stated.map(|port| SocketAddr::new(host, port));
        let flows = BTreeMap::new();
        let association = Association { tcp, host, stated, program, flows };
        self.tcp.associations.by_socket.insert(socket, association);
    }

    /// Handles that the socket of an association is open, or cannot be opened. `false`: the socket is
    /// not one of an association.
    pub(in crate::client) fn on_association(
        &mut self,
        now: Instant,
        socket: SocketId,
        result: Result<SocketAddr, OsError>,
    ) -> bool {
        let Some(association) = self.tcp.associations.by_socket.get(&socket) else { return false };
        let tcp = association.tcp;
        let program = self.tcp.programs.get_mut(&tcp);
        if let Some(local) = program.and_then(|program| program.local.as_mut()) {
            match result {
                Ok(relay) => local.on_associated(relay),
                Err(kind) => local.on_refused(&Refusal::from(&ClientError::Socket(kind))),
            }
            self.run_local(now, tcp);
        }
        true
    }

    /// Sends a datagram of a program to its target. Datagrams that are not for an association are
    /// returned.
    pub(in crate::client) fn from_associated(
        &mut self,
        now: Instant,
        received: Received,
    ) -> Option<Received> {
        let Some(association) = self.tcp.associations.by_socket.get(&received.socket) else {
            return Some(received);
        };
        // RFC 1928 §7: "It MUST drop any datagrams arriving from any source IP address other than the
        // one recorded for the particular association."
        let (tcp, port) = (association.tcp, received.remote.port());
        let host = association.host.to_canonical();
        let is_other_host = received.remote.ip().to_canonical() != host;
        if is_other_host || association.stated.is_some_and(|stated| stated != port) {
            self.stats.dropped.unknown_flow += 1;
            return None;
        }
        if host.is_loopback() {
            match self.tcp.associations.owners.verdict((tcp, port), now, &self.limits) {
                Verdict::Serve => self.relay_associated(now, received),
                Verdict::Ask => {
                    let is_held = self.tcp.associations.owners.hold(tcp, received, &self.limits);
                    self.stats.dropped.unknown_flow += u64::from(!is_held);
                }
            }
            self.ask_for_owners();
        } else if association.program.is_none_or(|program| program == received.remote) {
            self.relay_associated(now, received);
        } else {
            self.stats.dropped.unknown_flow += 1;
        }
        None
    }

    /// Asks for the owners of ports, if that is due and no such question is open.
    fn ask_for_owners(&mut self) {
        if let Some(tcp) = self.tcp.associations.owners.next_question() {
            self.outputs.push_back(Output::Tcp(TcpOutput::FindUdpPorts(tcp)));
        }
    }

    /// Handles the answer to which ports belong to the user of a program.
    pub(super) fn on_udp_ports(
        &mut self,
        now: Instant,
        tcp: TcpId,
        result: Result<Box<[u16]>, io::ErrorKind>,
    ) {
        if let Err(error) = result
            && let Some(left_out) = self.tcp.associations.warning.due(now)
        {
            warn!(
                %error, left_out,
                "UDP of a program at the proxy port is refused: the system does not say to whom its ports belong"
            );
        }
        for (received, is_served) in self.tcp.associations.owners.answer(now, tcp, result) {
            if is_served {
                self.relay_associated(now, received);
            } else {
                debug!(port = received.remote.port(), "a datagram of another user was dropped");
                self.stats.dropped.unknown_flow += 1;
            }
        }
        self.ask_for_owners();
    }

    /// Sends a datagram, which is known to be the program's, to its target.
    fn relay_associated(&mut self, now: Instant, received: Received) {
        let Some(association) = self.tcp.associations.by_socket.get_mut(&received.socket) else {
            return;
        };
        association.program = Some(received.remote);
        let (socket, datagram) = (received.socket, received.payload.freeze());
        let decoded = decode_datagram(&datagram);
        let target = decoded.ok().and_then(|(address, payload)| {
            Some((address.to_target().ok()?, datagram.slice_ref(payload)))
        });
        let Some((target, payload)) = target else {
            self.stats.dropped.malformed += 1;
            return;
        };
        let header = datagram.slice(..datagram.len() - payload.len());
        let flow = if let Some(&flow) = association.flows.get(&header) {
            flow
        } else {
            let config = FlowConfig::new(target.host(), target.port());
            match self.open_associated(socket, &header, config) {
                Ok(flow) => flow,
                Err(error) => {
                    trace!(%error, "a datagram of a program was dropped");
                    self.stats.dropped.too_many_flows += 1;
                    return;
                }
            }
        };
        if let Err(error) = self.send_on_flow(now, flow, &payload) {
            trace!(%error, "a datagram of a program was dropped");
        }
    }

    fn open_associated(
        &mut self,
        socket: SocketId,
        header: &Bytes,
        config: FlowConfig,
    ) -> Result<FlowId, FlowError> {
        self.tcp.associations.next_flow += 1;
        let flow = FlowId(INTERNAL | self.tcp.associations.next_flow);
        self.open_flow(flow, config)?;
        // The header must not keep the whole datagram in memory.
        let header = Bytes::copy_from_slice(header);
        if let Some(association) = self.tcp.associations.by_socket.get_mut(&socket) {
            association.flows.insert(header.clone(), flow);
        }
        self.tcp.associations.by_flow.insert(flow, (socket, header));
        Ok(flow)
    }

    /// Passes a payload to the program of an association. `None`: the flow is of no association.
    pub(in crate::client) fn to_associated(
        &mut self,
        flow: FlowId,
        payload: &[u8],
        buf: &mut Vec<u8>,
    ) -> Option<Output> {
        let (socket, header) = self.tcp.associations.by_flow.get(&flow)?;
        let association = self.tcp.associations.by_socket.get(socket)?;
        let (address, _) = decode_datagram(header).ok()?;
        encode_datagram_header(&address, buf);
        buf.extend_from_slice(payload);
        self.stats.to_client_datagrams += 1;
        self.stats.to_client_bytes += payload.len() as u64;
        let transmit = Transmit {
            destination: association.program?,
            src_ip: None,
            ecn: None,
            size: buf.len(),
            segment_size: None,
        };
        Some(Output::Transmit { socket: *socket, transmit })
    }

    /// Forgets a flow of an association that the proxy has ended. The next datagram opens another one.
    pub(in crate::client) fn forget_associated(&mut self, flow: FlowId) {
        let Some((socket, header)) = self.tcp.associations.by_flow.remove(&flow) else { return };
        if let Some(association) = self.tcp.associations.by_socket.get_mut(&socket) {
            association.flows.remove(&header);
        }
    }

    /// Ends the association of a program whose TCP connection has ended. RFC 1928 §6: "A UDP
    /// association terminates when the TCP connection that the UDP ASSOCIATE request arrived on
    /// terminates."
    pub(super) fn end_association(&mut self, now: Instant, tcp: TcpId) {
        let associations = &mut self.tcp.associations.by_socket;
        let found = associations.iter().find(|(_, association)| association.tcp == tcp);
        let Some(socket) = found.map(|(&socket, _)| socket) else { return };
        let Some(association) = associations.remove(&socket) else { return };
        self.tcp.associations.owners.forget(tcp);
        for flow in association.flows.into_values() {
            self.tcp.associations.by_flow.remove(&flow);
            self.close_flow(now, flow);
        }
        self.outputs.push_back(Output::CloseSocket(socket));
    }
}
