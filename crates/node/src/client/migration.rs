//! Connection migration (RFC 9000 §9): the way of the outermost connection through the networks of its host.
//!
//! A laptop leaves a Wi-Fi and finds a mobile network. Its packets then leave from another address, or the host has no
//! way to the proxy for a while. The connection and everything inside it goes on in both cases: the client opens
//! another socket to the same peer, and the peer validates the new path.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tracing::{info, warn};

use super::{chain::Chain, open_socket};
use crate::{
    OsError,
    node::{Output, SocketId, SocketKind},
    quic::earliest,
};

/// The least interval between two looks. A network that comes up changes several addresses and routes at once.
const INTERVAL: Duration = Duration::from_millis(50);

/// The longest interval between two looks while the host has no way to the peer. It is short, because not every change
/// of a network is reported.
const INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The time without a way to the peer after which other addresses are tried. An address of one family often comes a
/// while before that of the other.
const LONG: Duration = Duration::from_secs(3);

/// How long the socket of the former path still receives: more than most round-trip times.
const FORMER: Duration = Duration::from_secs(1);

/// What a migration works with.
pub(super) struct MigrationContext<'a> {
    pub(super) now: Instant,
    pub(super) chain: &'a mut Chain,
    pub(super) outputs: &'a mut VecDeque<Output>,
    pub(super) next_socket: &'a mut u64,
}

/// The state of the way to the first peer.
#[derive(Default)]
pub(super) struct Migration {
    /// A socket to the peer that is being opened. Its local address is the one that the host would use at present.
    look: Option<SocketId>,
    /// When the last look began.
    looked: Option<Instant>,
    /// When the next look begins.
    next: Option<Instant>,
    /// Since when the host has no way to the peer, and the interval before the next look. `None`: it has one.
    away: Option<(Instant, Duration)>,
    /// The socket of the former path, and when it is closed.
    former: Option<(Instant, SocketId)>,
}

impl Migration {
    /// Looks for the address from which the host reaches the first peer at present: now, or soon if the last look was
    /// a moment ago.
    pub(super) fn look(&mut self, cx: &mut MigrationContext<'_>) {
        let Some(peer) = cx.chain.outer else { return }; // it is being connected to
        let due = self.looked.map_or(cx.now, |looked| looked + INTERVAL);
        if due > cx.now || self.look.is_some() {
            self.next = Some(self.next.map_or(due, |next| next.min(due)));
            return;
        }
        let socket = open_socket(cx.outputs, cx.next_socket, SocketKind::Connected(peer));
        (self.look, self.looked, self.next) = (Some(socket), Some(cx.now), None);
    }

    /// Whether this socket was opened for a look.
    pub(super) fn is_look(&self, socket: SocketId) -> bool {
        self.look == Some(socket)
    }

    /// Whether packets of the first peer may still arrive at this socket, which sends no more.
    pub(super) fn is_former(&self, socket: SocketId) -> bool {
        self.former.is_some_and(|(_, former)| former == socket)
    }

    /// Whether the host has had no way to the peer for so long that it may have another network now, of the other
    /// address family for instance, from which it reaches only other addresses.
    pub(super) fn is_long_away(&self, now: Instant) -> bool {
        self.away.is_some_and(|(since, _)| since + LONG <= now)
    }

    /// Handles that the socket of a look is open, or cannot be opened.
    pub(super) fn on_opened(
        &mut self,
        socket: SocketId,
        result: Result<SocketAddr, OsError>,
        cx: &mut MigrationContext<'_>,
    ) {
        self.look = None;
        match result {
            Err(error) => self.stay_away(&error, cx),
            Ok(local) if cx.chain.outer_local.map(|local| local.ip()) == Some(local.ip()) => {
                cx.outputs.push_back(Output::CloseSocket(socket));
                if self.away.take().is_some() {
                    info!(from = %local.ip(), "the way to the first peer is back");
                    cx.chain.resume(cx.now);
                }
            }
            Ok(local) => self.migrate(socket, local, cx),
        }
    }

    fn stay_away(&mut self, error: &OsError, cx: &mut MigrationContext<'_>) {
        if self.away.is_none() {
            warn!(%error, "this host has no way to the first peer now; connections wait for one");
            cx.chain.pause();
        }
        let (since, wait) = self
            .away
            .map_or((cx.now, INTERVAL), |(since, wait)| (since, (2 * wait).min(INTERVAL_MAX)));
        self.away = Some((since, wait));
        self.next = Some(cx.now + wait);
    }

    /// Lets the packets of the first peer leave through another socket from now on.
    fn migrate(&mut self, socket: SocketId, local: SocketAddr, cx: &mut MigrationContext<'_>) {
        let chain = &mut *cx.chain;
        info!(from = %local.ip(), "the connection goes on from another address");
        self.away = None;
        self.close_former(cx.outputs);
        self.former = Some((cx.now + FORMER, chain.outer_socket));
        (chain.outer_socket, chain.outer_local) = (socket, Some(local));
        if let Some(hop) = chain.hops.first_mut() {
            hop.beside.leave_path();
        }
        chain.resume(cx.now);
    }

    fn close_former(&mut self, outputs: &mut VecDeque<Output>) {
        outputs.extend(self.former.take().map(|(_, socket)| Output::CloseSocket(socket)));
    }

    /// Does what is due.
    pub(super) fn handle_timeout(&mut self, cx: &mut MigrationContext<'_>) {
        if self.former.is_some_and(|(until, _)| until <= cx.now) {
            self.close_former(cx.outputs);
        }
        if self.look.is_none() && self.next.take_if(|next| *next <= cx.now).is_some() {
            self.look(cx);
        }
    }

    /// When something is due. `is_running`: the client does not end, after which nothing is.
    pub(super) fn next_timeout(&self, is_running: bool) -> Option<Instant> {
        if !is_running {
            return None;
        }
        let next = self.next.filter(|_| self.look.is_none());
        earliest(next, self.former.map(|(until, _)| until))
    }

    /// Forgets the way to a peer whose connection is over.
    pub(super) fn reset(&mut self, outputs: &mut VecDeque<Output>) {
        self.close_former(outputs);
        outputs.extend(self.look.take().map(Output::CloseSocket));
        *self = Self::default();
    }
}
