use proptest::prelude::*;

use super::*;
use crate::Code;

/// Encodes a field section from lines of text.
fn section(lines: &[(&str, &str)]) -> Bytes {
    encode_field_section(lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
}

fn request(lines: &[(&str, &str)]) -> Result<RequestHead, DecodeError> {
    RequestHead::decode(section(lines), 10_000)
}

fn response(lines: &[(&str, &str)]) -> Result<ResponseHead, DecodeError> {
    ResponseHead::decode(section(lines), 10_000)
}

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let line = |(name, value): &(&'static str, &'static str)| {
        (HeaderName::from_static(name), HeaderValue::from_static(value))
    };
    lines.iter().map(line).collect()
}

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":authority", "a.example"), (":path", "/")];

const CONNECT_UDP: [(&str, &str); 5] = [
    (":method", "CONNECT"),
    (":protocol", "connect-udp"),
    (":scheme", "https"),
    (":path", "/.well-known/masque/udp/192.0.2.6/443/"),
    (":authority", "example.org"),
];

/// Returns a valid request with the line `name` replaced by `line`, or removed if `line` has no
/// name.
fn with<const N: usize>(
    base: [(&'static str, &'static str); N],
    name: &'static str,
    line: (&'static str, &'static str),
) -> Vec<(&'static str, &'static str)> {
    let mut lines: Vec<_> = base.into_iter().filter(|(other, _)| *other != name).collect();
    if !line.0.is_empty() {
        lines.push(line);
    }
    lines
}

#[test]
fn the_request_of_rfc_9298_decodes() {
    // RFC 9298 §3.4, Figure 5.
    let mut lines = CONNECT_UDP.to_vec();
    lines.push(("capsule-protocol", "?1"));
    let head = RequestHead {
        method: Method::CONNECT,
        scheme: Some("https".to_owned()),
        authority: Some("example.org".to_owned()),
        path: Some("/.well-known/masque/udp/192.0.2.6/443/".to_owned()),
        protocol: Some("connect-udp".to_owned()),
        headers: headers(&[("capsule-protocol", "?1")]),
    };
    assert_eq!(request(&lines), Ok(head.clone()));
    assert_eq!(RequestHead::decode(head.encode(), 10_000), Ok(head));
}

#[test]
fn well_formed_requests_decode() {
    for lines in [
        GET.to_vec(),
        with(GET, ":authority", ("host", "a.example")),
        with(GET, "host", ("host", "a.example")),
        with(GET, "te", ("te", "trailers")),
        with(GET, ":path", (":path", "/a?b=c&d")),
        with(GET, ":authority", (":authority", "[2001:db8::1]:8443")),
        vec![(":method", "OPTIONS"), GET[1], GET[2], (":path", "*")],
        vec![(":method", "CONNECT"), (":authority", "a.example:443")],
        vec![GET[0], (":scheme", "x-other"), GET[3]],
    ] {
        assert!(request(&lines).is_ok(), "{lines:?}: {:?}", request(&lines));
    }
}

#[test]
fn requests_with_wrong_pseudo_headers_are_malformed() {
    use MessageError::{
        HostMismatch, PseudoHeaderLate, PseudoHeaderMissing, PseudoHeaderRepeated,
        PseudoHeaderUnknown, PseudoHeaderWithMethod,
    };
    let with_method = |name, method| PseudoHeaderWithMethod { name, method };
    let nothing = ("", "");
    for (lines, error) in [
        (vec![], PseudoHeaderMissing(METHOD)),
        (with(GET, ":method", nothing), PseudoHeaderMissing(METHOD)),
        (with(GET, ":scheme", nothing), PseudoHeaderMissing(SCHEME)),
        (with(GET, ":path", nothing), PseudoHeaderMissing(PATH)),
        (with(GET, ":authority", nothing), PseudoHeaderMissing(AUTHORITY)),
        (with(GET, "", (":path", "/")), PseudoHeaderRepeated(PATH)),
        (with(GET, "", (":status", "200")), PseudoHeaderUnknown(":status".into())),
        (with(GET, "", (":", "")), PseudoHeaderUnknown(":".into())),
        (with(GET, "", (":Path", "/")), PseudoHeaderUnknown(":Path".into())),
        (vec![GET[0], GET[1], GET[2], ("a", "b"), GET[3]], PseudoHeaderLate(":path".into())),
        (with(GET, "", (":protocol", "connect-udp")), with_method(PROTOCOL, Method::GET)),
        (with(CONNECT_UDP, ":protocol", nothing), with_method(SCHEME, Method::CONNECT)),
        (vec![CONNECT_UDP[0], CONNECT_UDP[3], CONNECT_UDP[4]], with_method(PATH, Method::CONNECT)),
        (vec![CONNECT_UDP[0]], PseudoHeaderMissing(AUTHORITY)),
        (
            vec![CONNECT_UDP[0], (":authority", "a.example")],
            MessageError::PseudoHeaderValue { name: AUTHORITY, value: "a.example".into() },
        ),
        (with(CONNECT_UDP, ":scheme", nothing), PseudoHeaderMissing(SCHEME)),
        (with(CONNECT_UDP, ":path", nothing), PseudoHeaderMissing(PATH)),
        (with(CONNECT_UDP, ":authority", nothing), PseudoHeaderMissing(AUTHORITY)),
        (with(GET, "", ("host", "b.example")), HostMismatch),
        (with(GET, ":authority", ("host", "")), HostMismatch),
    ] {
        assert_eq!(request(&lines), Err(error.into()), "{lines:?}");
    }
}

