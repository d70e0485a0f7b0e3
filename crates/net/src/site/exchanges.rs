//! The exchanges of a node with the server behind its site. Each runs in a task of its own in the runtime of the
//! driver, and tells the driver through one channel. The node bounds what waits there.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Frame, Incoming, SizeHint};
use tandem_node::{
    node::Input,
    upstream::{
        ExchangeId, RequestBody, RequestHead, ResponseHead, UpstreamError, UpstreamInput,
        UpstreamOutput,
    },
};
use tokio::{
    sync::{Notify, mpsc},
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use super::{
    fields::{strip_connection, strip_trailers},
    upstream::{Asker, Body, Upstream},
    websocket::{self, Piece, Told},
};

/// The most bytes of a response that a node gets at once.
const PIECE_MAX: usize = 64 * 1024;

/// The longest wait until a client has taken what it got last, at most [`PIECE_MAX`]. So who takes less than 4 kbit/s
/// does not hold an exchange.
const STALL: Duration = Duration::from_secs(120);

/// The most interim responses of an exchange that are passed on.
const INTERIM_MAX: usize = 4;

/// `Via` of requests that came over HTTP/3.
const VIA: &str = "3.0 tandem";

/// The exchanges of a node.
pub(crate) struct Exchanges {
    upstream: Option<Upstream>,
    open: BTreeMap<ExchangeId, Exchange>,
    tasks: JoinSet<()>,
    told: mpsc::UnboundedSender<UpstreamInput>,
    telling: mpsc::UnboundedReceiver<UpstreamInput>,
}

/// What reaches the task of an exchange.
struct Exchange {
    task: AbortHandle,
    /// `None`: the body of the request is complete.
    body: Option<mpsc::UnboundedSender<Piece>>,
    more: mpsc::UnboundedSender<()>,
}

impl Exchanges {
    /// Without a server, every exchange fails.
    pub(crate) fn new(upstream: Option<Upstream>) -> Self {
        let (told, telling) = mpsc::unbounded_channel();
        Self { upstream, open: BTreeMap::new(), tasks: JoinSet::new(), told, telling }
    }

    pub(crate) fn perform(&mut self, output: UpstreamOutput) {
        match output {
            UpstreamOutput::Request { exchange, head, client, body } => {
                self.begin(exchange, *head, client, body);
            }
            UpstreamOutput::Body { exchange, data } => self.pass_on(exchange, Piece::Data(data)),
            UpstreamOutput::BodyEnd { exchange } => self.pass_on(exchange, Piece::End),
            UpstreamOutput::More { exchange } => {
                if let Some(exchange) = self.open.get(&exchange) {
                    exchange.more.send(()).ok(); // a task that has ended has told why
                }
            }
            UpstreamOutput::Forget { exchange } => {
                if let Some(exchange) = self.open.remove(&exchange) {
                    exchange.task.abort();
                }
            }
        }
    }

    fn pass_on(&mut self, exchange: ExchangeId, piece: Piece) {
        let Some(Exchange { body, .. }) = self.open.get_mut(&exchange) else { return };
        let is_end = matches!(piece, Piece::End);
        if let Some(body) = body {
            body.send(piece).ok(); // the server may have answered without reading the body
        }
        if is_end {
            *body = None;
        }
    }

    fn begin(
        &mut self,
        exchange: ExchangeId,
        head: RequestHead,
        client: Option<IpAddr>,
        body: RequestBody,
    ) {
        let told = self.told.clone();
        let failed = |error| UpstreamInput::Failed { exchange, error };
        let Some(upstream) = self.upstream.clone() else {
            return drop(told.send(failed(UpstreamError::Unresolved)));
        };
        let (pieces, coming) = mpsc::unbounded_channel();
        let (more, asked) = mpsc::unbounded_channel();
        let moves = Arc::new(Notify::new());
        let is_websocket = body == RequestBody::WebSocket;
        let (mut bytes, mut frames) = (None, None);
        match body {
            RequestBody::None => {}
            RequestBody::Sized(len) => bytes = Some((coming, Some(len))),
            RequestBody::Unsized => bytes = Some((coming, None)),
            RequestBody::WebSocket => frames = Some(coming),
        }
        let passed = (bytes.is_some() || frames.is_some()).then_some(pieces);
        let body = match bytes {
            Some((coming, left)) => {
                let (told, moves) = (told.clone(), Arc::clone(&moves));
                Body::new(Passed { exchange, coming, told, moves, left })
            }
            None => Body::new(Empty::new().map_err(|never| match never {})),
        };
        let Some(mut request) = request(head, body, is_websocket) else {
            return drop(told.send(failed(UpstreamError::Malformed)));
        };
        tell_of_hints(&mut request, exchange, &told);
        let run = async move {
            let from = Asker { via: VIA, client, moves: &moves, is_websocket };
            let result = async {
                let mut response = upstream.ask(request, &from).await?;
                let upgrade = (response.status() == StatusCode::SWITCHING_PROTOCOLS)
                    .then(|| hyper::upgrade::on(&mut response));
                let headers = std::mem::take(response.headers_mut());
                let mut head = Box::new(ResponseHead { status: response.status(), headers });
                let count = |error: &UpstreamError| upstream.watch.count_failure(*error);
                let (Some(upgrade), Some(coming)) = (upgrade, frames) else {
                    told.send(UpstreamInput::Head { exchange, head }).ok(); // the driver has ended
                    let relayed = relay(response, (exchange, upstream.silence), &told, asked);
                    return relayed.await.inspect_err(count);
                };
                let upgraded = upgrade.await.map_err(|_| UpstreamError::Closed)?;
                head.status = StatusCode::OK;
                // RFC 8441 §5: these fields are not used; the status takes their place.
                head.headers.remove(header::SEC_WEBSOCKET_ACCEPT);
                // RFC 9110 §8.6: a server "MUST NOT send a Content-Length header field in any 2xx (Successful) response
                // to a CONNECT request".
                head.headers.remove(header::CONTENT_LENGTH);
                told.send(UpstreamInput::Head { exchange, head }).ok(); // as above
                let tell = |what| {
                    let input = match what {
                        Told::Taken(bytes) => UpstreamInput::Taken { exchange, bytes },
                        Told::Data(data) => UpstreamInput::Data { exchange, data },
                        Told::End => UpstreamInput::End { exchange, trailers: Box::default() },
                    };
                    told.send(input).ok(); // as above
                };
                let _open = upstream.watch.open_websocket();
                let relayed = websocket::relay(upgraded, upstream.idle, tell, (coming, asked));
                relayed.await.inspect_err(count)
            };
            if let Err(error) = result.await {
                told.send(UpstreamInput::Failed { exchange, error }).ok(); // as above
            }
        };
        let task = self.tasks.spawn(run);
        self.open.insert(exchange, Exchange { task, body: passed, more });
    }

    /// Appends what has been told to `inputs`.
    pub(crate) fn poll_told(&mut self, context: &mut Context<'_>, inputs: &mut Vec<Input>) {
        if self.tasks.is_empty() && self.telling.is_empty() {
            return; // this is asked at each wake-up, and mostly there is no exchange
        }
        while let Poll::Ready(Some(told)) = self.telling.poll_recv(context) {
            inputs.push(Input::Upstream(told));
        }
        while let Poll::Ready(Some(_)) = self.tasks.poll_join_next(context) {} // a task tells its result itself
    }
}

/// The request in the form of the HTTP client.
fn request(head: RequestHead, body: Body, is_websocket: bool) -> Option<Request<Body>> {
    let uri = Uri::builder().scheme("https").authority(head.authority?).path_and_query(head.path?);
    let mut request = Request::new(body);
    (*request.method_mut(), *request.uri_mut()) = (head.method, uri.build().ok()?);
    *request.headers_mut() = head.headers;
    if is_websocket {
        // RFC 8441 §5: CONNECT takes the place of GET, and there is no key.
        *request.method_mut() = Method::GET;
        request.headers_mut().insert(header::SEC_WEBSOCKET_KEY, websocket::key()?);
    }
    Some(request)
}

/// Lets the node know of 103 (Early Hints). Other interim responses are for this gateway.
fn tell_of_hints(
    request: &mut Request<Body>,
    exchange: ExchangeId,
    told: &mpsc::UnboundedSender<UpstreamInput>,
) {
    let (told, count) = (told.clone(), AtomicUsize::new(0));
    hyper::ext::on_informational(request, move |response| {
        let status = response.status();
        if status == StatusCode::EARLY_HINTS && count.fetch_add(1, Ordering::Relaxed) < INTERIM_MAX
        {
            let mut headers = response.headers().clone();
            strip_connection(&mut headers);
            let head = Box::new(ResponseHead { status, headers });
            told.send(UpstreamInput::Interim { exchange, head }).ok(); // the driver has ended
        }
    });
}

/// Gives the node the body of a response, a piece whenever it asks for one.
async fn relay(
    response: Response<Incoming>,
    (exchange, silence): (ExchangeId, Duration),
    told: &mpsc::UnboundedSender<UpstreamInput>,
    mut asked: mpsc::UnboundedReceiver<()>,
) -> Result<(), UpstreamError> {
    let mut body = response.into_body();
    let (mut rest, mut trailers) = (Bytes::new(), Box::<HeaderMap>::default());
    while timeout(STALL, asked.recv()).await.map_err(|_| UpstreamError::Stalled)?.is_some() {
        while rest.is_empty() {
            let frame = timeout(silence, body.frame()).await.map_err(|_| UpstreamError::Silent)?;
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => rest = data,
                Some(Ok(Err(frame))) => {
                    *trailers = frame.into_trailers().unwrap_or_default();
                    strip_trailers(&mut trailers);
                }
                Some(Err(_)) => return Err(UpstreamError::Closed),
                None => {
                    told.send(UpstreamInput::End { exchange, trailers }).ok(); // the driver has ended
                    return Ok(());
                }
            }
        }
        let data = rest.split_to(rest.len().min(PIECE_MAX));
        told.send(UpstreamInput::Data { exchange, data }).ok(); // the driver has ended
    }
    Ok(())
}

