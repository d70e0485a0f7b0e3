//! A client of CONNECT-UDP (RFC 9298) on quinn, which lets an attack choose every byte.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use quinn::{Connection, Endpoint, RecvStream, SendStream, TransportConfig};
use quinn_proto::TokenMemoryCache;
use rustls::pki_types::CertificateDer;
use tandem_wire::{
    CONTEXT_ID_UDP, Frame, FrameDecoder, HttpDatagram, QuarterStreamId, RequestHead, ResponseHead,
    Settings, StreamKind, VarInt, encode_headers, encode_settings,
};
use tokio::time::sleep;

/// The longest header section of an answer in bytes.
const ANSWER_MAX: usize = 16_384;

/// How often a client asks again after it was told to wait. A proxy closes a connection after a few
/// refusals.
const ASK_AGAIN_MAX: usize = 5;

/// What a client needs to use a proxy.
#[derive(Clone)]
pub(crate) struct Login {
    /// The address of the proxy.
    pub(crate) address: SocketAddr,
    /// A valid token.
    pub(crate) token: String,
    tls: Arc<quinn::crypto::rustls::QuicClientConfig>,
    /// The address tokens that the proxy has given.
    address_tokens: Arc<TokenMemoryCache>,
}

/// A connection to a proxy that has sent its settings.
pub(crate) struct Client {
    /// The QUIC connection.
    pub(crate) connection: Connection,
    token: String,
    /// HTTP/3 ends when its control stream does.
    _control: SendStream,
}

/// The answer to a request.
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    /// The field `proxy-status`, which is empty if it is absent.
    pub(crate) proxy_status: String,
    /// The flow, which exists if the status is 200.
    pub(crate) flow: Flow,
}

/// The stream of a request. The flow ends when it is dropped.
pub(crate) struct Flow {
    /// The direction to the proxy.
    pub(crate) send: SendStream,
    /// The direction from the proxy.
    pub(crate) recv: RecvStream,
    id: QuarterStreamId,
}

/// Creates an endpoint at an address of this machine.
pub(crate) fn endpoint(source: IpAddr) -> Result<Endpoint> {
    Endpoint::client(SocketAddr::new(source, 0))
        .with_context(|| format!("no socket can be opened at {source}"))
}

/// Creates endpoints at addresses of this machine, each in another prefix.
pub(crate) fn endpoints(count: u8) -> Result<Vec<Endpoint>> {
    (0..count).map(|index| endpoint(Ipv4Addr::new(127, 0, 10 + index, 1).into())).collect()
}

impl Login {
    pub(crate) fn new(
        address: SocketAddr,
        ca: CertificateDer<'static>,
        token: String,
    ) -> Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca).context("the certificate of the proxy is not one")?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        Ok(Self { address, token, tls: Arc::new(tls.try_into()?), address_tokens: Arc::default() })
    }

    /// The settings of a connection that sends a PING after this silence.
    pub(crate) fn config(&self, ping: Option<Duration>) -> quinn::ClientConfig {
        let mut transport = TransportConfig::default();
        transport
            .keep_alive_interval(ping)
            .max_idle_timeout(None)
            .datagram_receive_buffer_size(Some(1_000_000));
        let mut config = quinn::ClientConfig::new(Arc::clone(&self.tls) as _);
        config.transport_config(Arc::new(transport));
        config.token_store(Arc::clone(&self.address_tokens) as _);
        config
    }

    /// The same login of somebody who has not been there yet.
    pub(crate) fn of_newcomer(&self) -> Self {
        Self { address_tokens: Arc::default(), ..self.clone() }
    }

    /// The same login with another token.
    pub(crate) fn with_token(&self, token: String) -> Self {
        Self { token, ..self.of_newcomer() }
    }

    /// The same login at another address, such as that of a relay.
    pub(crate) fn at(&self, address: SocketAddr) -> Self {
        Self { address, ..self.clone() }
    }

    /// Opens a connection and sends the settings of HTTP/3.
    pub(crate) async fn connect(
        &self,
        endpoint: &Endpoint,
        config: quinn::ClientConfig,
    ) -> Result<Client> {
        let mut stream = vec![0]; // RFC 9114 §6.2.1: the type of a control stream
        encode_settings(&Settings { h3_datagram: true, ..Settings::default() }, &mut stream);
        self.connect_with_control(endpoint, config, &stream).await
    }

    /// Opens a connection and sends these bytes on its control stream.
    pub(crate) async fn connect_with_control(
        &self,
        endpoint: &Endpoint,
        config: quinn::ClientConfig,
        stream: &[u8],
    ) -> Result<Client> {
        let connection = endpoint.connect_with(config, self.address, "localhost")?.await?;
        let mut control = connection.open_uni().await?;
        control.write_all(stream).await?;
        Ok(Client { connection, token: self.token.clone(), _control: control })
    }
}

