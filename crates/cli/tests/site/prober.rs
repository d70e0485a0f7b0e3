//! A prober: valid QUIC of another implementation, and any bytes above it. It notes everything that a server answers.

use std::{
    any::Any,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use quinn::{
    ClientConfig, Connection, Endpoint, ReadError, RecvStream, TokenStore,
    crypto::{self, ExportKeyingMaterialError, KeyPair, Keys, PacketKey, rustls::QuicClientConfig},
};
use quinn_proto::{
    ConnectError, ConnectionId, Side, TransportError, transport_parameters::TransportParameters,
};
use rustls::{RootCertStore, pki_types::CertificateDer};
use tandem_wire::{Frame, FrameDecoder, StreamKind};

/// A time after which an answer does not come any more. Only probes that no server answers wait for it.
const SILENCE: Duration = Duration::from_secs(2);

/// What a stranger sends on a connection of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probe {
    pub(crate) name: String,
    /// A control stream, unless the probe has one of its own.
    pub(crate) has_own_control: bool,
    /// Bytes on unidirectional streams, and whether these end.
    pub(crate) one_way: Vec<(Vec<u8>, bool)>,
    /// Bytes on request streams, one after another, and whether these end.
    pub(crate) requests: Vec<(Vec<u8>, bool)>,
    /// DATAGRAM frames, before the requests and after them.
    pub(crate) datagrams: (Vec<Vec<u8>>, Vec<Vec<u8>>),
}

/// What a server shows of itself on one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// What came on each request stream, byte for byte, and how it ended.
    pub(crate) streams: Vec<(Vec<u8>, String)>,
    /// What came on the first unidirectional stream, which is the control stream.
    pub(crate) control: Vec<u8>,
    /// Why the connection ended, if the server ended it.
    pub(crate) closed: Option<String>,
    /// The transport parameters that are no random IDs.
    pub(crate) parameters: String,
    /// Whether an address token came.
    pub(crate) has_token: bool,
    pub(crate) alpn: Option<Vec<u8>>,
}

impl Seen {
    /// The same with the bytes of bodies instead of frames, because a body that comes in pieces is framed as they come.
    pub(crate) fn with_bodies(mut self) -> Self {
        for (data, _) in &mut self.streams {
            let mut decoder = FrameDecoder::new(StreamKind::Request, 1 << 20);
            decoder.push(data.clone().into());
            let mut all = Vec::new();
            while let Ok(Some(frame)) = decoder.next() {
                if let Frame::Headers(bytes) | Frame::Data(bytes) = frame {
                    all.extend_from_slice(&bytes);
                }
            }
            *data = all;
        }
        self
    }
}

/// Counts address tokens.
#[derive(Default)]
struct Tokens(AtomicUsize);

impl TokenStore for Tokens {
    fn insert(&self, _: &str, _: Bytes) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self, _: &str) -> Option<Bytes> {
        None
    }
}

/// Sends a probe, and notes what comes back.
pub(crate) async fn probe(
    endpoint: &Endpoint,
    ca: &[u8],
    server: SocketAddr,
    probe: &Probe,
) -> Seen {
    let (tokens, parameters) = (Arc::new(Tokens::default()), Arc::<Mutex<String>>::default());
    let mut config =
        ClientConfig::new(Arc::new(Noting { tls: tls(ca), parameters: parameters.clone() }));
    config.token_store(tokens.clone());
    let connection = endpoint.connect_with(config, server, "localhost").unwrap().await.unwrap();
    let control = tokio::spawn(first_uni(connection.clone()));
    let mut held = Vec::new();
    let own_control = [0, 4, 0]; // RFC 9114 §6.2.1: its type, and SETTINGS without any
    let usual = (!probe.has_own_control).then(|| (own_control.to_vec(), false));
    for (bytes, ends) in usual.iter().chain(&probe.one_way) {
        let Ok(mut stream) = connection.open_uni().await else { break };
        stream.write_all(bytes).await.ok(); // the server may have closed the connection
        if *ends {
            stream.finish().ok();
        }
        held.push(stream);
    }
    send_datagrams(&connection, &probe.datagrams.0);
    let mut streams = Vec::new();
    for (bytes, ends) in &probe.requests {
        let Ok((mut send, receive)) = connection.open_bi().await else { break };
        send.write_all(bytes).await.ok(); // as above
        if *ends {
            send.finish().ok();
        }
        held.push(send);
        if probe.datagrams.1.is_empty() {
            streams.push(read(receive).await);
        } else {
            // A datagram for a request whose answer is complete shows nothing.
            send_datagrams(&connection, &probe.datagrams.1);
            streams.push(read(receive).await);
        }
    }
    if probe.requests.is_empty() {
        tokio::time::timeout(SILENCE, connection.closed()).await.ok();
    }
    // An address token comes at any time after the handshake.
    while connection.close_reason().is_none() && tokens.0.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let alpn = connection.handshake_data().unwrap().downcast::<crypto::rustls::HandshakeData>();
    let closed = connection.close_reason().map(|reason| reason.to_string());
    let (control, _) = control.await.unwrap();
    let parameters = parameters.lock().unwrap().clone();
    connection.close(0x100_u32.into(), b"");
    Seen {
        streams,
        control,
        closed: closed.clone(),
        parameters,
        has_token: closed.is_none() && tokens.0.load(Ordering::Relaxed) > 0,
        alpn: alpn.unwrap().protocol,
    }
}

