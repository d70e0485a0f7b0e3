//! Header fields that say one thing.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, header};

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

/// RFC 9110 §8.6: digits; several fields, or a list, only if all say the same.
pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, &'static str> {
    let mut length = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        for item in value.as_bytes().split(|byte| *byte == b',') {
            let digits = str::from_utf8(item).map(str::trim).unwrap_or_default();
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            let Some(said) = digits.parse().ok().filter(|_| is_number) else {
                return Err("Content-Length is no number");
            };
            if length.replace(said).is_some_and(|before| before != said) {
                return Err("two values of Content-Length");
            }
        }
    }
    Ok(length)
}
