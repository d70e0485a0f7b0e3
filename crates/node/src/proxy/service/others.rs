//! What a flow of UDP payloads does if its target is refused before anything has come from it: it goes on with the next
//! address of the target ([ADR 85](../../../../../docs/design/adr/0085-other-addresses-of-udp-targets.md)).

use std::{io, mem, time::Instant};

use bytes::Bytes;
use tracing::{debug, field::display};

use super::{Attempt, Race};
use crate::{
    OsError,
    node::{QueryId, SocketId},
    proxy::{FlowId, Proxy},
    service::Service,
    tcp::TcpOutput,
};

/// The most payloads that are kept for the next address: a question, or the first flight of a handshake.
const KEPT_MAX: usize = 4;

/// Their bytes together.
const KEPT_BYTES_MAX: usize = 8 * 1024;

/// The other addresses of a target that has sent nothing yet.
#[derive(Debug)]
pub(in crate::proxy) struct Others {
    /// The addresses that were not tried. Its attempts are those after the first one.
    race: Box<Race>,
    /// The first payloads for the target, in order. The next address gets them, too.
    kept: Vec<Bytes>,
    /// Whether the flow has no open socket: addresses are awaited, or a socket is being opened.
    is_waiting: bool,
}

impl Others {
    /// The addresses that are left after one was opened. `None`: there are none, and none may come.
    pub(super) fn after(mut race: Box<Race>) -> Option<Box<Self>> {
        race.end_attempts();
        let others = Self { race, kept: Vec::new(), is_waiting: false };
        others.race.may_go_on().then(|| Box::new(others))
    }

    pub(in crate::proxy) const fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// The look-up from which further addresses may come.
    pub(in crate::proxy) fn query(&self) -> Option<QueryId> {
        self.race.look_up().map(|look_up| look_up.query)
    }

    pub(in crate::proxy) fn race(&mut self) -> &mut Race {
        &mut self.race
    }

    /// Keeps a payload, if there is room for it. The copy holds no whole packet in memory.
    pub(in crate::proxy) fn keep(&mut self, payload: &[u8]) -> bool {
        let has_room =
            self.kept.len() < KEPT_MAX && self.memory() + payload.len() <= KEPT_BYTES_MAX;
        if has_room {
            self.kept.push(Bytes::copy_from_slice(payload));
        }
        has_room
    }

    /// The bytes that are kept.
    pub(super) fn memory(&self) -> usize {
        self.kept.iter().map(Bytes::len).sum()
    }
}

impl Proxy {
    /// Forgets the other addresses of a target whose flow ends.
    pub(super) fn forget_others(&mut self, others: &Others) {
        if let Some(query) = others.query() {
            self.targets.forget_query(query);
        }
        for attempt in others.race.running() {
            let output = attempt.give_up(&mut self.targets, TcpOutput::Close);
            self.outputs.push_back(output);
        }
    }

    /// Handles that the socket of an open flow has failed or could not be opened. `false`: the flow has no other
    /// address.
    pub(super) fn has_other(
        &mut self,
        now: Instant,
        id: FlowId,
        (socket, error): (SocketId, OsError),
    ) -> bool {
        let Some(flow) = self.peers.flow_mut(id) else { return false };
        let user = display(&flow.owner.user);
        debug!(
            connection = id.0.0, flow = id.1.0, %user, %error,
            "an address of the target is refused"
        );
        let Some(others) = flow.outlet().and_then(|outlet| outlet.others.as_mut()) else {
            return false;
        };
        others.is_waiting = true;
        others.race.on_failed(now, Attempt::Udp(socket), error);
        self.outputs.push_back(self.targets.close(socket));
        self.go_on(now, id);
        true
    }

    /// Tries the next address of a target, if a flow waits for one and has one, or ends the flow.
    pub(in crate::proxy) fn go_on(&mut self, now: Instant, id: FlowId) {
        while let Some(flow) = self.peers.flow_mut(id)
            && let user = flow.owner.user.party()
            && let Some(others) = flow.outlet().and_then(|outlet| outlet.others.as_mut())
            && others.is_waiting
            && others.race.running().next().is_none()
        {
            let Some(peer) = others.race.due(now) else {
                if !others.race.may_go_on() {
                    let error = others.race.last_error();
                    self.end_target(id, error.kind);
                }
                return; // others may come
            };
            match Service::Udp.attempt(&mut self.targets, now, id, (peer, user)) {
                Ok((attempt, output)) => {
                    others.race.on_started(now, attempt);
                    self.outputs.push_back(output);
                }
                Err(_) => others.race.skip(io::ErrorKind::QuotaExceeded.into()),
            }
        }
    }

    /// Lets a flow use the socket that was opened for another address. `false`: the flow was not open.
    pub(super) fn use_other(&mut self, id: FlowId, socket: SocketId) -> bool {
        let Some(outlet) = self.peers.flow_mut(id).and_then(|flow| flow.outlet()) else {
            return false;
        };
        if let Some(others) = &mut outlet.others
            && let Some(target) = others.race.address(Attempt::Udp(socket))
        {
            (outlet.socket, outlet.target) = (socket, target);
            others.race.end_attempts();
            others.is_waiting = false;
            let kept = mem::take(&mut others.kept);
            if !others.race.may_go_on() {
                outlet.others = None;
            }
            self.send_again(id, kept);
        }
        true
    }
}
