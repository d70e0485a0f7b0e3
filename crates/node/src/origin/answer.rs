//! The header sections of responses: type, length, validators, ranges and conditions (RFC 9110). They are the same
//! over HTTP/3 and HTTP/1.1.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use http_range_header::{StartPosition, SyntacticallyCorrectRange, parse_range_header};
use tandem_wire::{ProxyStatus, RequestHead, ResponseHead};

use super::path;
use crate::{
    node::{FileError, FileMeta},
    upstream::UpstreamError,
};

/// The name of the file that is served for a folder.
const INDEX: &str = "index.html";

/// The header section of a response, and the bytes of the file that follow it.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The header section.
    pub head: ResponseHead,
    /// The position of the first byte.
    pub start: u64,
    /// The position after the last byte; `start` if there is no body.
    pub end: u64,
}

/// The decoded segments of the path of the file that a request to a folder asks for, or the answer without a file. The
/// driver checks that links do not lead out of the folder.
///
/// # Errors
///
/// The method is neither GET nor HEAD, or no file can have the path.
pub fn find(
    request: &RequestHead,
    takes_uploads: bool,
) -> Result<Vec<String>, Box<(ResponseHead, Bytes)>> {
    if request.protocol.is_some() {
        // RFC 9220 §3: "If a server receives an extended CONNECT request with a :protocol value that it does not
        // support, it SHOULD respond with a 501 (Not Implemented) status code".
        return Err(plain(StatusCode::NOT_IMPLEMENTED).into());
    }
    if !matches!(request.method, Method::GET | Method::HEAD) {
        return Err(method_not_allowed(takes_uploads).into());
    }
    let path = request.path.as_deref().and_then(path::segments);
    let mut path = path.ok_or_else(|| Box::new(plain(StatusCode::NOT_FOUND)))?;
    if path.last().is_some_and(String::is_empty) {
        path.pop();
        path.push(INDEX.to_owned());
    }
    Ok(path)
}

/// The answer to a request whose file cannot be opened.
pub fn without_file(request: &RequestHead, error: FileError) -> (ResponseHead, Bytes) {
    match error {
        FileError::NotFound => plain(StatusCode::NOT_FOUND),
        FileError::IsFolder => to_folder(request.path.as_deref()),
        FileError::Io(_) => plain(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// Creates a response without a file, whose body is the status in words.
pub fn plain(status: StatusCode) -> (ResponseHead, Bytes) {
    let text = format!("{} {}\n", status.as_u16(), status.canonical_reason().unwrap_or_default());
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(text.len()));
    (ResponseHead { status, headers }, Bytes::from(text))
}

/// Creates the response of a site whose server has not answered. `Proxy-Status` (RFC 9209) has the reason.
pub fn without_upstream(error: UpstreamError) -> (ResponseHead, Bytes) {
    let (mut head, body) = plain(error.status());
    let (name, error) = ("tandem".to_owned(), Some(error.reason().into()));
    let status = ProxyStatus { name, error, ..ProxyStatus::default() };
    head.headers.insert("proxy-status", status.encode());
    (head, body)
}

fn method_not_allowed(takes_uploads: bool) -> (ResponseHead, Bytes) {
    let allowed = if takes_uploads { "GET, HEAD, PUT" } else { "GET, HEAD" };
    let (mut head, body) = plain(StatusCode::METHOD_NOT_ALLOWED);
    // RFC 9110 §15.5.6: "The origin server MUST generate an Allow header field in a 405 response".
    head.headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
    (head, body)
}

/// Creates the redirect for a folder whose path has no slash at its end. Without the slash,
/// relative links in the folder's index would be resolved against the wrong path.
fn to_folder(path: Option<&str>) -> (ResponseHead, Bytes) {
    let path = path.unwrap_or_default();
    let (path, query) =
        path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    // Only the last segment of the path may be empty, so the location cannot name another host.
    let Ok(location) = HeaderValue::from_str(&format!("{path}/{query}")) else {
        return plain(StatusCode::NOT_FOUND);
    };
    let (mut head, body) = plain(StatusCode::MOVED_PERMANENTLY);
    head.headers.insert(header::LOCATION, location);
    (head, body)
}

/// Creates the response to a request for a file that exists.
pub fn for_file(request: &RequestHead, name: &str, meta: &FileMeta) -> Answer {
    let mut headers = HeaderMap::new();
    let etag = etag(meta);
    let modified = meta.modified.map(httpdate::fmt_http_date);
    insert(&mut headers, header::ETAG, &etag);
    if let Some(modified) = &modified {
        insert(&mut headers, header::LAST_MODIFIED, modified);
    }
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some(status) = precondition(request, &etag, meta) {
        return Answer { head: ResponseHead { status, headers }, start: 0, end: 0 };
    }
    insert(&mut headers, header::CONTENT_TYPE, &content_type(name));
    // A browser must not guess another type from the content.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let (status, start, end) = match range(request, &etag, modified.as_deref(), meta.len) {
        Range::Whole => (StatusCode::OK, 0, meta.len),
        Range::Part(start, end) => {
            let value = format!("bytes {start}-{}/{}", end - 1, meta.len);
            insert(&mut headers, header::CONTENT_RANGE, &value);
            (StatusCode::PARTIAL_CONTENT, start, end)
        }
        Range::Unsatisfiable => {
            insert(&mut headers, header::CONTENT_RANGE, &format!("bytes */{}", meta.len));
            (StatusCode::RANGE_NOT_SATISFIABLE, 0, 0)
        }
    };
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(end - start));
    let end = if request.method == Method::HEAD { start } else { end };
    Answer { head: ResponseHead { status, headers }, start, end }
}

