//! A node's requests to name servers, to the disk and to the system's tables of sockets, and their answers.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_util::{
    FutureExt, StreamExt,
    future::{self, BoxFuture},
    stream::FuturesUnordered,
};
use tandem_node::{
    node::{FileError, FileId, FileMeta, Input, Progress, QueryId},
    password::{CheckId, PasswordCheck},
    tcp::{TcpId, TcpInput},
};
use tokio::{
    sync::{Semaphore, mpsc},
    task::{JoinError, spawn_blocking},
    time::sleep_until,
};

use crate::{
    clock,
    files::{Files, OpenFile},
    owners::Tables,
    resolver::Resolver,
};

/// The shortest time between two looks at the tables of sockets.
const OWNERS_PAUSE: Duration = Duration::from_millis(20);

/// The pause after a look, in times of what the look took. So the looks take a fifth of a core at most, also when
/// a program has opened thousands of sockets.
const OWNERS_PAUSE_FACTOR: u32 = 4;

/// Checks of passwords take a core and up to 64 MiB each. A process makes one at a time, and has this many waiting.
const CHECKS_MAX: usize = 64;

/// The turn to check a password.
static CHECK: Semaphore = Semaphore::const_new(1);

/// How many checks run or wait.
static CHECKS: AtomicUsize = AtomicUsize::new(0);

/// A place among the checks that run or wait.
struct CheckPlace;

impl CheckPlace {
    fn take() -> Option<Self> {
        let place = Self; // it gives itself back
        (CHECKS.fetch_add(1, Relaxed) < CHECKS_MAX).then_some(place)
    }
}

impl Drop for CheckPlace {
    fn drop(&mut self) {
        CHECKS.fetch_sub(1, Relaxed);
    }
}

/// The requests in flight. The node limits their number: it has one request per query and one per
/// file.
pub(crate) struct Requests {
    in_flight: FuturesUnordered<BoxFuture<'static, RequestAnswer>>,
    /// Answers of requests that are still in flight: a few for each name.
    parts: (mpsc::UnboundedSender<Input>, mpsc::UnboundedReceiver<Input>),
    resolver: Option<Resolver>,
    files: Option<Files>,
    open: BTreeMap<FileId, FileState>,
    /// When the tables of sockets may be looked at again.
    next_look: Option<Instant>,
}

enum FileState {
    Opening,
    Open(Arc<OpenFile>),
}

enum RequestAnswer {
    Opened(FileId, Result<(OpenFile, FileMeta), FileError>),
    /// The UDP ports of a program's user, and when the next look may begin.
    UdpPorts(TcpId, io::Result<Box<[u16]>>, Instant),
    Other(Input),
}

impl Requests {
    /// Creates the state without requests. Without a resolver, the system's configuration is read
    /// for the first query. Without files, every file is "not found".
    pub(crate) fn new(resolver: Option<Resolver>, files: Option<Files>) -> Self {
        let (in_flight, open) = (FuturesUnordered::new(), BTreeMap::new());
        Self { in_flight, parts: mpsc::unbounded_channel(), resolver, files, open, next_look: None }
    }

    pub(crate) fn resolve(&mut self, query: QueryId, host: String) {
        let resolver = self.resolver.get_or_insert_with(Resolver::from_system).clone();
        let parts = self.parts.0.clone();
        let answer = async move {
            let answer = |result, progress| Input::Resolved { query, result, progress };
            let tell = |found| drop(parts.send(answer(Ok(found), Progress::Partial)));
            let result = resolver.resolve(&host, tell).await;
            RequestAnswer::Other(answer(result, Progress::Complete))
        };
        self.in_flight.push(answer.boxed());
    }

    pub(crate) fn resolve_service(&mut self, query: QueryId, host: String, port: u16) {
        let resolver = self.resolver.get_or_insert_with(Resolver::from_system).clone();
        let parts = self.parts.0.clone();
        let answer = async move {
            let answer = |result, progress| Input::ServiceResolved { query, result, progress };
            let tell = |found| drop(parts.send(answer(Ok(found), Progress::Partial)));
            let result = resolver.resolve_service(&host, port, tell).await;
            RequestAnswer::Other(answer(result, Progress::Complete))
        };
        self.in_flight.push(answer.boxed());
    }

