//! A client that uses QUIC correctly, and sends arbitrary data on its streams.

use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    sync::{Arc, OnceLock},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use noq_proto::{
    ClientConfig, Connection, ConnectionHandle, ConnectionId, ConnectionIdGenerator, DatagramEvent,
    Dir, Endpoint, EndpointConfig, Event, FourTuple, StreamId, TransportConfig, VarInt,
    crypto::rustls::QuicClientConfig,
};
use tandem_fuzz::bed::{Client, certificate, server_address};

/// The client's limits for the data of the proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permits {
    pub(crate) stream_window: u16,
    pub(crate) datagrams: bool,
    pub(crate) reads: bool,
}

pub(crate) struct QuicClient {
    endpoint: Endpoint,
    handle: ConnectionHandle,
    connection: Connection,
    reads: bool,
    /// The streams that the client has opened, in order.
    streams: Vec<StreamId>,
    is_connected: bool,
    is_closed: bool,
}

impl QuicClient {
    pub(crate) fn connect(now: Instant, permits: Permits) -> Self {
        let mut config = client_config();
        let mut transport = TransportConfig::default();
        transport
            .stream_receive_window(VarInt::from_u32(permits.stream_window.into()))
            .datagram_receive_buffer_size(permits.datagrams.then_some(100_000))
            .datagram_send_buffer_size(100_000)
            .mtu_discovery_config(None);
        config.transport_config(Arc::new(transport));
        config.initial_dst_cid_provider(Arc::new(|| ConnectionId::new(b"the fuzzer's first")));
        let mut own = EndpointConfig::default();
        own.rng_seed(Some([7; 32]));
        own.cid_generator(Arc::new(|| Box::new(NumberedCids(0))));
        let mut endpoint = Endpoint::new(Arc::new(own), None, true);
        let (handle, connection) =
            endpoint.connect(now, config, server_address(), "proxy.test").expect("the name is one");
        Self {
            endpoint,
            handle,
            connection,
            reads: permits.reads,
            streams: Vec::new(),
            is_connected: false,
            is_closed: false,
        }
    }

    /// Returns one of the opened streams. The index wraps around.
    fn stream(&self, index: u8) -> Option<StreamId> {
        self.streams.get(usize::from(index).checked_rem(self.streams.len())?).copied()
    }

    /// Returns the Quarter Stream ID of an opened stream, if there is one.
    pub(crate) fn quarter_stream_id(&self, index: u8) -> Option<u64> {
        self.stream(index).map(|stream| u64::from(stream) / 4)
    }

    pub(crate) fn open(&mut self, dir: Dir, data: &[u8]) {
        let Some(stream) = self.connection.streams().open(dir) else { return };
        self.streams.push(stream);
        self.write_on(stream, data);
    }

    pub(crate) fn write(&mut self, index: u8, data: &[u8]) {
        if let Some(stream) = self.stream(index) {
            self.write_on(stream, data);
        }
    }

    /// Writes to a stream. Data beyond the flow control limit is discarded.
    fn write_on(&mut self, stream: StreamId, data: &[u8]) {
        drop(self.connection.send_stream(stream).write(data));
    }

    pub(crate) fn finish(&mut self, index: u8) {
        if let Some(stream) = self.stream(index) {
            drop(self.connection.send_stream(stream).finish());
        }
    }

    pub(crate) fn reset(&mut self, index: u8, code: u16) {
        if let Some(stream) = self.stream(index) {
            drop(self.connection.send_stream(stream).reset(code.into()));
        }
    }

    pub(crate) fn stop(&mut self, index: u8, code: u16) {
        if let Some(stream) = self.stream(index)
            && stream.dir() == Dir::Bi
        {
            drop(self.connection.recv_stream(stream).stop(code.into()));
        }
    }

    pub(crate) fn datagram(&mut self, data: Bytes) {
        if self.is_connected && !self.is_closed {
            drop(self.connection.datagrams().send(data, true));
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected && !self.is_closed
    }

    fn read(&mut self) {
        while self.connection.streams().accept(Dir::Uni).is_some() {}
        for stream in self.streams.iter().filter(|stream| stream.dir() == Dir::Bi) {
            let mut stream = self.connection.recv_stream(*stream);
            let Ok(mut chunks) = stream.read(true) else { continue };
            while let Ok(Some(_)) = chunks.next(usize::MAX) {}
        }
    }
}

impl Client for QuicClient {
    fn address(&self) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], 50_000))
    }

    fn close(&mut self, now: Instant) {
        self.connection.close(now, VarInt::from_u32(0x100), Bytes::new());
    }

    fn handle(&mut self, now: Instant, from: SocketAddr, payload: BytesMut) {
        let mut answer = Vec::new();
        let path = FourTuple::new(from, None);
        let event = self.endpoint.handle(now, path, None, payload, &mut answer);
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            self.connection.handle_event(event);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.next_timeout().is_some_and(|due| due <= now) {
            self.connection.handle_timeout(now);
        }
    }

    fn next_timeout(&mut self) -> Option<Instant> {
        self.connection.poll_timeout()
    }

    /// Returns the next packet, or `None` if the client waits.
    fn poll(&mut self, now: Instant) -> Option<BytesMut> {
        while let Some(event) = self.connection.poll() {
            match event {
                Event::Connected => self.is_connected = true,
                Event::ConnectionLost { .. } => self.is_closed = true,
                Event::DatagramReceived => while self.connection.datagrams().recv().is_some() {},
                _ => {}
            }
        }
        if self.reads {
            self.read();
        }
        let mut buf = Vec::new();
        let transmit = self.connection.poll_transmit(now, NonZeroUsize::MIN, &mut buf);
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                self.connection.handle_event(event);
            }
        }
        transmit.map(|transmit| BytesMut::from(&buf[..transmit.size]))
    }
}

fn client_config() -> ClientConfig {
    static CONFIG: OnceLock<ClientConfig> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        let mut tls = certificate().client();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let tls = QuicClientConfig::try_from(tls).expect("the suites are there");
        ClientConfig::new(Arc::new(tls))
    });
    config.clone()
}

/// Generates the connection IDs 1, 2, 3 and so on.
struct NumberedCids(u64);

impl ConnectionIdGenerator for NumberedCids {
    fn generate_cid(&mut self) -> ConnectionId {
        self.0 += 1;
        ConnectionId::new(&self.0.to_be_bytes())
    }

    fn cid_len(&self) -> usize {
        size_of::<u64>()
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}
