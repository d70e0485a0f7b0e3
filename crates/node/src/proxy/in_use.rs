//! What all proxies of one process have open together.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// The sockets towards targets and the look-ups of names of all proxies that have a clone of this. Proxies that
/// run in threads of one process share its descriptors, and keep to
/// [`Limits::sockets`](crate::limits::Limits::sockets) and
/// [`Limits::queries`](crate::limits::Limits::queries) together. Two threads that open the last socket at the
/// same time can exceed the limit by one.
#[derive(Clone, Debug, Default)]
pub struct InUse(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    sockets: AtomicUsize,
    queries: AtomicUsize,
    /// The local address of each UDP socket towards a target, and how deep its flow is nested: 1 more than the flow
    /// from whose socket the client's connection came. It has as many entries as there are sockets at most.
    depths: Mutex<BTreeMap<SocketAddr, u8>>,
}

impl InUse {
    /// The number of sockets that are open or being opened, TCP connections included.
    pub(super) fn sockets(&self) -> usize {
        self.0.sockets.load(Relaxed)
    }

    pub(super) fn add_socket(&self) {
        self.0.sockets.fetch_add(1, Relaxed);
    }

    pub(super) fn remove_socket(&self) {
        self.0.sockets.fetch_sub(1, Relaxed);
    }

    /// Counts one look-up more, unless there are as many as may be. Returns whether it may begin.
    pub(super) fn begin_query(&self, max: usize) -> bool {
        let next = |queries| (queries < max).then_some(queries + 1);
        self.0.queries.fetch_update(Relaxed, Relaxed, next).is_ok()
    }

    /// Through how many flows of these proxies a connection from this address comes.
    pub(super) fn depth_of(&self, client: SocketAddr) -> u8 {
        self.depths().get(&canonical(client)).copied().unwrap_or_default()
    }

    /// Notes the local address of a flow's socket.
    pub(super) fn add_source(&self, local: SocketAddr, depth: u8) {
        self.depths().insert(canonical(local), depth);
    }

    pub(super) fn remove_source(&self, local: SocketAddr) {
        self.depths().remove(&canonical(local));
    }

    fn depths(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, u8>> {
        self.0.depths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn end_query(&self) {
        // An unexpected answer changes nothing.
        let less = |queries: usize| Some(queries.saturating_sub(1));
        self.0.queries.fetch_update(Relaxed, Relaxed, less).unwrap_or_default();
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
