//! The standard input and output of the process as a connection.
//!
//! They may be pipes, sockets, files or a terminal. Files cannot be waited for, and a terminal must
//! not be made non-blocking, because it is shared with other programs. Two threads therefore copy
//! between them and two pipes, which the driver uses as it uses sockets. The thread that reads may
//! wait without an end; the end of the process ends it.

use std::{
    fs::File,
    io::{self, Read, Write},
    net::Shutdown,
    os::fd::{AsFd, OwnedFd},
    thread,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::retry_on_intr,
    stdio::dup2_stdout,
};
use socket2::SockRef;
use tokio::{net::unix::pipe, sync::oneshot};
use tracing::debug;

/// The bytes that a thread copies at a time: as many as a pipe of Linux holds.
const COPY_BYTES: usize = 64 * 1024;

/// The driver's ends of the two pipes.
pub(super) struct Stdio {
    pub(super) input: pipe::Receiver,
    /// `None` after the end of the output.
    pub(super) output: Option<pipe::Sender>,
}

/// Is dropped by the thread that writes when it has written everything.
pub(super) type AllWritten = oneshot::Receiver<()>;

impl Stdio {
    /// Starts the two threads.
    pub(super) fn open() -> io::Result<(Self, AllWritten)> {
        let stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let (from_stdin, to_driver) = io::pipe()?;
        let (from_driver, to_stdout) = io::pipe()?;
        let input = pipe::Receiver::from_owned_fd(from_stdin.into())?;
        let output = Some(pipe::Sender::from_owned_fd(to_stdout.into())?);
        let to_driver = File::from(OwnedFd::from(to_driver));
        let from_driver = File::from(OwnedFd::from(from_driver));
        let (writing, all_written) = oneshot::channel::<()>();
        spawn("stdin", move || copy(&stdin, &to_driver))?;
        spawn("stdout", move || {
            let copied = copy(&from_driver, &stdout);
            let closed = close(&stdout);
            drop(writing);
            copied.and(closed)
        })?;
        Ok((Self { input, output }, all_written))
    }
}

fn spawn(
    name: &'static str,
    work: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let work = move || {
        if let Err(error) = work() {
            debug!(%error, "{name} has failed");
        }
    };
    thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

/// Copies until the input ends, or until nothing more can be written.
fn copy(from: &File, to: &File) -> io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let count = patiently(from, PollFlags::IN, |mut from| from.read(&mut buffer))?;
        let mut rest = buffer.get(..count).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        while !rest.is_empty() {
            let count = patiently(to, PollFlags::OUT, |mut to| to.write(rest))?;
            rest = rest.get(count..).unwrap_or_default();
        }
    }
}

/// Repeats a call until the file is ready for it. The parent of this process may have made its
/// standard input or output non-blocking.
fn patiently<T>(
    file: &File,
    ready: PollFlags,
    mut call: impl FnMut(&File) -> io::Result<T>,
) -> io::Result<T> {
    loop {
        match call(file) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                retry_on_intr(|| poll(&mut [PollFd::new(file, ready)], None))?;
            }
            result => return result,
        }
    }
}

/// Ends the standard output, so that its reader sees the end although the process continues.
fn close(stdout: &File) -> io::Result<()> {
    // The standard input may be the same socket. An error says that the output is no socket.
    drop(SockRef::from(stdout).shutdown(Shutdown::Write));
    // The descriptor must stay in use. Otherwise the next file that is opened would become the
    // standard output.
    dup2_stdout(File::options().write(true).open("/dev/null")?)?;
    Ok(())
}
