//! Why no profile was written, as one line for a person.

use std::path::PathBuf;

use tandem_wire::StrangerText;

use crate::{link::LinkError, profile::Kind};

/// Why no profile for a client was written. No error shows a token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProfileError {
    /// The client cannot be told what the user asks for.
    #[error("a profile for {client} has no room for {what}")]
    Lacks {
        /// For which client.
        client: Kind,
        /// What the profile cannot say.
        what: &'static str,
    },
    /// The proxy's host has characters that only URLs may have.
    #[error("via: {host:?} is neither a DNS name nor an IP address")]
    Host {
        /// The host.
        host: StrangerText,
    },
    /// The user's name has a character that the client's form cannot say.
    #[error(
        "a profile for {client} has no room for user names with a quotation mark or a backslash"
    )]
    Character {
        /// For which client.
        client: Kind,
    },
    /// The profile is no text.
    #[error("a profile for {client} is no text: name a new file with -o FILE")]
    Binary {
        /// For which client.
        client: Kind,
    },
    /// The file of tokens has none of this user.
    #[error("{} has no token of the user {user:?}", file.display())]
    NoTokenOf {
        /// Which file.
        file: PathBuf,
        /// The name of the user.
        user: StrangerText,
    },
    /// The proxy's certificate is not one.
    #[error("{}: not a certificate (X.509)", file.display())]
    Certificate {
        /// Which file.
        file: PathBuf,
    },
    /// There is no link to such a proxy or for such a user.
    #[error("there is no link for this: {0}")]
    Link(#[from] LinkError),
    /// A link with a long token.
    #[error("a link of {len} bytes is too long for a QR code; -o FILE writes the link alone")]
    TooLongForCode {
        /// Bytes of the link.
        len: usize,
    },
    /// An add-on could not be packed.
    #[error("the add-on is too large for its archive")]
    Archive,
}
