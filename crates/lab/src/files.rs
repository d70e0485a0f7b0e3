//! Files that exist in memory only.

use std::collections::BTreeMap;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tandem_netem::{Seed, SplitMix64};
use tandem_node::node::{FileError, FileMeta};
use tandem_units::ByteCount;

/// The contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// These bytes.
    Literal(Bytes),
    /// Random bytes, the same for the same seed: the numbers of `SplitMix64`, little-endian. A
    /// shorter file is the beginning of a longer one.
    Generated {
        /// Length of the file.
        len: ByteCount,
        /// The state that the generator starts from.
        seed: Seed,
    },
}

impl Contents {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Literal(bytes) => bytes.len() as u64,
            Self::Generated { len, .. } => len.get(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads at most `len` bytes from `offset` on. The result is shorter only at the end.
    pub fn read(&self, offset: u64, len: usize) -> Bytes {
        let left = usize::try_from(self.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = len.min(left);
        match self {
            Self::Literal(bytes) => {
                let start = usize::try_from(offset).map_or(bytes.len(), |o| o.min(bytes.len()));
                bytes.slice(start..start + len)
            }
            Self::Generated { seed, .. } => generate(*seed, offset, len),
        }
    }

    /// SHA-256 of all bytes.
    pub fn sha256(&self) -> [u8; 32] {
        const CHUNK: usize = 1 << 16;
        let mut sha256 = Sha256::new();
        for offset in (0..self.len()).step_by(CHUNK) {
            sha256.update(self.read(offset, CHUNK));
        }
        sha256.finalize().into()
    }
}

fn generate(seed: Seed, offset: u64, len: usize) -> Bytes {
    const WORD: usize = 8;
    let (first, skip) = (offset / 8, usize::try_from(offset % 8).expect("less than 8"));
    let mut bytes = Vec::with_capacity(skip + len + WORD);
    let mut generator = SplitMix64::starting_at(seed, first);
    while bytes.len() < skip + len {
        bytes.extend_from_slice(&generator.next_u64().to_le_bytes());
    }
    Bytes::from(bytes).slice(skip..skip + len)
}

/// A folder with files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSet {
    files: BTreeMap<Vec<String>, Contents>,
}

impl FileSet {
    /// An empty folder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file, or replaces one. Folders in `path` are separated by `/`.
    #[must_use]
    pub fn with(mut self, path: &str, contents: Contents) -> Self {
        self.files.insert(segments(path), contents);
        self
    }

    /// The contents of a file.
    pub fn get(&self, path: &str) -> Option<&Contents> {
        self.files.get(&segments(path))
    }

    pub(crate) fn open(&self, path: &[String]) -> Result<(FileMeta, Contents), FileError> {
        if let Some(contents) = self.files.get(path) {
            return Ok((FileMeta { len: contents.len(), modified: None }, contents.clone()));
        }
        let is_folder = self.files.keys().any(|file| file.starts_with(path));
        Err(if is_folder { FileError::IsFolder } else { FileError::NotFound })
    }
}

fn segments(path: &str) -> Vec<String> {
    path.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_contents_do_not_depend_on_the_reads() {
        let contents = Contents::Generated { len: ByteCount::new(100), seed: Seed(3) };
        let whole = contents.read(0, 1000);
        assert_eq!(whole.len(), 100);
        let first = SplitMix64::starting_at(Seed(3), 0).next_u64();
        assert_eq!(&whole[..8], first.to_le_bytes());
        for offset in 0..=100 {
            for len in [0, 1, 7, 8, 9, 50] {
                let end = (offset + len).min(100);
                assert_eq!(contents.read(offset as u64, len), whole[offset..end], "{offset} {len}");
            }
        }
        assert_eq!(contents.sha256(), Contents::Literal(whole).sha256());
        let other = Contents::Generated { len: ByteCount::new(100), seed: Seed(4) };
        assert_ne!(contents.sha256(), other.sha256());
    }

    #[test]
    fn reads_of_literal_contents_stop_at_their_end() {
        let contents = Contents::Literal(Bytes::from_static(b"hello"));
        assert_eq!(contents.read(1, 3), "ell");
        assert_eq!(contents.read(3, 10), "lo");
        assert_eq!(contents.read(5, 10), "");
        assert_eq!(contents.read(u64::MAX, 10), "");
    }

    #[test]
    fn files_folders_and_missing_paths_are_distinguished() {
        let files = FileSet::new().with("a/b.txt", Contents::Literal(Bytes::from_static(b"x")));
        let open = |path: &[&str]| {
            let path: Vec<_> = path.iter().map(|segment| (*segment).to_owned()).collect();
            files.open(&path).map(|(meta, _)| meta.len)
        };
        assert_eq!(open(&["a", "b.txt"]), Ok(1));
        assert_eq!(open(&["a"]), Err(FileError::IsFolder));
        assert_eq!(open(&[]), Err(FileError::IsFolder));
        assert_eq!(open(&["b.txt"]), Err(FileError::NotFound));
        assert_eq!(open(&["a", "b.txt", "c"]), Err(FileError::NotFound));
    }
}
