//! Request streams over which the payloads of one flow are spread. See `docs/design/wire.md`.

use crate::quic::StreamId;

/// The request streams of one flow.
#[derive(Debug)]
pub(super) struct StreamGroup {
    /// The stream that opened the flow, and those that joined it.
    streams: Vec<StreamId>,
    /// The index of the stream whose turn is next.
    next: usize,
}

impl StreamGroup {
    pub(super) fn new(first: StreamId) -> Self {
        Self { streams: vec![first], next: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    /// The streams that joined the flow.
    pub(super) fn joined(&self) -> impl Iterator<Item = StreamId> {
        self.streams.iter().skip(1).copied()
    }

    pub(super) fn join(&mut self, stream: StreamId) {
        self.streams.push(stream);
    }

    pub(super) fn leave(&mut self, stream: StreamId) {
        self.streams.retain(|&other| other != stream);
    }

    /// The stream for the next payload: the one with the fewest waiting bytes. Several equal ones
    /// take turns.
    pub(super) fn pick(&mut self, waiting: impl Fn(StreamId) -> usize) -> Option<StreamId> {
        if let [only] = *self.streams {
            self.next = 1;
            return Some(only);
        }
        let count = self.streams.len();
        let in_turn = (self.next..self.next + count).map(|turn| turn % count.max(1));
        let shortest = in_turn.min_by_key(|&index| {
            self.streams.get(index).map_or(usize::MAX, |&stream| waiting(stream))
        })?;
        self.next = shortest + 1;
        self.streams.get(shortest).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAMS: [StreamId; 3] = [StreamId(0), StreamId(4), StreamId(8)];

    fn group() -> StreamGroup {
        let mut group = StreamGroup::new(STREAMS[0]);
        group.join(STREAMS[1]);
        group.join(STREAMS[2]);
        group
    }

    #[test]
    fn streams_take_turns_while_nothing_waits() {
        let mut group = group();
        let picked: Vec<_> = (0..7).filter_map(|_| group.pick(|_| 0)).map(|id| id.0).collect();
        assert_eq!(picked, [0, 4, 8, 0, 4, 8, 0]);
    }

    #[test]
    fn the_stream_with_the_fewest_waiting_bytes_is_next() {
        let mut group = group();
        for _ in 0..3 {
            assert_eq!(
                group.pick(|stream| if stream == STREAMS[2] { 1 } else { 2 }),
                Some(STREAMS[2])
            );
        }
    }

    #[test]
    fn a_stream_that_left_gets_no_payload() {
        let mut group = group();
        group.pick(|_| 0);
        group.pick(|_| 0);
        group.leave(STREAMS[1]);
        let picked: Vec<_> = (0..3).filter_map(|_| group.pick(|_| 0)).map(|id| id.0).collect();
        assert_eq!(picked, [0, 8, 0]);
        group.leave(STREAMS[0]);
        group.leave(STREAMS[2]);
        assert_eq!(group.pick(|_| 0), None);
    }
}
