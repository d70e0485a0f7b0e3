//! The settings of a node's QUIC connections, and their form in noq's configuration.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use noq_proto::{
    EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TokenMemoryCache, TransportConfig, VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha12Rng;
use ring::hmac;
use serde_with::{DeserializeFromStr, SerializeDisplay};
use tandem_congestion::{ControllerConfig, ControllerName};
use tandem_units::ByteCount;
use tandem_wire::TunnelInfo;

use super::{
    AckPolicy, ConnectionIds, Fleet, Heaviest, OtherProcess, Peps, QlogFiles, ResetKeys, Returning,
    Steering, connection_ids::EngineIds, demux::VERSION,
};
use crate::{
    limits::Limits,
    seal::{TAG_LEN, header_len},
};

/// The ALPN protocol ID of HTTP/3 (RFC 9114 §3.1).
const ALPN_H3: &[u8] = b"h3";

/// The most bytes on one stream that wait for the application to read them. The engine closes a
/// connection when more than 2048 pieces of one stream wait, whether or not they touch each other, so that
/// a reader that pauses must not get more than 2.6 MB.
pub(super) const STREAM_RECEIVE_WINDOW: u32 = 2_000_000;

/// The window of all streams of a connection together at its beginning. It doubles with what is read,
/// because after a loss as many bytes as are in flight can wait for the missing ones.
pub(super) const RECEIVE_WINDOW: u32 = 16_000_000;

/// The most stream data that the engine holds until it is acknowledged.
pub(super) const SEND_WINDOW: u64 = 32_000_000;

/// The most streams that continue request streams, of all requests together. Besides, the peer opens a
/// control stream, a QPACK encoder and a QPACK decoder stream, and possibly streams of unknown types,
/// which are ignored.
pub(super) const CONTINUATIONS_MAX: u32 = 48;

/// The bytes after which a sender uses the next stream. A frame is never divided, so that the length of one
/// may come on top. A stream's window must have room for both.
pub(crate) const CONTINUATION_LEN: u64 = 1_000_000;

/// Bytes of DATAGRAM frames that the engine holds: one pacing burst, about ten packets. All others
/// wait in the tunnel's queue.
const DATAGRAM_SEND_BUFFER: usize = 20_000;

/// Bytes of received DATAGRAM frames that wait between two polls of the node. The engine drops the
/// oldest of more.
const DATAGRAM_RECEIVE_BUFFER: usize = 4_000_000;

/// The time after which the engine, having fallen back to small packets, probes for larger ones
/// again. Its default of a minute is meant for real black holes. The engine also takes random loss
/// for a black hole, and a full queue that has room for small packets only.
const BLACK_HOLE_COOLDOWN: Duration = Duration::from_millis(100);

/// The least difference between two sizes that a tunnel probes for, in bytes.
const PROBE_STEP: u16 = 100;

/// The time after which the engine tries a size again for which three probes were lost.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// The flow control windows: the most unread bytes that the peer may send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    /// On one stream.
    pub(super) stream: u64,
    /// On all streams together, at the beginning.
    pub(super) connection: u64,
}

