//! The file by which `tandem connect` knows the other end of a pair: a token, and the only certificate to trust.

use rustls::pki_types::{
    CertificateDer,
    pem::{Error, PemObject},
};
use tandem_node::proxy::Token;

/// What stands before the token.
pub const TOKEN: &str = "token = ";

/// The content of a file.
#[derive(Debug)]
pub struct PairFile {
    /// The only certificate to trust.
    pub certificate: CertificateDer<'static>,
    /// The token to show.
    pub token: Token,
}

impl PairFile {
    /// Parses the text of a file. The error does not show the token.
    pub fn parse(text: &str) -> Result<Self, String> {
        let token = text.lines().find_map(|line| line.strip_prefix(TOKEN));
        let token = token.ok_or_else(|| format!("there is no line {TOKEN:?}"))?;
        let token = Token::parse(token.trim()).map_err(|error| error.to_string())?;
        let certificate = CertificateDer::from_pem_slice(text.as_bytes());
        let certificate = certificate.map_err(|error| match error {
            Error::NoItemsFound => "there is no certificate".to_owned(),
            error => error.to_string(),
        })?;
        Ok(Self { certificate, token })
    }
}
