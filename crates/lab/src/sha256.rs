use ring::digest::{Context, SHA256};

/// SHA-256 of what came so far.
#[derive(Clone)]
pub(crate) struct Sha256(Context);

impl Sha256 {
    pub(crate) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn digest(&self) -> [u8; 32] {
        let digest = self.0.clone().finish();
        digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// In hexadecimal.
    pub(crate) fn hex(&self) -> String {
        self.digest().map(|byte| format!("{byte:02x}")).concat()
    }
}