/// The settings of a node's QUIC connections.
#[derive(Clone, Debug)]
pub struct Transport {
    /// The congestion controller.
    pub controller: ControllerConfig,
    /// The sizes of UDP payloads.
    pub mtu: Mtu,
    /// The silence after which a PING is sent. `None`: never.
    pub keep_alive: Option<Duration>,
    /// The RTT that is assumed before the first sample, 333 ms by default (RFC 9002 §6.2.2). Clients assume 100 ms at
    /// most outside of tunnels, and inside of one no less than its RTT, up to 333 ms.
    pub initial_rtt: Duration,
    /// Makes a qlog file for each connection. `None`: there are no files.
    pub qlog: Option<Arc<dyn QlogFiles>>,
    /// The flow control windows: the most unread bytes that the peer may send, on one stream and on
    /// all. `None`: as many as are safe.
    pub receive_window: Option<ByteCount>,
    /// The secret from which a server's stateless resets follow (RFC 9000 §10.3). A server that
    /// restarts with the same secret can tell its old peers at once that their connections have
    /// ended. Without it they wait for their idle timeout.
    pub reset_secret: Option<ResetSecret>,
    /// The thresholds of loss detection.
    pub loss_detection: LossDetection,
    /// When connections acknowledge what arrives. `None`: every second packet at once (RFC 9000 §13.2.2), and every
    /// 16th while packets come fast on a short path; or, at a client with a chain of two hops or more,
    /// [`AckPolicy::TUNNEL`] and [`AckPolicy::END_TO_END`].
    pub acks: Option<AckPolicy>,
    /// The PEPs on the paths whose PEP-ACKs are heard (`docs/design/wire.md`). `None`: PEP-ACKs are dropped.
    pub peps: Option<Peps>,
    /// Which of several nodes at the same address this one is.
    pub steering: Steering,
    /// Whether another process at the address has connections.
    pub other_process: OtherProcess,
    /// The machine in a fleet behind a load balancer. Then [`Self::reset_secret`] has no effect. `None`: the machine is
    /// alone.
    pub fleet: Option<Fleet>,
    /// Which of the nodes of this process has the heaviest connection, which is closed when memory is short.
    pub heaviest: Heaviest,
    /// The clients that a server of this process lets in first when they come again. `None`: it knows none, and gives
    /// them no tokens for that.
    pub returning: Option<Returning>,
    /// What carries the datagrams of a tunnel. It has no effect on end-to-end connections.
    pub datagrams: DatagramTransport,
}

/// What carries the datagrams of a tunnel's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, DeserializeFromStr, SerializeDisplay)]
pub enum DatagramTransport {
    /// DATAGRAM frames of the connection (RFC 9221).
    Quic,
    /// The sealed transport beside the connection (`docs/design/wire.md`), if the peer agrees, and if the controller is
    /// one of ours. DATAGRAM frames otherwise.
    #[default]
    Sealed,
}

impl DatagramTransport {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Sealed, Self::Quic];

    /// The name for people and programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::Sealed => "sealed",
        }
    }
}

impl std::fmt::Display for DatagramTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for a text that names nothing that can carry datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not sealed or quic")]
pub struct UnknownDatagramTransport;

impl std::str::FromStr for DatagramTransport {
    type Err = UnknownDatagramTransport;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|it| it.name() == text).ok_or(UnknownDatagramTransport)
    }
}

/// The thresholds of loss detection (RFC 9002 §6.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossDetection {
    /// The thresholds that RFC 9002 recommends: 3 packets and 9/8 RTTs.
    #[default]
    Rfc9002,
    /// The thresholds for a path on which packets arrive late, such as one behind a tunnel that repairs
    /// losses, or one that reorders packets: 1.75 RTTs, and more packets than arrive in that time.
    BehindRepair,
    /// [`Self::BehindRepair`] for the connections whose clients say at their beginning that they will send reports on a
    /// tunnel ([`TunnelInfo::ALPN`]), and else [`Self::Rfc9002`]. A client that sends an upload knows itself what it
    /// goes through.
    AsClientsSay,
}

impl LossDetection {
    /// The thresholds for a path. `is_repaired`: a tunnel on it repairs losses.
    pub const fn for_path(is_repaired: bool) -> Self {
        if is_repaired { Self::BehindRepair } else { Self::Rfc9002 }
    }

    /// The thresholds of an origin with this controller, whose clients come through tunnels or without them.
    pub const fn of_origin(controller: ControllerName) -> Self {
        if controller.takes_reports() { Self::AsClientsSay } else { Self::Rfc9002 }
    }

    /// The thresholds of a client. `is_reported`: a tunnel that repairs losses reports to it.
    pub(crate) const fn of_client(self, is_reported: bool) -> Self {
        if matches!(self, Self::AsClientsSay) { Self::for_path(is_reported) } else { self }
    }

    /// Sets these thresholds. `is_announced`: the client has said that it will send reports.
    pub(super) fn apply(self, config: &mut TransportConfig, is_announced: bool) {
        if self == Self::BehindRepair || (self == Self::AsClientsSay && is_announced) {
            config.packet_threshold(REPAIR_PACKET_THRESHOLD).time_threshold(REPAIR_TIME_THRESHOLD);
        }
    }
}

