//! The HTTP server behind a site, as a client of it: HTTP/1.1 over TCP.

use std::{fmt, net::IpAddr, pin::pin, str::FromStr, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, Version, header,
    uri::{Authority, PathAndQuery, Scheme},
};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tandem_node::{StrangerText, upstream::UpstreamError};
use tokio::{sync::Notify, time::sleep};

/// The longest wait for a connection. The server is on this machine or near it.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// The longest wait for a response, and for its next bytes, as other reverse proxies have it.
const SILENCE: Duration = Duration::from_secs(60);

/// The time for which a connection without a request is kept. Servers keep theirs for 5 s (Apache) or longer.
const IDLE: Duration = Duration::from_secs(4);

/// The most connections that are kept without a request.
const IDLE_MAX: usize = 32;

/// The bytes of a response's fields, and about as many as are read at once.
const HEAD_MAX: usize = 64 * 1024;

/// The fields of a response.
const FIELDS_MAX: usize = 100;

/// The fields that are about one connection (RFC 9110 §7.6.1), and that HTTP/3 forbids (RFC 9114 §4.2).
const OF_CONNECTION: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("http2-settings"),
];

/// What a client may not say of itself, and what is for the site and not for the server behind it.
const OF_GATEWAY: [HeaderName; 6] = [
    HeaderName::from_static("forwarded"),
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
    header::PROXY_AUTHORIZATION,
    header::EXPECT,
];

/// The body of a request that is passed on.
pub(super) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// The HTTP server behind a site. Clones share its connections.
#[derive(Clone)]
pub struct Upstream {
    authority: Authority,
    client: Client<HttpConnector, Body>,
    /// The longest wait for a response, for its next bytes, and until it takes more of a request.
    pub(super) silence: Duration,
}

/// The error for a text that is not the URL of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no URL of a server behind a site; allowed: http://HOST:PORT, without a path")]
pub struct UpstreamUrlError {
    text: StrangerText,
}

impl FromStr for Upstream {
    type Err = UpstreamUrlError;

    fn from_str(text: &str) -> Result<Self, UpstreamUrlError> {
        let uri = text.parse::<Uri>().ok().map(Uri::into_parts);
        let is_root = |path: &PathAndQuery| path.as_str() == "/";
        let authority = uri.and_then(|uri| {
            let is_server = uri.scheme == Some(Scheme::HTTP)
                && uri.path_and_query.is_none_or(|it| is_root(&it));
            uri.authority.filter(|authority| is_server && !authority.as_str().contains('@'))
        });
        authority.map(Self::new).ok_or_else(|| UpstreamUrlError { text: text.into() })
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upstream({})", self.authority)
    }
}

