//! Why a PEP does not run, as one line for a person.

/// Why a PEP does not run, or would not.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PepError {
    /// A PEP cannot begin or go on.
    #[error("{reason}; `tandem pep --check` with the same settings tells what this machine lacks")]
    Failed {
        /// The cause.
        reason: String,
    },
    /// A PEP would not run on this machine.
    #[error("this machine lacks something that a PEP needs; see above")]
    NotReady,
}