/// A secret that stays the same across restarts. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ResetSecret(pub [u8; 32]);

impl ResetSecret {
    /// The key with which tokens are made from connection IDs.
    pub(crate) fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

impl std::fmt::Debug for ResetSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResetSecret(..)")
    }
}

impl Transport {
    /// The window for a connection whose streams are always read at once, such as those of a download. A
    /// path with 1 Gbit/s and 100 ms has 12.5 MB in flight, and new credit is granted in steps of an
    /// eighth.
    pub(crate) const WINDOW_OF_FAST_READERS: ByteCount = ByteCount::new(16_000_000);

    /// The longest RTT that a client assumes outside of tunnels before the first sample.
    ///
    /// RFC 9002 §6.2.2: "When no previous RTT is available, the initial RTT SHOULD be set to 333 milliseconds." One
    /// lost packet of a handshake then costs a second. With 100 ms it costs 0.3 s, and a client whose path is longer
    /// sends its first packets once or twice too often. Servers assume 333 ms, because the time to validate a new path
    /// follows from it (RFC 9000 §8.2.4). See ADR 66.
    const FIRST_RTT: Duration = Duration::from_millis(100);

    /// The RTT that RFC 9002 §6.2.2 recommends.
    const USUAL_FIRST_RTT: Duration = Duration::from_millis(333);

    /// The settings of a client, which repeats lost packets of its handshakes early.
    #[must_use]
    pub(crate) fn of_client(self) -> Self {
        Self { initial_rtt: self.initial_rtt.min(Self::FIRST_RTT), ..self }
    }

    /// The settings of a client's connection inside a tunnel of this RTT. Its path begins with the tunnel, so that its
    /// RTT is no shorter.
    #[must_use]
    pub(crate) fn inside_tunnel(self, rtt: Duration) -> Self {
        Self { initial_rtt: self.initial_rtt.max(rtt.min(Self::USUAL_FIRST_RTT)), ..self }
    }

    /// The settings for a tunnel, at either end: its own congestion controller and packet sizes.
    pub fn tunnel() -> Self {
        let controller = ControllerName::Bbr1Tunnel.into();
        Self { controller, mtu: Mtu::TUNNEL, ..Self::default() }
    }
}

impl Default for Transport {
    fn default() -> Self {
        Self {
            controller: ControllerConfig::default(),
            mtu: Mtu::default(),
            keep_alive: None,
            initial_rtt: Self::USUAL_FIRST_RTT,
            qlog: None,
            receive_window: None,
            reset_secret: None,
            loss_detection: LossDetection::default(),
            acks: None,
            peps: None,
            steering: Steering::default(),
            other_process: OtherProcess::default(),
            fleet: None,
            heaviest: Heaviest::default(),
            returning: None,
            datagrams: DatagramTransport::default(),
        }
    }
}

/// The sizes of UDP payloads in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mtu {
    /// The size that is assumed to pass from the start, at least 1200 (RFC 9000 §14).
    pub start: u16,
    /// The size to fall back to when packets seem to be lost because of their size, at least 1200.
    pub least: u16,
    /// The largest size that is probed for (RFC 8899). There is no probing if it is not above
    /// `least`.
    pub probe_up_to: u16,
    /// The largest size that the peer may send, which `max_udp_payload_size` states (RFC 9000
    /// §18.2).
    pub receive_up_to: u16,
}

impl Default for Mtu {
    fn default() -> Self {
        Self { start: 1200, least: 1200, probe_up_to: 1452, receive_up_to: Self::RECEIVE_UP_TO }
    }
}

impl Mtu {
    /// The sizes for a tunnel. It starts with packets that carry a 1200-byte Initial through two hops
    /// that repair, and probes for the largest that Ethernet carries.
    ///
    /// The engine takes bursts of loss for a smaller path MTU. Payloads that do not fit then go in
    /// capsules, until the engine has found the size again.
    pub const TUNNEL: Self =
        Self { start: 1332, least: 1200, probe_up_to: 1452, receive_up_to: Self::RECEIVE_UP_TO };

