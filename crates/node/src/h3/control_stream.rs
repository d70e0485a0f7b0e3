//! The control streams and the other unidirectional streams (RFC 9114 §6.2).

use std::collections::BTreeMap;

use bytes::BytesMut;
use tandem_wire::{
    Code, Frame, FrameDecoder, Settings, StreamKind, VarInt, encode_goaway, encode_settings,
    h3_frame::{
        STREAM_TYPE_CONTINUATION, STREAM_TYPE_CONTROL, STREAM_TYPE_PUSH, STREAM_TYPE_QPACK_DECODER,
        STREAM_TYPE_QPACK_ENCODER,
    },
};

use super::{ConnectionError, Side, qpack_stream::QpackStream, read};
use crate::quic::{Connection, Direction, Read, StreamId, Write};

/// The length of the longest frame on a control stream in bytes. SETTINGS frames of known
/// implementations have less than 100 bytes.
const MAX_CONTROL_FRAME: usize = 4096;

/// A unidirectional stream that the peer opened.
#[derive(Debug)]
enum PeerStream {
    /// The stream's type is not complete. These are its received bytes, at most 8.
    TypeUnknown(BytesMut),
    /// A continuation stream whose request stream is not known yet. These are the received bytes of its
    /// ID, at most 8.
    Continuation(BytesMut),
    Control(Box<FrameDecoder>),
    Qpack(QpackStream),
}

/// What a unidirectional stream of the peer has.
#[derive(Debug)]
pub(super) enum PeerStreamItem {
    /// A frame of the control stream.
    Frame(Frame),
    /// The stream continues this request stream. Its bytes follow, and are not read here.
    Continues(StreamId),
}

/// The control streams of a connection.
#[derive(Debug)]
pub(super) struct ControlStreams {
    side: Side,
    ours: Option<StreamId>,
    /// The bytes that could not be sent yet. The stream's type and SETTINGS are the first.
    unsent: BytesMut,
    peers: BTreeMap<StreamId, PeerStream>,
    /// The types of the peer's critical streams, each of which is allowed once.
    seen: Vec<VarInt>,
}

impl super::Session {
    /// Sends SETTINGS as soon as the connection has room for them. A server has it in its first flight (RFC
    /// 9001 §4.1.1), of which no event tells after a `ClientHello` of two packets.
    pub(crate) fn begin(&mut self, connection: &mut Connection) {
        self.control.open(connection);
    }
}

impl ControlStreams {
    pub(super) fn new(side: Side, settings: &Settings) -> Self {
        let mut unsent = BytesMut::new();
        STREAM_TYPE_CONTROL.encode(&mut unsent);
        // RFC 9114 §6.2.1: "Each side MUST initiate a single control stream at the beginning of
        // the connection and send its SETTINGS frame as the first frame on this stream."
        encode_settings(settings, &mut unsent);
        Self { side, ours: None, unsent, peers: BTreeMap::new(), seen: Vec::new() }
    }

    pub(super) fn is_ours(&self, stream: StreamId) -> bool {
        self.ours == Some(stream)
    }

    pub(super) fn open(&mut self, connection: &mut Connection) {
        if self.ours.is_none() {
            self.ours = connection.open(Direction::Unidirectional);
            self.flush(connection);
        }
    }

    pub(super) fn on_writable(&mut self, connection: &mut Connection, stream: StreamId) -> bool {
        let is_ours = self.is_ours(stream);
        if is_ours {
            self.flush(connection);
        }
        is_ours
    }

    pub(super) fn send_goaway(&mut self, connection: &mut Connection, first_rejected: u64) {
        encode_goaway(VarInt::saturating_from(first_rejected), &mut self.unsent);
        self.flush(connection);
    }

    fn flush(&mut self, connection: &mut Connection) {
        let Some(stream) = self.ours else { return }; // the peer allows none yet
        let mut data = self.unsent.split().freeze();
        if let Ok(Write::Blocked) = connection.write(stream, &mut data) {
            self.unsent.extend_from_slice(&data);
        }
    }

