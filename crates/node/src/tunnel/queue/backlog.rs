//! Bytes of TCP connections that wait for their request streams. They take turns with the payloads of
//! all other flows. None of them is ever dropped: the node reads from a TCP connection only while its
//! backlog is short.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Buf, Bytes};

use super::{Engine, Queue, turns::TurnResult};
use crate::{carrier::QueueCarrier, quic::StreamId, quic::Write};

/// The backlog of one request stream.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pieces: VecDeque<Piece>,
    len: usize,
    /// Bytes that it may still send in its turn.
    deficit: usize,
    has_turn: bool,
    /// Whether flow control lets the stream send nothing.
    is_blocked: bool,
    /// Whether the stream ends after these bytes.
    is_last: bool,
}

/// The rest of a header or of its data.
#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    /// Whether the header of a frame begins here.
    begins_frame: bool,
}

/// All backlogs of a tunnel.
#[derive(Debug, Default)]
pub(super) struct Backlogs {
    by_stream: BTreeMap<StreamId, Backlog>,
    /// Streams whose backlog has become short.
    drained: VecDeque<StreamId>,
}

impl Backlogs {
    pub(super) fn has(&self, stream: StreamId) -> bool {
        !self.by_stream.is_empty() && self.by_stream.contains_key(&stream)
    }

    /// Bytes of memory that all backlogs take.
    pub(super) fn memory(&self) -> usize {
        let of_one = |it: &Backlog| {
            size_of::<Backlog>() + it.len + it.pieces.capacity() * size_of::<Piece>()
        };
        self.by_stream.values().map(of_one).sum()
    }
}

impl Queue {
    /// A TCP connection may be read from while its stream's backlog has fewer bytes. It keeps 1 Gbit/s
    /// busy for half a millisecond.
    pub(in crate::tunnel) const BACKLOG_SHORT: usize = 64 * 1024;

    /// Adds one frame to the backlog of a stream: `header`, then `data`.
    pub(in crate::tunnel) fn push_bytes(&mut self, stream: StreamId, header: Bytes, data: Bytes) {
        let backlog = self.backlogs.by_stream.entry(stream).or_default();
        for (bytes, begins_frame) in [(header, true), (data, false)] {
            if !bytes.is_empty() {
                backlog.len += bytes.len();
                backlog.pieces.push_back(Piece { bytes, begins_frame });
            }
        }
        self.give_backlog_turn(stream);
    }

    /// Ends a stream after its backlog.
    pub(in crate::tunnel) fn finish_bytes(&mut self, stream: StreamId) {
        self.backlogs.by_stream.entry(stream).or_default().is_last = true;
        self.give_backlog_turn(stream);
    }

    /// Bytes that wait for a stream.
    pub(in crate::tunnel) fn backlog(&self, stream: StreamId) -> usize {
        self.backlogs.by_stream.get(&stream).map_or(0, |backlog| backlog.len)
    }

    /// Whether nothing waits: neither payloads, nor bytes, nor the end of a stream.
    pub(in crate::tunnel) fn is_empty(&self) -> bool {
        self.len() == 0 && self.backlogs.by_stream.is_empty()
    }

    /// The next stream whose backlog has become short.
    pub(in crate::tunnel) fn poll_drained(&mut self) -> Option<StreamId> {
        self.backlogs.drained.pop_front()
    }

    /// Whether a stream's backlog has become short.
    pub(in crate::tunnel) fn has_drained(&self) -> bool {
        !self.backlogs.drained.is_empty()
    }

    pub(super) fn give_backlog_turn(&mut self, stream: StreamId) {
        if let Some(backlog) = self.backlogs.by_stream.get_mut(&stream)
            && !backlog.is_blocked
            && !std::mem::replace(&mut backlog.has_turn, true)
        {
            self.turns.push_back(stream);
        }
    }

    /// Takes a backlog out of the round until it can send something. An empty one is forgotten.
    pub(super) fn end_backlog_turns(&mut self, stream: StreamId) {
        let Some(backlog) = self.backlogs.by_stream.get_mut(&stream) else { return }; // of UDP payloads
        (backlog.has_turn, backlog.deficit) = (false, 0);
        if backlog.pieces.is_empty() {
            if backlog.is_last {
                self.turns.remove(stream);
            }
            self.backlogs.by_stream.remove(&stream);
        }
    }

    /// Notes that flow control lets a stream send again.
    pub(super) fn unblock_backlog(&mut self, stream: StreamId) {
        if let Some(backlog) = self.backlogs.by_stream.get_mut(&stream) {
            backlog.is_blocked = false;
            self.give_backlog_turn(stream);
        }
    }

    /// Forgets the backlog of a stream.
    pub(super) fn remove_backlog(&mut self, stream: StreamId) {
        if self.backlogs.by_stream.remove(&stream).is_some() {
            self.backlogs.drained.retain(|&drained| drained != stream);
        }
    }

    /// Sends bytes of a backlog, as many as its turn allows.
    pub(super) fn backlog_turn(
        &mut self,
        engine: &mut Engine<'_, impl QueueCarrier>,
        stream: StreamId,
    ) -> TurnResult {
        let (is_alone, quantum) = (self.turns.is_alone(), self.turns.quantum(stream));
        let Some(backlog) = self.backlogs.by_stream.get_mut(&stream) else {
            return TurnResult::Nothing;
        };
        let Some(piece) = backlog.pieces.front_mut().filter(|_| !backlog.is_blocked) else {
            if backlog.is_last && backlog.pieces.is_empty() {
                engine.carrier.finish(stream);
            }
            return TurnResult::Nothing;
        };
        if !is_alone && backlog.deficit == 0 {
            backlog.deficit = quantum;
            return TurnResult::Ended;
        }
        if std::mem::take(&mut piece.begins_frame) {
            engine.carrier.begin_frame(stream);
        }
        let piece = &mut piece.bytes;
        let most = if is_alone { piece.len() } else { piece.len().min(backlog.deficit) };
        engine.hold_burst();
        let mut part = piece.slice(..most);
        let result = engine.carrier.write_body(stream, &mut part);
        let sent = most - part.len();
        piece.advance(sent);
        if piece.is_empty() {
            backlog.pieces.pop_front();
        }
        let before = backlog.len;
        backlog.len -= sent;
        backlog.deficit = backlog.deficit.saturating_sub(sent);
        if before >= Self::BACKLOG_SHORT && backlog.len < Self::BACKLOG_SHORT {
            self.backlogs.drained.push_back(stream);
        }
        match result {
            Ok(Write::Done) => TurnResult::Used,
            Ok(Write::Blocked) if engine.carrier.is_held(stream) => TurnResult::EngineIsFull,
            Ok(Write::Blocked) => {
                backlog.is_blocked = true;
                TurnResult::Nothing
            }
            // The stream was reset or stopped, of which its owner is told.
            Err(_) => {
                backlog.pieces.clear();
                backlog.len = 0;
                TurnResult::Nothing
            }
        }
    }
}
