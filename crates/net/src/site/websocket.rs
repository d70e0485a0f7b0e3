//! WebSockets of a site with a server behind it: the handshake of RFC 6455 with that server, and the bytes after it.
//! What travels in the WebSocket is not looked at.

use std::{io, pin::pin, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use ring::{
    digest::{SHA1_FOR_LEGACY_USE_ONLY, digest},
    rand::{SecureRandom, SystemRandom},
};
use tandem_node::upstream::UpstreamError;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, split},
    sync::{Notify, mpsc},
    time::timeout,
};

/// The longest time in which no byte moves. Programs that keep a WebSocket open send something every 20 to 60 s, so
/// that the routers on the path keep their state.
pub(super) const IDLE: Duration = Duration::from_secs(5 * 60);

/// The bytes that are read at once. The memory for them is held while a WebSocket is silent.
const PIECE: usize = 8 * 1024;

/// RFC 6455 §1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The name of the protocol in `Upgrade`.
const PROTOCOL: HeaderValue = HeaderValue::from_static("websocket");

/// A piece of what a client sends.
pub(super) enum Piece {
    Data(Bytes),
    End,
}

/// The value of `Sec-WebSocket-Accept` that proves that a server has understood this key.
pub(super) fn accept(key: &[u8]) -> String {
    let sum = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID.as_bytes()].concat());
    BASE64_STANDARD.encode(sum)
}

/// A key of a handshake, which is 16 random bytes (RFC 6455 §4.1).
pub(super) fn key() -> Option<HeaderValue> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).ok()?;
    HeaderValue::from_str(&BASE64_STANDARD.encode(bytes)).ok()
}

/// Whether a request over HTTP/1.1 asks for a WebSocket and has what RFC 6455 §4.1 wants of it. Others are passed on
/// without the wish, as RFC 9110 §7.8 allows.
pub(super) fn is_asked_for<B: hyper::body::Body>(request: &Request<B>) -> bool {
    let fields = request.headers();
    let only = |name| {
        let mut values = fields.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())
    };
    let names = |name, wanted: &str| {
        let values = fields.get_all(name).iter().filter_map(|it: &HeaderValue| it.to_str().ok());
        values.flat_map(|it| it.split(',')).any(|it| it.trim().eq_ignore_ascii_case(wanted))
    };
    let is_websocket =
        only(header::UPGRADE).is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"websocket"));
    request.method() == Method::GET
        && request.version() == Version::HTTP_11
        && request.body().is_end_stream()
        && names(header::CONNECTION, "upgrade")
        && is_websocket
        && only(header::SEC_WEBSOCKET_KEY).is_some()
}

/// Writes the fields that ask for a WebSocket. They are about the connection to the server.
pub(super) fn ask(fields: &mut HeaderMap) {
    fields.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    fields.insert(header::UPGRADE, PROTOCOL);
    let version = HeaderValue::from_static("13");
    fields.entry(header::SEC_WEBSOCKET_VERSION).or_insert(version);
}

/// Writes the fields of an answer over HTTP/1.1 that grants a WebSocket.
pub(super) fn grant(fields: &mut HeaderMap) {
    fields.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    fields.insert(header::UPGRADE, PROTOCOL);
}

/// Checks an answer 101 to a request with this key, before the fields about the connection are removed.
///
/// RFC 6455 §4.1: without the right `Upgrade`, `Connection` and `Sec-WebSocket-Accept` "the client MUST _Fail the
/// WebSocket Connection_".
pub(super) fn is_granted(fields: &HeaderMap, key: &HeaderValue) -> bool {
    let is = |name: HeaderName, wanted: &[u8]| {
        fields.get(name).is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(wanted))
    };
    let accepted = fields.get(header::SEC_WEBSOCKET_ACCEPT).map(HeaderValue::as_bytes);
    let is_switched = is(header::UPGRADE, b"websocket") && is(header::CONNECTION, b"upgrade");
    is_switched && accepted == Some(accept(key.as_bytes()).as_bytes())
}

/// What the relay of a WebSocket tells.
pub(super) enum Told {
    /// Bytes of the client have been sent.
    Taken(usize),
    /// Bytes of the server.
    Data(Bytes),
    /// The server has closed the connection.
    End,
}

