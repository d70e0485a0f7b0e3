//! Lines for what somebody else empties: standard error, standard output, files.
//!
//! A disk may be full, a reader may have ended, or may not read, so that a write does not return. No thread that
//! carries packets writes there. It puts its lines into a queue, and a thread of the outlet writes them. Lines for
//! which the queue has no room are lost, like those that cannot be written, and are counted ([ADR
//! 57](../../../../docs/design/adr/0057-nobody-waits-for-a-reader.md)).

use std::{
    io, mem,
    os::fd::AsFd,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use crate::process::SystemError;

/// The most bytes that wait in the queue of an outlet: some 5,000 lines, which is what the end of a client with
/// 4,000 flows makes at once. A pipe has room for 64 kB beyond that.
const WAITING_MAX: usize = 1_000_000;

/// The time until an outlet that has lost lines tries again although no new line has come.
const RETRY: Duration = Duration::from_secs(1);

/// How long the end of the program waits for what has not been written yet. A reader that does not read must not keep a
/// server from its end.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Where the lines of an outlet go.
pub trait Target: Send + 'static {
    /// Writes a part of the bytes, which may wait for the reader.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// What to write there itself about lines that were lost, before the next ones.
    fn notice(&self, lost: u64) -> Option<String>;

    /// A write has failed after others were fine.
    fn on_failed(&self, error: &io::Error);

    /// A write has succeeded, and this many lines were lost before it without a [`Self::notice`].
    fn on_recovered(&self, lost: u64);
}

/// The queue to a [`Target`]. Lines that are in it when it is dropped are still written if that takes less than
/// [`PATIENCE`].
#[derive(Debug)]
pub struct Outlet(Arc<SharedOutlet>);

#[derive(Debug, Default)]
struct SharedOutlet {
    queue: Mutex<LineQueue>,
    /// The queue is no longer empty, or the thread has written what it had taken.
    changed: Condvar,
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct LineQueue {
    waiting: Vec<u8>,
    /// Whether the thread writes what it has taken from the queue.
    is_writing: bool,
    /// Whether nothing will be put into it any more.
    has_ended: bool,
}

impl Outlet {
    /// Starts the thread that writes to the target.
    pub fn start(name: &str, target: impl Target) -> Result<Self, SystemError> {
        let shared = Arc::new(SharedOutlet::default());
        let mut writer =
            Writer { shared: Arc::clone(&shared), target, told: 0, state: WriterState::Fine };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || writer.run());
        thread.map_err(SystemError::thread)?;
        Ok(Self(shared))
    }

    /// Puts whole lines into the queue, if it has room for all of them. This never waits for the target.
    pub fn put(&self, lines: &[u8]) {
        let mut queue = self.0.queue();
        if queue.waiting.len() + lines.len() > WAITING_MAX {
            self.0.count_lost(lines);
            return;
        }
        queue.waiting.extend_from_slice(lines);
        drop(queue);
        self.0.changed.notify_all();
    }

    /// How many lines were lost since the start.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Relaxed)
    }

    /// Waits until everything is written or lost, but not for longer than [`PATIENCE`].
    pub fn flush(&self) {
        let queue = self.0.queue();
        let is_busy = |queue: &mut LineQueue| queue.is_writing || !queue.waiting.is_empty();
        let waited = self.0.changed.wait_timeout_while(queue, PATIENCE, is_busy);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.flush();
        self.0.queue().has_ended = true;
        self.0.changed.notify_all();
    }
}

impl SharedOutlet {
    fn queue(&self) -> MutexGuard<'_, LineQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_lost(&self, bytes: &[u8]) {
        self.lost.fetch_add(lines_of(bytes), Relaxed);
    }
}

/// The number of lines that end in these bytes.
pub fn lines_of(bytes: &[u8]) -> u64 {
    bytes.split(|&byte| byte == b'\n').skip(1).count() as u64
}

/// Whether the last write has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriterState {
    Fine,
    Failing,
    /// A part of a line was written before a write failed.
    FailingWithinLine,
}

/// The thread of an outlet.
struct Writer<T> {
    shared: Arc<SharedOutlet>,
    target: T,
    /// The number of lost lines about which something was written.
    told: u64,
    state: WriterState,
}

impl<T: Target> Writer<T> {
    fn run(&mut self) {
        let mut taken = Vec::new();
        while self.take(&mut taken) {
            self.write_taken(&taken);
            taken.clear();
            self.shared.queue().is_writing = false;
            self.shared.changed.notify_all();
        }
    }

    /// Waits for lines, or until it is time to try again after lines were lost. Returns whether to go on.
    fn take(&self, taken: &mut Vec<u8>) -> bool {
        let mut queue = self.shared.queue();
        while queue.waiting.is_empty() {
            if queue.has_ended {
                return false;
            }
            let changed = &self.shared.changed;
            let untold = self.shared.lost.load(Relaxed) - self.told;
            if untold == 0 || self.target.notice(untold).is_none() {
                queue = changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = changed.wait_timeout(queue, RETRY).unwrap_or_else(PoisonError::into_inner);
            queue = waited.0;
            if waited.1.timed_out() {
                break;
            }
        }
        mem::swap(&mut queue.waiting, taken);
        queue.is_writing = true;
        true
    }

    /// Writes what was taken from the queue, after what there is to say about lines that were lost before.
    fn write_taken(&mut self, taken: &[u8]) {
        if self.write_before().is_err() {
            return self.shared.count_lost(taken);
        }
        if let Err(unwritten) = self.write_all(taken) {
            return self.shared.count_lost(unwritten);
        }
        let untold = self.shared.lost.load(Relaxed) - self.told;
        if untold > 0 && !taken.is_empty() && self.target.notice(untold).is_none() {
            self.told += untold;
            self.target.on_recovered(untold);
        }
    }

    /// Ends a line that was written in part, and writes how many were lost.
    fn write_before(&mut self) -> Result<(), &'static [u8]> {
        if self.state == WriterState::FailingWithinLine {
            self.write_all(b"\n")?;
        }
        let untold = self.shared.lost.load(Relaxed) - self.told;
        if let Some(notice) = self.target.notice(untold).filter(|_| untold > 0) {
            self.write_all(notice.as_bytes()).map_err(|_| &b""[..])?;
            self.told += untold;
        }
        Ok(())
    }