#[test]
fn pseudo_headers_with_wrong_values_are_malformed() {
    for (name, value) in [
        (":method", ""),
        (":method", "GET /"),
        (":scheme", ""),
        (":scheme", "1"),
        (":scheme", "ht tp"),
        (":authority", ""),
        (":authority", "user@a.example"),
        (":authority", "a.example/"),
        (":authority", "a example"),
        (":path", ""),
        (":path", "*"),
        (":path", "a"),
        (":path", "/a b"),
        (":path", "/a#b"),
        (":path", "/\u{e4}"),
        (":path", "/\r\n"),
    ] {
        let error = request(&with(GET, name, (name, value))).expect_err(value);
        let bytes = Bytes::from_static(value.as_bytes());
        assert_eq!(
            error,
            MessageError::PseudoHeaderValue { name, value: StrangerText::from_bytes(&bytes) }
                .into()
        );
        assert_eq!(error.code(), Code::H3_MESSAGE_ERROR);
    }
    let error = request(&with(CONNECT_UDP, ":protocol", (":protocol", "a b")));
    assert!(matches!(
        error,
        Err(DecodeError::MessageMalformed(MessageError::PseudoHeaderValue { name: PROTOCOL, .. }))
    ));
}

#[test]
fn wrong_fields_are_malformed_in_requests_and_responses() {
    use MessageError::{ConnectionSpecific, Name, Te, Value};
    for (line, error) in [
        (("Accept", "a"), Name("Accept".into())),
        (("", "a"), Name("".into())),
        (("a b", "a"), Name("a b".into())),
        (("a", "\r"), Value(HeaderName::from_static("a"))),
        (("a", "b\nc: d"), Value(HeaderName::from_static("a"))),
        (("a", "\0"), Value(HeaderName::from_static("a"))),
        (("connection", "close"), ConnectionSpecific(header::CONNECTION)),
        (("keep-alive", "1"), ConnectionSpecific(HeaderName::from_static("keep-alive"))),
        (
            ("proxy-connection", "1"),
            ConnectionSpecific(HeaderName::from_static("proxy-connection")),
        ),
        (("transfer-encoding", "chunked"), ConnectionSpecific(header::TRANSFER_ENCODING)),
        (("upgrade", "connect-udp"), ConnectionSpecific(header::UPGRADE)),
        (("te", "gzip"), Te),
    ] {
        let mut lines = GET.to_vec();
        lines.push(line);
        assert_eq!(request(&lines), Err(error.clone().into()), "{line:?}");
        assert_eq!(response(&[(":status", "200"), line]), Err(error.into()), "{line:?}");
    }
}