    /// The size with which the first tunnel of a chain of three or four starts. A tunnel that repairs
    /// needs 46 bytes of a packet for itself, so that these packets carry a 1200-byte Initial through
    /// four of them. They pass wherever IPv4 packets of 1412 bytes or IPv6 packets of 1432 bytes do.
    pub const CHAIN_START: u16 = 1384;

    /// The size of a sealed packet with a payload of 1280 bytes and a connection ID of 8 bytes.
    #[expect(clippy::cast_possible_truncation, reason = "29 bytes")]
    const SEALED_1280: u16 = 1280 + (header_len(8) + TAG_LEN) as u16;

    /// What a tunnel that does not repair adds to a packet, in bytes.
    const HOP: u16 = 40;

    /// The most hops that [`Self::TUNNEL`] has room for.
    const SHORT_CHAIN: usize = 2;

    /// The largest UDP payload of an Ethernet packet with IPv4.
    const RECEIVE_UP_TO: u16 = 1472;

    /// The sizes for a connection inside a tunnel that carries payloads of this size, at least
    /// 1200. The peer does not know of the tunnel, so the transport parameter keeps it from sending
    /// larger packets.
    pub const fn inside_tunnel(size: u16) -> Self {
        Self { start: size, least: size, probe_up_to: size, receive_up_to: size }
    }

    /// The sizes for the first tunnel of a chain of `hops`, which carries one connection. Chains of more
    /// than two start with [`Self::CHAIN_START`], unless `probe_up_to` is less. The packets of a chain that
    /// seals payloads of 1280 bytes, with which many stacks begin, must be larger than the last tunnel's.
    #[must_use]
    pub fn for_chain(self, hops: usize, is_sealed: bool) -> Self {
        let wish = match u16::try_from(hops) {
            Ok(hops) if is_sealed && hops > 1 => {
                Self::SEALED_1280 + Self::HOP.saturating_mul(hops - 1)
            }
            _ if hops > Self::SHORT_CHAIN => Self::CHAIN_START,
            _ => self.start,
        };
        Self { start: self.start.max(self.probe_up_to.min(wish)), ..self }.without_growth()
    }

    /// The same sizes without larger ones than the first, in both directions. They suit a tunnel
    /// whose payloads all come from one connection, because that connection chooses its size when it
    /// begins, and would not learn of a larger one.
    #[must_use]
    pub const fn without_growth(self) -> Self {
        Self { probe_up_to: self.start, receive_up_to: self.start, ..self }
    }
}

/// The errors for settings that a node cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The TLS provider lacks the cipher suite of QUIC's Initial packets (RFC 9001 §5.2).
    #[error("the TLS provider lacks TLS_AES_128_GCM_SHA256")]
    NoInitialCipherSuite,
    /// Settings are missing, or exclude each other.
    #[error("{0}")]
    Settings(&'static str),
}

/// The TLS settings of a server, for QUIC.
#[derive(Clone)]
pub struct ServerTls(pub(super) Arc<dyn noq_proto::crypto::ServerConfig>);

impl ServerTls {
    /// Sets HTTP/3's ALPN and no early data.
    pub fn new(mut tls: rustls::ServerConfig) -> Result<Self, ConfigError> {
        tls.alpn_protocols = vec![ALPN_H3.to_vec()];
        tls.max_early_data_size = 0;
        let quic =
            QuicServerConfig::try_from(tls).map_err(|_| ConfigError::NoInitialCipherSuite)?;
        Ok(Self(Arc::new(quic)))
    }

    /// Replaces TLS by another handshake of the engine. It is only for fuzzing, where the
    /// cryptography of TLS would take most of the time.
    #[cfg(fuzzing)]
    pub fn replaced_by(handshake: Arc<dyn noq_proto::crypto::ServerConfig>) -> Self {
        Self(handshake)
    }
}

/// The TLS settings of a client, for QUIC, and the address tokens that servers have given it (RFC 9000 §8.1.3). Like
/// the tickets of TLS sessions, they are kept for as long as a clone of this is.
#[derive(Clone)]
pub struct ClientTls {
    pub(super) crypto: Arc<dyn noq_proto::crypto::ClientConfig>,
    pub(super) tokens: Arc<TokenMemoryCache>,
    pub(super) alpn: Vec<Vec<u8>>,
}