    /// The error is what was not written.
    fn write_all<'a>(&mut self, mut bytes: &'a [u8]) -> Result<(), &'a [u8]> {
        let all = bytes.len();
        while !bytes.is_empty() {
            match self.target.write(bytes) {
                Ok(written) if written > 0 => bytes = bytes.get(written..).unwrap_or_default(),
                result => {
                    let error = result.err().unwrap_or(io::ErrorKind::WriteZero.into());
                    if self.state == WriterState::Fine {
                        self.target.on_failed(&error);
                    }
                    let is_within_line =
                        bytes.len() < all || self.state == WriterState::FailingWithinLine;
                    self.state = if is_within_line {
                        WriterState::FailingWithinLine
                    } else {
                        WriterState::Failing
                    };
                    return Err(bytes);
                }
            }
        }
        if all > 0 {
            self.state = WriterState::Fine;
        }
        Ok(())
    }
}

/// Writes to a descriptor without the locks of the standard library, so that a write that waits for a reader holds up
/// nobody else. A descriptor that does not wait by itself is waited for here.
pub fn write(descriptor: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match rustix::io::write(&descriptor, bytes) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                match poll(&mut [PollFd::new(&descriptor, PollFlags::OUT)], None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            result => return result.map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{atomic::AtomicUsize, mpsc};

    use super::*;

    /// A disk with so much room.
    struct Disk {
        room: Arc<AtomicUsize>,
        tells_itself: bool,
        seen: mpsc::Sender<String>,
    }

    impl Target for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let written = self.room.load(Relaxed).min(bytes.len());
            if written == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room.fetch_sub(written, Relaxed);
            self.seen.send(String::from_utf8_lossy(&bytes[..written]).into_owned()).unwrap();
            Ok(written)
        }

        fn notice(&self, lost: u64) -> Option<String> {
            self.tells_itself.then(|| format!("lost {lost}\n"))
        }

        fn on_failed(&self, error: &io::Error) {
            self.seen.send(format!("<{:?}>", error.kind())).unwrap();
        }

        fn on_recovered(&self, lost: u64) {
            self.seen.send(format!("<{lost} lost>")).unwrap();
        }
    }

    #[test]
    fn lines_that_were_lost_are_counted_and_told_when_there_is_room_again() {
        for tells_itself in [true, false] {
            let (room, (seen, written)) = (Arc::new(AtomicUsize::new(10)), mpsc::channel());
            let disk = Disk { room: Arc::clone(&room), tells_itself, seen };
            let outlet = Outlet::start("test", disk).unwrap();
            for (lines, lost, what) in [
                ("one\n", 0, &["one\n"][..]),
                ("two\nthree\n", 1, &["two\nth", "<StorageFull>"]),
                ("four\nfive\n", 3, &[]),
            ] {
                outlet.put(lines.as_bytes());
                outlet.flush();
                assert_eq!(outlet.lost(), lost, "{lines:?}");
                assert_eq!(written.try_iter().collect::<Vec<_>>(), what);
            }
            room.store(1000, Relaxed);
            if tells_itself {
                // It tries again by itself.
                assert_eq!([written.recv().unwrap(), written.recv().unwrap()], ["\n", "lost 3\n"]);
            }
            outlet.put(b"six\n");
            drop(outlet);
            let rest: Vec<_> = written.iter().collect();
            let in_log = &["\n", "six\n", "<3 lost>"][..];
            assert_eq!(rest, if tells_itself { &["six\n"] } else { in_log });
        }
    }

    /// A reader who takes one write for each message.
    struct Slow {
        reads: mpsc::Receiver<()>,
        seen: mpsc::Sender<Vec<u8>>,
    }

    impl Target for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.reads.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.seen.send(bytes.to_owned()).unwrap();
            Ok(bytes.len())
        }

        fn notice(&self, lost: u64) -> Option<String> {
            Some(format!("lost {lost}\n"))
        }

        fn on_failed(&self, _: &io::Error) {}

        fn on_recovered(&self, _: u64) {}
    }

    #[test]
    fn without_room_lines_are_lost_and_nobody_waits() {
        let ((read, reads), (seen, written)) = (mpsc::channel(), mpsc::channel());
        let outlet = Outlet::start("test", Slow { reads, seen }).unwrap();
        let line = [vec![b'x'; 999], vec![b'\n']].concat();
        outlet.put(&line);
        while !outlet.0.queue().waiting.is_empty() {
            thread::yield_now();
        }
        for _ in 0..1500 {
            outlet.put(&line);
        }
        assert_eq!(outlet.lost(), 500);
        for len in [1000, "lost 500\n".len(), WAITING_MAX] {
            read.send(()).unwrap();
            assert_eq!(written.recv().unwrap().len(), len);
        }
    }

    #[test]
    fn the_end_waits_for_what_can_be_written() {
        let ((read, reads), (seen, written)) = (mpsc::channel(), mpsc::channel());
        let outlet = Outlet::start("test", Slow { reads, seen }).unwrap();
        outlet.put(b"last\n");
        read.send(()).unwrap();
        drop(outlet);
        assert_eq!(written.recv().unwrap(), b"last\n");
    }
}
