//! A handshake of the QUIC engine without cryptography, so that a fuzz target spends its time in
//! the node. The first message of each end is its transport parameters; its second is one byte.

use std::any::Any;

use bytes::BytesMut;
use noq_proto::{
    ConnectError, ConnectionId, PathId, Side, TransportError,
    crypto::{
        ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey,
        ServerConfig, Session, UnsupportedVersion,
    },
    transport_parameters::TransportParameters,
};

/// The configuration of a server or a client without cryptography.
pub struct NullCrypto;

impl ClientConfig for NullCrypto {
    fn start_session(
        &self,
        _: u32,
        _: &str,
        parameters: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let mut own = Vec::new();
        parameters.write(&mut own);
        Ok(Box::new(NullClientSession { own: Some(own), peer: None, received: 0, keys: 0 }))
    }
}

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

/// What the sessions of both ends have in common.
macro_rules! null_session {
    () => {
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
    };
}

struct NullClientSession {
    /// The first message, until it was sent.
    own: Option<Vec<u8>>,
    peer: Option<TransportParameters>,
    /// The number of messages of the server.
    received: u8,
    /// The number of keys that the engine has got.
    keys: u8,
}

impl Session for NullClientSession {
    fn read_handshake(&mut self, mut message: &[u8]) -> Result<bool, TransportError> {
        self.received = (self.received + 1).min(2);
        if self.peer.is_none() {
            self.peer = Some(TransportParameters::read(Side::Client, &mut message)?);
            return Ok(true);
        }
        Ok(false)
    }

    fn is_handshaking(&self) -> bool {
        self.received < 2
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        Ok(self.peer)
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        if let Some(own) = self.own.take() {
            out.extend(own);
            return None;
        }
        if self.keys == self.received {
            return None;
        }
        self.keys += 1;
        if self.keys == 2 {
            out.push(1);
        }
        Some(keys())
    }

    null_session!();
}

struct NullSession {
    peer: Option<TransportParameters>,
    /// The number of messages that were written, one at each level.
    flights: u8,
    is_handshaking: bool,
}

impl Session for NullSession {
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

    null_session!();
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
