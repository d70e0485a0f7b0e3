//! Flows whose payloads go over several request streams, which share one socket.

use std::time::Instant;

use http::{HeaderMap, HeaderValue, StatusCode};
use tandem_wire::{CAPSULE_PROTOCOL_TRUE, Code, GroupField, RequestHead, ResponseHead};
use tracing::debug;

use super::{
    FlowId, Proxy,
    flow::{End, Flow, State},
    request::CAPSULE_PROTOCOL,
};
use crate::{
    error::RequestError,
    h3,
    quic::StreamId,
    stream_group::{self, GROUP},
    tunnel_queue::{Form, TooLarge},
};

/// What the client that opened a flow said of others that join it.
#[derive(Debug)]
pub(super) struct Invitation {
    /// Host and port, as the request named them.
    target: (String, u16),
    /// Streams that the flow may have.
    streams: u8,
}

impl Invitation {
    pub(super) fn new((host, port): (&str, u16), field: GroupField) -> Self {
        Self { target: (host.to_owned(), port), streams: field.streams }
    }

    /// Says so in the grant.
    pub(super) fn grant(&self, headers: &mut HeaderMap) {
        let field = GroupField { streams: self.streams, first: None };
        headers.insert(GROUP, field.encode());
    }
}

impl Proxy {
    pub(super) fn read_group(&mut self, head: &RequestHead) -> Option<GroupField> {
        let (field, error) = stream_group::read(&head.headers);
        if let Some(error) = error {
            debug!(%error, "group field ignored");
            self.stats.fields_ignored += 1;
        }
        field
    }

    /// A request stream joins the flow of another, at once or never.
    pub(super) fn join(
        &mut self,
        now: Instant,
        id: FlowId,
        first: StreamId,
        target: &(String, u16),
    ) -> Result<(), RequestError> {
        let missing = || RequestError::Group { stream: first.0 };
        let peer = self.peers.get_mut(&id.0).ok_or_else(missing)?;
        let flow = peer.flows.get_mut(&first).ok_or_else(missing)?;
        let invitation = flow.invitation.as_ref().ok_or_else(missing)?;
        let has_room = flow.group.len() < usize::from(invitation.streams);
        let (socket, at) = flow.open().ok_or_else(missing)?;
        if invitation.target != *target || !has_room {
            return Err(missing());
        }
        let mut headers = HeaderMap::new();
        invitation.grant(&mut headers);
        flow.group.join(id.1);
        flow.form = Form::Capsule; // what else would it need several streams for
        let state = State::Joined { first, socket, target: at };
        let form = (Form::Capsule, TooLarge::Drop);
        self.insert_flow(id, Flow::new(id.1, state, form, &self.limits, now));
        headers.insert(CAPSULE_PROTOCOL, HeaderValue::from_static(CAPSULE_PROTOCOL_TRUE));
        if let Some((session, connection)) = self.server.parts(id.0) {
            let grant = ResponseHead { status: StatusCode::OK, headers };
            session.send_response(connection, id.1, &grant, h3::End::More);
        }
        self.relay_early(id);
        Ok(())
    }

    /// A flow has gone: so have those that joined it, and it leaves the flow that it joined.
    pub(super) fn part(&mut self, id: FlowId, flow: &mut Flow, end: End) {
        let Some(peer) = self.peers.get_mut(&id.0) else { return };
        if let State::Joined { first, .. } = flow.state
            && let Some(first) = peer.flows.get_mut(&first)
        {
            first.group.leave(id.1);
            first.to_target_datagrams += flow.to_target_datagrams;
        }
        let joined = flow.group.joined().filter_map(|stream| peer.flows.get(&stream));
        flow.to_target_datagrams += joined.map(|other| other.to_target_datagrams).sum::<u64>();
        for stream in flow.group.joined() {
            self.abort_flow((id.0, stream), Code::H3_NO_ERROR, end);
        }
    }

    /// When a packet last passed a flow over any of its streams.
    pub(super) fn last_active(&self, (id, stream): FlowId) -> Option<Instant> {
        let flows = &self.peers.get(&id)?.flows;
        let streams = flows.get(&stream)?.group.iter();
        streams.filter_map(|stream| flows.get(&stream)).map(|flow| flow.last_active).max()
    }
}
