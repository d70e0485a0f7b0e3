//! The HTTP server behind a site, as a client of it: HTTP/1.1 over TCP.

use std::{error::Error, fmt, io, net::IpAddr, pin::pin, str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    Request, Response, StatusCode, Uri, Version, header,
    uri::{Authority, PathAndQuery, Scheme},
};
use http_body_util::{BodyExt, Empty, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tandem_node::{StrangerText, upstream::UpstreamError};
use tokio::{
    net::TcpStream,
    sync::Notify,
    time::{sleep, timeout},
};

use super::{
    fields::{self, pass_request, strip_connection},
    watch::{CHECK_TIME, INTERVAL, UpstreamWatch},
    websocket,
};

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

/// The body of a request that is passed on.
pub(super) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// The HTTP server behind a site. Clones share its connections.
#[derive(Clone)]
pub struct Upstream {
    authority: Authority,
    client: Client<HttpConnector, Body>,
    /// What all copies know of the server.
    pub(super) watch: Arc<UpstreamWatch>,
    /// What a check asks for. `None`: nothing, a connection is enough.
    health: Option<PathAndQuery>,
    /// The longest wait for a response, for its next bytes, and until it takes more of a request.
    pub(super) silence: Duration,
    /// The longest time in which nothing moves on a WebSocket.
    pub(super) idle: Duration,
}

/// What comes with a request that is passed on.
pub(super) struct Asker<'a> {
    /// The protocol in which the request came, as the field `Via` has it.
    pub(super) via: &'static str,
    /// Who sent it.
    pub(super) client: Option<IpAddr>,
    /// Says that the server has taken bytes of the request.
    pub(super) moves: &'a Notify,
    /// The request asks for a WebSocket, and has a key.
    pub(super) is_websocket: bool,
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
        let watch = Arc::default();
        Self { authority, client, watch, health: None, silence: SILENCE, idle: websocket::IDLE }
    }

    /// The same server with connections of its own, because those of one runtime cannot be used in another.
    #[must_use]
    pub fn apart(&self) -> Self {
        let Self { silence, idle, .. } = *self;
        let (watch, health) = (Arc::clone(&self.watch), self.health.clone());
        Self { watch, health, silence, idle, ..Self::new(self.authority.clone()) }
    }

    /// The same server, which is up if it answers GET for this path with a status of success or of a redirect. Without
    /// it, a server is up if it accepts connections.
    #[must_use]
    pub fn with_health(self, path: PathAndQuery) -> Self {
        Self { health: Some(path), ..self }
    }

    /// The same server, which is given up after this time without a word instead of a minute, and its WebSockets too.
    #[must_use]
    pub fn with_silence(self, silence: Duration) -> Self {
        Self { silence, idle: silence, ..self }
    }

    /// What all copies know of the server.
    pub fn watch(&self) -> Arc<UpstreamWatch> {
        Arc::clone(&self.watch)
    }

    /// Checks the server again and again. Never completes.
    pub async fn keep_checking(&self) {
        loop {
            let checked = timeout(CHECK_TIME, self.check()).await;
            let late = || format!("no answer within {CHECK_TIME:?}");
            self.watch.note(checked.unwrap_or_else(|_| Err(late())));
            sleep(INTERVAL).await;
        }
    }

    async fn check(&self) -> Result<(), String> {
        let Some(path) = &self.health else {
            let port = self.authority.port_u16().unwrap_or(80);
            let host = self.authority.host().trim_matches(['[', ']']);
            let connected = TcpStream::connect((host, port)).await;
            return connected.map(drop).map_err(|error| error.to_string());
        };
        let mut request = Request::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
        *request.uri_mut() = self.uri(path.clone()).map_err(|error| error.to_string())?;
        let response = self.client.request(request).await;
        let response = response.map_err(|error| cause(&error).to_string())?;
        let status = response.status();
        let is_good = status.is_success() || status.is_redirection();
        // The connection is used again if the body has been read, which may be longer than anybody wants to read.
        if is_good { Ok(()) } else { Err(format!("status {} for {path}", status.as_u16())) }
    }

    fn uri(&self, path: PathAndQuery) -> Result<Uri, http::Error> {
        Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()
    }

    /// Asks the server.
    ///
    /// The wait for the response begins again whenever `moves` says that the server has taken bytes of the request. The
    /// response has no fields that are about a connection. It may come before the request's body has been sent. Its
    /// status is 101 only if a WebSocket was asked for and the server has granted it.
    pub(super) async fn ask(
        &self,
        request: Request<Body>,
        asker: &Asker<'_>,
    ) -> Result<Response<Incoming>, UpstreamError> {
        let answer = self.ask_once(request, asker).await;
        match &answer {
            Ok(_) => self.watch.count_answer(),
            Err(error) => self.watch.count_failure(*error),
        }
        answer
    }

    async fn ask_once(
        &self,
        mut request: Request<Body>,
        asker: &Asker<'_>,
    ) -> Result<Response<Incoming>, UpstreamError> {
        let &Asker { via, client, moves, is_websocket } = asker;
        let uri = std::mem::take(request.uri_mut()).into_parts();
        let path = uri.path_and_query.unwrap_or(PathAndQuery::from_static("/"));
        *request.uri_mut() = self.uri(path).map_err(|_| UpstreamError::Malformed)?;
        *request.version_mut() = Version::HTTP_11;
        let fields = request.headers_mut();
        let host = uri.authority.as_ref().map(Authority::as_str);
        pass_request(fields, &fields::Origin { via, client, host });
        let mut key = None;
        if is_websocket {
            websocket::ask(fields);
            key = fields.get(header::SEC_WEBSOCKET_KEY).cloned();
        } else {
            fields.remove(header::SEC_WEBSOCKET_KEY);
        }
        let mut response = pin!(self.client.request(request));
        let mut response = loop {
            tokio::select! {
                response = &mut response => break response.map_err(|error| cause(&error))?,
                () = moves.notified() => {}
                () = sleep(self.silence) => return Err(UpstreamError::Silent),
            }
        };
        let (status, fields) = (response.status(), response.headers_mut());
        let is_open = status == StatusCode::SWITCHING_PROTOCOLS
            && key.is_some_and(|key| websocket::is_granted(fields, &key));
        strip_connection(fields);
        let bytes: usize =
            fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        match status {
            // A switch to another protocol was not asked for.
            _ if bytes > HEAD_MAX => Err(UpstreamError::Malformed),
            status if status.is_informational() && !is_open => Err(UpstreamError::Malformed),
            // For a client over HTTP/3, success would mean that the WebSocket is open.
            status if is_websocket && status.is_success() => Err(UpstreamError::NoWebSocket),
            _ => Ok(response),
        }
    }
}

/// Why there is no response.
fn cause(error: &hyper_util::client::legacy::Error) -> UpstreamError {
    let sources = || {
        std::iter::successors(error.source(), |error: &&(dyn Error + 'static)| (*error).source())
    };
    if error.is_connect() {
        let system = sources().filter_map(|it| it.downcast_ref::<io::Error>()).last();
        return match system {
            Some(error) if error.kind() == io::ErrorKind::TimedOut => UpstreamError::ConnectTimeout,
            // The connector has no type for this.
            _ if sources().any(|it| it.to_string().starts_with("dns error")) => {
                UpstreamError::Unresolved
            }
            _ => UpstreamError::Refused,
        };
    }
    match sources().find_map(|it| it.downcast_ref::<hyper::Error>()) {
        Some(error) if error.is_parse() => UpstreamError::Malformed,
        Some(error) if error.is_timeout() => UpstreamError::Silent,
        _ => UpstreamError::Closed,
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
}