impl Client {
    /// Asks for a flow to this target and waits for the answer.
    pub(crate) async fn ask(
        &self,
        target: SocketAddr,
        fields: &[(&'static str, &str)],
    ) -> Result<Answer> {
        let (mut send, mut recv) = self.connection.open_bi().await?;
        send.write_all(&self.request(target, fields)?).await?;
        let head = read_head(&mut recv).await?;
        let field = head.headers.get("proxy-status").and_then(|value| value.to_str().ok());
        let id = QuarterStreamId::from_stream_id(VarInt::saturating_from(send.id().into()).get())
            .context("a stream of a request has no quarter stream ID")?;
        Ok(Answer {
            status: head.status.as_u16(),
            proxy_status: field.unwrap_or_default().to_owned(),
            flow: Flow { send, recv, id },
        })
    }

    /// Encodes a request with these fields besides the usual ones.
    pub(crate) fn request(
        &self,
        target: SocketAddr,
        fields: &[(&'static str, &str)],
    ) -> Result<Vec<u8>> {
        let mut headers = HeaderMap::new();
        headers.insert("capsule-protocol", HeaderValue::from_static("?1"));
        let authorization = HeaderValue::try_from(format!("Bearer {}", self.token))?;
        headers.insert("proxy-authorization", authorization);
        for (name, value) in fields {
            headers.insert(HeaderName::from_static(name), HeaderValue::try_from(*value)?);
        }
        let (host, port) = (target.ip(), target.port());
        let head = RequestHead {
            method: Method::CONNECT,
            scheme: Some("https".to_owned()),
            authority: Some("localhost".to_owned()),
            path: Some(format!("/.well-known/masque/udp/{host}/{port}/")),
            protocol: Some("connect-udp".to_owned()),
            headers,
        };
        let mut stream = Vec::new();
        encode_headers(&head.encode(), &mut stream);
        Ok(stream)
    }

    /// Asks for a flow that must be granted. If the proxy answers 429, because somebody guesses tokens
    /// from the same address, it asks again after a second, as `Retry-After` says, and a few times in
    /// all.
    pub(crate) async fn open(
        &self,
        target: SocketAddr,
        fields: &[(&'static str, &str)],
    ) -> Result<Flow> {
        let mut answer = self.ask(target, fields).await?;
        for _ in 0..ASK_AGAIN_MAX {
            if answer.status != 429 {
                break;
            }
            sleep(Duration::from_secs(1)).await;
            answer = self.ask(target, fields).await?;
        }
        if answer.status != 200 {
            bail!("the proxy answered {} ({})", answer.status, answer.proxy_status);
        }
        Ok(answer.flow)
    }

    /// Downloads everything that a TCP target sends, through a connection of the proxy to it (RFC 9114 §4.4). Returns
    /// the number of bytes.
    pub(crate) async fn download(&self, target: SocketAddr) -> Result<usize> {
        let (mut send, mut recv) = self.connection.open_bi().await?;
        let mut headers = HeaderMap::new();
        let authorization = HeaderValue::try_from(format!("Bearer {}", self.token))?;
        headers.insert("proxy-authorization", authorization);
        let head = RequestHead {
            method: Method::CONNECT,
            scheme: None,
            authority: Some(target.to_string()),
            path: None,
            protocol: None,
            headers,
        };
        let mut stream = Vec::new();
        encode_headers(&head.encode(), &mut stream);
        send.write_all(&stream).await?;
        let mut decoder = FrameDecoder::new(StreamKind::Request, ANSWER_MAX);
        let mut bytes = 0;
        while let Some(chunk) = recv.read_chunk(ANSWER_MAX, true).await? {
            decoder.push(chunk.bytes);
            while let Some(frame) = decoder.next()? {
                match frame {
                    Frame::Headers(section) => {
                        let status = ResponseHead::decode(section, ANSWER_MAX as u64)?.status;
                        anyhow::ensure!(status == 200, "the proxy answered {status}");
                    }
                    Frame::Data(data) => bytes += data.len(),
                    _ => {}
                }
            }
        }
        Ok(bytes)
    }

    /// Sends a payload of a flow under this Context ID.
    pub(crate) fn send(&self, flow: &Flow, context_id: VarInt, payload: Bytes) -> Result<()> {
        let datagram = HttpDatagram { quarter_stream_id: flow.id, context_id, payload };
        self.connection.send_datagram(datagram.encode_to_bytes()).context("no datagram can be sent")
    }

    /// Sends a payload and waits until it comes back. Payloads of other flows are skipped.
    pub(crate) async fn echo(&self, flow: &Flow, payload: &'static [u8]) -> Result<()> {
        self.send(flow, CONTEXT_ID_UDP, Bytes::from_static(payload))?;
        loop {
            let datagram = HttpDatagram::decode(self.connection.read_datagram().await?)?;
            if datagram.quarter_stream_id == flow.id && datagram.payload == payload {
                return Ok(());
            }
        }
    }

    /// Sends a payload for a stream that need not exist.
    pub(crate) fn send_to(&self, stream: u64, payload: Bytes) -> Result<()> {
        let id = QuarterStreamId::from_stream_id(stream).context("it is no stream of a request")?;
        let context_id = CONTEXT_ID_UDP;
        let datagram = HttpDatagram { quarter_stream_id: id, context_id, payload };
        self.connection.send_datagram(datagram.encode_to_bytes()).context("no datagram can be sent")
    }

    /// Closes the connection with a `CONNECTION_CLOSE` frame.
    pub(crate) fn close(&self) {
        self.connection.close(0x100_u32.into(), b"");
    }
}

/// Reads the header section of an answer.
async fn read_head(recv: &mut RecvStream) -> Result<ResponseHead> {
    let mut decoder = FrameDecoder::new(StreamKind::Request, ANSWER_MAX);
    loop {
        while let Some(frame) = decoder.next()? {
            match frame {
                Frame::Headers(section) => {
                    return Ok(ResponseHead::decode(section, ANSWER_MAX as u64)?);
                }
                Frame::Unknown { .. } => {}
                other => bail!("the answer begins with {other:?}"),
            }
        }
        let chunk = recv.read_chunk(ANSWER_MAX, true).await?;
        decoder.push(chunk.context("the stream ended before an answer")?.bytes);
    }
}