/// Relays a WebSocket until the server closes it: what comes to the server, and from the server a piece whenever one is
/// asked for. It fails if nothing moves for `idle`.
pub(super) async fn relay(
    upgraded: Upgraded,
    idle: Duration,
    tell: impl Fn(Told),
    (mut coming, mut asked): (mpsc::UnboundedReceiver<Piece>, mpsc::UnboundedReceiver<()>),
) -> Result<(), UpstreamError> {
    let (mut reader, mut writer) = split(TokioIo::new(upgraded));
    let moves = Notify::new();
    let to_server = async {
        while let Some(Piece::Data(data)) = coming.recv().await {
            writer.write_all(&data).await?;
            writer.flush().await?;
            moves.notify_one();
            tell(Told::Taken(data.len()));
        }
        writer.shutdown().await?;
        std::future::pending::<io::Result<()>>().await // the server ends the WebSocket
    };
    let to_client = async {
        while asked.recv().await.is_some() {
            let mut data = BytesMut::with_capacity(PIECE);
            if reader.read_buf(&mut data).await? == 0 {
                tell(Told::End);
                return Ok(());
            }
            moves.notify_one();
            tell(Told::Data(data.freeze()));
        }
        Ok::<_, io::Error>(())
    };
    tokio::select! {
        ended = to_client => ended.map_err(|_| UpstreamError::Closed),
        ended = to_server => ended.map_err(|_| UpstreamError::Closed),
        () = stillness(&moves, idle) => Err(UpstreamError::Silent),
    }
}

/// Completes when nothing has been notified for this time.
async fn stillness(moves: &Notify, idle: Duration) {
    while timeout(idle, moves.notified()).await.is_ok() {}
}

/// The two ends of a WebSocket that came over HTTP/1.1, which become of two upgraded connections.
pub(super) struct Ends {
    pub(super) client: hyper::upgrade::OnUpgrade,
    pub(super) server: hyper::upgrade::OnUpgrade,
    pub(super) watch: Arc<super::watch::UpstreamWatch>,
}

impl Ends {
    /// Relays until both ends have closed, or one has failed.
    pub(super) async fn join(self) {
        let Self { client, server, watch } = self;
        let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
        let _open = watch.open_websocket();
        let (client, server) = (pin!(TokioIo::new(client)), pin!(TokioIo::new(server)));
        let (client, server) = (client.get_mut(), server.get_mut());
        // An error ends it for both.
        tokio::io::copy_bidirectional_with_sizes(client, server, PIECE, PIECE).await.ok();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Empty;

    use super::*;

    #[test]
    fn the_example_of_the_rfc_is_accepted() {
        // RFC 6455 §1.3.
        assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        let mut fields = HeaderMap::new();
        grant(&mut fields);
        assert!(!is_granted(&fields, &key));
        for (accept, is_right) in
            [("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", true), ("c3pPLMBiTxaQ9kYGzzhZRbK+xOo=", false)]
        {
            fields.insert(header::SEC_WEBSOCKET_ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(is_granted(&fields, &key), is_right);
        }
    }

    #[test]
    fn only_a_whole_handshake_asks_for_a_websocket() {
        let ask = |method: Method, version, lines: &[(&str, &str)]| {
            let mut request = Request::new(Empty::<Bytes>::new());
            (*request.method_mut(), *request.version_mut()) = (method, version);
            for (name, value) in lines {
                let name: HeaderName = name.parse().unwrap();
                request.headers_mut().append(name, value.parse().unwrap());
            }
            is_asked_for(&request)
        };
        let good = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-key", "a"),
        ];
        assert!(ask(Method::GET, Version::HTTP_11, &good));
        assert!(!ask(Method::POST, Version::HTTP_11, &good));
        assert!(!ask(Method::GET, Version::HTTP_10, &good));
        for (index, value) in [(0, "keep-alive"), (1, "h2c"), (1, "websocket, h2c")] {
            let mut lines = good;
            lines[index].1 = value;
            assert!(!ask(Method::GET, Version::HTTP_11, &lines), "{value}");
        }
        assert!(!ask(Method::GET, Version::HTTP_11, &good[..2]));
        let two = [&good[..], &[("sec-websocket-key", "b")]].concat();
        assert!(!ask(Method::GET, Version::HTTP_11, &two));
    }
}
