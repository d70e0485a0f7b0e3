//! The list of the sockets that are ready, which avoids polling all sockets.

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Wake, Waker},
};

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
    task::AtomicWaker,
};

use crate::socket::{RECEIVE_INTEREST, UdpSocket};

/// The names of the sockets that became ready.
///
/// Each socket has its own waker, which adds the socket's name to this list and wakes the driver.
/// The cost of a wake-up is thus independent of the number of sockets, and no wake-up allocates
/// memory. Sockets stay in the driver's map, so the driver closes a socket by removing it from the
/// map.
#[derive(Debug)]
pub(crate) struct ReadyList<T> {
    names: Mutex<Vec<T>>,
    driver: AtomicWaker,
}

impl<T> Default for ReadyList<T> {
    fn default() -> Self {
        Self { names: Mutex::default(), driver: AtomicWaker::new() }
    }
}

impl<T: Copy + Send + Sync + 'static> ReadyList<T> {
    /// Returns a waker that adds the name to the list.
    pub(crate) fn waker(self: &Arc<Self>, name: T) -> Waker {
        Waker::from(Arc::new(NameWaker { name, list: Arc::clone(self) }))
    }

    /// Moves the names to `ready`. The next name that is added wakes the task of `context`.
    pub(crate) fn take_into(&self, ready: &mut impl Extend<T>, context: &Context<'_>) {
        // The waker is registered first. Otherwise a name that is added in between would not wake
        // it.
        self.driver.register(context.waker());
        ready.extend(self.names().drain(..)); // the list keeps its allocation
    }

    fn names(&self) -> impl std::ops::DerefMut<Target = Vec<T>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The signal that one UDP socket has become readable.
pub(crate) struct ReadySignal {
    waker: Waker,
    signals: BoxStream<'static, ()>,
}

impl ReadySignal {
    /// Creates a signal that wakes `waker`, which adds the socket's name to a list.
    pub(crate) fn new(socket: &UdpSocket, waker: Waker) -> Self {
        // A stream keeps its one future in place. A future is necessary because tokio reports
        // errors, such as a refused connection, with `ready`, but not with `poll_recv_ready`.
        let signals = stream::unfold(socket.io(), |io| async move {
            // The following receive call returns the same error.
            drop(io.ready(RECEIVE_INTEREST).await);
            Some(((), io))
        });
        Self { waker, signals: signals.boxed() }
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

struct NameWaker<T> {
    name: T,
    list: Arc<ReadyList<T>>,
}

impl<T: Copy + Send + Sync + 'static> Wake for NameWaker<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.list.names().push(self.name);
        self.list.driver.wake();
    }
}
