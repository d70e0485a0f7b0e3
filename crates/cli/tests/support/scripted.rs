//! An HTTP/3 origin on another QUIC implementation, whose answers a test writes.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use http::{HeaderName, HeaderValue, StatusCode};
use quinn::{Connection, Endpoint, RecvStream, SendStream, crypto::rustls::QuicServerConfig};
use rustls::pki_types::PrivatePkcs8KeyDer;
use tandem_wire::{
    Frame, FrameDecoder, RequestHead, ResponseHead, Settings, StreamKind, encode_data_header,
    encode_headers, encode_settings,
};
use tokio::runtime::Builder;

/// The largest number of bytes of a header section and of one read.
const MAX: usize = 65_536;

/// The time between two pieces of noise.
const NOISE: Duration = Duration::from_millis(20);

/// The answer to a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    status: u16,
    fields: Vec<(&'static str, String)>,
    body: Vec<u8>,
    is_cut: bool,
    closes: Option<String>,
    /// What is sent again and again at the end, every [`NOISE`].
    noise: Vec<u8>,
    is_without_head: bool,
}

impl Answer {
    pub(crate) fn new(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn field(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn body(self, body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..self }
    }

    /// Closes the connection with this reason instead.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn close(reason: &str) -> Self {
        Self { closes: Some(reason.to_owned()), ..Self::default() }
    }

    /// Never ends the body.
    pub(crate) fn cut(self) -> Self {
        Self { is_cut: true, ..self }
    }

    /// Never ends the body, and sends frames without any of it for ever.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn noise(self, frames: impl Into<Vec<u8>>) -> Self {
        Self { noise: frames.into(), ..self }.cut()
    }

    /// Only interim answers, for ever.
    #[allow(dead_code, reason = "not every test needs it")]
    pub(crate) fn only_interim() -> Self {
        let head = ResponseHead { status: StatusCode::PROCESSING, ..ResponseHead::default() };
        let mut frames = Vec::new();
        encode_headers(&head.encode(), &mut frames);
        Self { is_without_head: true, ..Self::new(200).noise(frames) }
    }
}

/// The origin. It ends with the test's process.
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<RequestHead>>>,
}

impl Scripted {
    pub(crate) fn start(answer: impl Fn(&RequestHead) -> Answer + Send + Sync + 'static) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let requests = Arc::clone(&seen);
        let (ready, listening) = mpsc::channel();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
                let endpoint = Endpoint::server(config(), loopback).unwrap();
                ready.send(endpoint.local_addr().unwrap()).unwrap();
                let answer = Arc::new(answer);
                while let Some(incoming) = endpoint.accept().await {
                    let (answer, requests) = (Arc::clone(&answer), Arc::clone(&requests));
                    tokio::spawn(async move {
                        let Ok(connection) = incoming.await else { return };
                        serve(connection, &*answer, &requests).await;
                    });
                }
            });
        });
        Self { address: listening.recv().unwrap(), seen }
    }

    /// The requests since the last call.
    pub(crate) fn seen(&self) -> Vec<RequestHead> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

fn config() -> quinn::ServerConfig {
    let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![key.cert.der().clone()],
            PrivatePkcs8KeyDer::from(key.signing_key.serialize_der()).into(),
        )
        .unwrap();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()))
}

async fn serve(
    connection: Connection,
    answer: &impl Fn(&RequestHead) -> Answer,
    seen: &Mutex<Vec<RequestHead>>,
) {
    let mut control = connection.open_uni().await.unwrap();
    let mut settings = vec![0]; // RFC 9114 §6.2.1: the type of a control stream
    encode_settings(&Settings::default(), &mut settings);
    control.write_all(&settings).await.unwrap();
    let mut open = Vec::new();
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        let Some(head) = read_head(&mut recv).await else { continue };
        let answer = answer(&head);
        seen.lock().unwrap().push(head);
        if let Some(reason) = answer.closes {
            return connection.close(0x100_u32.into(), reason.as_bytes()); // H3_NO_ERROR
        }
        if write(&mut send, &answer).await.is_ok() && !answer.noise.is_empty() {
            tokio::spawn(async move {
                let _held = recv; // a stream that is dropped is stopped
                while send.write_all(&answer.noise).await.is_ok() {
                    tokio::time::sleep(NOISE).await;
                }
            });
        } else if answer.is_cut {
            open.push((send, recv)); // a stream that is dropped ends
        }
    }
}

async fn read_head(recv: &mut RecvStream) -> Option<RequestHead> {
    let mut decoder = FrameDecoder::new(StreamKind::Request, MAX);
    loop {
        while let Some(frame) = decoder.next().unwrap() {
            if let Frame::Headers(section) = frame {
                return Some(RequestHead::decode(section, MAX as u64).unwrap());
            }
        }
        decoder.push(recv.read_chunk(MAX, true).await.ok()??.bytes);
    }
}

async fn write(send: &mut SendStream, answer: &Answer) -> Result<(), quinn::WriteError> {
    let mut head = ResponseHead {
        status: StatusCode::from_u16(answer.status).unwrap(),
        ..ResponseHead::default()
    };
    for (name, value) in &answer.fields {
        head.headers.append(HeaderName::from_static(name), HeaderValue::try_from(value).unwrap());
    }
    let mut bytes = Vec::new();
    encode_headers(&head.encode(), &mut bytes);
    encode_data_header(answer.body.len(), &mut bytes);
    bytes.extend_from_slice(&answer.body);
    if answer.is_without_head {
        bytes.clear();
    }
    send.write_all(&bytes).await
}