fn send_datagrams(connection: &Connection, datagrams: &[Vec<u8>]) {
    for data in datagrams {
        connection.send_datagram(data.clone().into()).ok(); // the server may have closed the connection
    }
}

/// The first bytes on the first unidirectional stream, and the stream, because one that is dropped is stopped.
async fn first_uni(connection: Connection) -> (Vec<u8>, Option<RecvStream>) {
    let Ok(Ok(mut stream)) = tokio::time::timeout(SILENCE, connection.accept_uni()).await else {
        return (Vec::new(), None);
    };
    let first = stream.read_chunk(1000, true).await;
    (first.ok().flatten().map(|it| it.bytes.to_vec()).unwrap_or_default(), Some(stream))
}

/// Reads a stream to its end, which is described.
async fn read(mut stream: RecvStream) -> (Vec<u8>, String) {
    let mut all = Vec::new();
    loop {
        let end = match tokio::time::timeout(SILENCE, stream.read_chunk(65_536, true)).await {
            Ok(Ok(Some(chunk))) => {
                all.extend_from_slice(&chunk.bytes);
                continue;
            }
            Ok(Ok(None)) => "finished".to_owned(),
            Ok(Err(ReadError::Reset(code))) => format!("reset with {code}"),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "open".to_owned(),
        };
        return (all, end);
    }
}

/// TLS that trusts this CA.
pub(crate) fn tls(ca: &[u8]) -> Arc<QuicClientConfig> {
    let mut tls = client_tls(ca);
    tls.alpn_protocols = vec![b"h3".to_vec()];
    Arc::new(QuicClientConfig::try_from(tls).unwrap())
}

/// The same for TCP, without ALPN.
pub(crate) fn client_tls(ca: &[u8]) -> rustls::ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(ca.to_vec())).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// TLS whose sessions note the transport parameters of the server.
struct Noting {
    tls: Arc<QuicClientConfig>,
    parameters: Arc<Mutex<String>>,
}

impl crypto::ClientConfig for Noting {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        name: &str,
        own: &TransportParameters,
    ) -> Result<Box<dyn crypto::Session>, ConnectError> {
        let session = self.tls.clone().start_session(version, name, own)?;
        Ok(Box::new(NotingSession { session, parameters: self.parameters.clone() }))
    }
}

struct NotingSession {
    session: Box<dyn crypto::Session>,
    parameters: Arc<Mutex<String>>,
}

impl crypto::Session for NotingSession {
    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let parameters = self.session.transport_parameters()?;
        if let Some(parameters) = &parameters {
            // Connection IDs and the token of a stateless reset are random, and so are parameters that mean nothing.
            let text = format!("{parameters:#?}");
            let is_random = |line: &str| {
                ["ConnectionId", "    ", "]", ")"]
                    .iter()
                    .any(|it| line.trim_start_matches("    ").starts_with(it))
            };
            let random = ["cid", "stateless_reset_token", "grease", "preferred_address"];
            let lines: Vec<_> = text
                .lines()
                .filter(|line| {
                    line.starts_with("    ") && !line.starts_with("     ") && !is_random(line)
                })
                .filter(|line| !random.iter().any(|name| line.contains(name)))
                .collect();
            *self.parameters.lock().unwrap() = lines.join("\n");
        }
        Ok(parameters)
    }

    fn initial_keys(&self, cid: &ConnectionId, side: Side) -> Keys {
        self.session.initial_keys(cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.session.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.session.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn crypto::HeaderKey>, Box<dyn PacketKey>)> {
        self.session.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.session.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        self.session.read_handshake(bytes)
    }

    fn write_handshake(&mut self, bytes: &mut Vec<u8>) -> Option<Keys> {
        self.session.write_handshake(bytes)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.session.next_1rtt_keys()
    }

    fn is_valid_retry(&self, cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.session.is_valid_retry(cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.session.export_keying_material(output, label, context)
    }
}
