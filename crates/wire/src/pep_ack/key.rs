//! Who may report packets: the key that a PEP and a sender share.

use std::fmt;

use ring::hmac;
use subtle::ConstantTimeEq;

/// The key with which a PEP authenticates its PEP-ACKs (HMAC-SHA-256, [RFC 2104]).
///
/// [RFC 2104]: https://www.rfc-editor.org/rfc/rfc2104
#[derive(Clone)]
pub struct PepKey {
    bytes: [u8; Self::LEN],
    hmac: hmac::Key,
}

/// A key is never shown.
impl fmt::Debug for PepKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PepKey")
    }
}

impl PepKey {
    /// The length of a key in bytes.
    pub const LEN: usize = 32;

    /// The length of the message authentication code (MAC) of a PEP-ACK for QUIC in bytes: the first
    /// half of an HMAC.
    pub const MAC_LEN: usize = 16;

    /// A key of these bytes, which must be unpredictable.
    pub fn new(bytes: [u8; Self::LEN]) -> Self {
        Self { bytes, hmac: hmac::Key::new(hmac::HMAC_SHA256, &bytes) }
    }

    /// Its bytes, for a PEP in the kernel.
    pub const fn bytes(&self) -> &[u8; Self::LEN] {
        &self.bytes
    }

    /// Whether a PEP-ACK for QUIC is one of the PEP that has this key. The time does not depend on where
    /// the MAC differs.
    pub fn authenticates(&self, payload: &[u8]) -> bool {
        let Some((content, mac)) = payload.split_last_chunk::<{ Self::MAC_LEN }>() else {
            return false;
        };
        self.mac::<{ Self::MAC_LEN }>(&[content]).ct_eq(mac).into()
    }

    /// The first bytes of the HMAC of these parts, one after another.
    pub(super) fn mac<const LEN: usize>(&self, parts: &[&[u8]]) -> [u8; LEN] {
        const { assert!(LEN <= 32, "an HMAC-SHA-256 has 32 bytes") };
        let mut context = hmac::Context::with_key(&self.hmac);
        for part in parts {
            context.update(part);
        }
        let tag = context.sign();
        tag.as_ref().first_chunk().copied().unwrap_or([0; LEN])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mac_is_hmac_sha_256() {
        // RFC 4231 §4.2, with its key padded to the 32 bytes of ours: HMAC pads keys with zeros.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let mac = PepKey::new(key).mac::<8>(&[b"Hi ", b"There"]);
        assert_eq!(mac, [0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38, 0x53]);
        assert_eq!(format!("{:?}", PepKey::new(key)), "PepKey", "no key is printed");
    }
}
