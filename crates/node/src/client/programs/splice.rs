//! The bytes of local programs' TCP connections, between their sockets and their request streams.

use bytes::Bytes;
use http::StatusCode;
use tandem_wire::{Code, ResponseHead, StrangerText};

use super::{
    Context, Source, answered_stream,
    flows::{Flow, Flows, Life, Way},
    tcp::{Tcp, closed, closed_for},
};
use crate::{
    Cause,
    client::chain::grants,
    h3,
    impossible::impossible,
    quic::StreamId,
    reason::explain,
    tcp::{Form, Outcome, Splice, TcpId},
};

/// The most bytes of a program that are taken before its target is reached. Those that are sent before the grant are
/// kept until then, so that they can be sent again if the proxy wants the request in another form, or if the tunnel
/// ends.
pub(super) const EARLY_MAX: usize = 64 * 1024;

impl Tcp {
    /// Handles an event of the last hop if it is about a TCP connection. Otherwise it returns the event.
    pub(super) fn take_event(
        &mut self,
        event: h3::Event,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) -> Option<h3::Event> {
        let Some(stream) = answered_stream(&event) else { return Some(event) };
        if self.right.is_asked_on(stream) {
            self.on_right(stream, &event, cx);
            return None;
        }
        let Some(tcp) = flows.tcp_of(stream) else { return Some(event) }; // of UDP payloads
        match event {
            h3::Event::Response(_, head) => self.on_response(tcp, stream, &head, flows, cx),
            h3::Event::Body(_) => self.from_stream(tcp, stream, flows, cx),
            h3::Event::Failed(_, code) => {
                let error = closed(tcp, format!("its stream was reset ({code})"), flows, cx);
                let source = Source::Tcp(tcp);
                let is_granted = flows.get(source).is_some_and(Flow::is_granted);
                // RFC 9114 §4.1.1: a request that was rejected had no effect, and can be sent again.
                if code == Code::H3_REQUEST_REJECTED && self.wait_again(tcp, flows, cx) {
                    return None;
                }
                Self::disconnect(tcp, code, flows, cx);
                if is_granted {
                    self.cut(tcp, error, flows, cx);
                } else {
                    self.fail(tcp, error, flows, cx);
                }
            }
            other => return Some(other),
        }
        None
    }

    /// Passes bytes of a program to its stream, or to the protocol that it speaks.
    pub(super) fn from_program(
        &mut self,
        tcp: TcpId,
        data: Bytes,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        // The program's connection may have ended while the driver was reading.
        let Some(program) = self.programs.get_mut(&tcp) else { return };
        if program.is_guesser(cx.now, &self.services, &self.guesses) {
            program.splice.socket.reset(cx.outputs);
            cx.stats.tcp.failed += 1;
            return self.forget(tcp, Ok(()), flows, cx);
        }
        if let Some(local) = &mut program.local {
            program.splice.socket.on_read(&data);
            if data.is_empty() {
                local.program_ended();
            } else {
                local.from_program(data);
            }
            return self.run_local(tcp, flows, cx);
        }
        if flows.direct.has(Source::Tcp(tcp)) {
            program.splice.socket.on_read(&data);
            self.to_direct(tcp, data, flows, cx);
            return self.pull(tcp, flows, cx);
        }
        let Some(flow) = flows.get_mut(Source::Tcp(tcp)) else {
            return impossible("a program whose bytes pass unchanged has a target");
        };
        flow.keep_early(&data, &mut program.splice);
        cx.stats.tcp.to_target_bytes += data.len() as u64;
        flow.count(cx.now, Way::ToTarget, data.len() as u64);
        // The request may have to wait again since the driver was asked for these bytes.
        let Some(stream) = flow.life.stream() else { return program.splice.socket.on_read(&data) };
        let outcome = program.splice.on_read(data, &mut cx.hop.tunnel, stream, cx.outputs);
        cx.hop.wake();
        self.settle(tcp, outcome, flows, cx);
    }

    /// Sends bytes that a program's protocol has for its target, or keeps them until they can be sent.
    pub(super) fn to_target(
        &mut self,
        tcp: TcpId,
        data: Bytes,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        if flows.direct.has(Source::Tcp(tcp)) {
            return self.to_direct(tcp, data, flows, cx);
        }
        let Some(program) = self.programs.get_mut(&tcp) else {
            return impossible("it is a program's protocol that has bytes");
        };
        // The proxy may have cut the connection before it granted it.
        let Some(flow) = flows.get_mut(Source::Tcp(tcp)) else { return };
        cx.stats.tcp.to_target_bytes += data.len() as u64;
        flow.count(cx.now, Way::ToTarget, data.len() as u64);
        let stream = flow.life.stream();
        flow.keep_early(&data, &mut program.splice);
        if let Some(stream) = stream {
            program.splice.stream.send(data, &mut cx.hop.tunnel, stream);
            cx.hop.wake();
        }
    }

