//! The field `traceparent` of [Trace Context], by which the logs of several programs name the same request.
//!
//! [Trace Context]: https://www.w3.org/TR/trace-context/

use std::fmt;

use http::{HeaderMap, HeaderName};

/// The identifier of a request, which its sender has chosen at random. It is never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(u128);

impl TraceId {
    /// The field that carries it.
    pub const FIELD: HeaderName = HeaderName::from_static("traceparent");

    /// The length of the field in version 00. Later versions may be longer.
    const LEN: usize = 55;

    /// An identifier. Zero is none.
    pub const fn new(id: u128) -> Option<Self> {
        if id == 0 { None } else { Some(Self(id)) }
    }

    /// The identifier of a request. `None`: it has none, or a malformed one.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut fields = headers.get_all(Self::FIELD).iter();
        let field = fields.next()?.to_str().ok()?;
        if fields.next().is_some() {
            return None;
        }
        let (field, rest) = field.split_at_checked(Self::LEN)?;
        let mut parts = field.split('-');
        let version = hex(parts.next()?, 2)?;
        let (id, parent, _flags) =
            (hex(parts.next()?, 32)?, hex(parts.next()?, 16)?, hex(parts.next()?, 2)?);
        // Version ff is invalid. What a later version adds follows a dash (Trace Context §4.3).
        let is_known = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.is_empty() || rest.starts_with('-'),
        };
        // Trace Context §3.2.2.3: "If the trace-id value is invalid (for example if it contains non-allowed characters
        // or all zeros), vendors MUST ignore the traceparent." §3.2.2.4 says the same of the parent-id.
        if !is_known || parent == 0 || parts.next().is_some() {
            return None;
        }
        Self::new(id)
    }

    /// The value of the field, with this identifier of the sender's part. It asks the receiver to record the request.
    pub fn field_value(self, parent: u64) -> String {
        format!("00-{self}-{:016x}-01", parent.max(1))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A number of exactly so many lowercase hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (text.len() == digits && is_hex).then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn read(values: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TraceId::FIELD, HeaderValue::from_str(value).unwrap());
        }
        TraceId::of(&headers).map(|id| id.to_string())
    }

    #[test]
    fn a_well_formed_field_names_the_request() {
        let of_the_specification = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        for field in [of_the_specification, later, &format!("{later}-what-the-future-brings")] {
            assert_eq!(read(&[field]).as_deref(), Some(ID), "{field}");
        }
        let id = TraceId::new(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736).unwrap();
        assert_eq!(id.field_value(0x00f0_67aa_0ba9_02b7), of_the_specification);
        assert!(TraceId::new(0).is_none());
    }

    #[test]
    fn everything_else_is_ignored() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        for field in [
            "",
            "00",
            &good[..54],
            &format!("{good}-"),
            &format!("{good}0"),
            &format!("cc{}0", &good[2..]),
            &good.replace("4bf9", "4BF9"),
            &good.replace("4bf92f", "4bf92\u{7f}"),
            &good.replace(ID, &"0".repeat(32)),
            &good.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &good.replace("00-", "ff-"),
            &good.replace('-', "_"),
            &good.replacen("4bf9", "+bf9", 1),
            &"0-".repeat(5000),
            &format!("00-{}-{}-01", &ID[..31], "00f067aa0ba902b7a"),
        ] {
            let field = field.replace('\u{7f}', "g");
            assert_eq!(read(&[&field]), None, "{field}");
        }
        assert_eq!(read(&[good, good]), None, "two fields");
        assert_eq!(read(&[]), None);
    }
}
