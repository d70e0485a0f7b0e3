//! The input of the targets that drive a node, and the messages that a step of it stands for.

use std::net::IpAddr;

use bytes::Bytes;
use tandem_node::node::{Progress, ResolveError};
use tandem_wire::{
    CidCapsule, CidReason, HttpDatagram, QuarterStreamId, RequestHead, ResponseHead, Settings,
    TunnelInfo, VarInt, encode_data_header, encode_datagram_capsule, encode_headers,
    encode_settings,
};

/// Reads the input, which is followed by zeros.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Starts at the beginning.
    pub const fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// Whether nothing is left.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a byte.
    pub fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    /// Reads a number of two bytes.
    pub fn number(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Reads a length and this number of bytes.
    pub fn bytes(&mut self) -> Vec<u8> {
        let len = usize::from(self.byte()).min(self.0.len());
        self.0.split_off(..len).unwrap_or_default().to_vec()
    }
}

/// The control stream of a client that sends HTTP Datagrams.
pub fn control_stream() -> Vec<u8> {
    control_stream_with(&Settings { h3_datagram: true, ..Settings::default() })
}

/// The control stream of a proxy, which also takes extended CONNECT.
pub fn server_control_stream() -> Vec<u8> {
    let (h3_datagram, enable_connect_protocol) = (true, true);
    control_stream_with(&Settings { h3_datagram, enable_connect_protocol, ..Settings::default() })
}

fn control_stream_with(settings: &Settings) -> Vec<u8> {
    let mut stream = vec![0]; // RFC 9114 §6.2.1: the type of a control stream
    encode_settings(settings, &mut stream);
    stream
}

/// A response in a HEADERS frame.
pub fn response(status: u16, fields: &[(&'static str, &'static str)]) -> Vec<u8> {
    let status = http::StatusCode::from_u16(status).expect("it has three digits");
    let mut headers = http::HeaderMap::new();
    for (name, value) in fields {
        headers.append(*name, http::HeaderValue::from_static(value));
    }
    let mut stream = Vec::new();
    encode_headers(&ResponseHead { status, headers }.encode(), &mut stream);
    stream
}

/// A well-formed request for a target of some kind: CONNECT-UDP, or CONNECT-TCP with the highest bit.
pub fn request(target: u8, fields: &[(&'static str, &'static str)]) -> Vec<u8> {
    let (protocol, kind) =
        if target & 0x80 == 0 { ("connect-udp", "udp") } else { ("connect-tcp", "tcp") };
    let target = match target % 6 {
        0 => "10.0.0.1/53",
        1 => "10.0.0.1/80",
        2 => "target.test/443",
        3 => "192.168.0.1/53",
        4 => "fe80%3A%3A1/53",
        _ => "/0",
    };
    let mut headers = http::HeaderMap::new();
    headers.insert("capsule-protocol", http::HeaderValue::from_static("?1"));
    for (name, value) in fields {
        headers.insert(*name, http::HeaderValue::from_static(value));
    }
    let head = RequestHead {
        method: http::Method::CONNECT,
        scheme: Some("https".to_owned()),
        authority: Some("proxy.test".to_owned()),
        path: Some(format!("/.well-known/masque/{kind}/{target}/")),
        protocol: Some(protocol.to_owned()),
        headers,
    };
    let mut stream = Vec::new();
    encode_headers(&head.encode(), &mut stream);
    stream
}

/// A request for a file, or of an upload, or for a channel for reports. The path is any text.
pub fn file_request(method: u8, path: &[u8], fields: &[(&'static str, &'static str)]) -> Vec<u8> {
    let mut headers = http::HeaderMap::new();
    for (name, value) in fields {
        headers.insert(*name, http::HeaderValue::from_static(value));
    }
    let (method, protocol) = match method % 5 {
        0 | 1 => (http::Method::GET, None),
        2 => (http::Method::HEAD, None),
        3 => (http::Method::PUT, None),
        _ => (http::Method::CONNECT, Some(TunnelInfo::PROTOCOL.to_owned())),
    };
    let head = RequestHead {
        method,
        scheme: Some("https".to_owned()),
        authority: Some("origin.test".to_owned()),
        path: Some(format!("/{}", String::from_utf8_lossy(path))),
        protocol,
        headers,
    };
    let mut stream = Vec::new();
    encode_headers(&head.encode(), &mut stream);
    stream
}

/// A DATAGRAM capsule in a DATA frame.
pub fn capsule(context_id: u8, payload: &[u8]) -> Vec<u8> {
    let mut capsule = Vec::new();
    encode_datagram_capsule(VarInt::from(u32::from(context_id)), payload, &mut capsule);
    data_frame(&capsule)
}

/// A capsule about a connection ID, in a DATA frame. `vcid` is the virtual ID, if the capsule has one.
pub fn cid_capsule(kind: u8, cid: Vec<u8>, vcid: Vec<u8>) -> Vec<u8> {
    let (reason, reset_token) = (CidReason(VarInt::from(u32::from(kind >> 4))), None);
    let (cid, vcid) = (Bytes::from(cid), Bytes::from(vcid));
    let capsule = match kind % 8 {
        0 => CidCapsule::RegisterClient { reason, cid },
        1 => CidCapsule::RegisterTarget { reason, cid, reset_token },
        2 => CidCapsule::AckClient { cid, vcid },
        3 => CidCapsule::AckClientVcid { cid, vcid, reset_token },
        4 => CidCapsule::AckTarget { cid, vcid, reset_token },
        5 => CidCapsule::CloseClient { reason, cid },
        6 => CidCapsule::CloseTarget { reason, cid },
        _ => CidCapsule::MaxConnectionIds(VarInt::from(u32::from(kind))),
    };
    let mut encoded = Vec::new();
    capsule.encode(&mut encoded);
    data_frame(&encoded)
}

/// A DATA frame.
pub fn data_frame(content: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_data_header(content.len(), &mut frame);
    frame.extend_from_slice(content);
    frame
}

/// An HTTP Datagram.
pub fn datagram(quarter_stream_id: u64, context_id: u8, payload: &[u8]) -> Bytes {
    let id = QuarterStreamId::from_stream_id(quarter_stream_id * 4).expect("it is small");
    let payload = Bytes::copy_from_slice(payload);
    HttpDatagram { quarter_stream_id: id, context_id: VarInt::from(u32::from(context_id)), payload }
        .encode_to_bytes()
}

/// An answer of a resolver.
pub fn resolved(answer: u8) -> (Result<Vec<IpAddr>, ResolveError>, Progress) {
    let address = |text: &str| text.parse().expect("it is an address");
    let result = match answer % 5 {
        0 => Ok(vec![address("10.0.0.2")]),
        1 => Ok(vec![address("127.0.0.1"), address("10.0.0.3"), address("::1")]),
        2 => Ok(vec![]),
        3 => Err(ResolveError::NotFound),
        _ => Err(ResolveError::Unreachable),
    };
    let has_address = result.as_ref().is_ok_and(|found: &Vec<_>| !found.is_empty());
    let progress =
        if answer & 0x80 != 0 && has_address { Progress::Partial } else { Progress::Complete };
    (result, progress)
}