    /// Finds the UDP ports of the user who owns the first of these ends of a TCP connection.
    pub(crate) fn find_udp_ports(
        &mut self,
        tcp: TcpId,
        ends: io::Result<(SocketAddr, SocketAddr)>,
    ) {
        let begin = self.next_look;
        let answer = async move {
            if let Some(begin) = begin {
                sleep_until(begin.into()).await;
            }
            let looked = clock::now();
            let look = spawn_blocking(move || Tables::of_process().udp_ports(ends?));
            let result = look.await.unwrap_or_else(|error| Err(io::Error::other(error)));
            let now = clock::now();
            let pause = OWNERS_PAUSE_FACTOR * now.saturating_duration_since(looked);
            RequestAnswer::UdpPorts(tcp, result, now + pause.max(OWNERS_PAUSE))
        };
        self.in_flight.push(answer.boxed());
    }

    pub(crate) fn check_password(&mut self, check: CheckId, password: PasswordCheck) {
        let place = CheckPlace::take();
        let answer = async move {
            let is_right = match place {
                None => None,
                Some(_place) => {
                    let _turn = CHECK.acquire().await;
                    spawn_blocking(move || password.is_right()).await.ok()
                }
            };
            RequestAnswer::Other(Input::PasswordChecked { check, is_right })
        };
        self.in_flight.push(answer.boxed());
    }

    pub(crate) fn open_file(&mut self, file: FileId, path: Vec<String>) {
        self.open.insert(file, FileState::Opening);
        let Some(files) = self.files.clone() else {
            let nothing = RequestAnswer::Opened(file, Err(FileError::NotFound));
            return self.in_flight.push(future::ready(nothing).boxed());
        };
        let answer = async move {
            let result = spawn_blocking(move || files.open(&path)).await;
            RequestAnswer::Opened(file, result.unwrap_or_else(|error| Err(interrupted(&error))))
        };
        self.in_flight.push(answer.boxed());
    }

    pub(crate) fn read_file(&mut self, id: FileId, offset: u64, len: usize) {
        let Some(FileState::Open(file)) = self.open.get(&id) else {
            let result = Err(FileError::NotFound);
            let nothing = RequestAnswer::Other(Input::FileChunk { file: id, result });
            return self.in_flight.push(future::ready(nothing).boxed());
        };
        let file = Arc::clone(file);
        let answer = async move {
            let result = spawn_blocking(move || file.read(offset, len)).await;
            let result = result.unwrap_or_else(|error| Err(interrupted(&error)));
            RequestAnswer::Other(Input::FileChunk { file: id, result })
        };
        self.in_flight.push(answer.boxed());
    }

    pub(crate) fn close_file(&mut self, file: FileId) {
        self.open.remove(&file);
    }

    /// Appends the answers that have arrived to `inputs`.
    pub(crate) fn poll_answers(&mut self, context: &mut Context<'_>, inputs: &mut Vec<Input>) {
        if self.in_flight.is_empty() && self.parts.1.is_empty() {
            return; // this is asked at each wake-up, and mostly there is no request
        }
        let mut last = Vec::new();
        while let Poll::Ready(Some(answer)) = self.in_flight.poll_next_unpin(context) {
            last.extend(self.input(answer));
        }
        // The parts of an answer come before its end.
        while let Poll::Ready(Some(part)) = self.parts.1.poll_recv(context) {
            inputs.push(part);
        }
        inputs.append(&mut last);
    }

    /// Converts an answer to an input, or to `None` if the node has closed the file in the
    /// meantime.
    fn input(&mut self, answer: RequestAnswer) -> Option<Input> {
        match answer {
            RequestAnswer::Opened(file, result) => {
                let state = self.open.get_mut(&file)?;
                let result = result.map(|(open, meta)| {
                    *state = FileState::Open(Arc::new(open));
                    meta
                });
                Some(Input::FileOpened { file, result })
            }
            RequestAnswer::UdpPorts(tcp, result, next_look) => {
                self.next_look = Some(next_look);
                let result = result.map_err(|error| {
                    tracing::debug!(%error, "the owner of a TCP connection is not known");
                    error.kind()
                });
                Some(Input::Tcp(TcpInput::UdpPorts { tcp, result }))
            }
            RequestAnswer::Other(Input::FileChunk { file, .. })
                if !self.open.contains_key(&file) =>
            {
                None
            }
            RequestAnswer::Other(input) => Some(input),
        }
    }
}

/// Logs that the blocking task panicked or was cancelled with the runtime, and returns its error.
fn interrupted(error: &JoinError) -> FileError {
    tracing::error!(%error, "access to a file was interrupted");
    FileError::Io(io::ErrorKind::Interrupted.into())
}
