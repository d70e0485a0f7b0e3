//! Local UDP listeners, each of whose peers is a flow through the tunnel.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::Instant,
};

use bytes::Bytes;

use super::{ForwardConfig, flow::Target};
use crate::{node::SocketId, quic::StreamId};

/// A listening socket and the address of a local program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LocalFlowId {
    pub(super) socket: SocketId,
    pub(super) program: SocketAddr,
}

/// A flow of a local program.
#[derive(Debug)]
pub(super) struct LocalFlow {
    /// Its request; `None` until the proxy allows one more.
    pub(super) stream: Option<StreamId>,
    /// Payloads that came before the request was granted and wait for that.
    pub(super) early: VecDeque<Bytes>,
    /// How many did not wait.
    pub(super) sent_early: usize,
    pub(super) last_active: Instant,
}

/// Local UDP listeners.
pub(super) struct Forward {
    pub(super) configs: Vec<ForwardConfig>,
    /// Which of them a socket is.
    pub(super) sockets: BTreeMap<SocketId, usize>,
    pub(super) flows: BTreeMap<LocalFlowId, LocalFlow>,
    pub(super) is_listening: bool,
    /// When to look for idle flows.
    pub(super) next_look: Option<Instant>,
}

impl Forward {
    pub(super) fn new(configs: Vec<ForwardConfig>) -> Self {
        Self {
            configs,
            sockets: BTreeMap::new(),
            flows: BTreeMap::new(),
            is_listening: false,
            next_look: None,
        }
    }

    /// Where the flows of a listening socket go.
    pub(super) fn target(&self, socket: SocketId) -> Option<Target> {
        let ForwardConfig { target_host, target_port, urgency, weight, .. } =
            self.config(socket)?;
        let target = Target::new(target_host.clone(), *target_port).with_weight(*weight);
        Some(Target { urgency: *urgency, ..target })
    }

    /// How a listening socket was asked for.
    pub(super) fn config(&self, socket: SocketId) -> Option<&ForwardConfig> {
        self.configs.get(*self.sockets.get(&socket)?)
    }
}
