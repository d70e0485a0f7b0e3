//! Request streams over which the payloads of one flow are spread, and what requests and grants say
//! of them. See `docs/wire.md`.

use http::{HeaderMap, HeaderName};
use tandem_wire::{GroupField, GroupFieldError};

use crate::{fields::only_line, quic::StreamId};

/// The field's name.
pub(crate) const GROUP: HeaderName = HeaderName::from_static(GroupField::NAME);

/// What the other end says of a group. The error says why its field is ignored.
pub(crate) fn read(headers: &HeaderMap) -> (Option<GroupField>, Option<GroupFieldError>) {
    let Some(line) = only_line(headers, &GROUP) else { return (None, None) };
    let field = line.map_err(GroupFieldError::Syntax);
    match field.and_then(|value| GroupField::parse(&value)) {
        Ok(field) => (Some(field), None),
        Err(error) => (None, Some(error)),
    }
}

/// The request streams of one flow.
#[derive(Debug)]
pub(crate) struct StreamGroup {
    /// The one that opened the flow, and those that joined it.
    streams: Vec<StreamId>,
    /// Whose turn it is.
    next: usize,
}

impl StreamGroup {
    pub(crate) fn new(first: StreamId) -> Self {
        Self { streams: vec![first], next: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = StreamId> {
        self.streams.iter().copied()
    }

    /// Those that joined.
    pub(crate) fn joined(&self) -> impl Iterator<Item = StreamId> {
        self.streams.iter().skip(1).copied()
    }

    pub(crate) fn join(&mut self, stream: StreamId) {
        self.streams.push(stream);
    }

    pub(crate) fn leave(&mut self, stream: StreamId) {
        self.streams.retain(|&other| other != stream);
    }

    /// The stream for the next payload: of those for which the fewest bytes wait, the one whose turn
    /// it is.
    pub(crate) fn pick(&mut self, waiting: impl Fn(StreamId) -> usize) -> Option<StreamId> {
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
    use http::HeaderValue;

    use super::*;

    const STREAMS: [StreamId; 3] = [StreamId(0), StreamId(4), StreamId(8)];

    fn group() -> StreamGroup {
        let mut group = StreamGroup::new(STREAMS[0]);
        group.join(STREAMS[1]);
        group.join(STREAMS[2]);
        group
    }

    #[test]
    fn streams_have_their_turns_while_nothing_waits() {
        let mut group = group();
        let picked: Vec<_> = (0..7).filter_map(|_| group.pick(|_| 0)).map(|id| id.0).collect();
        assert_eq!(picked, [0, 4, 8, 0, 4, 8, 0]);
    }

    #[test]
    fn the_stream_with_the_least_waiting_is_next() {
        let mut group = group();
        for _ in 0..3 {
            assert_eq!(
                group.pick(|stream| if stream == STREAMS[2] { 1 } else { 2 }),
                Some(STREAMS[2])
            );
        }
    }

    #[test]
    fn who_left_has_no_turn() {
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

    #[test]
    fn fields_that_make_no_sense_are_ignored_with_a_reason() {
        for (lines, is_read, is_error) in [
            (&[][..], false, false),
            (&["8"], true, false),
            (&["8", "8"], false, true),
            (&["99"], false, true),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(GROUP, HeaderValue::from_static(line));
            }
            let (field, error) = read(&headers);
            assert_eq!((field.is_some(), error.is_some()), (is_read, is_error), "{lines:?}");
        }
    }
}
