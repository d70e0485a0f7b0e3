//! Programs that speak SOCKS5 or HTTP/1.1 with this client, before all bytes pass unchanged.

use tandem_wire::Code;
use tracing::{debug, warn};

use super::{
    Context, Source,
    flows::{Flows, Way},
    splice::words_of,
    tcp::{Tcp, closed_for},
};
use crate::{
    client::{
        FlowConfig,
        local::{Fault, Step},
    },
    quic::StreamId,
    tcp::{Next, TcpId},
};

impl Tcp {
    /// Takes the steps that a program's protocol wants, and then asks the program for more.
    pub(super) fn run_local(&mut self, tcp: TcpId, flows: &mut Flows, cx: &mut Context<'_>) {
        // A step may end the program.
        while let Some(program) = self.programs.get_mut(&tcp) {
            let Some(step) = program.local.as_mut().and_then(|local| local.poll()) else { break }; // it waits
            program.is_silent &= !matches!(step, Step::Connect(_) | Step::Associate { .. });
            match step {
                Step::ToProgram(data) => program.splice.socket.write(data, cx.outputs),
                Step::ToTarget(data) => self.to_target(tcp, data, flows, cx),
                Step::Connect(target) => {
                    self.connect(tcp, FlowConfig::new(target.host(), target.port()), flows, cx);
                }
                // RFC 9114 §8.1: H3_NO_ERROR "is used when the connection or stream needs to be closed,
                // but there is no error to signal."
                Step::Disconnect => Self::disconnect(tcp, Code::H3_NO_ERROR, flows, cx),
                Step::Associate { from } => self.associate(tcp, from, cx),
                Step::Splice => return self.splice(tcp, flows, cx),
                Step::Close(fault) => {
                    if fault == Some(Fault::Unauthorized) {
                        self.guesses.count(cx.now, program.host);
                    }
                    program.splice.socket.close(cx.outputs);
                    self.note_fault(fault, cx);
                    Self::disconnect(tcp, Code::H3_NO_ERROR, flows, cx);
                    return self.forget(tcp, Ok(()), flows, cx);
                }
                Step::Abort(fault) => {
                    program.splice.socket.reset(cx.outputs);
                    self.note_fault(Some(fault), cx);
                    Self::disconnect(tcp, Code::H3_REQUEST_CANCELLED, flows, cx);
                    return self.forget(tcp, Ok(()), flows, cx);
                }
            }
        }
        self.pull(tcp, flows, cx);
    }

    /// Gives a program's protocol what has arrived on its stream.
    pub(super) fn from_spoken_stream(
        &mut self,
        tcp: TcpId,
        stream: StreamId,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        // What arrives may end the program, its protocol, or the stream.
        while let Some(program) = self.programs.get_mut(&tcp)
            && let Some(local) = &mut program.local
            && flows.stream(Source::Tcp(tcp)) == Some(stream)
            && !program.splice.socket.is_full()
            && let Some(mut carrier) = cx.hop.peer.carrier()
        {
            match program.splice.stream.read(&mut carrier, stream) {
                Next::Data(data) => {
                    cx.stats.tcp.to_client_bytes += data.len() as u64;
                    if let Some(flow) = flows.get_mut(Source::Tcp(tcp)) {
                        flow.count(cx.now, Way::ToClient, data.len() as u64);
                    }
                    local.from_target(data);
                }
                Next::Fin => continue, // the end of the stream follows
                Next::End => local.target_ended(true),
                Next::Blocked => return,
                Next::Cut(Some(status)) => {
                    local.target_ended(false);
                    let error = closed_for(tcp, words_of(&status), flows, cx);
                    self.tell_of_cut(tcp, &error, cx);
                }
                Next::Reset(_) | Next::Cut(None) | Next::Malformed(_) => local.target_ended(false),
                Next::Broken(error) => return cx.broken(error),
            }
            self.run_local(tcp, flows, cx);
        }
    }

    /// Counts and logs why a program's connection is closed.
    fn note_fault(&mut self, fault: Option<Fault>, cx: &mut Context<'_>) {
        match fault {
            None => {}
            // The proxy's refusal is counted already.
            Some(fault @ (Fault::Refused(_) | Fault::Target(_))) => debug!("{fault}"),
            Some(fault) => {
                cx.stats.tcp.programs_refused += 1;
                if let Some(left_out) = self.warning.due(cx.now) {
                    warn!(left_out, "{fault}");
                }
            }
        }
    }
}
