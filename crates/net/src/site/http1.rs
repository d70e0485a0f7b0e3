//! The site over HTTP/1.1, TLS and TCP, at the port at which HTTP/3 is. Browsers find HTTP/3 by it (`Alt-Svc`, RFC
//! 7838).

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Socket, Type};
use tandem_node::{limits::Limits, origin::answer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Notify, oneshot, watch},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use super::{
    SiteContent, folder,
    upstream::{Asker, Body, Upstream},
    websocket::{self, Ends},
};
use crate::admin::places::{Place, Places};

/// The most connections. Each costs some 60 kB while it is idle. A further one takes the place of one without a
/// request.
const CONNECTIONS_MAX: usize = 1024;

/// The most connections of one address, or of the first 56 bits of an IPv6 address. Browsers open six for a site, and
/// several people may be behind one address.
const CONNECTIONS_PER_SOURCE: usize = 64;

/// The longest TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// The time in which the head of a request must arrive, after the connection or the request before it.
const HEAD_TIME: Duration = Duration::from_secs(15);

/// The time after which a connection ends on which no byte has moved. It may take twice as long.
const STILL: Duration = Duration::from_secs(60);

/// The bytes of a request's head.
const HEAD_MAX: usize = 16 * 1024;

/// The fields of it.
const FIELDS_MAX: usize = 100;

/// The connections that the operating system keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// The time for which connections may go on at the end.
const LAST: Duration = Duration::from_secs(10);

/// The pause after an error of the operating system, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// `Via` of requests that came over HTTP/1.1.
const VIA: &str = "1.1 tandem";

/// An answer to a request.
pub(super) type Answer = Response<Body>;

/// The site over TCP.
#[derive(Debug)]
pub struct TcpSite {
    listener: std::net::TcpListener,
    content: SiteContent,
    /// Where HTTP/3 is.
    alt_svc: HeaderValue,
}

impl TcpSite {
    /// Listens from now on, also while another process of the same user listens there, from which this one takes over.
    pub fn bind(address: SocketAddr, content: &SiteContent) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let alt_svc = format!("h3=\":{}\"; ma=86400", address.port());
        let alt_svc = HeaderValue::from_str(&alt_svc).map_err(io::Error::other)?;
        Ok(Self { listener: socket.into(), content: content.apart(), alt_svc })
    }

    /// Serves clients with TLS as it is in force. When `end` completes, no more connections are taken, and those that
    /// there are may go on for a while. Call within a runtime of one thread.
    pub async fn serve(
        self,
        tls: watch::Receiver<Arc<rustls::ServerConfig>>,
        end: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let Self { listener, content, alt_svc } = self;
        let (site, listener) = (Shared { content, alt_svc }, TcpListener::from_std(listener)?);
        let mut end = pin!(end);
        let mut connections = FuturesUnordered::new();
        let mut places = Places::new(CONNECTIONS_MAX);
        let mut sources = BTreeMap::<IpAddr, usize>::new();
        loop {
            tokio::select! {
                // Those that have lost their place end at once.
                accepted = listener.accept(), if connections.len() < 2 * CONNECTIONS_MAX => match accepted {
                    Ok((stream, client)) => {
                        let open = sources.entry(source(client.ip())).or_default();
                        if *open < CONNECTIONS_PER_SOURCE {
                            *open += 1;
                            let acceptor = TlsAcceptor::from(tls.borrow().clone());
                            connections.push(site.serve_one(acceptor, (stream, client), places.give()));
                        }
                    }
                    Err(error) => {
                        debug!(%error, "no TCP connection to the site");
                        sleep(PAUSE).await;
                    }
                },
                () = &mut end => break,
                Some((number, client)) = connections.next() => {
                    places.take_back(number);
                    if let Some(open) = sources.get_mut(&source(client)) {
                        *open -= 1;
                        if *open == 0 {
                            sources.remove(&source(client));
                        }
                    }
                }
            }
        }
        drop(listener);
        let all_ended = async { while connections.next().await.is_some() {} };
        timeout(LAST, all_ended).await.ok(); // the others are cut
        Ok(())
    }
}

/// What the connections of a site share.
struct Shared {
    content: SiteContent,
    alt_svc: HeaderValue,
}