#[test]
fn responses_need_exactly_one_status_of_three_digits() {
    use MessageError::{
        PseudoHeaderLate, PseudoHeaderMissing, PseudoHeaderRepeated, PseudoHeaderUnknown,
        PseudoHeaderValue,
    };
    let wrong = |value: &'static [u8]| PseudoHeaderValue {
        name: STATUS,
        value: StrangerText::from_bytes(value),
    };
    for (lines, error) in [
        (&[][..], PseudoHeaderMissing(STATUS)),
        (&[("a", "b")], PseudoHeaderMissing(STATUS)),
        (&[(":status", "")], wrong(b"")),
        (&[(":status", "20")], wrong(b"20")),
        (&[(":status", "2000")], wrong(b"2000")),
        (&[(":status", "099")], wrong(b"099")),
        (&[(":status", "101")], wrong(b"101")),
        (&[(":status", "200"), (":status", "200")], PseudoHeaderRepeated(STATUS)),
        (&[(":status", "200"), (":path", "/")], PseudoHeaderUnknown(":path".into())),
        (&[("a", "b"), (":status", "200")], PseudoHeaderLate(":status".into())),
    ] {
        assert_eq!(response(lines), Err(error.into()), "{lines:?}");
    }
    let head = response(&[(":status", "200"), ("capsule-protocol", "?1")]).unwrap();
    assert_eq!(head.status, StatusCode::OK);
    assert_eq!(head.headers, headers(&[("capsule-protocol", "?1")]));
}

#[test]
fn a_message_up_to_the_limit_is_accepted() {
    let head = ResponseHead { status: StatusCode::OK, headers: HeaderMap::new() };
    let size = 7 + 3 + 32; // ":status", "200"
    assert!(ResponseHead::decode(head.encode(), size).is_ok());
    let error = ResponseHead::decode(head.encode(), size - 1).expect_err("one byte too many");
    assert_eq!(error.code(), Code::H3_EXCESSIVE_LOAD);
}

#[test]
fn a_flood_of_small_lines_ends_in_an_error_and_not_in_a_panic() {
    let lines: Vec<_> = (0..40_000).map(|index| format!("a{index}")).collect();
    let status = [(&b":status"[..], &b"200"[..])];
    let lines = status.into_iter().chain(lines.iter().map(|name| (name.as_bytes(), &b""[..])));
    let error = ResponseHead::decode(encode_field_section(lines), u64::MAX);
    assert_eq!(error, Err(MessageError::TooManyLines.into()));
}

fn field() -> impl Strategy<Value = (HeaderName, HeaderValue)> {
    let name = "[a-z][a-z0-9-]{0,12}".prop_filter("allowed in HTTP/3", |name| {
        let name = HeaderName::from_lowercase(name.as_bytes()).unwrap();
        !is_connection_specific(&name) && name != header::TE && name != header::HOST
    });
    (name, "[ -~\u{e4}]{0,20}").prop_map(|(name, value)| {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        (HeaderName::from_bytes(name.as_bytes()).unwrap(), value)
    })
}

proptest! {
    #[test]
    fn requests_decode_to_themselves(
        path in "/[!-\"$-~]{0,30}",
        authority in "[a-z0-9.-]{1,20}(:[0-9]{1,4})?",
        is_connect_udp: bool,
        fields in proptest::collection::vec(field(), 0..8),
    ) {
        let head = RequestHead {
            method: if is_connect_udp { Method::CONNECT } else { Method::GET },
            scheme: Some("https".to_owned()),
            authority: Some(authority),
            path: Some(path),
            protocol: is_connect_udp.then(|| "connect-udp".to_owned()),
            headers: fields.into_iter().collect(),
        };
        prop_assert_eq!(RequestHead::decode(head.encode(), 10_000), Ok(head));
    }

    #[test]
    fn responses_decode_to_themselves(
        status in 200_u16..1000,
        fields in proptest::collection::vec(field(), 0..8),
    ) {
        let status = StatusCode::from_u16(status).unwrap();
        let head = ResponseHead { status, headers: fields.into_iter().collect() };
        prop_assert_eq!(ResponseHead::decode(head.encode(), 10_000), Ok(head));
    }
}

#[test]
fn trailers_are_fields_without_pseudo_headers() {
    assert_eq!(decode_trailers(section(&[("x", "y")]), 100), Ok(headers(&[("x", "y")])));
    for (lines, error) in [
        (&[(":path", "/")][..], MessageError::PseudoHeaderUnknown(":path".into())),
        (&[("X", "y")], MessageError::Name("X".into())),
        (&[("connection", "close")], MessageError::ConnectionSpecific(header::CONNECTION)),
    ] {
        assert_eq!(decode_trailers(section(lines), 100), Err(error.into()), "{lines:?}");
    }
}
