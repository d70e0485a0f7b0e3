//! Requests for the targets of programs: when they leave, when they are made again, and how long a program waits.

use std::time::{Duration, Instant};

use tandem_wire::Code;

use super::{
    Context, Source,
    flows::{Flows, Life},
    tcp::Tcp,
};
use crate::{
    client::{
        FlowConfig,
        chain::{Hop, Request},
        rules::{Action, Carried},
    },
    error::ClientError,
    impossible::impossible,
    service::{Service, authority_of},
    tcp::{Form, TcpId, TunnelStream},
};

/// The silence of a proxy after which its answers are not waited for longer than usual. It owes acknowledgements, of
/// which it would send one in less than this time also after a few losses.
const SILENCE: Duration = Duration::from_secs(3);

/// A program's request for a target that was not granted yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// When the program asked.
    at: Instant,
    /// When to look at the request.
    due: Instant,
}

impl Tcp {
    /// Requests the connections that wait, after the tunnel has come up or the proxy has allowed more
    /// streams.
    pub(super) fn request_waiting(&mut self, flows: &mut Flows, cx: &mut Context<'_>) {
        for tcp in flows.waiting_tcp() {
            if !self.request(tcp, flows, cx) {
                return;
            }
        }
    }

    /// Does with the target of a program what the rules say: adds a flow to it, and requests it if that is possible
    /// now, or connects to it directly, or refuses it.
    pub(super) fn connect(
        &mut self,
        tcp: TcpId,
        config: FlowConfig,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        flows.remove(Source::Tcp(tcp)); // the target before has ended
        flows.direct.close(Source::Tcp(tcp), cx);
        match flows.direct.action(&config.host, config.port, Carried::Tcp) {
            Action::Proxy => {}
            Action::Direct => return self.connect_directly(tcp, &config, flows, cx),
            Action::Refuse => {
                let target = authority_of(&config.host, config.port).into();
                return self.fail(tcp, ClientError::Ruled { target }, flows, cx);
            }
        }
        flows.insert(Source::Tcp(tcp), Request::new(Service::Tcp(self.form), config));
        self.ask(tcp, flows, cx);
    }

    /// Requests the connection that a program has just asked for, as soon as that is possible.
    pub(super) fn ask(&mut self, tcp: TcpId, flows: &mut Flows, cx: &mut Context<'_>) {
        self.take_asked(tcp); // of the target before
        self.put_asked(tcp, Asked { at: cx.now, due: cx.now + cx.limits.answer_doubt });
        if let Some(flow) = flows.get_mut(Source::Tcp(tcp)) {
            flow.touch(cx.now);
        }
        self.request(tcp, flows, cx);
    }

    /// Notes what a program has asked for, and when to look at it.
    fn put_asked(&mut self, tcp: TcpId, asked: Asked) {
        let Some(program) = self.programs.get_mut(&tcp) else {
            return impossible("it is a program that asks");
        };
        program.asked = Some(asked);
        self.unanswered.insert((asked.due, tcp));
    }

    /// Forgets that a program waits for an answer. `None`: it does not.
    pub(super) fn take_asked(&mut self, tcp: TcpId) -> Option<Asked> {
        let asked = self.programs.get_mut(&tcp)?.asked.take()?;
        self.unanswered.remove(&(asked.due, tcp));
        Some(asked)
    }

    /// Asks whether the proxy is still there that has not answered a request for a while, and refuses the programs
    /// whose requests were not answered in time.
    pub(super) fn refuse_unanswered(&mut self, flows: &mut Flows, cx: &mut Context<'_>) {
        while let Some(&(at, tcp)) = self.unanswered.first()
            && at <= cx.now
        {
            self.unanswered.pop_first();
            let (Some(asked), Some(flow)) = (self.take_asked(tcp), flows.get(Source::Tcp(tcp)))
            else {
                continue; // the program has given its target up
            };
            let is_requested = matches!(flow.life, Life::Requested(_));
            let usual = asked.at + cx.limits.request_wait;
            if cx.now < usual {
                if is_requested {
                    cx.hop.peer.ping();
                }
                self.put_asked(tcp, Asked { due: usual, ..asked });
                continue;
            }
            // Without a network, or from a proxy that has gone, no answer can come.
            let peer = &mut cx.hop.peer;
            let may_come =
                is_requested && !peer.is_paused() && !peer.has_been_silent(cx.now, SILENCE);
            let further = if may_come { cx.limits.answer_wait } else { Duration::ZERO };
            let patience = cx.limits.request_wait + further;
            let due = asked.at + patience;
            if due > cx.now {
                self.put_asked(tcp, Asked { due, ..asked });
                continue;
            }
            let peer = cx.hop.peer.settings.authority.clone();
            let error = match &cx.hop.lost {
                _ if flow.life == Life::Waiting && cx.hop.is_up => {
                    ClientError::NoStream { peer, timeout: patience }
                }
                Some(lost) if !cx.hop.is_up => lost.clone(),
                _ => ClientError::NoAnswer { peer, timeout: patience },
            };
            Self::disconnect(tcp, Code::H3_REQUEST_CANCELLED, flows, cx);
            self.fail(tcp, error, flows, cx);
        }
    }

    /// The form of requests that the proxy takes, as far as it is known.
    pub(super) fn form_for(&self, hop: &Hop) -> Form {
        if hop.takes_extended_connect() { self.form } else { Form::Classic }
    }

    /// Requests the connection that a program waits for, if that is possible now. `false`: the tunnel is not up, or
    /// the proxy allows no more streams.
    pub(super) fn request(&mut self, tcp: TcpId, flows: &mut Flows, cx: &mut Context<'_>) -> bool {
        if !cx.hop.is_up {
            return false;
        }
        let (source, form) = (Source::Tcp(tcp), self.form_for(cx.hop));
        let (Some(program), Some(flow)) = (self.programs.get_mut(&tcp), flows.get_mut(source))
        else {
            return impossible("only the flow of a connection waits");
        };
        flow.request.service = Service::Tcp(form);
        let Some(stream) = cx.hop.request_tcp(&flow.request) else {
            flows.no_more_streams(cx.hop);
            flows.make_stream_for_tcp(cx);
            return false;
        };
        program.splice.stream = TunnelStream::new(form);
        for data in &flow.early {
            program.splice.stream.send(data.clone(), &mut cx.hop.tunnel, stream);
        }
        if program.local.is_none() {
            program.splice.pull(&cx.hop.tunnel, stream, cx.outputs);
        }
        flows.set_life(source, Life::Requested(stream));
        true
    }

    /// Gives the request stream of a program up that the proxy has not granted. The connection waits for another one.
    /// `false`: it was granted.
    pub(super) fn wait_again(
        &mut self,
        tcp: TcpId,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) -> bool {
        let source = Source::Tcp(tcp);
        let Some(Life::Requested(stream)) = flows.get(source).map(|flow| flow.life) else {
            return false;
        };
        flows.set_life(source, Life::Waiting);
        cx.hop.end_tcp(stream, Code::H3_REQUEST_CANCELLED);
        // While the request had a stream, the program could wait for longer.
        if let Some(asked) = self.take_asked(tcp) {
            self.put_asked(tcp, Asked { due: asked.at + cx.limits.request_wait, ..asked });
        }
        true
    }
}