impl Shared {
    /// Serves a connection until its end or until it loses its place. Returns its number and its client.
    async fn serve_one(
        &self,
        acceptor: TlsAcceptor,
        (stream, client): (TcpStream, SocketAddr),
        (place, is_lost): (Place, oneshot::Receiver<()>),
    ) -> (u64, IpAddr) {
        let serving = async {
            stream.set_nodelay(true).ok(); // else answers come later, and that is all
            let moved = Arc::new(AtomicU64::new(0));
            let stream = Moving { stream, moved: Arc::clone(&moved) };
            let Ok(Ok(stream)) = timeout(HANDSHAKE_TIME, acceptor.accept(stream)).await else {
                return;
            };
            let websocket = Mutex::new(None);
            let service = service_fn(|request| {
                place.has_asked.store(true, Ordering::Relaxed);
                let answer = self.answer(request, client.ip(), &websocket);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            let http = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD_MAX)
                .max_headers(FIELDS_MAX)
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            tokio::select! {
                served = http => if let Err(error) = served {
                    debug!(%error, "a TCP connection to the site failed");
                },
                () = stillness(&moved, STILL) => {
                    debug!("a TCP connection to the site stood still");
                }
            }
            let ends = websocket.into_inner().unwrap_or_else(PoisonError::into_inner);
            if let (Some(ends), SiteContent::Upstream(upstream)) = (ends, &self.content) {
                tokio::select! {
                    () = Ends::join(ends) => {}
                    () = stillness(&moved, upstream.idle) => debug!("a WebSocket stood still"),
                }
            }
        };
        tokio::select! {
            () = serving => {}
            _ = is_lost => debug!("a TCP connection to the site lost its place to a newer one"),
        }
        (place.number, client.ip())
    }

    /// Answers a request. `websocket` gets the two ends of a WebSocket that it opens.
    async fn answer(
        &self,
        request: Request<Incoming>,
        client: IpAddr,
        websocket: &Mutex<Option<Ends>>,
    ) -> Answer {
        let is_ambiguous = is_ambiguous(&request);
        let mut answer = match &self.content {
            _ if is_ambiguous => folder::whole(answer::plain(StatusCode::BAD_REQUEST)),
            SiteContent::Folder(files) => folder::answer(files, &request).await,
            SiteContent::Upstream(upstream) => pass_on(upstream, request, client, websocket).await,
        };
        let fields = answer.headers_mut();
        fields.entry(header::ALT_SVC).or_insert(self.alt_svc.clone());
        if is_ambiguous {
            fields.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

/// Asks the server behind the site.
async fn pass_on(
    upstream: &Upstream,
    mut request: Request<Incoming>,
    client: IpAddr,
    websocket: &Mutex<Option<Ends>>,
) -> Answer {
    let is_websocket = websocket::is_asked_for(&request);
    let client_end = is_websocket.then(|| hyper::upgrade::on(&mut request));
    let (request, moves) = match to_pass_on(request) {
        Ok(passed_on) => passed_on,
        Err(status) => return folder::whole(answer::plain(status)),
    };
    let client = Some(client.to_canonical());
    let asker = Asker { via: VIA, client, moves: &moves, is_websocket };
    let mut response = match upstream.ask(request, &asker).await {
        Ok(response) => response,
        Err(error) => {
            debug!(%error, "no answer of the server behind the site");
            return folder::whole(answer::without_upstream(error));
        }
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client) = client_end
    {
        let (server, watch) = (hyper::upgrade::on(&mut response), upstream.watch());
        let ends = Ends { client, server, watch };
        *websocket.lock().unwrap_or_else(PoisonError::into_inner) = Some(ends);
        websocket::grant(response.headers_mut());
    }
    response.map(|body| body.map_err(io::Error::other).boxed_unsync())
}

/// Whether a request is not clear about its host, or about its end in a way that hyper lets pass. (It refuses different
/// lengths, and drops the length of a chunked body and ends the connection after it, as RFC 9112 §6.3 says.)
fn is_ambiguous<B>(request: &Request<B>) -> bool {
    let fields = request.headers();
    let number_of = |name| fields.get_all(name).iter().count();
    // RFC 9112 §6.1: "A server or client that receives an HTTP/1.0 message containing a Transfer-Encoding header field
    // MUST treat the message as if the framing is faulty".
    let is_chunked = fields.contains_key(header::TRANSFER_ENCODING);
    let is_old = request.version() < Version::HTTP_11;
    // RFC 9112 §3.2: "A server MUST respond with a 400 (Bad Request) status code to any HTTP/1.1 request message that
    // lacks a Host header field and to any request message that contains more than one Host header field line".
    let hosts = number_of(header::HOST);
    (is_chunked && is_old) || hosts > 1 || (hosts == 0 && !is_old)
}

/// A request as the server behind the site gets it, and what tells that it takes the body, or the status that refuses
/// the request.
fn to_pass_on(mut request: Request<Incoming>) -> Result<(Request<Body>, Arc<Notify>), StatusCode> {
    // A gateway opens no tunnels, and what TRACE shows is not for clients.
    if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
        return Err(StatusCode::NOT_IMPLEMENTED);
    }
    let path = request.uri().path_and_query().map_or("", |path| path.as_str());
    let len = hyper::body::Body::size_hint(request.body()).exact();
    if !path.starts_with('/') {
        return Err(StatusCode::BAD_REQUEST);
    }
    if len.is_some_and(|len| len > Limits::UPLOAD) {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    if request.uri().authority().is_none() {
        let host = request.headers_mut().remove(header::HOST);
        let host = host.and_then(|host| host.to_str().ok()?.parse().ok());
        let mut uri = std::mem::take(request.uri_mut()).into_parts();
        (uri.scheme, uri.authority) = (Some(http::uri::Scheme::HTTPS), host);
        if uri.authority.is_none() {
            return Err(StatusCode::BAD_REQUEST);
        }
        *request.uri_mut() = http::Uri::from_parts(uri).map_err(|_| StatusCode::BAD_REQUEST)?;
    }
    let most = usize::try_from(Limits::UPLOAD).unwrap_or(usize::MAX);
    let moves = Arc::new(Notify::new());
    let told = Arc::clone(&moves);
    let request = request.map(|body| {
        let body = body.map_frame(move |frame| {
            told.notify_one();
            frame
        });
        Limited::new(body, most).map_err(io::Error::other).boxed_unsync()
    });
    Ok((request, moves))
}

/// Completes when no byte has moved for this time, or for up to twice as long.
async fn stillness(moved: &AtomicU64, time: Duration) {
    let mut before = None;
    loop {
        let now = moved.load(Ordering::Relaxed);
        if before.replace(now) == Some(now) {
            return;
        }
        sleep(time).await;
    }
}

/// Whose connections are counted together.
fn source(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 72)).into(),
    }
}

/// A TCP connection that counts its reads and writes.
struct Moving {
    stream: TcpStream,
    moved: Arc<AtomicU64>,
}

impl Moving {
    fn count<T>(&self, poll: Poll<T>) -> Poll<T> {
        if poll.is_ready() {
            self.moved.fetch_add(1, Ordering::Relaxed);
        }
        poll
    }
}

impl AsyncRead for Moving {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.count(poll)
    }
}

impl AsyncWrite for Moving {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.count(poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
