//! TCP over HTTP/3 in capsules (templated CONNECT-TCP, [draft-ietf-httpbis-connect-tcp]).
//!
//! [draft-ietf-httpbis-connect-tcp]: https://datatracker.ietf.org/doc/draft-ietf-httpbis-connect-tcp/

use bytes::{BufMut, Bytes};

use crate::capsule::{CAPSULE_TYPE_PROXY_STATUS, PROXY_STATUS_MAX};
use crate::chunks::{Chunks, HeaderBuffer, ValueBuffer};
use crate::{DecodeError, VarInt};

/// The value of `:protocol` in a request for a TCP connection in capsules.
pub const PROTOCOL_CONNECT_TCP: &str = "connect-tcp";

/// The type of the DATA capsule, whose value is a part of the stream of bytes. The value is that of the
/// draft, which is provisional.
pub const CAPSULE_TYPE_DATA: VarInt = VarInt::from_u32(0x2028_d7f2);

/// The type of the `FINAL_DATA` capsule, whose value is the last part of the stream of bytes. The value
/// is that of the draft, which is provisional.
pub const CAPSULE_TYPE_FINAL_DATA: VarInt = VarInt::from_u32(0x2028_d7f3);

/// The next thing in a stream of capsules that carries TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpPiece {
    /// The next bytes. Boundaries between capsules and pieces have no meaning.
    Data(Bytes),
    /// The sender has sent FIN. No bytes follow.
    Final,
    /// The value of a `Proxy-Status` field, which says why the connection was reset.
    ProxyStatus(Bytes),
}

/// Decodes capsules that carry TCP from a stream of bytes that arrives in arbitrary pieces. It passes
/// data on before their capsule is complete, and copies none. After an error it returns the same error
/// at every call.
#[derive(Debug, Default)]
pub struct TcpCapsuleDecoder {
    chunks: Chunks,
    state: ConnectTcpState,
    is_final: bool,
}

#[derive(Debug)]
enum ConnectTcpState {
    Header(HeaderBuffer),
    Data { remaining: u64 },
    FinalData { remaining: u64 },
    ProxyStatus(ValueBuffer),
    Skip { remaining: u64 },
    Failed(DecodeError),
}

impl Default for ConnectTcpState {
    fn default() -> Self {
        Self::Header(HeaderBuffer::default())
    }
}

impl TcpCapsuleDecoder {
    /// Creates a decoder at the beginning of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes from the stream. The caller has to call [`next`](Self::next) until it returns
    /// `None` before the following push; otherwise the bytes accumulate.
    pub fn push(&mut self, data: Bytes) {
        self.chunks.push(data);
    }

