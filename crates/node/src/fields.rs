//! Header fields of which one line is allowed.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName};

/// The value of a field of which a message may have one line; `None`: it has none. The error is for
/// people.
pub(crate) fn only_line<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Option<Result<Cow<'a, str>, String>> {
    let mut lines = headers.get_all(name).iter();
    let value = lines.next()?;
    Some(match lines.next() {
        None => Ok(String::from_utf8_lossy(value.as_bytes())),
        Some(_) => Err("more than one line".to_owned()),
    })
}