enum Range {
    Whole,
    /// The positions of the first byte and after the last byte.
    Part(u64, u64),
    Unsatisfiable,
}

/// Determines the requested range. A request for several ranges gets the whole file, which RFC 9110
/// §14.2 allows.
fn range(request: &RequestHead, etag: &str, modified: Option<&str>, len: u64) -> Range {
    let Some(value) = text(&request.headers, header::RANGE) else { return Range::Whole };
    if request.method != Method::GET {
        return Range::Whole;
    }
    // RFC 9110 §13.1.5: with an If-Range that does not match, the Range field is ignored.
    if let Some(condition) = text(&request.headers, header::IF_RANGE)
        && condition != etag
        && Some(condition) != modified
    {
        return Range::Whole;
    }
    let Ok(parsed) = parse_range_header(value) else { return Range::Whole };
    // RFC 9110 §14.1.3: a suffix that is longer than the file means the whole file.
    if let [SyntacticallyCorrectRange { start: StartPosition::FromLast(suffix), .. }] =
        parsed.ranges.as_slice()
        && *suffix >= len
        && len > 0
    {
        return Range::Part(0, len);
    }
    match parsed.validate(len) {
        Ok(_) if len == 0 => Range::Unsatisfiable,
        Ok(ranges) => match ranges.as_slice() {
            [only] => Range::Part(*only.start(), only.end().saturating_add(1)),
            _ => Range::Whole,
        },
        Err(_) => Range::Unsatisfiable,
    }
}

/// Returns the status 304 or 412 if a precondition requires it (RFC 9110 §13.2.2).
fn precondition(request: &RequestHead, etag: &str, meta: &FileMeta) -> Option<StatusCode> {
    let headers = &request.headers;
    if let Some(tags) = text(headers, header::IF_MATCH)
        && !lists(tags, etag)
    {
        return Some(StatusCode::PRECONDITION_FAILED);
    }
    if let Some(tags) = text(headers, header::IF_NONE_MATCH) {
        return lists(tags, etag).then_some(StatusCode::NOT_MODIFIED);
    }
    let since = text(headers, header::IF_MODIFIED_SINCE)?;
    let since = httpdate::parse_http_date(since).ok()?;
    // The field has a resolution of one second.
    let is_newer = meta.modified?.duration_since(since).is_ok_and(|later| later.as_secs() > 0);
    (!is_newer).then_some(StatusCode::NOT_MODIFIED)
}

