//! An error of the operating system.

use std::{fmt, io};

/// An error of the operating system: its kind, by which a node decides, and its number, by which people look it up.
///
/// [`io::ErrorKind`] alone would say "uncategorized error" of all errors for which the standard library has no kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OsError {
    /// The kind. A driver may choose another than the standard library has for the number.
    pub kind: io::ErrorKind,
    /// The number (`errno`). `None`: the error is not the operating system's.
    pub number: Option<i32>,
}

impl OsError {
    /// Whether the host has no route to the address.
    pub const fn is_unroutable(self) -> bool {
        matches!(self.kind, io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable)
    }
}

impl From<io::ErrorKind> for OsError {
    fn from(kind: io::ErrorKind) -> Self {
        Self { kind, number: None }
    }
}

impl From<&io::Error> for OsError {
    fn from(error: &io::Error) -> Self {
        Self { kind: error.kind(), number: error.raw_os_error() }
    }
}

impl fmt::Display for OsError {
    /// Writes the text of the operating system and the number, as in "connection refused (os error 111)".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(number) = self.number else { return self.kind.fmt(f) };
        let text = io::Error::from_raw_os_error(number).to_string();
        let mut rest = text.chars();
        let first = rest.next().map(|first| first.to_ascii_lowercase());
        first.map_or(Ok(()), |first| write!(f, "{first}{}", rest.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_text_of_the_operating_system_and_its_number() {
        for (number, expected) in [
            (97, "address family not supported by protocol (os error 97)"),
            (92, "protocol not available (os error 92)"),
            (38, "function not implemented (os error 38)"),
            (111, "connection refused (os error 111)"),
        ] {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(OsError::from(&error).to_string(), expected);
        }
        let without_number = OsError::from(io::ErrorKind::TimedOut);
        assert_eq!(without_number.to_string(), "timed out");
    }
}
