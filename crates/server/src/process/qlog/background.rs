//! Writes the qlog files of connections in a thread of its own, so that no thread that carries packets waits for a
//! disk. The queue has a bound. A qlog that does not fit into it ends, because one with a gap would show a connection
//! that pauses.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    mem,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
};

use tandem_net::clock;
use tandem_node::seldom::Seldom;
use tracing::warn;

use crate::process::{outlet::PATIENCE, secret};

/// The most bytes that wait for the disk: the packets of some seconds at full load.
const WAITING_MAX: usize = 16_000_000;

/// The bytes that a file counts for that waits to be made, so that the number of these has a bound too.
const OF_NEW_FILE: usize = 1000;

/// The bytes of a qlog that are collected before they are queued.
const CHUNK: usize = 8192;

/// The thread and its queue, once there is a qlog.
static WRITER: OnceLock<RecordQueue> = OnceLock::new();

/// Makes a file in the thread that writes them all. Its errors are logged there, and the file ends.
pub(super) fn create(path: PathBuf) -> io::Result<Box<dyn Write + Send>> {
    if let Some(queue) = WRITER.get() {
        return queue.create(path);
    }
    let queue = RecordQueue::start(secret::create_new)?;
    WRITER.get_or_init(|| queue).create(path)
}

/// Waits until all qlogs are written, but not for longer than [`PATIENCE`].
pub fn flush() {
    if let Some(queue) = WRITER.get() {
        queue.flush();
    }
}

/// How many qlog files end before their connections.
pub fn cut() -> u64 {
    WRITER.get().map_or(0, |queue| queue.shared.cut.load(Relaxed))
}

/// What to do with a file, by its number.
enum Job {
    Create(u64, PathBuf),
    Append(u64, Vec<u8>),
    Close(u64),
    /// The channel is closed when everything before it is done.
    Flush(mpsc::Sender<()>),
}

#[derive(Clone)]
struct RecordQueue {
    /// The jobs in it have [`WAITING_MAX`] bytes at most, besides the ends of files that were begun.
    jobs: mpsc::Sender<Job>,
    shared: Arc<SharedQlogs>,
}

#[derive(Default)]
struct SharedQlogs {
    waiting: AtomicUsize,
    cut: AtomicU64,
    files: AtomicU64,
}

impl RecordQueue {
    /// Starts the thread. `make` makes a file.
    fn start<F: Write>(make: impl Fn(&Path) -> io::Result<F> + Send + 'static) -> io::Result<Self> {
        let ((jobs, to_do), shared) = (mpsc::channel(), Arc::new(SharedQlogs::default()));
        let queue = Self { jobs, shared: Arc::clone(&shared) };
        let thread = thread::Builder::new().name("tandem-qlog".to_owned());
        thread.spawn(move || work(&to_do, &shared, make))?;
        Ok(queue)
    }

    fn create(&self, path: PathBuf) -> io::Result<Box<dyn Write + Send>> {
        let number = self.shared.files.fetch_add(1, Relaxed);
        self.put(OF_NEW_FILE, Job::Create(number, path))?;
        Ok(Box::new(QlogHandle { number, queue: self.clone(), buffer: Vec::new(), is_cut: false }))
    }

    /// Queues a job that counts for so many bytes.
    fn put(&self, bytes: usize, job: Job) -> io::Result<()> {
        if self.shared.waiting.fetch_add(bytes, Relaxed) + bytes > WAITING_MAX {
            self.shared.waiting.fetch_sub(bytes, Relaxed);
            self.shared.cut.fetch_add(1, Relaxed);
            return Err(io::Error::other("the disk does not keep up"));
        }
        self.send(job);
        Ok(())
    }

    fn send(&self, job: Job) {
        // The thread ends with the process; a panic of it has been printed.
        self.jobs.send(job).ok();
    }

    fn flush(&self) {
        let (done, until_done) = mpsc::channel();
        self.send(Job::Flush(done));
        until_done.recv_timeout(PATIENCE).ok();
    }
}

/// One qlog, as the thread sees it that carries packets.
struct QlogHandle {
    number: u64,
    queue: RecordQueue,
    buffer: Vec<u8>,
    /// Nothing more is written, because something is missing.
    is_cut: bool,
}

impl Write for QlogHandle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_cut {
            self.buffer.extend_from_slice(bytes);
            if self.buffer.len() >= CHUNK {
                self.flush()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() || self.is_cut {
            return Ok(());
        }
        let bytes = mem::take(&mut self.buffer);
        let result = self.queue.put(bytes.len(), Job::Append(self.number, bytes));
        self.is_cut = result.is_err();
        result
    }
}

