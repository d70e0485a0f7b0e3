//! The receiving sides of a connection's streams.
//!
//! The engine can put a stream in order itself, but then it closes the connection when more than
//! 1024 pieces wait. So when many pieces of a stream wait, they are taken in the order of arrival, and
//! put in order here.
//!
//! The engine grants new flow control credit for bytes as soon as they are taken from it. Held bytes
//! are therefore subtracted from the window of the connection, so that it bounds their sum. A
//! stream's bytes are taken out of order only until its gaps are closed, so that the stream's window
//! bounds what waits for a slow caller. The connection's window grows by what waits, so that one slow
//! caller does not stop the others. What waits in too many pieces for the engine is taken as well, and counts as if it
//! still waited there.

use std::collections::{BTreeMap, btree_map::Entry};

use noq_proto::{Chunk, Chunks, ReadError, VarInt};
use tandem_wire::Code;

use super::{
    StreamId,
    config::{CONTINUATION_LEN, CONTINUATIONS_MAX, STREAM_RECEIVE_WINDOW, Windows},
    convert::to_noq,
    reassembly::{Held, Reassembly, Unread},
};
use crate::impossible::impossible;

/// The result of a read from a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// The next bytes of the stream.
    Data(bytes::Bytes),
    /// No bytes have arrived.
    Blocked,
    /// All bytes have been read.
    Finished,
    /// The peer reset the stream.
    Reset(Code),
}

/// The most held pieces of all streams together. It bounds their memory and the work of the engine,
/// which compares each frame with every range that has arrived. With a loss of 20 %, an honest peer
/// leaves 2,000 gaps at 1 Gbit/s and 100 ms. Above it only bytes that close a gap are taken.
const PIECES_MAX: u64 = 8192;

/// The least number of bytes after which an honest peer leaves another piece to hold: two packets, of
/// which one is lost. A queue that overflows at twice its rate drops every second packet. The smallest
/// packets have 1,200 bytes, and some of them are for headers.
const BYTES_PER_PIECE: u64 = 2 * 1150;

/// The number of pieces that may wait in the engine before they are taken out of order. While bytes
/// have been taken out of order, the engine drops others with lower offsets as duplicates when it
/// joins small pieces, which it does for a packet with 28 frames of one stream. A stream of which few
/// packets are in flight must not depend on that.
const WAITING_MAX: u64 = 512;

/// The number of pieces that may wait in the engine while the caller does not read. The engine ends a connection when
/// more than 2048 pieces of a stream wait, even if they touch each other. A stream with a window of 2 MB has fewer, so
/// that its peer is stopped by that window. With a larger window the pieces are taken, and held bytes stop the peer.
/// [`UNCOUNTED_MAX`] more may come before they are counted.
const UNREAD_PIECES_MAX: u64 = 1800;

/// The number of packets after which it is counted what waits in the engine. The kernel may give some 1,500 at once.
const UNCOUNTED_MAX: u32 = 64;

/// The bytes that may wait in the engine, of all streams together, without taking the connection's
/// window from the other streams: the windows of 32 streams, and what ours send on each stream that
/// continues one.
pub(super) const UNREAD_MAX: u64 =
    32 * STREAM_RECEIVE_WINDOW as u64 + CONTINUATION_LEN * CONTINUATIONS_MAX as u64;

/// The receiving sides of the streams of one connection.
pub(super) struct Receiver {
    streams: BTreeMap<StreamId, Box<Reassembly>>,
    /// What is held of all streams.
    held: Held,
    /// What all streams together have for their callers.
    unread: Unread,
    /// The window of the connection at its beginning.
    first: u64,
    /// How many bytes the caller got of all streams.
    delivered: u64,
    /// Whether the window grows by what waits in the engine.
    may_grow: bool,
    /// Whether pieces were taken because the caller reads nothing.
    is_paused: bool,
    /// The window of the connection in the engine.
    window: u64,
    /// How many bytes the caller had got when the engine last announced the window for certain.
    announced: u64,
    /// How many pieces were taken from the engine.
    pub(super) taken: u64,
    /// The packets since what waits was counted.
    uncounted: u32,
}