/// The most servers whose address tokens a client keeps, and the most tokens of each.
const TOKENS: (u32, usize) = (64, 2);

/// What replaces TLS in all clients of a process that fuzzes.
#[cfg(fuzzing)]
static REPLACEMENT: std::sync::OnceLock<Arc<dyn noq_proto::crypto::ClientConfig>> =
    std::sync::OnceLock::new();

impl ClientTls {
    /// Replaces TLS by another handshake of the engine, in all clients of this process. It is only for
    /// fuzzing, where the cryptography of TLS would take most of the time.
    #[cfg(fuzzing)]
    pub fn replace_by(handshake: Arc<dyn noq_proto::crypto::ClientConfig>) {
        REPLACEMENT.get_or_init(|| handshake);
    }

    /// Sets HTTP/3's ALPN and no early data.
    pub fn new(tls: rustls::ClientConfig) -> Result<Self, ConfigError> {
        Self::with_alpn(tls, Self::no_tokens(), vec![ALPN_H3.to_vec()])
    }

    /// Other settings of TLS, with the address tokens and ALPN of these.
    pub(crate) fn with(&self, tls: rustls::ClientConfig) -> Result<Self, ConfigError> {
        Self::with_alpn(tls, self.tokens.clone(), self.alpn.clone())
    }

    /// The same for a client that will send the server reports on a tunnel, and tells it so ([`TunnelInfo::ALPN`]).
    pub fn announcing_reports(tls: rustls::ClientConfig) -> Result<Self, ConfigError> {
        let alpn = vec![ALPN_H3.to_vec(), TunnelInfo::ALPN.to_vec()];
        Self::with_alpn(tls, Self::no_tokens(), alpn)
    }

    fn no_tokens() -> Arc<TokenMemoryCache> {
        let (servers, tokens) = TOKENS;
        Arc::new(TokenMemoryCache::new(servers, tokens))
    }

    fn with_alpn(
        mut tls: rustls::ClientConfig,
        tokens: Arc<TokenMemoryCache>,
        alpn: Vec<Vec<u8>>,
    ) -> Result<Self, ConfigError> {
        #[cfg(fuzzing)]
        if let Some(handshake) = REPLACEMENT.get() {
            return Ok(Self { crypto: handshake.clone(), tokens, alpn });
        }
        tls.alpn_protocols.clone_from(&alpn);
        tls.enable_early_data = false;
        let quic =
            QuicClientConfig::try_from(tls).map_err(|_| ConfigError::NoInitialCipherSuite)?;
        Ok(Self { crypto: Arc::new(quic), tokens, alpn })
    }
}

/// RFC 9002's `kPacketThreshold` behind a tunnel that repairs losses.
const REPAIR_PACKET_THRESHOLD: u32 = 1000;

/// RFC 9002's `kTimeThreshold` behind a tunnel that repairs losses.
const REPAIR_TIME_THRESHOLD: f32 = 1.75;

impl Transport {
    /// The engine's form of these settings, without the controller, which each connection gets
    /// separately.
    pub(super) fn to_noq(&self, limits: &Limits) -> TransportConfig {
        let mut config = TransportConfig::default();
        let idle =
            VarInt::from_u32(u32::try_from(limits.connection_idle.as_millis()).unwrap_or(u32::MAX));
        config
            .max_concurrent_bidi_streams(VarInt::from_u32(limits.request_streams))
            .max_concurrent_uni_streams(VarInt::from_u32(8 + CONTINUATIONS_MAX))
            .max_idle_timeout(Some(IdleTimeout::from(idle)))
            .keep_alive_interval(self.keep_alive)
            .initial_rtt(self.initial_rtt)
            .initial_mtu(self.mtu.start)
            .min_mtu(self.mtu.least)
            .mtu_discovery_config(self.mtu_discovery())
            .stream_receive_window(to_varint(self.windows().stream))
            .receive_window(to_varint(self.windows().connection))
            .send_window(SEND_WINDOW)
            .datagram_receive_buffer_size(Some(DATAGRAM_RECEIVE_BUFFER))
            .datagram_send_buffer_size(DATAGRAM_SEND_BUFFER);
        self.loss_detection.apply(&mut config, false);
        config
    }