/// The body of a request, as the node passes it on.
struct Passed {
    exchange: ExchangeId,
    coming: mpsc::UnboundedReceiver<Piece>,
    told: mpsc::UnboundedSender<UpstreamInput>,
    /// Is notified when bytes have been taken.
    moves: Arc<Notify>,
    /// The bytes that must still come, if their number is known.
    left: Option<u64>,
}

impl hyper::body::Body for Passed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(match ready!(self.coming.poll_recv(context)) {
            Some(Piece::Data(data)) => {
                let (exchange, bytes) = (self.exchange, data.len());
                self.left = self.left.map(|left| left.saturating_sub(bytes as u64));
                self.told.send(UpstreamInput::Taken { exchange, bytes }).ok(); // the driver has ended
                self.moves.notify_one();
                Some(Ok(Frame::data(data)))
            }
            Some(Piece::End) => None,
            // The client has gone, so that the server must not take what it has for the whole.
            None => Some(Err(io::ErrorKind::UnexpectedEof.into())),
        })
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        io::{Read, Write},
        net::{Shutdown, TcpListener, TcpStream},
        thread,
    };

    use super::*;

    /// A server that does this with each connection, after a request without a body. It ends with the test's process.
    fn server(serve: impl Fn(&mut TcpStream) + Send + 'static) -> Upstream {
        server_of(move |stream, _| serve(stream))
    }

    /// The same with the head of the request.
    fn server_of(serve: impl Fn(&mut TcpStream, &str) + Send + 'static) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut head) = (stream.unwrap(), Vec::new());
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    head.push(byte[0]);
                }
                serve(&mut stream, &String::from_utf8(head).unwrap());
            }
        });
        let upstream: Upstream = format!("http://{address}").parse().unwrap();
        upstream.with_silence(Duration::from_millis(100))
    }

    const EXCHANGE: ExchangeId = ExchangeId(7);

    fn begin(exchanges: &mut Exchanges, body: RequestBody) {
        let head = RequestHead {
            method: Method::POST,
            scheme: Some("https".to_owned()),
            authority: Some("garden.example".to_owned()),
            path: Some("/".to_owned()),
            protocol: None,
            headers: HeaderMap::new(),
        };
        let (exchange, head) = (EXCHANGE, Box::new(head));
        exchanges.perform(UpstreamOutput::Request { exchange, head, client: None, body });
    }

    async fn told(exchanges: &mut Exchanges) -> Vec<UpstreamInput> {
        let inputs = poll_fn(|context| {
            let mut inputs = Vec::new();
            exchanges.poll_told(context, &mut inputs);
            if inputs.is_empty() { Poll::Pending } else { Poll::Ready(inputs) }
        });
        let inner = |input| if let Input::Upstream(told) = input { Some(told) } else { None };
        inputs.await.into_iter().filter_map(inner).collect()
    }

    #[tokio::test]
    async fn a_server_that_says_nothing_is_given_up() {
        let mute = |stream: &mut TcpStream| drop(stream.read(&mut [0; 1]));
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n";
        let falls_silent = move |stream: &mut TcpStream| {
            stream.write_all(head).unwrap();
            mute(stream);
        };
        for upstream in [server(mute), server(falls_silent)] {
            let mut exchanges = Exchanges::new(Some(upstream));
            begin(&mut exchanges, RequestBody::None);
            exchanges.perform(UpstreamOutput::More { exchange: EXCHANGE });
            let mut all = Vec::new();
            while !matches!(all.last(), Some(UpstreamInput::Failed { .. })) {
                all.extend(told(&mut exchanges).await);
            }
            let error = UpstreamError::Silent;
            let last = all.last();
            assert!(
                matches!(last, Some(UpstreamInput::Failed { error: it, .. }) if *it == error),
                "{all:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_websocket_on_which_nothing_moves_ends() {
        let upstream = server_of(|stream, head| {
            let key = head.lines().find_map(|line| line.strip_prefix("sec-websocket-key: "));
            let accept = websocket::accept(key.unwrap().as_bytes());
            let switch =
                "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n";
            stream
                .write_all(format!("{switch}sec-websocket-accept: {accept}\r\n\r\n").as_bytes())
                .unwrap();
            stream.read_to_end(&mut Vec::new()).ok(); // it is cut
        });
        let watch = upstream.watch();
        let mut exchanges = Exchanges::new(Some(upstream));
        begin(&mut exchanges, RequestBody::WebSocket);
        exchanges.perform(UpstreamOutput::More { exchange: EXCHANGE });
        let mut all = Vec::new();
        while !matches!(all.last(), Some(UpstreamInput::Failed { .. })) {
            all.extend(told(&mut exchanges).await);
        }
        let [UpstreamInput::Head { head, .. }, UpstreamInput::Failed { error, .. }] = &*all else {
            panic!("{all:?}")
        };
        assert_eq!((head.status, *error), (StatusCode::OK, UpstreamError::Silent));
        assert_eq!(watch.websockets(), 0);
        assert_eq!(watch.failed().iter().map(|(_, count)| count).sum::<u64>(), 1);
    }

    #[tokio::test]
    async fn nothing_is_read_that_was_not_asked_for() {
        let endless = |stream: &mut TcpStream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            while stream.write_all(&[7; 10_000]).is_ok() {}
        };
        let mut exchanges = Exchanges::new(Some(server(endless)));
        begin(&mut exchanges, RequestBody::None);
        let first = told(&mut exchanges).await;
        assert!(matches!(&*first, [UpstreamInput::Head { .. }]), "{first:?}");
        for _ in 0..100 {
            exchanges.perform(UpstreamOutput::More { exchange: EXCHANGE });
            let next = told(&mut exchanges).await;
            let [UpstreamInput::Data { data, .. }] = &*next else { panic!("{next:?}") };
            assert!((1..=PIECE_MAX).contains(&data.len()));
        }
        exchanges.perform(UpstreamOutput::Forget { exchange: EXCHANGE });
        assert!(exchanges.open.is_empty());
    }

    #[tokio::test]
    async fn a_body_that_is_cut_is_not_taken_for_a_whole_one() {
        let (tell, whole) = std::sync::mpsc::channel();
        let upstream = server(move |stream: &mut TcpStream| {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).ok(); // it may be reset
            tell.send(all).unwrap();
            stream.shutdown(Shutdown::Both).ok();
        });
        let mut exchanges = Exchanges::new(Some(upstream));
        begin(&mut exchanges, RequestBody::Unsized);
        let data = Bytes::from_static(b"hello");
        exchanges.perform(UpstreamOutput::Body { exchange: EXCHANGE, data });
        let taken = told(&mut exchanges).await;
        assert!(matches!(&*taken, [UpstreamInput::Taken { bytes: 5, .. }]), "{taken:?}");
        exchanges.perform(UpstreamOutput::Forget { exchange: EXCHANGE });
        let came = tokio::task::spawn_blocking(move || whole.recv().unwrap()).await.unwrap();
        let end = b"0\r\n\r\n";
        assert!(!came.ends_with(end), "{:?}", String::from_utf8_lossy(&came));
    }
}