impl Receiver {
    /// For a connection that begins with these windows. That of all streams grows by what waits in the
    /// engine only if it is larger than that of one stream, which then bounds what waits of each.
    pub(super) const fn new(windows: Windows) -> Self {
        let Windows { stream, connection: window } = windows;
        Self {
            may_grow: window > stream,
            streams: BTreeMap::new(),
            held: Held { bytes: 0, pieces: 0 },
            unread: Unread::NONE,
            first: window,
            delivered: 0,
            is_paused: false,
            window,
            announced: 0,
            taken: 0,
            uncounted: 0,
        }
    }

    /// Notes a packet. Returns whether [`Self::on_readable`] must be called for what it brought before the next one:
    /// while bytes are held, because the engine joins small pieces when many wait in it (see [`WAITING_MAX`]), and
    /// after many packets.
    pub(super) const fn on_packet(&mut self) -> bool {
        self.uncounted += 1;
        self.has_held() || self.uncounted >= UNCOUNTED_MAX
    }

    /// Notes that [`Self::on_readable`] was called for everything.
    pub(super) const fn on_collected(&mut self) {
        self.uncounted = 0;
    }

    /// Reads at most `max` of the next bytes.
    pub(super) fn read(
        &mut self,
        engine: &mut noq_proto::Connection,
        stream: StreamId,
        max: usize,
    ) -> Read {
        let held_max = self.held_max();
        let reassembly = self.streams.entry(stream).or_default();
        let others = self.held - reassembly.held();
        self.unread -= reassembly.unread();
        let mut taking = Taking { reassembly, others, held_max, taken: &mut self.taken };
        let read = taking.read(engine, stream, max);
        if let Read::Data(data) = &read {
            self.delivered += data.len() as u64;
            self.is_paused = false;
        }
        if matches!(read, Read::Data(_) | Read::Blocked) {
            self.held = others + reassembly.held();
            self.unread += reassembly.unread();
        } else {
            self.held = others;
            self.streams.remove(&stream);
        }
        self.update_window(engine);
        read
    }

    /// Notes that something arrived on a stream, and takes it if bytes before it have been taken out of
    /// order.
    pub(super) fn on_readable(&mut self, engine: &mut noq_proto::Connection, stream: StreamId) {
        let held_max = self.held_max();
        let reassembly = match self.streams.entry(stream) {
            Entry::Occupied(known) => known.into_mut(),
            // Nobody has read it yet. What comes counts nevertheless, unless the stream has ended.
            Entry::Vacant(new) => match engine.recv_stream(to_noq(stream)).is_ordered() {
                Ok(_) => new.insert(Box::default()),
                Err(_) => return,
            },
        };
        let others = self.held - reassembly.held();
        self.unread -= reassembly.unread();
        reassembly.waiting += 1;
        if reassembly.has_gap() {
            let mut taking = Taking { reassembly, others, held_max, taken: &mut self.taken };
            taking.fill_gap(engine, stream);
        }
        let has_excess = reassembly.waiting > UNREAD_PIECES_MAX;
        self.held = others + reassembly.held();
        self.unread += reassembly.unread();
        if has_excess {
            self.take_excess(engine, stream);
        }
        self.update_window(engine);
    }

    /// Takes pieces of a stream of which the engine bears no more, because its caller reads nothing. If the
    /// connection's
    /// window does not grow by such bytes, it becomes small, so that the peer stops.
    fn take_excess(&mut self, engine: &mut noq_proto::Connection, stream: StreamId) {
        if !self.may_grow {
            self.is_paused = true;
            // Before anything is taken, because the engine gives credit for what is taken.
            self.update_window(engine);
        }
        let held_max = self.held_max();
        let Some(reassembly) = self.streams.get_mut(&stream) else {
            return impossible("something has arrived on the stream");
        };
        let others = self.held - reassembly.held();
        self.unread -= reassembly.unread();
        Taking { reassembly, others, held_max, taken: &mut self.taken }.take_excess(engine, stream);
        self.held = others + reassembly.held();
        self.unread += reassembly.unread();
    }