impl Drop for QlogHandle {
    fn drop(&mut self) {
        // That it is cut is counted.
        self.flush().ok();
        self.queue.send(Job::Close(self.number));
    }
}

/// Does all jobs.
fn work<F: Write>(
    jobs: &mpsc::Receiver<Job>,
    shared: &SharedQlogs,
    make: impl Fn(&Path) -> io::Result<F>,
) {
    let mut files: BTreeMap<u64, (PathBuf, F)> = BTreeMap::new();
    let mut warning = Seldom::default();
    let mut fail = |file: &Path, error: io::Error| {
        shared.cut.fetch_add(1, Relaxed);
        if let Some(left_out) = warning.due(clock::now()) {
            let file = file.display();
            warn!(%file, %error, left_out, "a qlog file ends before its connection");
        }
    };
    for job in jobs {
        match job {
            Job::Create(number, path) => {
                match make(&path) {
                    Ok(file) => drop(files.insert(number, (path, file))),
                    Err(error) => fail(&path, error),
                }
                shared.waiting.fetch_sub(OF_NEW_FILE, Relaxed);
            }
            Job::Append(number, bytes) => {
                if let Some((path, file)) = files.get_mut(&number)
                    && let Err(error) = file.write_all(&bytes)
                {
                    fail(path, error);
                    files.remove(&number);
                }
                shared.waiting.fetch_sub(bytes.len(), Relaxed);
            }
            Job::Close(number) => drop(files.remove(&number)),
            Job::Flush(done) => drop(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A disk that has so much room for each file, and writes when it is told.
    #[derive(Clone)]
    struct Disk {
        room: usize,
        written: Arc<Mutex<Vec<u8>>>,
        turns: Arc<Mutex<mpsc::Receiver<()>>>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.turns.lock().unwrap().recv().ok();
            let mut written = self.written.lock().unwrap();
            if written.len() + bytes.len() > self.room {
                return Err(io::ErrorKind::StorageFull.into());
            }
            written.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The queue to a disk, what the disk has, and how to let it write.
    fn queue(room: usize) -> (RecordQueue, Arc<Mutex<Vec<u8>>>, mpsc::Sender<()>) {
        let (turn, turns) = mpsc::channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        let disk = Disk { room, written: Arc::clone(&written), turns: Arc::new(Mutex::new(turns)) };
        (RecordQueue::start(move |_| Ok(disk.clone())).unwrap(), written, turn)
    }

    #[test]
    fn the_end_of_a_connection_writes_what_was_collected() {
        let (queue, written, turn) = queue(100);
        let mut file = queue.create("a".into()).unwrap();
        file.write_all(b"record").unwrap();
        turn.send(()).unwrap();
        drop(file);
        queue.flush();
        assert_eq!(*written.lock().unwrap(), b"record");
        assert_eq!((queue.shared.waiting.load(Relaxed), queue.shared.cut.load(Relaxed)), (0, 0));
    }

    #[test]
    fn a_disk_that_hangs_cuts_qlogs_and_holds_up_nobody() {
        let (queue, written, turn) = queue(usize::MAX);
        let mut file = queue.create("a".into()).unwrap();
        let chunk = [b'x'; CHUNK];
        let queued = (0..10_000).take_while(|_| file.write_all(&chunk).is_ok()).count();
        assert_eq!(queued, (WAITING_MAX - OF_NEW_FILE) / CHUNK);
        assert!(file.write_all(&chunk).is_ok(), "it is cut, and takes everything");
        assert!(queue.create("b".into()).is_ok(), "a small thing still fits");
        drop(file);
        drop(turn); // the disk is back
        queue.flush();
        assert_eq!(written.lock().unwrap().len(), queued * CHUNK);
        assert_eq!((queue.shared.waiting.load(Relaxed), queue.shared.cut.load(Relaxed)), (0, 1));
    }

    #[test]
    fn a_full_disk_cuts_each_qlog_once() {
        let (queue, written, turn) = queue(CHUNK);
        drop(turn);
        let mut file = queue.create("a".into()).unwrap();
        for _ in 0..4 {
            file.write_all(&[b'x'; CHUNK]).unwrap();
        }
        drop(file);
        queue.flush();
        assert_eq!(written.lock().unwrap().len(), CHUNK);
        assert_eq!((queue.shared.waiting.load(Relaxed), queue.shared.cut.load(Relaxed)), (0, 1));
    }
}
