//! Bytes for what somebody else empties: standard output, a pipe, a terminal. A thread of its own writes them, so that
//! a reader who pauses holds up neither the connection, which would be lost in the meantime, nor a signal.

use std::{
    fs::File,
    io, mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    thread,
};

use tandem_server::process::outlet;

/// The number of waiting bytes from which the connection is read no more. What has come already is still taken, which
/// the window of the connection bounds.
const WAITING_MAX: usize = 1024 * 1024;

/// The bytes that wait, and the thread that writes them, which ends when this is dropped, or when it cannot write.
#[derive(Debug)]
pub(crate) struct Outflow(Arc<OutflowShared>);

#[derive(Debug, Default)]
struct OutflowShared {
    state: Mutex<OutflowState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct OutflowState {
    waiting: Vec<u8>,
    /// The number of bytes that the thread has taken and not written yet.
    taken: usize,
    error: Option<io::Error>,
    has_failed: bool,
    is_over: bool,
    /// Who waits for fewer bytes.
    waker: Option<Waker>,
}

impl OutflowShared {
    fn state(&self) -> MutexGuard<'_, OutflowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what is waiting, until there is nothing more to write or it cannot be written.
    fn write(&self, file: &File) {
        let mut taken = Vec::new();
        loop {
            let mut state = self.state();
            state.taken = 0;
            wake(&mut state);
            while state.waiting.is_empty() {
                if state.is_over {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            taken.clear();
            mem::swap(&mut taken, &mut state.waiting);
            state.taken = taken.len();
            drop(state);
            if let Err(error) = write_all(file, &taken) {
                let mut state = self.state();
                (state.error, state.has_failed) = (Some(error), true);
                wake(&mut state);
                return;
            }
        }
    }
}

fn wake(state: &mut OutflowState) {
    if let Some(waker) = state.waker.take() {
        waker.wake();
    }
}

fn write_all(file: &File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match outlet::write(file, bytes)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => bytes = bytes.get(written..).unwrap_or_default(),
        }
    }
    Ok(())
}

impl Outflow {
    /// Starts the thread.
    pub(super) fn to(file: File) -> io::Result<Self> {
        let shared = Arc::new(OutflowShared::default());
        let writer = Arc::clone(&shared);
        thread::Builder::new()
            .name("tandem-output".to_owned())
            .spawn(move || writer.write(&file))?;
        Ok(Self(shared))
    }

    /// Gives the thread bytes to write. An error is that of an earlier write.
    pub(super) fn put(&self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.0.state();
        if state.has_failed {
            return Err(state.error.take().unwrap_or(io::ErrorKind::BrokenPipe.into()));
        }
        state.waiting.extend_from_slice(bytes);
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }

    /// Whether more bytes should come: not many wait, or none can be written, which [`Self::put`] tells.
    pub(super) fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        self.poll_fewer_than(WAITING_MAX, context)
    }

    /// Waits until everything is written, or cannot be.
    pub(super) fn poll_written(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_fewer_than(1, context).map(|()| self.0.state().error.take().map_or(Ok(()), Err))
    }

    fn poll_fewer_than(&self, bytes: usize, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.state();
        if state.has_failed || state.waiting.len() + state.taken < bytes {
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Ends the thread, as soon as it has written what waits.
impl Drop for Outflow {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.changed.notify_one();
    }
}
