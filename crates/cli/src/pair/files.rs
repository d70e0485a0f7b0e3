//! The files by which the two ends of a pair know each other. `tandem serve` makes them at its first
//! start: a certificate of its own, which `tandem connect` trusts and no other, and a token.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{CertificateParams, KeyPair};
use tandem_files::pair::{PairFile, TOKEN};
use tandem_node::proxy::ProxyConfig;
use tandem_server::{
    files::{FileError, tokens},
    process::secret::{warn_if_shared, write_new},
    tls,
};

use crate::error::{CliError, ConfigError};

/// The folder of the files, unless the user names another one.
pub(super) const FOLDER: &str = "tandem-pair";

/// The file for the other end.
pub(super) const CLIENT_FILE: &str = "client.pem";

/// The files of `tandem serve`.
#[derive(Debug)]
pub(super) struct PairFolder {
    folder: PathBuf,
    /// The certificate and its private key.
    pub(super) server: PathBuf,
    /// The tokens of clients, one on a line.
    pub(super) tokens: PathBuf,
    /// The certificate and the first token, for the other end.
    pub(super) client: PathBuf,
}

impl PairFolder {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            server: folder.join("server.pem"),
            tokens: folder.join("tokens"),
            client: folder.join(CLIENT_FILE),
        }
    }

    /// Whether every file is there.
    pub(super) fn is_complete(&self) -> bool {
        [&self.server, &self.tokens, &self.client].into_iter().all(|file| file.exists())
    }

    /// Makes the files that are missing, so that only their owner can read them. No file is overwritten.
    pub(super) fn complete(&self) -> Result<(), CliError> {
        let has_origin = self.server.exists() && self.tokens.exists();
        if self.client.exists() && !has_origin {
            return Err(ConfigError::HalfPair { file: self.client.clone() }.into());
        }
        fs::create_dir_all(&self.folder).map_err(CliError::write(&self.folder))?;
        if !self.server.exists() {
            write_new(&self.server, certificate_and_key(), OWNER_ONLY)?;
        }
        if !self.tokens.exists() {
            write_new(&self.tokens, format!("{}\n", random_token()?), OWNER_ONLY)?;
        }
        if !self.client.exists() {
            write_new(&self.client, self.for_client()?, OWNER_ONLY)?;
        }
        Ok(())
    }

    /// The text of the file for the other end.
    fn for_client(&self) -> Result<String, ConfigError> {
        let file = &self.server;
        let text = fs::read_to_string(file)
            .map_err(|error| FileError::Unreadable { file: file.clone(), error })?;
        // A file of PEM may have the key before the certificate.
        let begin = text.find(BEGIN).unwrap_or_default();
        let end = text.find(END).map(|end| end + END.len());
        let section = end.and_then(|end| text.get(begin..end)).ok_or_else(|| {
            let reason = "no CERTIFICATE section; allowed: PEM".to_owned();
            FileError::Pem { file: file.clone(), reason }
        })?;
        let token = tokens::read_first(&self.tokens)?;
        Ok(format!(
            "# For `tandem connect`. The token is a secret.\n{TOKEN}{}\n{section}\n",
            token.reveal()
        ))
    }
}

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The mode of a file that only its owner can read.
const OWNER_ONLY: u32 = 0o600;

/// A certificate that is signed by its own key. It does not expire, because the other end trusts it by
/// its bytes alone.
fn certificate_and_key() -> String {
    let params = CertificateParams::new([ProxyConfig::SERVICE.to_owned()]);
    let key = KeyPair::generate().expect("the system has random numbers");
    let certificate = params.and_then(|params| params.self_signed(&key));
    let certificate = certificate.expect("the parameters are those of every server");
    certificate.pem() + &key.serialize_pem()
}

/// A token of 128 bits.
fn random_token() -> Result<String, CliError> {
    Ok(format!("{:032x}", u128::from_ne_bytes(tls::random()?)))
}

/// Reads the file that `tandem serve` has made for the other end. Warns if others on this machine can read it.
pub(super) fn read_client_file(file: &Path) -> Result<PairFile, ConfigError> {
    let text = fs::read_to_string(file)
        .map_err(|error| ConfigError::NoPair { file: file.to_owned(), error })?;
    warn_if_shared(file, "the token");
    let refused = |reason| ConfigError::Pair { file: file.to_owned(), reason };
    PairFile::parse(&text).map_err(refused)
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::{CertificateDer, pem::PemObject};

    use super::*;

    #[test]
    fn missing_files_are_made_and_others_stay() {
        let root = tempfile::tempdir().unwrap();
        let pair = PairFolder::new(&root.path().join("new/pair"));
        assert!(!pair.is_complete());
        pair.complete().unwrap();
        assert!(pair.is_complete());
        let files = [&pair.server, &pair.tokens, &pair.client];
        #[cfg(unix)]
        for file in files {
            let mode = fs::metadata(file).unwrap().permissions();
            let mode = std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777;
            assert_eq!(mode, 0o600, "{}", file.display());
        }
        let read = || files.map(|file| fs::read_to_string(file).unwrap());
        let before = read();
        pair.complete().unwrap();
        assert_eq!(read(), before);
        // It can be made again, with the same certificate and token.
        fs::remove_file(&pair.client).unwrap();
        pair.complete().unwrap();
        assert_eq!(read(), before);
        let client = read_client_file(&pair.client).unwrap();
        assert_eq!(client.certificate, CertificateDer::from_pem_file(&pair.server).unwrap());
        assert_eq!(client.token.reveal(), before[1].trim());
        assert!(!before[2].contains("PRIVATE KEY"), "the other end never needs it");
    }

    #[test]
    fn two_pairs_have_nothing_in_common() {
        let root = tempfile::tempdir().unwrap();
        let read = |name: &str| {
            let pair = PairFolder::new(&root.path().join(name));
            pair.complete().unwrap();
            read_client_file(&pair.client).unwrap()
        };
        let (one, other) = (read("one"), read("other"));
        assert_ne!(one.certificate, other.certificate);
        assert_ne!(one.token, other.token);
    }

    #[test]
    fn a_file_of_the_other_end_is_never_taken_for_an_own_one() {
        let root = tempfile::tempdir().unwrap();
        let pair = PairFolder::new(root.path());
        fs::write(&pair.client, "mine").unwrap();
        for own in [None, Some(&pair.server)] {
            if let Some(file) = own {
                fs::write(file, "key").unwrap();
            }
            let error = pair.complete().unwrap_err().to_string();
            assert!(error.contains("client.pem") && error.contains("--pair DIR"), "{error}");
        }
        assert_eq!(fs::read_to_string(&pair.client).unwrap(), "mine");
        assert!(!pair.tokens.exists());
    }

    #[test]
    fn a_bad_file_is_explained_and_its_token_never_shown() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("client.pem");
        let token = "token = secret0123456789\n";
        for (text, reason) in [
            (String::new(), "no line \"token = \""),
            ("token = secret\n".to_owned(), "16 to 8192"),
            (token.to_owned(), "no certificate"),
            (format!("{token}{BEGIN}\n%\n{END}\n"), "base64"),
            (format!("{token}{BEGIN}\n"), "missing section end"),
        ] {
            fs::write(&file, &text).unwrap();
            let error = read_client_file(&file).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("tandem serve"), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
