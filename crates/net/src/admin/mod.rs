//! HTTP/1.1 for the operators of a server, on loopback or at a Unix socket.
//!
//! A runtime without a node serves it, so that no packet waits for a request.

mod client;
mod host;
mod listener;
pub(crate) mod places;

use std::{
    convert::Infallible, future, net::SocketAddr, path::PathBuf, sync::atomic::Ordering,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{
        ALLOW, CACHE_CONTROL, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
        X_FRAME_OPTIONS,
    },
};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
    time::{sleep, timeout},
};
use tracing::debug;

use self::places::{Place, Places};
pub use self::{
    client::{ClientError, get},
    listener::AdminListener,
};

/// The number of connections at the same time. A further one takes the place of another ([`Places`]). An operator
/// has a few scrapers and pages.
const CONNECTIONS_MAX: usize = 32;

/// The time for a whole connection: one request and its answer.
const CONNECTION_TIME: Duration = Duration::from_secs(10);

/// The time in which the head of a request must arrive.
const HEAD_TIME: Duration = Duration::from_secs(5);

/// The size of a request's head in bytes. Browsers send cookies of other services of the same host.
const HEAD_MAX: usize = 16 * 1024;

/// The number of fields in it.
const FIELDS_MAX: usize = 64;

/// The pause after an error of the operating system, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Where operators reach a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// An answer to a request.
pub type Answer = Response<Bytes>;

/// What an HTTP connection runs over.
trait HttpStream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> HttpStream for T {}

impl AdminListener {
    /// Answers requests for paths until the future is dropped. Call within a runtime.
    ///
    /// A request has 10 s and a bounded size, and each connection carries one request. When there are too many
    /// connections, the one that has been there for longest without a request ends, so that connections which say
    /// nothing do not delay the probe of a load balancer. Only
    /// GET and HEAD are answered, and over TCP only if their Host is an address or `localhost`: a page of another
    /// site, whose name leads to this machine, must not read what is shown here (DNS rebinding).
    pub async fn serve(&self, answer: impl Fn(&str) -> Answer) {
        self.serve_requests(|request| self.answer_local(request, &answer)).await;
    }

    /// Answers requests for paths, also those from other machines, with the same bounds.
    pub async fn serve_everybody(&self, answer: impl Fn(&str) -> Answer) {
        self.serve_requests(|request| of_path(request, &answer)).await;
    }

    async fn serve_requests(&self, answer: impl Fn(&Request<Incoming>) -> Answer) {
        let answer = &answer;
        let mut connections = FuturesUnordered::new();
        let mut places = Places::new(CONNECTIONS_MAX);
        loop {
            tokio::select! {
                // Those that have lost their place end at once.
                accepted = self.accept(), if connections.len() < 2 * CONNECTIONS_MAX => match accepted {
                    Ok(stream) => connections.push(self.serve_one(stream, places.give(), answer)),
                    Err(error) => {
                        debug!(%error, "no connection to the admin listener");
                        sleep(PAUSE).await;
                    }
                },
                Some(number) = connections.next() => places.take_back(number),
            }
        }
    }

    /// Serves a connection until its end or until it loses its place. Returns its number.
    async fn serve_one(
        &self,
        stream: Box<dyn HttpStream>,
        (place, is_lost): (Place, oneshot::Receiver<()>),
        answer: &impl Fn(&Request<Incoming>) -> Answer,
    ) -> u64 {
        let service = service_fn(|request| {
            place.has_asked.store(true, Ordering::Relaxed);
            let answer = secured(answer(&request)).map(Full::new);
            future::ready(Ok::<_, Infallible>(answer))
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME)
            .keep_alive(false)
            .max_buf_size(HEAD_MAX)
            .max_headers(FIELDS_MAX)
            .serve_connection(TokioIo::new(stream), service);
        tokio::select! {
            served = timeout(CONNECTION_TIME, serving) => match served {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, "a connection to the admin listener failed"),
                Err(_) => debug!("a connection to the admin listener took too long"),
            },
            _ = is_lost => debug!("a connection to the admin listener lost its place to a newer one"),
        }
        place.number
    }

    fn answer_local<B>(&self, request: &Request<B>, answer: impl Fn(&str) -> Answer) -> Answer {
        if self.is_tcp() && !host::is_local(request) {
            let why = "This host name is not allowed: use localhost or an address.\n";
            return text(StatusCode::MISDIRECTED_REQUEST, why);
        }
        of_path(request, answer)
    }
}

fn of_path<B>(request: &Request<B>, answer: impl Fn(&str) -> Answer) -> Answer {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD.\n");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    answer(request.uri().path())
}

/// An answer in plain text.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, "text/plain; charset=utf-8", body)
}

/// An answer with a body of this type.
pub fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// The answer with fields that keep pages of other sites from using it.
fn secured(mut answer: Answer) -> Answer {
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (http::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (http::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests;