    /// Passes what has arrived on a stream to its program.
    pub(super) fn from_stream(
        &mut self,
        tcp: TcpId,
        stream: StreamId,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        if !flows.get(Source::Tcp(tcp)).is_some_and(Flow::is_granted) {
            return; // bytes of a proxy before its answer wait in the stream
        }
        let Some(program) = self.programs.get_mut(&tcp) else {
            return impossible("a stream is of a program");
        };
        if program.local.is_some() {
            return self.from_spoken_stream(tcp, stream, flows, cx);
        }
        // The connection may have been closed.
        let Some(mut carrier) = cx.hop.peer.carrier() else { return };
        let before = program.splice.to_tcp;
        let outcome = program.splice.push(&mut carrier, stream, cx.outputs);
        let came = program.splice.to_tcp - before;
        cx.stats.tcp.to_client_bytes += came;
        if let Some(flow) = flows.get_mut(Source::Tcp(tcp)).filter(|_| came > 0) {
            flow.count(cx.now, Way::ToClient, came);
        }
        self.settle(tcp, outcome, flows, cx);
    }

    /// Notes that the operating system took bytes of a program's connection.
    pub(super) fn on_written(
        &mut self,
        tcp: TcpId,
        bytes: usize,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        let Some(program) = self.programs.get_mut(&tcp) else { return }; // it has ended
        let takes_more = program.splice.socket.on_written(bytes);
        if takes_more && flows.direct.has(Source::Tcp(tcp)) {
            return self.read_target(tcp, flows, cx);
        }
        if takes_more && let Some(stream) = flows.stream(Source::Tcp(tcp)) {
            self.from_stream(tcp, stream, flows, cx);
        }
    }

    /// Asks a program for bytes if its stream has room.
    pub(super) fn pull(&mut self, tcp: TcpId, flows: &Flows, cx: &mut Context<'_>) {
        let Some(program) = self.programs.get_mut(&tcp) else { return }; // it has just ended
        let wants = program.local.as_ref().map(|local| local.wants_program());
        if let Some(takes) = flows.direct.takes(Source::Tcp(tcp)) {
            if takes && wants.unwrap_or(true) {
                program.splice.socket.read(cx.outputs);
            }
            return;
        }
        match flows.stream(Source::Tcp(tcp)) {
            Some(stream) if wants.unwrap_or(true) => {
                program.splice.pull(&cx.hop.tunnel, stream, cx.outputs);
            }
            None if wants.unwrap_or(false) && !program.splice.is_halted() => {
                program.splice.socket.read(cx.outputs);
            }
            Some(_) | None => {} // without a protocol, a program waits for its stream
        }
    }

    /// Asks the programs for bytes whose streams have sent most of what they had. Returns whether there
    /// was one.
    pub(super) fn pull_drained(&mut self, flows: &Flows, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Some(stream) = cx.hop.tunnel.poll_drained() {
            any = true;
            if let Some(tcp) = flows.tcp_of(stream) {
                self.pull(tcp, flows, cx);
            }
        }
        any
    }

    /// Handles the answer to a request for a connection.
    fn on_response(
        &mut self,
        tcp: TcpId,
        stream: StreamId,
        head: &ResponseHead,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        let source = Source::Tcp(tcp);
        let (Some(program), Some(flow)) = (self.programs.get_mut(&tcp), flows.get_mut(source))
        else {
            return impossible("a stream is of a program");
        };
        let is_capsules = program.splice.stream.form() == Form::Capsules;
        if head.status.is_success() && is_capsules && !grants(head) {
            program.splice.socket.reset(cx.outputs);
            return self.settle(tcp, Outcome::Malformed(Code::H3_MESSAGE_ERROR), flows, cx);
        }
        if head.status.is_success() {
            flow.early.clear();
            flows.set_life(source, Life::Granted(stream));
            return self.on_granted(tcp, stream, flows, cx);
        }
        if is_capsules && !self.is_form_known && lacks_form(head.status) {
            self.form = Form::Classic;
            self.wait_again(tcp, flows, cx);
            self.request(tcp, flows, cx);
            return;
        }
        let error = cx.hop.refused(flow.request.authority(), head);
        Self::disconnect(tcp, Code::H3_REQUEST_CANCELLED, flows, cx);
        self.fail(tcp, error, flows, cx);
    }

