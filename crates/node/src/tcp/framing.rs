//! The forms in which bytes of a TCP connection travel on a request stream.

use bytes::{Bytes, BytesMut};
use tandem_wire::{
    Code, StrangerText, TcpCapsuleDecoder, TcpPiece, encode_tcp_data_header, encode_tcp_final,
};

use crate::{
    carrier::Carrier,
    h3::{Body, ConnectionError},
    quic::StreamId,
    tunnel::in_frame,
};

/// The form of a request for a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Templated CONNECT-TCP (draft-ietf-httpbis-connect-tcp): bytes travel in capsules, and a FIN is a
    /// capsule of its own.
    Capsules,
    /// CONNECT (RFC 9114 §4.4): the body is the stream of bytes.
    Classic,
}

/// The peer's bytes on a request stream.
#[derive(Debug)]
pub(super) enum Framing {
    Capsules(TcpCapsuleDecoder),
    Classic,
}

/// The next thing that a request stream has.
#[derive(Debug)]
pub(crate) enum Next {
    Data(Bytes),
    /// The other end of the TCP connection has sent FIN.
    Fin,
    /// The stream has ended after a FIN.
    End,
    /// Nothing has arrived.
    Blocked,
    /// The peer has reset the stream.
    Reset(Code),
    /// The connection is cut off, because the stream ended without a FIN. The peer may have said why in
    /// the form of a `Proxy-Status` field.
    Cut(Option<StrangerText>),
    /// The peer sent something that it must not send. The stream must be reset with this code.
    Malformed(Code),
    /// The peer violated HTTP/3.
    Broken(ConnectionError),
}

/// The longest header of a capsule.
const HEADER_MAX: usize = 16;

impl Form {
    /// What comes before `len` bytes of data on the stream.
    pub(super) fn header(self, len: usize) -> Bytes {
        let mut capsule = BytesMut::with_capacity(HEADER_MAX);
        if self == Self::Capsules {
            encode_tcp_data_header(len, &mut capsule);
        }
        in_frame(&capsule, len)
    }

    /// What comes before the end of the stream after a FIN.
    pub(super) fn fin(self) -> Bytes {
        let mut capsule = BytesMut::with_capacity(HEADER_MAX);
        match self {
            Self::Capsules => encode_tcp_final(&mut capsule),
            // RFC 9114 §4.4: "When the stream ends [...] the proxy will set the FIN bit".
            Self::Classic => return Bytes::new(),
        }
        in_frame(&capsule, 0)
    }

    pub(super) fn framing(self) -> Framing {
        match self {
            Self::Capsules => Framing::Capsules(TcpCapsuleDecoder::new()),
            Self::Classic => Framing::Classic,
        }
    }
}

impl Framing {
    /// Reads from a request stream.
    pub(super) fn read(&mut self, carrier: &mut Carrier<'_>, stream: StreamId) -> Next {
        loop {
            if let Self::Capsules(decoder) = self {
                match decoder.next() {
                    Ok(Some(TcpPiece::Data(data))) => return Next::Data(data),
                    Ok(Some(TcpPiece::Final)) => return Next::Fin,
                    Ok(Some(TcpPiece::ProxyStatus(status))) => {
                        return Next::Cut(Some(StrangerText::from_bytes(&status)));
                    }
                    Ok(None) => {}
                    Err(error) => return Next::Malformed(error.code()),
                }
            }
            match (carrier.read_body(stream), &mut *self) {
                (Ok(Body::Data(data)), Self::Capsules(decoder)) => decoder.push(data),
                (Ok(Body::Data(data)), Self::Classic) => return Next::Data(data),
                (Ok(Body::Blocked), _) => return Next::Blocked,
                // RFC 9114 §4.4: the end of the stream is the FIN.
                (Ok(Body::End), Self::Classic) => return Next::End,
                // The draft: if the receive stream ends without FINAL_DATA, the TCP connection is
                // reset.
                (Ok(Body::End), Self::Capsules(decoder)) if decoder.is_final() => {
                    return Next::End;
                }
                (Ok(Body::Failed(code)), _) => return Next::Reset(code),
                (Ok(Body::End), _) => return Next::Cut(None),
                (Err(error), _) => return Next::Broken(error),
            }
        }
    }
}
