//! One hop: the connection to a proxy, and the flows through it.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use tandem_wire::{
    CAPSULE_PROTOCOL_TRUE, CONTEXT_ID_UDP, Code, HttpDatagram, QuarterStreamId, RequestHead,
    Template,
};

use super::{forward::LocalFlowId, peer::Peer};
use crate::{
    error::ClientError,
    h3::{Body, ConnectionError, End},
    proxy::Token,
    quic::StreamId,
    tunnel_queue::{Push, TunnelQueue},
};

/// Whom a flow carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carries {
    /// The next hop's connection, or the origin's.
    NextPeer,
    /// The packets of a local program.
    Local(LocalFlowId),
}

/// A flow through a hop.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) carries: Carries,
    /// Host and port, for messages.
    pub(super) target: String,
    pub(super) is_granted: bool,
}

/// One hop.
pub(super) struct Hop {
    pub(super) peer: Peer,
    template: Template,
    token: Option<Token>,
    queue: TunnelQueue,
    pub(super) flows: BTreeMap<StreamId, Flow>,
    /// The flow that carries the next peer.
    pub(super) next: Option<StreamId>,
}

impl Hop {
    pub(super) fn new(
        peer: Peer,
        template: Template,
        token: Option<Token>,
        queue_max: usize,
    ) -> Self {
        let queue = TunnelQueue::new(queue_max);
        Self { peer, template, token, queue, flows: BTreeMap::new(), next: None }
    }

    /// What the proxy lacks, once its SETTINGS came; `None`: they have not come.
    pub(super) fn lacks(&mut self) -> Option<Result<(), &'static str>> {
        let (session, connection) = self.peer.parts()?;
        let settings = session.peer_settings()?;
        // RFC 9220 §3: a client MUST NOT use extended CONNECT before the setting came; RFC 9297
        // §2.1.1 says the same of HTTP Datagrams.
        Some(if !settings.enable_connect_protocol {
            Err("extended CONNECT (RFC 9220)")
        } else if !settings.h3_datagram || connection.max_datagram_size().is_none() {
            Err("HTTP Datagrams (RFC 9297)")
        } else {
            Ok(())
        })
    }

    /// Asks for a flow. `Ok(None)`: the proxy allows no more at the moment.
    pub(super) fn request(&mut self, host: &str, port: u16, carries: Carries) -> Option<StreamId> {
        let expanded = self.template.expand(host, port);
        let mut headers = HeaderMap::new();
        headers.insert(
            HeaderName::from_static("capsule-protocol"),
            HeaderValue::from_static(CAPSULE_PROTOCOL_TRUE),
        );
        if let Some(token) = &self.token
            && let Ok(mut value) = HeaderValue::from_str(&token.field_value())
        {
            value.set_sensitive(true);
            headers.insert(header::PROXY_AUTHORIZATION, value);
        }
        // RFC 9298 §3.4.
        let head = RequestHead {
            method: Method::CONNECT,
            scheme: Some(expanded.scheme),
            authority: Some(expanded.authority),
            path: Some(expanded.path),
            protocol: Some("connect-udp".to_owned()),
            headers,
        };
        let (session, connection) = self.peer.parts()?;
        let stream = session.send_request(connection, &head, End::More)?;
        let target = format!("{host}:{port}");
        self.flows.insert(stream, Flow { carries, target, is_granted: false });
        if carries == Carries::NextPeer {
            self.next = Some(stream);
        }
        Some(stream)
    }

    /// Largest UDP payload that fits through this hop at the moment.
    pub(super) fn max_payload(&mut self, stream: StreamId) -> usize {
        let Some(id) = QuarterStreamId::from_stream_id(stream.0) else { return 0 };
        let size = self
            .peer
            .parts()
            .and_then(|(_, connection)| connection.max_datagram_size())
            .unwrap_or(0);
        size.saturating_sub(HttpDatagram::overhead(id, CONTEXT_ID_UDP))
    }

    /// Puts a payload into the tunnel's queue.
    pub(super) fn send(&mut self, stream: StreamId, payload: Bytes) -> Push {
        let Some(quarter_stream_id) = QuarterStreamId::from_stream_id(stream.0) else {
            return Push::Full;
        };
        let datagram = HttpDatagram { quarter_stream_id, context_id: CONTEXT_ID_UDP, payload };
        let push = self.queue.push(datagram.encode_to_bytes());
        self.feed();
        push
    }

    /// Gives the engine as much as it takes. Returns how many turned out too large.
    pub(super) fn feed(&mut self) -> u64 {
        if let Some((_, connection)) = self.peer.parts() {
            self.queue.feed(connection);
        }
        self.queue.take_too_large()
    }

    /// The next payload that came, with its flow.
    pub(super) fn receive(&mut self) -> Option<Result<(StreamId, HttpDatagram), ConnectionError>> {
        let (_, connection) = self.peer.parts()?;
        let data = connection.receive_datagram()?;
        Some(match HttpDatagram::decode(data) {
            Ok(datagram) => Ok((StreamId(datagram.quarter_stream_id.stream_id()), datagram)),
            Err(error) => Err(error.into()),
        })
    }

    /// Reads what the proxy says on a flow's request stream. Capsules hold nothing for us in this
    /// mode; an end is the end of the flow.
    pub(super) fn read_stream(
        &mut self,
        stream: StreamId,
    ) -> Result<Option<String>, ConnectionError> {
        loop {
            let Some((session, connection)) = self.peer.parts() else { return Ok(None) };
            match session.read_body(connection, stream)? {
                Body::Data(_) => {}
                Body::Blocked => return Ok(None),
                Body::End => return Ok(Some("the proxy ended it".to_owned())),
                Body::Failed(code) => return Ok(Some(code.to_string())),
            }
        }
    }

    /// Closes a flow.
    pub(super) fn close_flow(&mut self, stream: StreamId) {
        self.flows.remove(&stream);
        if let Some((session, connection)) = self.peer.parts() {
            session.reset(connection, stream, Code::H3_NO_ERROR);
        }
    }

    pub(super) fn refused(&self, flow: &Flow, status: u16, headers: &HeaderMap) -> ClientError {
        let proxy_status = headers
            .get("proxy-status")
            .map(|value| printable(&String::from_utf8_lossy(value.as_bytes())));
        ClientError::Refused {
            peer: self.peer.settings.authority.clone(),
            target: flow.target.clone(),
            status,
            proxy_status,
        }
    }
}

/// What a stranger wrote, fit for a terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(300).collect()
}
