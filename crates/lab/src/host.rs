use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    marker::PhantomData,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tandem_netem::SplitMix64;
use tandem_node::{
    Event, Input, Node,
    node::{FileError, FileId, FileMeta, SocketId},
    tcp::{TcpId, TcpInput},
};

use crate::{Body, Contents, FileSet, sockets::Sockets, tcp::TcpSocket};

/// Identifies a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub(crate) u32);

impl HostId {
    /// The number of the host. Hosts are numbered from 0, in the order in which they were added.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Identifies a host and carries the type of its node.
pub struct Handle<N> {
    id: HostId,
    node: PhantomData<fn() -> N>,
}

impl<N> Handle<N> {
    pub(crate) const fn new(id: HostId) -> Self {
        Self { id, node: PhantomData }
    }

    /// The identifier of the host.
    pub const fn id(self) -> HostId {
        self.id
    }
}

impl<N> Clone for Handle<N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N> Copy for Handle<N> {}

impl<N> fmt::Debug for Handle<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

impl<N> From<Handle<N>> for HostId {
    fn from(handle: Handle<N>) -> Self {
        handle.id
    }
}

/// A node that can be downcast to its original type.
pub(crate) trait AnyNode: Node + Any {}

impl<N: Node + Any> AnyNode for N {}

/// One host: a node, and the state that an operating system keeps for it.
pub(crate) struct Host {
    pub(crate) name: String,
    /// The node. With `None` the process does not run, but the machine does.
    pub(crate) node: Option<Box<dyn AnyNode>>,
    /// The number of nodes that ran here before. Answers to an earlier node do not reach the
    /// current one.
    pub(crate) incarnation: u64,
    pub(crate) timer: Timer,
    pub(crate) sockets: Sockets<SocketId>,
    pub(crate) tcp_sockets: Sockets<TcpSocket>,
    /// Where the program listens that has the other end of the standard input and output.
    pub(crate) stdio: Option<SocketAddr>,
    pub(crate) files: FileSet,
    open_files: BTreeMap<FileId, Contents>,
    pub(crate) body: Body,
    /// How long the process of a busy host sleeps after something has come for it.
    pub(crate) pause: Option<Pause>,
    /// What has come while the process of a busy host slept.
    pub(crate) waiting: Vec<Input>,
    /// The events that the node emitted, with their times since the start of the world.
    pub(crate) events: Vec<(Duration, Event)>,
    /// The peers that the node told that their packets are too large, with the length of the packet
    /// and what fits.
    pub(crate) too_big: Vec<(SocketAddr, usize, usize)>,
}

/// How long the process of a busy host sleeps after something has come for it.
#[derive(Debug)]
pub(crate) enum Pause {
    /// Always for this time.
    Always(Duration),
    /// For a random time of at most this one.
    UpTo(Duration, SplitMix64),
}

impl Pause {
    /// How long it sleeps this time.
    pub(crate) fn next(&mut self) -> Duration {
        match self {
            Self::Always(pause) => *pause,
            Self::UpTo(longest, generator) => {
                let share = u32::try_from(generator.next_u64() >> 48).expect("16 bits");
                longest.saturating_mul(share) / (1 << 16)
            }
        }
    }
}

/// The deadline of a node.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    /// The time at which the node wants to be woken.
    pub(crate) wanted: Option<Instant>,
    /// The earliest event in the world's agenda that checks this timer.
    pub(crate) scheduled: Option<Instant>,
    /// The number of times in a row that the node asked for a time that had passed.
    pub(crate) stalls: u32,
}

impl Host {
    pub(crate) fn new(name: String, addresses: Vec<IpAddr>) -> Self {
        Self {
            name,
            node: None,
            incarnation: 0,
            timer: Timer::default(),
            sockets: Sockets::new(addresses.clone()),
            tcp_sockets: Sockets::new(addresses),
            stdio: None,
            files: FileSet::new(),
            open_files: BTreeMap::new(),
            body: Body::new(),
            pause: None,
            waiting: Vec::new(),
            events: Vec::new(),
            too_big: Vec::new(),
        }
    }

    /// Ends the process, if one runs. Its sockets, open files, timers and body are discarded.
    pub(crate) fn kill(&mut self) {
        self.node = None;
        self.incarnation += 1;
        self.timer.wanted = None;
        self.timer.stalls = 0;
        self.waiting.clear();
        self.sockets.close_all();
        self.tcp_sockets.close_all();
        self.open_files.clear();
        self.body = Body::new();
    }

    pub(crate) fn open_file(
        &mut self,
        file: FileId,
        path: &[String],
    ) -> Result<FileMeta, FileError> {
        let (meta, contents) = self.files.open(path)?;
        self.open_files.insert(file, contents);
        Ok(meta)
    }

    pub(crate) fn read_file(
        &self,
        file: FileId,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, FileError> {
        let contents = self.open_files.get(&file).ok_or(FileError::NotFound)?;
        Ok(contents.read(offset, len))
    }

    /// Discards what a busy process has not been told yet about a TCP connection.
    pub(crate) fn forget_tcp(&mut self, closed: TcpId) {
        self.waiting.retain(|input| match input {
            Input::Tcp(
                TcpInput::Opened { tcp, .. }
                | TcpInput::Read { tcp, .. }
                | TcpInput::Written { tcp, .. }
                | TcpInput::Failed { tcp, .. },
            ) => *tcp != closed,
            _ => true,
        });
    }

    pub(crate) fn open_files(&self) -> usize {
        self.open_files.len()
    }

    pub(crate) fn close_file(&mut self, file: FileId) {
        self.open_files.remove(&file);
    }
}