    /// Returns the next item of a unidirectional stream of the peer.
    pub(super) fn read(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
    ) -> Result<Option<PeerStreamItem>, ConnectionError> {
        loop {
            let peer = self
                .peers
                .entry(stream)
                .or_insert_with(|| PeerStream::TypeUnknown(BytesMut::new()));
            if let PeerStream::Control(decoder) = peer
                && let Some(frame) = decoder.next()?
            {
                return Ok(Some(PeerStreamItem::Frame(frame)));
            }
            let read = match peer {
                PeerStream::TypeUnknown(bytes) | PeerStream::Continuation(bytes) => {
                    connection.read(stream, missing(bytes))
                }
                PeerStream::Control(_) | PeerStream::Qpack(_) => read(connection, stream),
            };
            let data = match read {
                Read::Data(data) => data,
                Read::Blocked => return Ok(None),
                Read::Finished | Read::Reset(_) => return self.on_end(stream),
            };
            match peer {
                PeerStream::Control(decoder) => decoder.push(data),
                PeerStream::Qpack(instructions) => instructions.take(&data)?,
                PeerStream::TypeUnknown(bytes) => {
                    bytes.extend_from_slice(&data);
                    if let Ok(stream_type) = VarInt::decode(&mut bytes.clone()) {
                        self.on_type(connection, stream, stream_type)?;
                    }
                }
                PeerStream::Continuation(bytes) => {
                    bytes.extend_from_slice(&data);
                    if let Ok(request) = VarInt::decode(&mut bytes.clone()) {
                        self.peers.remove(&stream);
                        return Ok(Some(PeerStreamItem::Continues(StreamId(request.get()))));
                    }
                }
            }
        }
    }

    fn on_type(
        &mut self,
        connection: &mut Connection,
        stream: StreamId,
        stream_type: VarInt,
    ) -> Result<(), ConnectionError> {
        let peer = match stream_type {
            STREAM_TYPE_CONTROL => {
                let decoder = FrameDecoder::new(StreamKind::Control, MAX_CONTROL_FRAME);
                PeerStream::Control(Box::new(decoder))
            }
            STREAM_TYPE_QPACK_ENCODER => PeerStream::Qpack(QpackStream::Encoder),
            STREAM_TYPE_QPACK_DECODER => PeerStream::Qpack(QpackStream::decoder()),
            STREAM_TYPE_CONTINUATION => {
                self.peers.insert(stream, PeerStream::Continuation(BytesMut::new()));
                return Ok(());
            }
            STREAM_TYPE_PUSH => {
                return Err(ConnectionError {
                    code: match self.side {
                        // RFC 9114 §4.6: "A client MUST treat receipt of a push stream as a
                        // connection error of type H3_ID_ERROR when no MAX_PUSH_ID frame has been
                        // sent or when the stream references a push ID that is greater than the
                        // maximum push ID."
                        Side::Client => Code::H3_ID_ERROR,
                        // RFC 9114 §6.2.2: "if a server receives a client-initiated push stream,
                        // this MUST be treated as a connection error of type
                        // H3_STREAM_CREATION_ERROR."
                        Side::Server => Code::H3_STREAM_CREATION_ERROR,
                    },
                    reason: "the peer opened a push stream, but no push was allowed".into(),
                });
            }
            _ => {
                // RFC 9114 §6.2: "Recipients of unknown stream types MUST either abort reading of
                // the stream or discard incoming data without further processing."
                connection.stop(stream, Code::H3_STREAM_CREATION_ERROR);
                self.peers.remove(&stream);
                return Ok(());
            }
        };
        if self.seen.contains(&stream_type) {
            // RFC 9114 §6.2.1: "receipt of a second stream claiming to be a control stream MUST be
            // treated as a connection error of type H3_STREAM_CREATION_ERROR". RFC 9204 §4.2
            // requires the same for QPACK's streams.
            return Err(ConnectionError {
                code: Code::H3_STREAM_CREATION_ERROR,
                reason: format!("the peer opened a second stream of type {}", stream_type.get())
                    .into(),
            });
        }
        self.seen.push(stream_type);
        self.peers.insert(stream, peer);
        Ok(())
    }

    fn on_end(&mut self, stream: StreamId) -> Result<Option<PeerStreamItem>, ConnectionError> {
        match self.peers.remove(&stream) {
            // RFC 9114 §6.2.1 and RFC 9204 §4.2: critical streams must not be closed.
            Some(PeerStream::Control(_) | PeerStream::Qpack(_)) => Err(ConnectionError {
                code: Code::H3_CLOSED_CRITICAL_STREAM,
                reason: "the peer closed a control or QPACK stream".into(),
            }),
            Some(PeerStream::TypeUnknown(_) | PeerStream::Continuation(_)) | None => Ok(None),
        }
    }
}

/// How many more bytes a variable-length integer needs that begins with these. Without a first byte, it is
/// one byte, which says the length (RFC 9000 §16).
fn missing(bytes: &[u8]) -> usize {
    let len = bytes.first().map_or(1, |&first| VarInt::len_from(first));
    len - bytes.len().min(len - 1)
}