    /// Goes on with a program whose connection is granted. The protocol of the program answers first, because what
    /// comes from the target follows its answer. Then the program is asked for more, and what has arrived is passed on.
    fn on_granted(
        &mut self,
        tcp: TcpId,
        stream: StreamId,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        self.is_form_known = true;
        self.take_asked(tcp);
        cx.stats.tcp.opened += 1;
        let Some(program) = self.programs.get_mut(&tcp) else {
            return impossible("a stream is of a program");
        };
        program.splice.halt(false);
        self.on_target_reached(tcp, flows, cx);
        if flows.tcp_of(stream) == Some(tcp) {
            self.from_stream(tcp, stream, flows, cx);
        }
    }

    /// Tells a program that its target is reached, through a tunnel or past it, and asks it for more.
    pub(super) fn on_target_reached(
        &mut self,
        tcp: TcpId,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        let Some(program) = self.programs.get_mut(&tcp) else {
            return impossible("a target is of a program");
        };
        if let Some(told) = self.told.get_mut(&program.service) {
            told.on_success();
        }
        if let Some(local) = &mut program.local {
            local.on_granted();
            self.run_local(tcp, flows, cx);
        }
        self.pull(tcp, flows, cx);
    }

    /// Does what follows from what became of a connection.
    pub(super) fn settle(
        &mut self,
        tcp: TcpId,
        outcome: Outcome,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        let (code, reason) = match outcome {
            Outcome::Open => return,
            Outcome::Finished => {
                cx.stats.tcp.finished += 1;
                return self.forget(tcp, Ok(()), flows, cx);
            }
            Outcome::Broken(error) => return cx.broken(error),
            Outcome::Malformed(code) => (code, ("the proxy's answer is malformed".into(), None)),
            Outcome::Cut(Some(status)) => (Code::H3_REQUEST_CANCELLED, words_of(&status)),
            Outcome::Closed | Outcome::Cut(None) => {
                (Code::H3_REQUEST_CANCELLED, ("the connection was reset".into(), None))
            }
        };
        cx.stats.tcp.aborted += 1;
        let error = closed_for(tcp, reason, flows, cx);
        self.tell_of_cut(tcp, &error, cx);
        Self::disconnect(tcp, code, flows, cx);
        self.forget(tcp, Err(error), flows, cx);
    }

    /// Lets all bytes of a program pass unchanged from now on.
    pub(super) fn splice(&mut self, tcp: TcpId, flows: &mut Flows, cx: &mut Context<'_>) {
        let Some(program) = self.programs.get_mut(&tcp) else {
            return impossible("it is a program's protocol that ends");
        };
        program.local = None;
        if flows.direct.has(Source::Tcp(tcp)) {
            if program.splice.socket.has_read_fin() {
                self.to_direct(tcp, Bytes::new(), flows, cx);
            }
            self.pull(tcp, flows, cx);
            return self.read_target(tcp, flows, cx);
        }
        // A program that got its target's answer has a stream, unless the proxy has just cut it.
        let Some(stream) = flows.stream(Source::Tcp(tcp)) else { return };
        if program.splice.socket.has_read_fin() {
            program.splice.stream.send(Bytes::new(), &mut cx.hop.tunnel, stream);
            cx.hop.wake();
        }
        self.pull(tcp, flows, cx);
        self.from_stream(tcp, stream, flows, cx);
    }
}

impl Flow {
    const fn is_granted(&self) -> bool {
        matches!(self.life, Life::Granted(_))
    }

    /// Keeps what a program sends before the grant. The program waits when this is enough.
    fn keep_early(&mut self, data: &Bytes, splice: &mut Splice) {
        if !self.is_granted() {
            self.early.push_back(data.clone());
            let kept = self.early.iter().map(Bytes::len).sum::<usize>();
            splice.halt(kept >= EARLY_MAX);
        }
    }
}

/// What a value of `Proxy-Status` says, in words and as a cause.
pub(super) fn words_of(status: &StrangerText) -> (StrangerText, Option<Cause>) {
    (explain(status), Cause::told(status))
}

/// Whether a proxy that answers with this status may take the request in another form.
pub(super) fn lacks_form(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED
            | StatusCode::UPGRADE_REQUIRED
            | StatusCode::BAD_REQUEST
    )
}
