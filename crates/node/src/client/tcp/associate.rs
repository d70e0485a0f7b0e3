//! UDP of programs that speak SOCKS5 (UDP ASSOCIATE, RFC 1928 §7). Each association has a local socket,
//! and a flow of its own through the tunnel for each target.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use bytes::Bytes;
use tracing::trace;

use super::TcpService;
use crate::{
    client::{
        Client, FlowConfig, FlowId,
        local::{Refusal, decode_datagram, encode_datagram_header},
        own::INTERNAL,
    },
    error::{ClientError, FlowError},
    node::{Output, Received, SocketId, SocketKind, Transmit},
    tcp::TcpId,
};

/// The associations of all programs.
#[derive(Debug, Default)]
pub(super) struct Associations {
    by_socket: BTreeMap<SocketId, Association>,
    /// The association of each flow, and the header of its datagrams for the program.
    by_flow: BTreeMap<FlowId, (SocketId, Bytes)>,
    next_flow: u64,
}

/// One association. It lives as long as the program's TCP connection.
#[derive(Debug)]
struct Association {
    tcp: TcpId,
    /// The program's host, from which alone datagrams are taken.
    host: IpAddr,
    /// The program's address, once it is known.
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
        let known = SocketAddr::new(host, from.port());
        let program = (from.port() != 0).then_some(known);
        let association = Association { tcp, host, program, flows: BTreeMap::new() };
        self.tcp.associations.by_socket.insert(socket, association);
    }

    /// Handles that the socket of an association is open, or cannot be opened. `false`: the socket is
    /// not one of an association.
    pub(in crate::client) fn on_association(
        &mut self,
        now: Instant,
        socket: SocketId,
        result: Result<SocketAddr, io::ErrorKind>,
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
        let Some(association) = self.tcp.associations.by_socket.get_mut(&received.socket) else {
            return Some(received);
        };
        // RFC 1928 §7: "It MUST drop any datagrams arriving from any source IP address other than the
        // one recorded for the particular association."
        let known = association.program.is_none_or(|program| program == received.remote);
        if received.remote.ip().to_canonical() != association.host.to_canonical() || !known {
            self.stats.dropped.unknown_flow += 1;
            return None;
        }
        association.program = Some(received.remote);
        let (socket, datagram) = (received.socket, received.payload.freeze());
        let decoded = decode_datagram(&datagram);
        let target = decoded.ok().and_then(|(address, payload)| {
            Some((address.to_target().ok()?, datagram.slice_ref(payload)))
        });
        let Some((target, payload)) = target else {
            self.stats.dropped.malformed += 1;
            return None;
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
                    return None;
                }
            }
        };
        if let Err(error) = self.send_on_flow(now, flow, &payload) {
            trace!(%error, "a datagram of a program was dropped");
        }
        None
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
        for flow in association.flows.into_values() {
            self.tcp.associations.by_flow.remove(&flow);
            self.close_flow(now, flow);
        }
        self.outputs.push_back(Output::CloseSocket(socket));
    }
}
