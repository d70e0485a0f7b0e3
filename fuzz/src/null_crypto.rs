//! A handshake of the QUIC engine without cryptography, so that a fuzz target spends its time in
//! the proxy. The client's first message is its transport parameters; its second is one byte.

use std::any::Any;

use bytes::BytesMut;
use noq_proto::{
    ConnectionId, PathId, Side, TransportError,
    crypto::{
        CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig,
        Session, UnsupportedVersion,
    },
    transport_parameters::TransportParameters,
};

/// The configuration of a server without cryptography.
pub struct NullCrypto;

impl ServerConfig for NullCrypto {
    fn initial_keys(&self, _: u32, _: ConnectionId) -> Result<Keys, UnsupportedVersion> {
        Ok(keys())
    }

    fn retry_tag(&self, _: u32, _: ConnectionId, _: &[u8]) -> [u8; 16] {
        [0; 16]
    }

    fn start_session(&self, _: u32, _: &TransportParameters) -> Box<dyn Session> {
        Box::new(NullSession { peer: None, flights: 0, is_handshaking: true })
    }
}

struct NullSession {
    peer: Option<TransportParameters>,
    /// The number of messages that were written, one at each level.
    flights: u8,
    is_handshaking: bool,
}

impl Session for NullSession {
    fn initial_keys(&self, _: ConnectionId, _: Side) -> Keys {
        keys()
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.is_handshaking
    }

    fn read_handshake(&mut self, mut message: &[u8]) -> Result<bool, TransportError> {
        if self.peer.is_none() {
            self.peer = Some(TransportParameters::read(Side::Server, &mut message)?);
            return Ok(true);
        }
        if self.flights == 2 {
            self.is_handshaking = false;
        }
        Ok(false)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        Ok(self.peer)
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        if self.peer.is_none() || self.flights == 2 {
            return None;
        }
        self.flights += 1;
        out.push(self.flights);
        Some(keys())
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        Some(keys().packet)
    }

    fn is_valid_retry(&self, _: ConnectionId, _: &[u8], _: &[u8]) -> bool {
        true
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        output.fill(0);
        Ok(())
    }
}

/// A key that changes nothing.
struct NullKey;

fn keys() -> Keys {
    Keys {
        header: KeyPair { local: Box::new(NullKey), remote: Box::new(NullKey) },
        packet: KeyPair { local: Box::new(NullKey), remote: Box::new(NullKey) },
    }
}

impl HeaderKey for NullKey {
    fn decrypt(&self, _: usize, _: &mut [u8]) {}

    fn encrypt(&self, _: usize, _: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        0
    }
}

impl PacketKey for NullKey {
    fn encrypt(&self, _: PathId, _: u64, _: &mut [u8], _: usize) {}

    fn decrypt(&self, _: PathId, _: u64, _: &[u8], _: &mut BytesMut) -> Result<(), CryptoError> {
        Ok(())
    }

    fn tag_len(&self) -> usize {
        0
    }

    fn confidentiality_limit(&self) -> u64 {
        u64::MAX
    }

    fn integrity_limit(&self) -> u64 {
        u64::MAX
    }
}
