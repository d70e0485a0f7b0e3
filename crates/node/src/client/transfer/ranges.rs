//! The header fields of downloads in ranges: ranges, validators and redirects (RFC 9110).

use http::{HeaderMap, HeaderValue, StatusCode, header};
use tandem_wire::{ResponseHead, StrangerText};

/// Divides `start..total` into `count` ranges of nearly equal length. The first range is the last
/// item, so that they are popped in order.
pub(super) fn divide(start: u64, total: u64, count: usize) -> Vec<(u64, u64)> {
    let count = count as u64;
    let mut ranges: Vec<_> = (0..count)
        .map(|index| {
            let at = |index: u64| {
                let share = u128::from(total - start) * u128::from(index) / u128::from(count);
                start + u64::try_from(share).unwrap_or(u64::MAX)
            };
            (at(index), at(index + 1))
        })
        .filter(|(start, end)| start < end)
        .collect();
    ranges.reverse();
    ranges
}

/// `bytes START-END/TOTAL` (RFC 9110 §14.4) as start, exclusive end and total.
pub(super) fn content_range(headers: &HeaderMap) -> Option<(u64, u64, Option<u64>)> {
    let value = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    let end = last.checked_add(1)?;
    (first < end && total.is_none_or(|total| end <= total)).then_some((first, end, total))
}