impl Upstream {
    fn new(authority: Authority) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIME));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_MAX)
            .http1_max_buf_size(HEAD_MAX)
            .http1_max_headers(FIELDS_MAX)
            .build(connector);
        Self { authority, client, silence: SILENCE }
    }

    /// The same server with connections of its own, because those of one runtime cannot be used in another.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self { silence: self.silence, ..Self::new(self.authority.clone()) }
    }

    /// The same server, which is given up after this time without a word instead of a minute.
    #[must_use]
    pub fn with_silence(self, silence: Duration) -> Self {
        Self { silence, ..self }
    }

    /// Asks the server. `via` is the protocol in which the request came, as the field of this name has it, and `client`
    /// who sent it.
    ///
    /// The wait for the response begins again whenever `moves` says that the server has taken bytes of the request. The
    /// response has no fields that are about a connection. It may come before the request's body has been sent.
    pub(super) async fn ask(
        &self,
        mut request: Request<Body>,
        (via, client): (&'static str, Option<IpAddr>),
        moves: &Notify,
    ) -> Result<Response<Incoming>, UpstreamError> {
        let mut uri = std::mem::take(request.uri_mut()).into_parts();
        let named = uri.authority.take();
        (uri.scheme, uri.authority) = (Some(Scheme::HTTP), Some(self.authority.clone()));
        uri.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
        *request.uri_mut() = Uri::from_parts(uri).map_err(|_| UpstreamError::Malformed)?;
        *request.version_mut() = Version::HTTP_11;
        let fields = request.headers_mut();
        strip_connection(fields);
        for name in &OF_GATEWAY {
            fields.remove(name);
        }
        if let Some(host) = named.and_then(|it| HeaderValue::from_str(it.as_str()).ok()) {
            fields.insert(header::HOST, host);
        }
        // RFC 9110 §7.6.3: "An HTTP-to-HTTP gateway MUST send an appropriate Via header field in each inbound request
        // message".
        fields.append(header::VIA, HeaderValue::from_static(via));
        fields.insert("x-forwarded-proto", HeaderValue::from_static("https"));
        if let Some(client) = client.and_then(|it| HeaderValue::from_str(&it.to_string()).ok()) {
            fields.insert("x-forwarded-for", client);
        }
        let mut response = pin!(self.client.request(request));
        let response = loop {
            tokio::select! {
                response = &mut response => break response.map_err(|error| cause(&error))?,
                () = moves.notified() => {}
                () = sleep(self.silence) => return Err(UpstreamError::Silent),
            }
        };
        let (mut head, body) = response.into_parts();
        strip_connection(&mut head.headers);
        let bytes: usize =
            head.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        // A switch to another protocol was not asked for.
        if head.status.is_informational() || bytes > HEAD_MAX {
            return Err(UpstreamError::Malformed);
        }
        Ok(Response::from_parts(head, body))
    }
}

/// Why there is no response.
fn cause(error: &hyper_util::client::legacy::Error) -> UpstreamError {
    let source = std::error::Error::source(error).and_then(|it| it.downcast_ref::<hyper::Error>());
    match source {
        _ if error.is_connect() => UpstreamError::Unreachable,
        Some(error) if error.is_parse() => UpstreamError::Malformed,
        Some(error) if error.is_timeout() => UpstreamError::Silent,
        _ => UpstreamError::Unreachable,
    }
}

/// Removes the fields that are about a connection, also those that `Connection` names.
///
/// RFC 9110 §7.6.1: "Intermediaries MUST parse a received Connection header field before a message is forwarded and,
/// for each connection-option in this field, remove any header or trailer field(s) from the message with the same name
/// as the connection-option".
fn strip_connection(fields: &mut HeaderMap) {
    let named: Vec<HeaderName> = fields
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&OF_CONNECTION) {
        fields.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_a_host_and_perhaps_a_port() {
        for (text, shown) in [
            ("http://127.0.0.1:8080", Some("http://127.0.0.1:8080")),
            ("http://127.0.0.1:8080/", Some("http://127.0.0.1:8080")),
            ("http://localhost", Some("http://localhost")),
            ("http://[::1]:80", Some("http://[::1]:80")),
            ("https://127.0.0.1:8080", None),
            ("http://127.0.0.1:8080/path", None),
            ("http://127.0.0.1:8080/?a", None),
            ("http://user:secret@127.0.0.1", None),
            ("127.0.0.1:8080", None),
            ("www", None),
            ("http://", None),
            ("", None),
        ] {
            let seen = text.parse::<Upstream>().ok().map(|it| it.to_string());
            assert_eq!(seen.as_deref(), shown, "{text}");
        }
    }

    #[test]
    fn fields_about_a_connection_go_no_further() {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Own"),
            ("connection", "x-other"),
            ("x-own", "1"),
            ("x-other", "1"),
            ("transfer-encoding", "chunked"),
            ("keep-alive", "timeout=5"),
            ("upgrade", "h2c"),
            ("te", "trailers"),
            ("content-type", "text/plain"),
        ] {
            fields.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        strip_connection(&mut fields);
        assert_eq!(fields.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["content-type"]);
    }
}
