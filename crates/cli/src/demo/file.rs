//! The file that the demo downloads.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};
use tandem_lab::{Contents, Seed};
use tandem_server::process::SystemError;
use tandem_units::ByteCount;
use tempfile::TempDir;

use crate::{
    download::Sha256Hex,
    error::{CliError, DemoError},
};

/// Name of the file, at the origin and at its destination.
pub(super) const NAME: &str = "demo.bin";

/// Piece in which the file is written, in bytes.
const PIECE_LEN: usize = 256 * 1024;

/// Two temporary folders, of which one holds the file. Both are removed when this value is dropped.
#[derive(Debug)]
pub(super) struct DemoFile {
    root: TempDir,
    arrival: TempDir,
    sha256: Sha256Hex,
}

impl DemoFile {
    /// Writes pseudo-random bytes, which cannot be compressed.
    pub(super) fn create(size: ByteCount, seed: Seed) -> Result<Self, CliError> {
        let folder = || {
            tempfile::Builder::new()
                .prefix("tandem-demo-")
                .tempdir()
                .map_err(|error| SystemError { what: "make a temporary folder", error })
        };
        let (root, arrival) = (folder()?, folder()?);
        let path = root.path().join(NAME);
        let mut file = File::create(&path).map_err(CliError::write(&path))?;
        let contents = Contents::Generated { len: size, seed };
        let mut hasher = Sha256::new();
        for offset in (0..size.get()).step_by(PIECE_LEN) {
            let piece = contents.read(offset, PIECE_LEN);
            file.write_all(&piece).map_err(CliError::write(&path))?;
            hasher.update(&piece);
        }
        Ok(Self { root, arrival, sha256: Sha256Hex::of(hasher) })
    }

    /// The origin's folder.
    pub(super) fn root(&self) -> &Path {
        self.root.path()
    }

    /// The destination of a download.
    pub(super) fn destination(&self) -> PathBuf {
        self.arrival.path().join(NAME)
    }

    /// Checks that the received file equals the sent file.
    pub(super) fn check(&self, received: &Sha256Hex) -> Result<(), CliError> {
        if *received == self.sha256 {
            return Ok(());
        }
        Err(DemoError::Corrupt { received: received.0.clone(), sent: self.sha256.0.clone() }.into())
    }
}
