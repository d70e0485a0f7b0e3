//! Which sockets have something to read, without asking all of them.

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

/// Names of sockets that became readable.
///
/// Each socket has a waker of its own that writes the socket's name here and wakes the driver. Waking
/// is thus independent of the number of sockets, nothing is allocated per wake, and sockets stay in
/// the driver's own map, so that closing one is removing it.
#[derive(Debug, Default)]
pub(crate) struct ReadyList {
    names: Mutex<Vec<SocketId>>,
    driver: AtomicWaker,
}

impl ReadyList {
    /// Moves the names to `readable` and makes the next one wake the task of `context`.
    pub(crate) fn take_into(&self, readable: &mut Vec<SocketId>, context: &Context<'_>) {
        self.driver.register(context.waker()); // first, or a name in between would wake nobody
        readable.append(&mut self.names());
    }

    fn names(&self) -> impl std::ops::DerefMut<Target = Vec<SocketId>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What tells that one socket has become readable.
pub(crate) struct ReadySignal {
    waker: Waker,
    signals: BoxStream<'static, ()>,
}

impl ReadySignal {
    /// The name of the socket goes to this list.
    pub(crate) fn new(socket: &UdpSocket, list: &Arc<ReadyList>) -> Self {
        let waker = SocketWaker { socket: socket.id(), list: Arc::clone(list) };
        // A stream, because it keeps the place for its one future; and of futures, because tokio
        // tells of errors (a refused connection) only so, not by `poll_recv_ready`.
        let signals = stream::unfold(socket.io(), |io| async move {
            // An error here shows again on receiving.
            drop(io.ready(RECEIVE_INTEREST).await);
            Some(((), io))
        });
        Self { waker: Waker::from(Arc::new(waker)), signals: signals.boxed() }
    }

    /// Asks to be told when the socket is readable; says whether it is readable already.
    pub(crate) fn arm(&mut self) -> Readiness {
        let mut context = Context::from_waker(&self.waker);
        // The first signal may be the one that the socket was read for.
        for _ in 0..2 {
            if self.signals.poll_next_unpin(&mut context).is_pending() {
                return Readiness::Later;
            }
        }
        Readiness::Now
    }
}

/// Whether a socket has something to read.
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