    /// Forgets a stream that this end stopped.
    pub(super) fn forget(&mut self, engine: &mut noq_proto::Connection, stream: StreamId) {
        if let Some(reassembly) = self.streams.remove(&stream) {
            self.held = self.held - reassembly.held();
            self.unread -= reassembly.unread();
            self.update_window(engine);
        }
    }

    /// The stream of which most waits, if all streams together have more than the connection's window
    /// grows by.
    pub(super) fn stalled(&self) -> Option<StreamId> {
        if self.unread.bytes() <= UNREAD_MAX {
            return None;
        }
        self.streams.iter().max_by_key(|(_, it)| it.unread().bytes()).map(|(&stream, _)| stream)
    }

    /// Whether any bytes are held.
    pub(super) const fn has_held(&self) -> bool {
        self.held.pieces > 0
    }

    /// An estimate of the memory that held bytes take.
    pub(super) const fn memory(&self) -> u64 {
        self.held.memory()
    }

    /// The connection's window while nothing is held.
    fn base(&self) -> u64 {
        self.first + self.delivered.min(self.first)
    }

    /// How many bytes of all streams may be held for callers that read nothing.
    fn held_max(&self) -> u64 {
        self.base() + self.growth()
    }

    /// By how much the connection's window may grow by what waits for callers.
    const fn growth(&self) -> u64 {
        if self.may_grow { UNREAD_MAX } else { 0 }
    }

    /// Updates the connection's window, in steps of an eighth. It is at first what the connection began
    /// with, and grows to twice as much with what the caller takes. Held bytes are subtracted, because
    /// the engine has granted credit for them already. No credit is given for bytes that may become more
    /// pieces than are held. Bytes that wait for their callers are added, up to a bound, so that a stream that
    /// is not read does not stop the others.
    fn update_window(&mut self, engine: &mut noq_proto::Connection) {
        let step = self.first / 8;
        let unread = self.unread.bytes().min(self.growth());
        let room = PIECES_MAX.saturating_sub(self.held.pieces) * BYTES_PER_PIECE;
        let behind_gaps = self.held.bytes - if self.may_grow { self.unread.ready } else { 0 };
        let usual = self.base().saturating_sub(behind_gaps).max(step);
        let window = if self.is_paused { step } else { usual }.min(room) + unread;
        // While the caller reads nothing, the window is exact, so that what may still come fits the engine.
        if window.abs_diff(self.window) >= step || (self.is_paused && window != self.window) {
            self.window = window;
            set_window(engine, window);
        }
        // The engine announces credit in eighths of its window, which unread bytes may have made larger than what is
        // left of it for others. It announces a window that it is told to be larger at once.
        if self.window > 2 * self.first && self.delivered - self.announced >= step {
            self.announced = self.delivered;
            set_window(engine, self.window - 1);
            set_window(engine, self.window);
        }
    }
}

fn set_window(engine: &mut noq_proto::Connection, window: u64) {
    engine.set_receive_window(VarInt::from_u64(window).unwrap_or(VarInt::MAX));
}

/// Takes the bytes of one stream from the engine.
struct Taking<'a> {
    reassembly: &'a mut Reassembly,
    /// What is held of the other streams.
    others: Held,
    /// The bytes of all streams that are held for a caller that reads nothing. Behind missing bytes it may be twice as
    /// much.
    held_max: u64,
    taken: &'a mut u64,
}

