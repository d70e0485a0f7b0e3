//! Probes: requests of the embedding program of which only the answer counts, to find out whether the last proxy
//! permits them, and how long the answer takes.
//!
//! A probe without a target asks for what no proxy opens (`right`), so that the proxy answers at once. One with a
//! target is a TCP connection, which the proxy grants when the target has accepted it, and which ends as soon as it is
//! granted.

use std::collections::BTreeMap;

use tandem_wire::{Code, ResponseHead};

use super::{
    Context, answered_stream,
    own::{FlowEvent, FlowId, Own},
    right,
    splice::lacks_form,
    tcp::Tcp,
};
use crate::{
    client::{
        FlowConfig,
        chain::{Hop, Request, grants},
    },
    error::{ClientError, FlowError},
    h3,
    quic::StreamId,
    service::Service,
    tcp::Form,
};

/// The most probes that wait for their answers.
const WAITING_MAX: usize = 64;

/// The probes that wait for their answers, by their request streams.
#[derive(Debug, Default)]
pub(super) struct Probes {
    waiting: BTreeMap<StreamId, Probe>,
}

/// One probe.
#[derive(Clone, Debug)]
struct Probe {
    id: FlowId,
    /// `None`: the proxy alone is asked.
    target: Option<FlowConfig>,
    form: Form,
}

impl Probe {
    fn request(&self) -> Request {
        match &self.target {
            Some(target) => Request::new(Service::Tcp(self.form), target.clone()),
            None => right::question(self.form),
        }
    }
}

impl Probes {
    /// Sends a probe.
    ///
    /// # Errors
    ///
    /// The target is malformed, the tunnel is not up, the proxy takes no more requests at present, or too many probes
    /// wait for their answers.
    pub(super) fn send(
        &mut self,
        id: FlowId,
        target: Option<FlowConfig>,
        form: Form,
        hop: &mut Hop,
    ) -> Result<(), FlowError> {
        let probe = Probe { id, target, form };
        let request = probe.request();
        if let Some(FlowConfig { host, port, .. }) = &probe.target {
            request.service.check_target(host, *port)?;
        }
        if self.waiting.len() >= WAITING_MAX {
            return Err(FlowError::TooMany { most: WAITING_MAX });
        }
        let stream = if hop.is_up { hop.request_tcp(&request) } else { None };
        self.waiting.insert(stream.ok_or(FlowError::NotOpen)?, probe);
        Ok(())
    }

    /// Gives up a probe that was not answered. There is no event of it any more.
    pub(super) fn give_up(&mut self, id: FlowId, hop: &mut Hop) {
        let given_up = self.waiting.iter().find(|(_, probe)| probe.id == id);
        if let Some(stream) = given_up.map(|(stream, _)| *stream) {
            self.waiting.remove(&stream);
            hop.end_tcp(stream, Code::H3_REQUEST_CANCELLED);
        }
    }

    /// Ends all probes, because the tunnel has ended.
    pub(super) fn forget_streams(&mut self, own: &mut Own, cx: &Context<'_>) {
        for (_, probe) in std::mem::take(&mut self.waiting) {
            own.tell(probe.id, FlowEvent::Ended(closed(&probe, "the tunnel ended", cx)));
        }
    }

    /// Whether no probe waits for its answer.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Handles an event of the last hop's connection if it is about a probe. Otherwise it returns the event.
    pub(super) fn take_event(
        &mut self,
        event: h3::Event,
        own: &mut Own,
        tcp: &mut Tcp,
        cx: &mut Context<'_>,
    ) -> Option<h3::Event> {
        let Some(stream) = answered_stream(&event) else { return Some(event) };
        let Some(probe) = self.waiting.get(&stream).cloned() else { return Some(event) };
        let said = match event {
            h3::Event::Response(_, head) => {
                let Some(said) = self.on_response(&probe, &head, tcp, cx) else {
                    self.waiting.remove(&stream);
                    cx.hop.end_tcp(stream, Code::H3_REQUEST_CANCELLED);
                    return None;
                };
                said
            }
            // Whatever the proxy says of a question is an answer.
            h3::Event::Failed(..) if probe.target.is_none() => FlowEvent::Opened,
            h3::Event::Failed(_, code) => {
                FlowEvent::Ended(closed(&probe, &format!("its stream was reset ({code})"), cx))
            }
            _ => return None, // the answer comes before its body
        };
        self.waiting.remove(&stream);
        // RFC 9114 §8.1: H3_NO_ERROR "is used when the connection or stream needs to be closed, but there is no error
        // to signal."
        let is_open = said == FlowEvent::Opened;
        let code = if is_open { Code::H3_NO_ERROR } else { Code::H3_REQUEST_CANCELLED };
        cx.hop.end_tcp(stream, code);
        own.tell(probe.id, said);
        None
    }

    /// What an answer says. `None`: the probe was sent again in another form.
    fn on_response(
        &mut self,
        probe: &Probe,
        head: &ResponseHead,
        tcp: &mut Tcp,
        cx: &mut Context<'_>,
    ) -> Option<FlowEvent> {
        let is_capsules = probe.form == Form::Capsules;
        let Some(target) = &probe.target else {
            // Only an answer that means the token is a refusal of the question.
            let is_refused = right::is_refused(head, cx.hop);
            let refused = || FlowEvent::Ended(cx.hop.refused("any target".to_owned(), head));
            return Some(if is_refused { refused() } else { FlowEvent::Opened });
        };
        if head.status.is_success() && is_capsules && !grants(head) {
            return Some(FlowEvent::Ended(closed(probe, "the proxy's answer is malformed", cx)));
        }
        if head.status.is_success() {
            tcp.is_form_known = true;
            return Some(FlowEvent::Opened);
        }
        if is_capsules && !tcp.is_form_known && lacks_form(head.status) {
            tcp.form = Form::Classic;
            let again = self.send(probe.id, Some(target.clone()), Form::Classic, cx.hop);
            if again.is_ok() {
                return None;
            }
        }
        Some(FlowEvent::Ended(cx.hop.refused(probe.request().authority(), head)))
    }
}

/// The error for a probe that has ended without an answer.
fn closed(probe: &Probe, reason: &str, cx: &Context<'_>) -> ClientError {
    let peer = cx.hop.peer.settings.authority.clone();
    let target = match probe.target {
        Some(_) => probe.request().authority(),
        None => "any target".to_owned(),
    };
    ClientError::FlowClosed { peer, target: target.into(), reason: reason.into(), cause: None }
}