    /// Returns the next piece, or `None` if the decoder needs more bytes.
    ///
    /// # Errors
    ///
    /// [`DecodeError::DataAfterFinalData`] if the peer sends data after its FIN.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator ends with None, but this decoder goes on"
    )]
    pub fn next(&mut self) -> Result<Option<TcpPiece>, DecodeError> {
        loop {
            match &mut self.state {
                ConnectTcpState::Header(header) => {
                    let Some((capsule_type, len)) = header.fill(&mut self.chunks) else {
                        return Ok(None);
                    };
                    self.begin(capsule_type, len.get())?;
                }
                ConnectTcpState::FinalData { remaining: 0 } => {
                    self.state = ConnectTcpState::default();
                    self.is_final = true;
                    return Ok(Some(TcpPiece::Final));
                }
                ConnectTcpState::Data { remaining: 0 } | ConnectTcpState::Skip { remaining: 0 } => {
                    self.state = ConnectTcpState::default();
                }
                ConnectTcpState::Data { remaining } | ConnectTcpState::FinalData { remaining } => {
                    let Some(piece) = self.chunks.take_piece(*remaining) else { return Ok(None) };
                    *remaining -= piece.len() as u64;
                    return Ok(Some(TcpPiece::Data(piece)));
                }
                ConnectTcpState::ProxyStatus(value) => {
                    let Some(value) = value.fill(&mut self.chunks) else { return Ok(None) };
                    self.state = ConnectTcpState::default();
                    return Ok(Some(TcpPiece::ProxyStatus(value)));
                }
                ConnectTcpState::Skip { remaining } => match self.chunks.take_piece(*remaining) {
                    Some(piece) => *remaining -= piece.len() as u64,
                    None => return Ok(None),
                },
                ConnectTcpState::Failed(error) => return Err(error.clone()),
            }
        }
    }

    fn begin(&mut self, capsule_type: VarInt, len: u64) -> Result<(), DecodeError> {
        let is_data = matches!(capsule_type, CAPSULE_TYPE_DATA | CAPSULE_TYPE_FINAL_DATA);
        if is_data && self.is_final {
            self.state = ConnectTcpState::Failed(DecodeError::DataAfterFinalData);
            return Err(DecodeError::DataAfterFinalData);
        }
        self.state = match (capsule_type, usize::try_from(len)) {
            (CAPSULE_TYPE_DATA, _) => ConnectTcpState::Data { remaining: len },
            (CAPSULE_TYPE_FINAL_DATA, _) => ConnectTcpState::FinalData { remaining: len },
            (CAPSULE_TYPE_PROXY_STATUS, Ok(len)) if len <= PROXY_STATUS_MAX => {
                ConnectTcpState::ProxyStatus(ValueBuffer::new(len))
            }
            // RFC 9297 §3.2: "Endpoints that receive a Capsule with an unknown Capsule Type MUST
            // silently drop that Capsule and skip over it to parse the next Capsule."
            _ => ConnectTcpState::Skip { remaining: len },
        };
        Ok(())
    }

    /// Whether the peer's FIN has arrived. A stream that ends without it was cut off.
    pub const fn is_final(&self) -> bool {
        self.is_final
    }
}

/// Appends the header of a DATA capsule with a value of `len` bytes to `out`.
pub fn encode_tcp_data_header(len: usize, out: &mut impl BufMut) {
    CAPSULE_TYPE_DATA.encode(out);
    VarInt::from_len(len).encode(out);
}

