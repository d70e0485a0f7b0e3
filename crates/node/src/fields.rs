//! Header fields with a single value.

use std::borrow::Cow;

#[cfg(test)]
use http::HeaderValue;
use http::{HeaderMap, HeaderName, header};
use tandem_wire::{StrangerText, TransportField};

/// The field by which client and proxy agree on the sealed transport.
pub(crate) const TRANSPORT: HeaderName = HeaderName::from_static(TransportField::NAME);

/// The value of a field that may have only one line in a message. `None`: the message does not have
/// the field. The error is a text for messages.
pub(crate) fn only_line<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Option<Result<Cow<'a, str>, StrangerText>> {
    let mut lines = headers.get_all(name).iter();
    let value = lines.next()?;
    Some(match lines.next() {
        None => Ok(String::from_utf8_lossy(value.as_bytes())),
        Some(_) => Err("more than one line".into()),
    })
}

/// The value of `Content-Length` (RFC 9110 §8.6). Several fields or a list are allowed only if all
/// values are equal.
pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, &'static str> {
    let mut length = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        for item in value.as_bytes().split(|byte| *byte == b',') {
            let digits = str::from_utf8(item).map(str::trim).unwrap_or_default();
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            let Some(number) = digits.parse().ok().filter(|_| is_number) else {
                return Err("Content-Length is no number");
            };
            if length.replace(number).is_some_and(|before| before != number) {
                return Err("two values of Content-Length");
            }
        }
    }
    Ok(length)
}

/// Header fields for tests.
#[cfg(test)]
pub(crate) fn test_headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for &(name, value) in lines {
        headers.append(name, HeaderValue::from_static(value));
    }
    headers
}
