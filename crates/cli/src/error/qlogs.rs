//! Why the qlogs of a download cannot be drawn, as one line for a person.

use std::{io, path::PathBuf};

/// Why there is no picture of qlogs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QlogError {
    /// A file or a folder could not be read.
    #[error("cannot read {}: {error}", file.display())]
    Unreadable {
        /// Which one.
        file: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// No qlog of a client is there.
    #[error("{}", no_qlogs(.folders, .chain.as_deref()))]
    NoQlogs {
        /// Where.
        folders: Vec<PathBuf>,
        /// The chain of connections that was asked for.
        chain: Option<String>,
    },
}

fn no_qlogs(folders: &[PathBuf], chain: Option<&str>) -> String {
    let folders: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let folders = folders.join(", ");
    match chain {
        Some(chain) => format!("{folders}: no qlog of a client has the tandem_chain {chain}"),
        None => format!(
            "{folders}: there is no qlog of a client; `tandem get` and `tandem client` write one with --qlog-dir DIR"
        ),
    }
}