    /// The flow control windows.
    pub(super) fn windows(&self) -> Windows {
        let given = self.receive_window.map(ByteCount::get);
        Windows {
            stream: given.unwrap_or(STREAM_RECEIVE_WINDOW.into()),
            connection: given.unwrap_or(RECEIVE_WINDOW.into()),
        }
    }

    fn mtu_discovery(&self) -> Option<MtuDiscoveryConfig> {
        let Mtu { start, least, probe_up_to, .. } = self.mtu;
        (probe_up_to > least).then(|| {
            let mut discovery = MtuDiscoveryConfig::default();
            discovery.upper_bound(probe_up_to).black_hole_cooldown(BLACK_HOLE_COOLDOWN);
            if start > least {
                // The engine searches in steps of at least this size. From the start of a tunnel and
                // after a false alarm it then tries the full size at once or after one step, and no
                // sizes in between, which are of little use.
                discovery.minimum_change(PROBE_STEP).interval(PROBE_INTERVAL);
            }
            discovery
        })
    }
}

fn to_varint(bytes: u64) -> VarInt {
    VarInt::from_u64(bytes).unwrap_or(VarInt::MAX)
}

/// The settings of an endpoint. With a seed, every random choice of the engine follows from it.
pub(super) fn endpoint_config(
    transport: &Transport,
    seed: Option<u64>,
    is_server: bool,
) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    if is_server {
        // `Answers` bounds stateless resets. The engine has one interval for all peers, of which a stranger could use
        // all. A client keeps that: what is in flight when its connection ends would else come back, in as many resets.
        config.min_reset_interval(Duration::ZERO);
    }
    // The engine would also speak drafts 29 to 34.
    config.supported_versions(vec![VERSION]);
    let mtu = transport.mtu;
    if let Some(keys) = ResetKeys::new(transport) {
        config.reset_key(Arc::new(keys));
    }
    if config.max_udp_payload_size(mtu.receive_up_to).is_err() {
        tracing::warn!(bytes = mtu.receive_up_to, "largest payload below 1200 bytes ignored");
    }
    if let Some(seed) = seed {
        let mut expanded = [0; 32];
        Generator::seed_from_u64(seed).fill_bytes(&mut expanded);
        config.rng_seed(Some(expanded));
    }
    let seed = seed.map(|seed| seed.wrapping_add(1));
    let ids = ConnectionIds::new(transport);
    config.cid_generator(Arc::new(move || Box::new(EngineIds::new(seed, ids.clone()))));
    config
}

/// Chooses the destination connection IDs of a client's first packets. They have 20 unpredictable
/// bytes (RFC 9000 §7.2 requires at least 8).
pub(super) fn initial_destination_cids(
    seed: Option<u64>,
) -> Arc<dyn Fn() -> noq_proto::ConnectionId + Send + Sync> {
    let rng = Mutex::new(rng(seed.map(|seed| seed.wrapping_add(2))));
    Arc::new(move || {
        let mut bytes = [0; 20];
        rng.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(&mut bytes);
        noq_proto::ConnectionId::new(&bytes)
    })
}

/// The generator of every random choice of a node. The algorithm is named explicitly. The algorithm
/// of `rand::rngs::StdRng` may change with any version of `rand`, and then every seed would mean
/// something else.
pub(crate) type Generator = ChaCha12Rng;

/// A generator with this seed, or with one of the operating system.
pub(crate) fn rng(seed: Option<u64>) -> Generator {
    seed.map_or_else(Generator::from_os_rng, Generator::seed_from_u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_bytes() {
        for (seed, expected) in [
            (0, "7f6f2ccdb23f2abb7b69278e947c01c6"),
            (1, "611830d3641a68f94a690dcc25d1f4b0"),
            (u64::MAX, "b85f3d2e4898a70f9e461241b470330a"),
        ] {
            let mut drawn = [0; 16];
            rng(Some(seed)).fill_bytes(&mut drawn);
            let expected = u128::from_str_radix(expected, 16).unwrap();
            assert_eq!(drawn, expected.to_be_bytes(), "seed {seed}");
        }
    }
}