impl Taking<'_> {
    fn read(&mut self, engine: &mut noq_proto::Connection, stream: StreamId, max: usize) -> Read {
        if let Some(bytes) = self.reassembly.pop(max) {
            return Read::Data(bytes);
        }
        if let Some(code) = self.reassembly.reset {
            return Read::Reset(code);
        }
        let read = self.read_engine(engine, stream, max);
        if read == Read::Blocked
            && !self.reassembly.is_unordered
            && self.reassembly.waiting > WAITING_MAX
        {
            self.reassembly.is_unordered = true;
            return self.read_engine(engine, stream, max);
        }
        read
    }

    fn read_engine(
        &mut self,
        engine: &mut noq_proto::Connection,
        stream: StreamId,
        max: usize,
    ) -> Read {
        let mut stream = engine.recv_stream(to_noq(stream));
        let Ok(mut chunks) = stream.read(!self.reassembly.is_unordered) else {
            // The stream was read to its end, or this end stopped it. The caller knows of both.
            return Read::Finished;
        };
        loop {
            match self.next(&mut chunks, max) {
                Ok(Some(chunk)) if chunk.offset == self.reassembly.next() => {
                    self.reassembly.pass(chunk.bytes.len());
                    return Read::Data(chunk.bytes);
                }
                Ok(Some(chunk)) => self.reassembly.hold(chunk.offset, &chunk.bytes),
                Ok(None) => return Read::Finished,
                Err(ReadError::Blocked) => return Read::Blocked,
                Err(ReadError::Reset(code)) => return Read::Reset(Code(code.into_inner())),
            }
        }
    }

    /// Takes pieces until the engine bears those that are left, or as many bytes are held as may be.
    fn take_excess(&mut self, engine: &mut noq_proto::Connection, stream: StreamId) {
        self.reassembly.is_unordered = true;
        let own_max = self.held_max.saturating_sub(self.others.bytes);
        self.take_while(engine, stream, |reassembly| {
            reassembly.waiting > WAITING_MAX && reassembly.held().bytes < own_max
        });
    }

    /// Takes what has come while bytes are missing before others that were taken.
    fn fill_gap(&mut self, engine: &mut noq_proto::Connection, stream: StreamId) {
        self.take_while(engine, stream, Reassembly::has_gap);
    }

    fn take_while(
        &mut self,
        engine: &mut noq_proto::Connection,
        stream: StreamId,
        goes_on: impl Fn(&Reassembly) -> bool,
    ) {
        let mut stream = engine.recv_stream(to_noq(stream));
        let Ok(mut chunks) = stream.read(false) else { return }; // the stream has ended
        while goes_on(self.reassembly) {
            match self.next(&mut chunks, usize::MAX) {
                Ok(Some(chunk)) => self.reassembly.hold(chunk.offset, &chunk.bytes),
                Ok(None) | Err(ReadError::Blocked) => return,
                Err(ReadError::Reset(code)) => {
                    self.reassembly.reset(Code(code.into_inner()));
                    return;
                }
            }
        }
    }

    /// The next piece in the engine, which returns its pieces by offset.
    fn next(&mut self, chunks: &mut Chunks<'_>, max: usize) -> Result<Option<Chunk>, ReadError> {
        if self.reassembly.is_unordered && !self.takes_any() {
            // A read of no bytes says the offset of the piece, and takes nothing.
            match chunks.next(0) {
                Ok(Some(chunk)) if self.needs(chunk.offset) => {}
                Ok(Some(_)) => return Err(ReadError::Blocked),
                other => {
                    self.reassembly.waiting = 0;
                    return other;
                }
            }
        }
        let chunk = chunks.next(max);
        if matches!(chunk, Ok(Some(_))) {
            *self.taken += 1;
            self.reassembly.waiting = self.reassembly.waiting.saturating_sub(1);
        }
        chunk
    }

    /// Whether the piece at this offset is taken even if not any piece is: the one that the caller needs
    /// next, or, while bytes are missing, one that continues a held piece.
    fn needs(&self, offset: u64) -> bool {
        offset == self.reassembly.next()
            || (self.reassembly.has_gap() && self.reassembly.continues(offset))
    }

    /// Whether any piece is taken now, or only one that is needed.
    fn takes_any(&self) -> bool {
        let held = self.others + self.reassembly.held();
        let is_unread = self.reassembly.is_ready() && held.bytes >= 2 * self.held_max;
        let is_full = held.pieces >= PIECES_MAX || is_unread;
        (self.reassembly.has_gap() || self.reassembly.waiting > WAITING_MAX) && !is_full
    }
}