/// Returns whether a list of entity tags contains this one, or is `*`. The mark of weak tags makes
/// no difference, because this origin's tags change with every change of a file.
fn lists(tags: &str, etag: &str) -> bool {
    tags.split(',').map(str::trim).any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

/// Returns the entity tag, which changes with the length or the time of the last change.
fn etag(meta: &FileMeta) -> String {
    let nanos = meta
        .modified
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |since| since.as_nanos());
    format!("\"{:x}-{nanos:x}\"", meta.len)
}

fn content_type(name: &str) -> String {
    let mime = mime_guess::from_path(name).first_or_octet_stream();
    if mime.type_() == mime_guess::mime::TEXT {
        format!("{}; charset=utf-8", mime.essence_str())
    } else {
        mime.essence_str().to_owned()
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    const META: FileMeta = FileMeta { len: 1000, modified: None };

    fn ask(method: Method, fields: &[(HeaderName, &str)], meta: &FileMeta) -> Answer {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        let request = RequestHead { method, headers, ..RequestHead::default() };
        for_file(&request, "page.html", meta)
    }

    #[test]
    fn one_range_is_served_and_several_are_not() {
        for (range, status, start, end) in [
            ("bytes=0-99", 206, 0, 100),
            ("bytes=900-", 206, 900, 1000),
            ("bytes=-100", 206, 900, 1000),
            ("bytes=-2000", 206, 0, 1000),
            ("bytes=0-0", 206, 0, 1),
            ("bytes=0-9,20-29", 200, 0, 1000),
            ("bytes=1000-", 416, 0, 0),
            ("lines=1-2", 200, 0, 1000),
            ("bytes=9-1", 416, 0, 0),
            ("nonsense", 200, 0, 1000),
        ] {
            let answer = ask(Method::GET, &[(header::RANGE, range)], &META);
            let got = (answer.head.status.as_u16(), answer.start, answer.end);
            assert_eq!(got, (status, start, end), "{range}");
        }
        let empty = FileMeta { len: 0, modified: None };
        let answer = ask(Method::GET, &[(header::RANGE, "bytes=0-9")], &empty);
        assert_eq!((answer.head.status.as_u16(), answer.end), (416, 0));
    }

    #[test]
    fn head_has_the_length_and_no_body() {
        let answer = ask(Method::HEAD, &[], &META);
        assert_eq!(answer.head.headers[header::CONTENT_LENGTH], "1000");
        assert_eq!(answer.head.headers[header::CONTENT_TYPE], "text/html; charset=utf-8");
        assert_eq!((answer.start, answer.end), (0, 0));
    }

    #[test]
    fn preconditions_are_evaluated() {
        let meta = FileMeta { len: 5, modified: Some(UNIX_EPOCH + Duration::from_millis(10_500)) };
        let tag = etag(&meta);
        for (name, value, status) in [
            (header::IF_NONE_MATCH, tag.as_str(), 304),
            (header::IF_NONE_MATCH, "\"other\", *", 304),
            (header::IF_NONE_MATCH, "\"other\"", 200),
            (header::IF_MATCH, tag.as_str(), 200),
            (header::IF_MATCH, "\"other\"", 412),
            (header::IF_MODIFIED_SINCE, "Thu, 01 Jan 1970 00:00:10 GMT", 304),
            (header::IF_MODIFIED_SINCE, "Thu, 01 Jan 1970 00:00:09 GMT", 200),
        ] {
            let answer = ask(Method::GET, &[(name.clone(), value)], &meta);
            assert_eq!(answer.head.status.as_u16(), status, "{name}: {value}");
        }
        let stale = [(header::RANGE, "bytes=0-1"), (header::IF_RANGE, "\"other\"")];
        assert_eq!(ask(Method::GET, &stale, &meta).head.status, StatusCode::OK);
    }
}
