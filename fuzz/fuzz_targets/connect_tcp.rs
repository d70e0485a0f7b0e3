//! A stream of capsules that carries TCP: the bytes do not depend on how the stream is split, none is
//! invented, nothing follows a FIN, and an error stays.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_fuzz::split;
use tandem_wire::{DecodeError, TcpCapsuleDecoder, TcpPiece};

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (lengths, stream) = input;
    let whole = read(&split(stream, &[]));
    assert_eq!(read(&split(stream, &lengths)), whole);
    assert!(whole.data.len() <= stream.len());
    assert!(whole.statuses.iter().all(|status| status.len() <= stream.len()));
});

/// What a stream says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    data: Vec<u8>,
    statuses: Vec<Bytes>,
    is_final: bool,
    error: Option<DecodeError>,
}

fn read(pieces: &[Bytes]) -> Said {
    let mut decoder = TcpCapsuleDecoder::new();
    let mut said = Said::default();
    for piece in pieces {
        decoder.push(piece.clone());
        loop {
            match decoder.next() {
                Ok(None) => break,
                Ok(Some(TcpPiece::Data(data))) => {
                    assert!(!data.is_empty(), "a piece has bytes");
                    assert!(!said.is_final, "no bytes follow a FIN");
                    said.data.extend_from_slice(&data);
                }
                Ok(Some(TcpPiece::Final)) => {
                    assert!(!std::mem::replace(&mut said.is_final, true), "one FIN is enough");
                }
                Ok(Some(TcpPiece::ProxyStatus(status))) => said.statuses.push(status),
                Err(error) => {
                    decoder.push(Bytes::from_static(b"more"));
                    assert_eq!(decoder.next(), Err(error.clone()), "an error stays");
                    said.error = Some(error);
                    return said;
                }
            }
        }
        assert_eq!(decoder.is_final(), said.is_final);
    }
    said
}
