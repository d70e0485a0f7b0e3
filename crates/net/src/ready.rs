//! The list of readable sockets, which avoids polling all sockets.

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Wake, Waker},
};

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
    task::AtomicWaker,
};
use tandem_node::node::SocketId;

use crate::socket::{RECEIVE_INTEREST, UdpSocket};

/// The names of the sockets that became readable.
///
/// Each socket has its own waker, which adds the socket's name to this list and wakes the driver.
/// The cost of a wake-up is thus independent of the number of sockets, and no wake-up allocates
/// memory. Sockets stay in the driver's map, so the driver closes a socket by removing it from the
/// map.
#[derive(Debug, Default)]
pub(crate) struct ReadyList {
    names: Mutex<Vec<SocketId>>,
    driver: AtomicWaker,
}

impl ReadyList {
    /// Moves the names to `readable`. The next name that is added wakes the task of `context`.
    pub(crate) fn take_into(&self, readable: &mut Vec<SocketId>, context: &Context<'_>) {
        // The waker is registered first. Otherwise a name that is added in between would not wake
        // it.
        self.driver.register(context.waker());
        readable.append(&mut self.names());
    }

    fn names(&self) -> impl std::ops::DerefMut<Target = Vec<SocketId>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The signal that one socket has become readable.
pub(crate) struct ReadySignal {
    waker: Waker,
    signals: BoxStream<'static, ()>,
}

impl ReadySignal {
    /// Creates a signal that adds the socket's name to `list`.
    pub(crate) fn new(socket: &UdpSocket, list: &Arc<ReadyList>) -> Self {
        let waker = SocketWaker { socket: socket.id(), list: Arc::clone(list) };
        // A stream keeps its one future in place. A future is necessary because tokio reports
        // errors, such as a refused connection, with `ready`, but not with `poll_recv_ready`.
        let signals = stream::unfold(socket.io(), |io| async move {
            // The following receive call returns the same error.
            drop(io.ready(RECEIVE_INTEREST).await);
            Some(((), io))
        });
        Self { waker: Waker::from(Arc::new(waker)), signals: signals.boxed() }
    }

    /// Registers the waker for the time when the socket becomes readable. Returns whether it is
    /// readable already.
    pub(crate) fn arm(&mut self) -> Readiness {
        let mut context = Context::from_waker(&self.waker);
        // The first signal may be the one for which the socket was just read.
        for _ in 0..2 {
            if self.signals.poll_next_unpin(&mut context).is_pending() {
                return Readiness::Later;
            }
        }
        Readiness::Now
    }
}

/// Whether a socket is readable at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Now,
    Later,
}

struct SocketWaker {
    socket: SocketId,
    list: Arc<ReadyList>,
}

impl Wake for SocketWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.list.names().push(self.socket);
        self.list.driver.wake();
    }
}
