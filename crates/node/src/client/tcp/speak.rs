//! Programs that speak SOCKS5 or HTTP/1.1 with this client, before all bytes pass unchanged.

use std::time::Instant;

use bytes::Bytes;
use tandem_wire::Code;
use tracing::{debug, warn};

use super::{Program, Upstream};
use crate::{
    client::{
        Client, FlowConfig,
        local::{Fault, Step, Target},
    },
    quic::StreamId,
    tcp::{Next, TcpId},
};

impl Client {
    /// Takes the steps that a program's protocol wants, and then asks the program for more.
    pub(super) fn run_local(&mut self, now: Instant, tcp: TcpId) {
        while let Some(program) = self.tcp.programs.get_mut(&tcp) {
            let Some(step) = program.local.as_mut().and_then(|local| local.poll()) else { break };
            program.is_silent &= !matches!(step, Step::Connect(_) | Step::Associate { .. });
            match step {
                Step::ToProgram(data) => program.splice.socket.write(data, &mut self.outputs),
                Step::ToTarget(data) => self.to_target(tcp, data),
                Step::Connect(target) => self.connect_for(tcp, &target),
                // RFC 9114 §8.1: H3_NO_ERROR "is used when the connection or stream needs to be closed,
                // but there is no error to signal."
                Step::Disconnect => drop(self.disconnect(tcp, Code::H3_NO_ERROR)),
                Step::Associate { from } => self.associate(tcp, from),
                Step::Splice => return self.splice(now, tcp),
                Step::Close(fault) => {
                    if fault == Some(Fault::Unauthorized) {
                        self.tcp.guesses.count(now, program.host);
                    }
                    self.note_fault(now, fault);
                    self.disconnect(tcp, Code::H3_NO_ERROR);
                    if let Some(program) = self.tcp.programs.get_mut(&tcp) {
                        program.splice.socket.close(&mut self.outputs);
                    }
                    return self.forget_program(now, tcp, Ok(()));
                }
                Step::Abort(fault) => {
                    self.note_fault(now, Some(fault));
                    self.disconnect(tcp, Code::H3_REQUEST_CANCELLED);
                    if let Some(program) = self.tcp.programs.get_mut(&tcp) {
                        program.splice.socket.reset(&mut self.outputs);
                    }
                    return self.forget_program(now, tcp, Ok(()));
                }
            }
        }
        self.pull_program(tcp);
    }

    fn connect_for(&mut self, tcp: TcpId, target: &Target) {
        let upstream = Upstream::new(FlowConfig::new(target.host(), target.port()));
        if let Some(program) = self.tcp.programs.get_mut(&tcp) {
            program.upstream = Some(upstream);
            self.request_tcp(tcp);
        }
    }

    /// Sends bytes to a program's target, or keeps them until they can be sent.
    fn to_target(&mut self, tcp: TcpId, data: Bytes) {
        let Self { tcp: connections, chain, stats, .. } = self;
        let is_form_known = connections.is_form_known;
        let Some(Program { splice, upstream: Some(upstream), .. }) =
            connections.programs.get_mut(&tcp)
        else {
            return;
        };
        stats.tcp.to_target_bytes += data.len() as u64;
        if upstream.stream.is_none() || (!upstream.is_granted && !is_form_known) {
            upstream.early.push(data.clone());
        }
        if let (Some(stream), Some(hop)) = (upstream.stream, chain.hops.last_mut()) {
            splice.stream.send(data, &mut hop.tunnel, stream);
            hop.wake();
        }
    }

    /// Lets all bytes of a program pass unchanged from now on.
    fn splice(&mut self, now: Instant, tcp: TcpId) {
        let Self { tcp: connections, chain, .. } = self;
        let Some(program) = connections.programs.get_mut(&tcp) else { return };
        program.local = None;
        let (Some(stream), Some(hop)) = (program.stream(), chain.hops.last_mut()) else { return };
        if program.splice.socket.has_read_fin() {
            program.splice.stream.send(Bytes::new(), &mut hop.tunnel, stream);
            hop.wake();
        }
        self.pull_program(tcp);
        self.on_tcp_stream(now, stream);
    }

    /// Gives a program's protocol what has arrived on its stream.
    pub(super) fn on_spoken_stream(&mut self, now: Instant, tcp: TcpId, stream: StreamId) {
        loop {
            let Self { tcp: connections, chain, stats, .. } = self;
            let Some(program) = connections.programs.get_mut(&tcp) else { return };
            let is_current = program.stream() == Some(stream);
            let Some(local) = program.local.as_mut().filter(|_| is_current) else { return };
            if program.splice.socket.is_full() {
                return;
            }
            let hop = chain.hops.last_mut();
            let Some(mut carrier) = hop.and_then(|hop| hop.peer.carrier()) else { return };
            match program.splice.stream.read(&mut carrier, stream) {
                Next::Data(data) => {
                    stats.tcp.to_client_bytes += data.len() as u64;
                    local.from_target(data);
                }
                Next::Fin => continue, // the end of the stream follows
                Next::End => local.target_ended(true),
                Next::Blocked => return,
                Next::Reset(_) | Next::Cut(_) | Next::Malformed(_) => local.target_ended(false),
                Next::Broken(error) => {
                    let last = self.chain.hops.len().saturating_sub(1);
                    return self.protocol_error(now, last, &error);
                }
            }
            self.run_local(now, tcp);
        }
    }

    /// Counts and logs why a program's connection is closed.
    fn note_fault(&mut self, now: Instant, fault: Option<Fault>) {
        match fault {
            None => {}
            // The proxy's refusal is counted already.
            Some(fault @ (Fault::Refused(_) | Fault::Target(_))) => debug!("{fault}"),
            Some(fault) => {
                self.stats.tcp.programs_refused += 1;
                if let Some(left_out) = self.tcp.warning.due(now) {
                    warn!(left_out, "{fault}");
                }
            }
        }
    }
}
