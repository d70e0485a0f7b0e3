//! Requests whose password is being checked, which takes long, and happens away from the threads that carry packets.

use std::{collections::VecDeque, time::Instant};

use tandem_wire::RequestHead;

use super::{FlowId, Proxy, credentials::Credentials, request::Admission};
use crate::{
    error::RequestError,
    h3,
    impossible::impossible,
    node::Output,
    password::CheckId,
    quic::{ConnectionId, StreamId},
    server,
    service::Service,
};

/// The most requests of a connection that wait for a check. A client that asks for more gets 429.
const WAITING_MAX: usize = 32;

/// How long a client should wait that was not served because too many passwords are checked.
const BUSY: std::time::Duration = std::time::Duration::from_secs(1);

/// The passwords that one connection has shown. Most connections show none, and it takes little of their memory.
#[derive(Default)]
pub(super) struct Passwords(Option<Box<Checks>>);

#[derive(Default)]
struct Checks {
    /// What was checked last, and whether it is right. Each connection pays for its password once.
    checked: Option<(Credentials, bool)>,
    /// What is being checked.
    running: Option<Credentials>,
    /// The requests that wait for it, or for a check of their own after it.
    waiting: VecDeque<(StreamId, Box<RequestHead>)>,
}

impl Passwords {
    /// Whether these credentials were checked, and are right.
    pub(super) fn are_right(&self, credentials: &Credentials) -> bool {
        let last = self.last();
        last.is_some_and(|(last, is_right)| *is_right && last == credentials)
    }

    fn has_checked(&self, credentials: &Credentials) -> bool {
        self.last().is_some_and(|(last, _)| last == credentials)
    }

    fn last(&self) -> Option<&(Credentials, bool)> {
        self.0.as_ref()?.checked.as_ref()
    }

    /// Whether a request waits here.
    pub(super) fn holds(&self, stream: StreamId) -> bool {
        let mut waiting = self.0.iter().flat_map(|checks| &checks.waiting);
        waiting.any(|(waiting, _)| *waiting == stream)
    }

    /// Forgets a request that its client has given up.
    pub(super) fn forget(&mut self, stream: StreamId) {
        if let Some(checks) = &mut self.0 {
            checks.waiting.retain(|(waiting, _)| *waiting != stream);
        }
    }
}

impl Proxy {
    /// Returns a request that can be judged at once. Others wait until their password has been checked.
    pub(super) fn judge_now(
        &mut self,
        now: Instant,
        id: FlowId,
        head: Box<RequestHead>,
    ) -> Option<Box<RequestHead>> {
        if !self.admission.access.has_passwords() || !self.is_meant(&head) {
            return Some(head);
        }
        let (Ok(credentials), Some(peer)) =
            (Credentials::of(&head.headers), self.peers.get_mut(id.0))
        else {
            return Some(head);
        };
        let is_judged = peer.passwords.has_checked(&credentials)
            || peer.standing.wait(now, &self.admission.guesses).is_some();
        let Some(check) = self.admission.access.password_check(&credentials).filter(|_| !is_judged)
        else {
            return Some(head);
        };
        let checks = peer.passwords.0.get_or_insert_default();
        if checks.waiting.len() >= WAITING_MAX {
            self.refuse_busy(id, &head);
            return None;
        }
        checks.waiting.push_back((id.1, head));
        if checks.running.is_none() {
            checks.running = Some(credentials);
            self.outputs
                .push_back(Output::CheckPassword { check: CheckId(id.0.0), password: check });
        }
        None
    }

    /// Whether a request is one for which a wrong password counts as a guess: for a service, and not for the site.
    fn is_meant(&self, head: &RequestHead) -> bool {
        match Admission::service(head) {
            service if self.site.is_none() => service.is_ok(),
            Ok(service) => self.admission.names_proxy(head, service),
            Err(_) => self.is_for_pvd(head),
        }
    }

    /// Handles the requests that have waited for a check. `is_right` is `None` if there was none, because too many
    /// were asked for.
    pub(super) fn on_password_checked(
        &mut self,
        now: Instant,
        CheckId(check): CheckId,
        is_right: Option<bool>,
    ) {
        let id = ConnectionId(check);
        let checks = self.peers.get_mut(id).and_then(|peer| peer.passwords.0.as_mut());
        let Some(checks) = checks else { return }; // the client has gone
        let Some(credentials) = checks.running.take() else { return impossible("one check runs") };
        let waiting = std::mem::take(&mut checks.waiting);
        if let Some(is_right) = is_right {
            checks.checked = Some((credentials, is_right));
        }
        for (stream, head) in waiting {
            if is_right.is_none() {
                self.refuse_busy((id, stream), &head);
                continue;
            }
            self.on_request(now, (id, stream), head);
            // What has come on the stream in the meantime.
            self.on_event(now, id, server::Event::Http(h3::Event::Body(stream)));
        }
    }

    fn refuse_busy(&mut self, id: FlowId, head: &RequestHead) {
        let service = Admission::service(head).unwrap_or(Service::Udp);
        self.refuse(id, &RequestError::TooManyGuesses(BUSY), service);
    }
}