/// Appends an empty `FINAL_DATA` capsule to `out`.
pub fn encode_tcp_final(out: &mut impl BufMut) {
    CAPSULE_TYPE_FINAL_DATA.encode(out);
    VarInt::from_len(0).encode(out);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;
    use crate::encode_capsule;

    /// Returns all pieces of a stream that arrives in `inputs`, with adjacent data joined, and the
    /// error at its end.
    fn decode_all(inputs: &[Bytes]) -> (Vec<TcpPiece>, Option<DecodeError>) {
        let mut decoder = TcpCapsuleDecoder::new();
        let mut pieces: Vec<TcpPiece> = Vec::new();
        for input in inputs {
            decoder.push(input.clone());
            loop {
                match decoder.next() {
                    Ok(Some(TcpPiece::Data(data))) => match pieces.last_mut() {
                        Some(TcpPiece::Data(last)) => *last = [&last[..], &data].concat().into(),
                        _ => pieces.push(TcpPiece::Data(data)),
                    },
                    Ok(Some(piece)) => pieces.push(piece),
                    Ok(None) => break,
                    Err(error) => return (pieces, Some(error)),
                }
            }
        }
        (pieces, None)
    }

    fn capsule(capsule_type: VarInt, value: &[u8]) -> Vec<u8> {
        let mut data = Vec::new();
        encode_capsule(capsule_type, value, &mut data);
        data
    }

    fn data(bytes: &'static [u8]) -> TcpPiece {
        TcpPiece::Data(Bytes::from_static(bytes))
    }

    #[test]
    fn capsules_decode() {
        let skipped = capsule(VarInt::from_u32(0x17), b"skipped");
        let too_long = capsule(CAPSULE_TYPE_PROXY_STATUS, &[b'a'; PROXY_STATUS_MAX + 1]);
        let after = Some(DecodeError::DataAfterFinalData);
        for (capsules, pieces, error) in [
            (vec![], vec![], None),
            (vec![capsule(CAPSULE_TYPE_DATA, b"")], vec![], None),
            (vec![capsule(CAPSULE_TYPE_DATA, b"ab"), skipped.clone()], vec![data(b"ab")], None),
            (
                vec![capsule(CAPSULE_TYPE_DATA, b"ab"), capsule(CAPSULE_TYPE_FINAL_DATA, b"c")],
                vec![data(b"abc"), TcpPiece::Final],
                None,
            ),
            (vec![capsule(CAPSULE_TYPE_FINAL_DATA, b""), skipped], vec![TcpPiece::Final], None),
            (
                vec![capsule(CAPSULE_TYPE_PROXY_STATUS, b"p; error=x"), too_long],
                vec![TcpPiece::ProxyStatus(Bytes::from_static(b"p; error=x"))],
                None,
            ),
            (
                vec![capsule(CAPSULE_TYPE_FINAL_DATA, b"a"), capsule(CAPSULE_TYPE_DATA, b"")],
                vec![data(b"a"), TcpPiece::Final],
                after.clone(),
            ),
            (
                vec![capsule(CAPSULE_TYPE_FINAL_DATA, b""), capsule(CAPSULE_TYPE_FINAL_DATA, b"")],
                vec![TcpPiece::Final],
                after,
            ),
        ] {
            let stream = Bytes::from(capsules.concat());
            assert_eq!(decode_all(&[stream]), (pieces, error), "{capsules:02x?}");
        }
    }

    #[test]
    fn data_is_passed_on_before_its_capsule_is_complete_and_not_copied() {
        let mut header = Vec::new();
        encode_tcp_data_header(1_000_000, &mut header);
        let mut decoder = TcpCapsuleDecoder::new();
        decoder.push(header.into());
        assert_eq!(decoder.next(), Ok(None));
        let sent = Bytes::from_static(b"a part");
        decoder.push(sent.clone());
        let Ok(Some(TcpPiece::Data(piece))) = decoder.next() else { panic!("no data") };
        assert_eq!((piece.as_ptr(), piece.len()), (sent.as_ptr(), sent.len()));
        assert_eq!(decoder.next(), Ok(None));
    }

    #[test]
    fn the_end_is_one_empty_capsule() {
        let mut stream = Vec::new();
        encode_tcp_final(&mut stream);
        let mut decoder = TcpCapsuleDecoder::new();
        decoder.push(stream.into());
        assert!(!decoder.is_final());
        assert_eq!(decoder.next(), Ok(Some(TcpPiece::Final)));
        assert!(decoder.is_final());
    }

    proptest! {
        #[test]
        fn any_bytes_give_the_same_pieces_however_they_are_split(
            capsules: Vec<(u8, Vec<u8>)>,
            rest: Vec<u8>,
            splits: Vec<Index>,
        ) {
            let mut stream = Vec::new();
            for (kind, value) in capsules {
                let capsule_type = match kind % 8 {
                    0..5 => CAPSULE_TYPE_DATA,
                    5 => CAPSULE_TYPE_FINAL_DATA,
                    6 => CAPSULE_TYPE_PROXY_STATUS,
                    _ => VarInt::from_u32(kind.into()),
                };
                encode_capsule(capsule_type, &value, &mut stream);
            }
            stream.extend(rest);
            let whole = decode_all(&[Bytes::copy_from_slice(&stream)]);
            let mut cuts: Vec<_> = splits.iter().map(|it| it.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let cut = cuts.windows(2).map(|cut| Bytes::copy_from_slice(&stream[cut[0]..cut[1]]));
            prop_assert_eq!(decode_all(&cut.collect::<Vec<_>>()), whole);
        }
    }
}
