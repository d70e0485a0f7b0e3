//! Why a demonstration failed, as one line for a person.

/// Why a demonstration failed, besides what every transfer can fail by.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    /// The file that arrived is not the file that was sent.
    #[error("SHA-256 of the file that arrived is {received}, but {sent} was sent")]
    Corrupt {
        /// The hash of the file that arrived.
        received: String,
        /// The hash of the file that was sent.
        sent: String,
    },
}
