//! The bytes of TCP connections between programs and targets that are reached directly. Each end is read only while the
//! other one takes what it gets, so that neither direction holds more than its bound.

use bytes::Bytes;

use super::{Attempt, Direct, Source, Stage, Way};
use crate::{
    client::{
        FlowConfig,
        programs::{Context, flows::Flows, splice::EARLY_MAX, tcp::Tcp},
    },
    impossible::impossible,
    tcp::{Socket, TcpId, TcpInput},
};

impl Direct {
    /// The open connection of a program to its target.
    fn socket(&mut self, source: Source) -> Option<&mut Socket> {
        match &mut self.ways.get_mut(&source)?.stage {
            Stage::Tcp(socket) => Some(socket),
            _ => None,
        }
    }

    /// Whether the target of a program takes more bytes. `None`: the program has no direct way.
    pub(in crate::client::programs) fn takes(&self, source: Source) -> Option<bool> {
        let Way { stage, early, .. } = self.ways.get(&source)?;
        Some(match stage {
            Stage::Tcp(socket) => !socket.is_full(),
            _ => early.iter().map(Bytes::len).sum::<usize>() < EARLY_MAX,
        })
    }

    /// Gives bytes of a program to its target, or keeps them. No bytes are a FIN.
    fn write(&mut self, source: Source, data: Bytes, cx: &mut Context<'_>) {
        let Some(way) = self.ways.get_mut(&source) else {
            return impossible("it was asked whether there is a way");
        };
        match &mut way.stage {
            Stage::Tcp(socket) if data.is_empty() => socket.finish(cx.outputs),
            Stage::Tcp(socket) => socket.write(data, cx.outputs),
            _ => way.early.push_back(data),
        }
    }

    /// Gives the target what has waited until it was reached.
    fn write_early(&mut self, source: Source, cx: &mut Context<'_>) {
        let early = self.ways.get_mut(&source).map(|way| std::mem::take(&mut way.early));
        for data in early.into_iter().flatten() {
            self.write(source, data, cx);
        }
    }
}

impl Tcp {
    /// Opens a direct way to the target of a program.
    pub(in crate::client::programs) fn connect_directly(
        &mut self,
        tcp: TcpId,
        config: &FlowConfig,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        let Some(program) = self.programs.get(&tcp) else {
            return impossible("it is a program that asks");
        };
        let (target, host) = ((config.host.as_str(), config.port), program.host);
        let outcome = flows.direct.open(Source::Tcp(tcp), target, host, cx);
        self.on_direct(outcome, flows, cx);
    }

    /// Goes on with a program whose target is reached.
    pub(super) fn on_direct_open(&mut self, tcp: TcpId, flows: &mut Flows, cx: &mut Context<'_>) {
        flows.direct.write_early(Source::Tcp(tcp), cx);
        self.on_target_reached(tcp, flows, cx);
        self.read_target(tcp, flows, cx);
    }

    /// Handles an input about a connection to a target. Others are returned.
    pub(in crate::client::programs) fn take_direct(
        &mut self,
        input: TcpInput,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) -> Option<TcpInput> {
        let (TcpInput::Opened { tcp, .. }
        | TcpInput::Read { tcp, .. }
        | TcpInput::Written { tcp, .. }
        | TcpInput::Failed { tcp, .. }) = &input
        else {
            return Some(input);
        };
        if tcp.0 < super::FIRST_TCP {
            return Some(input);
        }
        // The program may have given its target up.
        let Source::Tcp(program) = flows.direct.of_tcp(*tcp)? else {
            return impossible("a connection to a target is for a program with a connection");
        };
        match input {
            TcpInput::Opened { tcp, result } => {
                let attempt = Attempt::Tcp(tcp);
                let outcome = flows.direct.on_attempt(attempt, result.map(|_| ()), cx);
                self.on_direct(outcome, flows, cx);
            }
            TcpInput::Read { data, .. } => self.from_target(program, &data, flows, cx),
            TcpInput::Written { bytes, .. } => {
                let socket = flows.direct.socket(Source::Tcp(program));
                if socket.is_some_and(|socket| socket.on_written(bytes)) {
                    self.pull(program, flows, cx);
                }
            }
            TcpInput::Failed { .. } => self.on_target_failed(program, flows, cx),
            TcpInput::Listening { .. } | TcpInput::UdpPorts { .. } => {}
        }
        None
    }

    /// Passes bytes of a target to its program, or to the protocol that it speaks. No bytes are a FIN.
    fn from_target(&mut self, tcp: TcpId, data: &Bytes, flows: &mut Flows, cx: &mut Context<'_>) {
        if let Some(socket) = flows.direct.socket(Source::Tcp(tcp)) {
            socket.on_read(data);
        }
        let Some(program) = self.programs.get_mut(&tcp) else {
            return impossible("a way is of a program");
        };
        match &mut program.local {
            Some(local) => {
                if data.is_empty() {
                    local.target_ended(true);
                } else {
                    local.from_target(data.clone());
                }
                self.run_local(tcp, flows, cx);
            }
            None if data.is_empty() => program.splice.socket.finish(cx.outputs),
            None => program.splice.socket.write(data.clone(), cx.outputs),
        }
        self.settle_direct(tcp, flows, cx);
        self.read_target(tcp, flows, cx);
    }

    /// Asks the target of a program for bytes, if the program takes them.
    pub(in crate::client::programs) fn read_target(
        &mut self,
        tcp: TcpId,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        if let Some(program) = self.programs.get(&tcp)
            && !program.splice.socket.is_full()
            && let Some(socket) = flows.direct.socket(Source::Tcp(tcp))
        {
            socket.read(cx.outputs);
        }
    }

    /// Passes bytes of a program to its target. No bytes are a FIN.
    pub(in crate::client::programs) fn to_direct(
        &mut self,
        tcp: TcpId,
        data: Bytes,
        flows: &mut Flows,
        cx: &mut Context<'_>,
    ) {
        flows.direct.write(Source::Tcp(tcp), data, cx);
        self.settle_direct(tcp, flows, cx);
    }

    /// Forgets a program whose two directions are finished, and closes both connections.
    fn settle_direct(&mut self, tcp: TcpId, flows: &mut Flows, cx: &mut Context<'_>) {
        let Some(socket) = flows.direct.socket(Source::Tcp(tcp)) else { return }; // it is not open, or has ended
        let Some(program) = self.programs.get_mut(&tcp) else {
            return impossible("a way is of a program");
        };
        let is_finished = socket.has_read_fin()
            && program.splice.socket.has_read_fin()
            && program.local.is_none();
        if is_finished {
            program.splice.socket.close(cx.outputs);
            self.forget(tcp, Ok(()), flows, cx);
        }
    }

    /// Handles the end of a connection to a target by an error.
    fn on_target_failed(&mut self, tcp: TcpId, flows: &mut Flows, cx: &mut Context<'_>) {
        if let Some(socket) = flows.direct.socket(Source::Tcp(tcp)) {
            socket.on_failed();
        }
        flows.direct.close(Source::Tcp(tcp), cx);
        self.lose_target(tcp, Ok(()), flows, cx);
    }
}