/// RFC 9110 §13.1.1: "An origin server MUST use the strong comparison function" for If-Match, so a
/// weak tag would never match.
pub(super) fn strong_etag(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(header::ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/")).cloned()
}

/// The length of the file in an answer that the requested range is beyond its end: `bytes */TOTAL`
/// (RFC 9110 §15.5.17).
pub(super) fn unsatisfied(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes */")?.parse().ok()
}

/// The longest validator that is kept, in bytes. Longer ones are unusual, and a program stores them.
const VALIDATOR_MAX: usize = 1024;

/// The validator with which a download can be continued later (If-Range, RFC 9110 §13.1.5): a strong
/// entity tag, or the time of the last change if the file did not change in the second of the answer
/// (§8.8.2.2).
pub(super) fn validator(headers: &HeaderMap) -> Option<HeaderValue> {
    let validator = if headers.contains_key(header::ETAG) {
        strong_etag(headers)?
    } else {
        let changed = headers.get(header::LAST_MODIFIED)?;
        let time = |value: &HeaderValue| httpdate::parse_http_date(value.to_str().ok()?).ok();
        let age = time(headers.get(header::DATE)?)?.duration_since(time(changed)?).ok()?;
        if age.as_secs() == 0 {
            return None;
        }
        changed.clone()
    };
    (validator.len() <= VALIDATOR_MAX).then_some(validator)
}

/// Whether an answer to a request with If-Range is of the file that the validator is of. An answer
/// that says nothing about its file counts as such an answer.
pub(super) fn is_same(headers: &HeaderMap, validator: &HeaderValue) -> bool {
    let is_tag = validator.as_bytes().starts_with(b"\"");
    let field = if is_tag { header::ETAG } else { header::LAST_MODIFIED };
    headers.get(field).is_none_or(|value| value == validator)
}

/// The reference to another URL in a redirect (RFC 9110 §15.4). `None`: the answer is no redirect, or
/// the reference has characters that no URL has.
pub(super) fn location(head: &ResponseHead) -> Option<StrangerText> {
    let is_redirect = matches!(
        head.status,
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    let value = head.headers.get(header::LOCATION).filter(|_| is_redirect)?;
    let text = str::from_utf8(value.as_bytes()).ok()?;
    (!text.chars().any(char::is_control)).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::test_headers as headers;

    #[test]
    fn ranges_cover_the_rest_without_overlap() {
        for (start, total, count) in [(10, 110, 4), (0, 3, 4), (5, 5, 2), (0, u64::MAX, 7)] {
            let mut ranges = divide(start, total, count);
            ranges.reverse();
            let mut next = start;
            for (from, to) in ranges {
                assert_eq!(from, next, "{start} {total} {count}");
                assert!(to > from);
                next = to;
            }
            assert_eq!(next, total.max(start), "{start} {total} {count}");
        }
    }

    #[test]
    fn a_content_range_is_parsed_or_refused() {
        for (value, expected) in [
            ("bytes 0-9/100", Some((0, 10, Some(100)))),
            ("bytes 90-99/100", Some((90, 100, Some(100)))),
            ("bytes 0-9/*", Some((0, 10, None))),
            ("bytes 90-100/100", None),
            ("bytes 9-8/100", None),
            ("bytes 0-18446744073709551615/*", None),
            ("items 0-9/100", None),
            ("bytes */100", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_RANGE, HeaderValue::from_static(value));
            assert_eq!(content_range(&headers), expected, "{value}");
        }
    }

    #[test]
    fn only_a_strong_validator_continues_a_download() {
        let date = ("date", "Thu, 01 Jan 1970 00:01:00 GMT");
        let changed = ("last-modified", "Thu, 01 Jan 1970 00:00:59 GMT");
        for (lines, expected) in [
            (&[("etag", "\"a\""), date, changed][..], Some("\"a\"")),
            (&[("etag", "W/\"a\""), date, changed], None),
            (&[date, changed], Some(changed.1)),
            (&[changed], None),
            (&[date, ("last-modified", date.1)], None),
            (&[date, ("last-modified", "yesterday")], None),
            (&[], None),
        ] {
            let found = validator(&headers(lines));
            assert_eq!(found.as_ref().map(|value| value.to_str().unwrap()), expected, "{lines:?}");
        }
        let long = HeaderValue::try_from(format!("\"{}\"", "a".repeat(VALIDATOR_MAX))).unwrap();
        assert_eq!(validator(&HeaderMap::from_iter([(header::ETAG, long)])), None);
    }

    #[test]
    fn an_answer_with_another_validator_is_of_another_file() {
        let (tag, time) = ("\"a\"", "Thu, 01 Jan 1970 00:00:59 GMT");
        for (lines, validator, same) in [
            (&[("etag", "\"a\"")][..], tag, true),
            (&[("etag", "\"b\"")], tag, false),
            (&[("etag", "W/\"a\"")], tag, false),
            (&[], tag, true),
            (&[("last-modified", time)], time, true),
            (&[("last-modified", "Thu, 01 Jan 1970 00:00:58 GMT")], time, false),
        ] {
            let validator = HeaderValue::from_static(validator);
            assert_eq!(is_same(&headers(lines), &validator), same, "{lines:?} {validator:?}");
        }
    }

    #[test]
    fn a_redirect_has_a_status_and_a_location() {
        for (status, lines, expected) in [
            (301, &[("location", "/a/")][..], Some("/a/")),
            (302, &[("location", "https://b.example/?x=1#y")], Some("https://b.example/?x=1#y")),
            (303, &[("location", "b")], Some("b")),
            (307, &[("location", "//b.example")], Some("//b.example")),
            (308, &[("location", "")], Some("")),
            (300, &[("location", "/a/")], None),
            (304, &[("location", "/a/")], None),
            (201, &[("location", "/a/")], None),
            (301, &[], None),
            (301, &[("location", "/a\t/")], None),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let head = ResponseHead { status, headers: headers(lines) };
            assert_eq!(
                location(&head).as_ref().map(StrangerText::unescaped),
                expected,
                "{status} {lines:?}"
            );
        }
        // U+009B begins control sequences in terminals.
        let escape = HeaderValue::from_bytes("/\u{9b}2J".as_bytes()).unwrap();
        let headers = HeaderMap::from_iter([(header::LOCATION, escape)]);
        assert_eq!(location(&ResponseHead { status: StatusCode::FOUND, headers }), None);
    }

    #[test]
    fn an_answer_may_say_how_long_the_file_is() {
        let len = |value| unsatisfied(&headers(&[("content-range", value)]));
        assert_eq!(len("bytes */47"), Some(47));
        assert_eq!((len("bytes 0-1/47"), len("bytes */*"), len("47")), (None, None, None));
    }
}
