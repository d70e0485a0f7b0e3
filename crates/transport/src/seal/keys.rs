//! The secrets and keys of sealed packets, and how each generation of keys follows from the one
//! before.

use std::fmt;

use ring::{
    aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey, quic},
    hkdf::{HKDF_SHA256, KeyType, Okm, Prk},
};
use tandem_wire::VarInt;

use super::header::HeaderProtection;

/// The length of a secret in bytes: that of the output of SHA-256.
const SECRET_LEN: usize = 32;

/// The length of the key of the header protection in bytes: that of AES-128.
const HEADER_KEY_LEN: usize = 16;

/// The secret of one flow in one direction, from which all its keys follow. It is never printed.
///
/// It cannot be cloned, so that no two [`Sealer`](super::Sealer)s use the same keys and packet
/// numbers.
pub struct Secret([u8; SECRET_LEN]);

impl Secret {
    /// Takes the bytes of a secret.
    pub const fn new(bytes: &[u8; SECRET_LEN]) -> Self {
        Self(*bytes)
    }

    /// HKDF-Expand-Label with SHA-256 and without context ([RFC 8446 §7.1]).
    ///
    /// [RFC 8446 §7.1]: https://www.rfc-editor.org/rfc/rfc8446#section-7.1
    fn expand<L: KeyType, T>(
        &self,
        label: &str,
        output: L,
        take: impl FnOnce(Okm<'_, L>) -> T,
    ) -> T {
        const PREFIX: &[u8] = b"tls13 ";
        const SHORT: &str = "labels and keys are short";
        let output_len = u16::try_from(output.len()).expect(SHORT).to_be_bytes();
        let label_len = u8::try_from(PREFIX.len() + label.len()).expect(SHORT);
        let info = [&output_len[..], &[label_len], PREFIX, label.as_bytes(), &[0]];
        let key = Prk::new_less_safe(HKDF_SHA256, &self.0);
        take(key.expand(&info, output).expect(SHORT))
    }

    pub(super) fn expand_bytes<const N: usize>(&self, label: &str) -> [u8; N] {
        let mut bytes = [0; N];
        let filled = self.expand(label, Len::<N>, |okm| okm.fill(&mut bytes));
        filled.expect("the length is that of the array");
        bytes
    }

    /// The secret of the generation after this one (as in [RFC 9001 §6.1]).
    ///
    /// [RFC 9001 §6.1]: https://www.rfc-editor.org/rfc/rfc9001#section-6.1
    fn next(&self) -> Self {
        Self(self.expand_bytes("tandem ku"))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The secrets of one flow, or of the sealed transport of a connection.
#[derive(Debug)]
pub struct Secrets {
    /// The secret of the packets that the client sends.
    pub to_proxy: Secret,
    /// The secret of the packets that the proxy sends.
    pub to_client: Secret,
}

impl Secrets {
    /// The label of the TLS exporter, with the version of the protocol. Labels that begin with
    /// "EXPERIMENTAL" need no registration ([RFC 5705 §4]).
    ///
    /// [RFC 5705 §4]: https://www.rfc-editor.org/rfc/rfc5705#section-4
    pub const LABEL: &[u8] = b"EXPERIMENTAL-tandem-seal-1";

    /// The same for the sealed transport.
    pub const LABEL_OF_TRANSPORT: &[u8] = b"EXPERIMENTAL-tandem-transport-1";

    /// Derives the secrets of the flow with this request stream from the TLS session of the
    /// tunnel's connection ([RFC 8446 §7.5]). `exporter` gets the output, the label and the context,
    /// in this order. The handshake must be complete.
    ///
    /// # Errors
    ///
    /// The exporter fails.
    ///
    /// [RFC 8446 §7.5]: https://www.rfc-editor.org/rfc/rfc8446#section-7.5
    pub fn export<E>(
        request_stream: VarInt,
        exporter: impl FnOnce(&mut [u8], &[u8], &[u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let context = request_stream.get().to_be_bytes();
        Self::from_exporter(Self::LABEL, &context, exporter)
    }

    /// Derives the secrets of the sealed transport of a connection, as [`Self::export`] does those of a flow. There is
    /// one such transport in a connection, so that the context is empty.
    ///
    /// # Errors
    ///
    /// The exporter fails.
    pub fn export_for_transport<E>(
        exporter: impl FnOnce(&mut [u8], &[u8], &[u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        Self::from_exporter(Self::LABEL_OF_TRANSPORT, &[], exporter)
    }

    fn from_exporter<E>(
        label: &[u8],
        context: &[u8],
        exporter: impl FnOnce(&mut [u8], &[u8], &[u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut secrets = [[0; SECRET_LEN]; 2];
        exporter(secrets.as_flattened_mut(), label, context)?;
        let [to_proxy, to_client] = secrets.map(|bytes| Secret::new(&bytes));
        Ok(Self { to_proxy, to_client })
    }
}

/// What the keys of one flow in one direction follow from, as often as they are wanted. It moves from one generation to
/// the next, and nothing leads back to an older one.
pub(super) struct Generations {
    /// The key of the header protection, which serves all generations.
    header_key: [u8; HEADER_KEY_LEN],
    /// The secret of the present generation.
    secret: Secret,
}

impl Generations {
    /// Starts with the first generation.
    pub(super) fn new(secret: Secret) -> Self {
        Self { header_key: secret.expand_bytes("tandem hp"), secret }
    }

    pub(super) fn header_protection(&self) -> HeaderProtection {
        let key = quic::HeaderProtectionKey::new(&quic::AES_128, &self.header_key);
        HeaderProtection::new(key.expect("the length is that of a key"))
    }

    /// The keys of the present generation.
    pub(super) fn keys(&self) -> PacketKeys {
        PacketKeys::new(&self.secret)
    }

    /// The keys of the next generation.
    pub(super) fn next_keys(&self) -> PacketKeys {
        PacketKeys::new(&self.secret.next())
    }

    /// Moves to the next generation.
    pub(super) fn advance(&mut self) {
        self.secret = self.secret.next();
    }
}

/// An output of N bytes.
struct Len<const N: usize>;

impl<const N: usize> KeyType for Len<N> {
    fn len(&self) -> usize {
        N
    }
}

/// The keys of one generation.
pub(super) struct PacketKeys {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
}

impl PacketKeys {
    fn new(secret: &Secret) -> Self {
        let key = secret.expand("tandem key", &AES_128_GCM, |okm| UnboundKey::from(okm));
        Self { key: LessSafeKey::new(key), iv: secret.expand_bytes("tandem iv") }
    }

    /// Encrypts a payload in place and returns its tag. The caller uses each number once.
    pub(super) fn seal(&self, number: u64, header: &[u8], payload: &mut [u8]) -> Tag {
        let sealed =
            self.key.seal_in_place_separate_tag(self.nonce(number), Aad::from(header), payload);
        sealed.expect("a UDP payload is far below the bound of AES-GCM")
    }

    /// Decrypts a ciphertext with its tag in place. Returns whether it is authentic; if not, the
    /// bytes are unspecified.
    pub(super) fn open(&self, number: u64, header: &[u8], sealed: &mut [u8]) -> bool {
        self.key.open_in_place(self.nonce(number), Aad::from(header), sealed).is_ok()
    }

    /// The IV with the packet number in its last bytes (RFC 9001 §5.3).
    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.iv;
        let number = number.to_be_bytes();
        for (byte, number) in nonce.iter_mut().rev().zip(number.iter().rev()) {
            *byte ^= number;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}
