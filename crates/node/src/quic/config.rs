//! How the QUIC connections of a node behave, turned into noq's configuration.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use noq_proto::{
    ConnectionIdGenerator, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig,
    VarInt,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha12Rng;
use ring::hmac;
use tandem_congestion::ControllerConfig;
use tandem_units::ByteCount;

use super::demux::VERSION;
use crate::limits::Limits;

/// The ALPN protocol ID of HTTP/3 (RFC 9114 §3.1).
const ALPN_H3: &[u8] = b"h3";

/// Length of our connection IDs in bytes, at most 20 (RFC 9000 §17.2).
pub(super) const CONNECTION_ID_LEN: usize = 8;

/// Most bytes on one stream that wait for the application to read them.
///
/// The engine's reassembly ends a connection when more than 1024 pieces wait out of order, which
/// random loss reaches at about 2.7 MB; 2 MB was never seen to.
const STREAM_RECEIVE_WINDOW: u32 = 2_000_000;

/// Most bytes on all streams of a connection together.
const RECEIVE_WINDOW: u32 = 16_000_000;

/// Bytes of DATAGRAM frames that the engine holds for one pacing burst: about ten packets. All
/// others wait in our own queue, whose length is thereby the tunnel's queue.
const DATAGRAM_SEND_BUFFER: usize = 20_000;

/// Bytes of received DATAGRAM frames between two polls of the node, beyond which the oldest is
/// dropped.
const DATAGRAM_RECEIVE_BUFFER: usize = 4_000_000;

/// How long after it fell back to small packets the engine probes for larger ones again. Its
/// default of a minute is for real black holes. Random loss looks like one to it, and so does a full
/// queue that has room for small packets only.
const BLACK_HOLE_COOLDOWN: Duration = Duration::from_millis(100);

/// How long after that a size for which three probes were lost is tried again.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// How the QUIC connections of a node behave.
#[derive(Clone, Debug)]
pub struct Transport {
    /// Congestion controller.
    pub controller: ControllerConfig,
    /// Sizes of UDP payloads.
    pub mtu: Mtu,
    /// Sends a PING after this much silence. `None`: never.
    pub keep_alive: Option<Duration>,
    /// RTT assumed before the first sample (RFC 9002 §6.2.2: 333 ms).
    pub initial_rtt: Duration,
    /// Where to write qlog files, if at all. Needs the feature `qlog`.
    pub qlog: Option<QlogDir>,
    /// Most bytes that the peer may have on its way, on one stream and in all. `None`: as much as
    /// is safe.
    pub receive_window: Option<ByteCount>,
    /// What a server's stateless resets follow from (RFC 9000 §10.3). One that restarts with the
    /// same secret can tell its old peers at once that their connections are gone; without one
    /// they wait for their idle timeout.
    pub reset_secret: Option<ResetSecret>,
    /// When packets are taken for lost.
    pub loss_detection: LossDetection,
}

/// The thresholds of loss detection (RFC 9002 §6.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossDetection {
    /// Those that RFC 9002 recommends: 3 packets and 9/8 RTTs.
    #[default]
    Rfc9002,
    /// Behind a tunnel that repairs losses, so that packets come late: 1.75 RTTs, and more packets
    /// than arrive in that time.
    BehindRepair,
}

impl LossDetection {
    /// The thresholds for a path on which a tunnel repairs losses, or does not.
    pub const fn for_path(is_repaired: bool) -> Self {
        if is_repaired { Self::BehindRepair } else { Self::Rfc9002 }
    }
}

/// A secret that outlives restarts. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ResetSecret(pub [u8; 32]);

impl std::fmt::Debug for ResetSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResetSecret(..)")
    }
}

impl Default for Transport {
    fn default() -> Self {
        Self {
            controller: ControllerConfig::default(),
            mtu: Mtu::default(),
            keep_alive: None,
            initial_rtt: Duration::from_millis(333),
            qlog: None,
            receive_window: None,
            reset_secret: None,
            loss_detection: LossDetection::default(),
        }
    }
}

/// Sizes of UDP payloads in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mtu {
    /// Size that the path is taken to carry from the start, at least 1200 (RFC 9000 §14).
    pub start: u16,
    /// Size to fall back to when packets seem to be lost for their size, at least 1200.
    pub least: u16,
    /// Largest size that is probed for (RFC 8899); no probing if it is not above `start`.
    pub probe_up_to: u16,
    /// Largest size that the peer may send; the peer is told it in `max_udp_payload_size` (RFC 9000 §18.2).
    pub receive_up_to: u16,
}

impl Default for Mtu {
    fn default() -> Self {
        Self { start: 1200, least: 1200, probe_up_to: 1452, receive_up_to: Self::RECEIVE_UP_TO }
    }
}

impl Mtu {
    /// For a tunnel: carries a 1200-byte Initial through three hops.
    ///
    /// Larger sizes are not probed for: what is inside could not know of them. The engine takes bursts
    /// of loss for a path that shrank. Payloads that do not fit then go in capsules, until the engine
    /// has found the size again.
    pub const TUNNEL: Self =
        Self { start: 1332, least: 1200, probe_up_to: 1332, receive_up_to: Self::RECEIVE_UP_TO };

    /// What fits into a packet of Ethernet with IPv4.
    const RECEIVE_UP_TO: u16 = 1472;

    /// For a connection inside a tunnel that carries payloads of this size, at least 1200. The
    /// peer cannot know of the tunnel and is told not to send more.
    pub const fn inside_tunnel(size: u16) -> Self {
        Self { start: size, least: size, probe_up_to: size, receive_up_to: size }
    }
}

/// Where qlog files go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QlogDir {
    /// An existing folder.
    pub dir: PathBuf,
    /// Start of each file's name.
    pub prefix: String,
}

/// Settings that a node cannot work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// QUIC's Initial packets need this cipher suite (RFC 9001 §5.2).
    #[error("the TLS provider lacks TLS_AES_128_GCM_SHA256")]
    NoInitialCipherSuite,
    /// Settings that are missing, or that exclude each other.
    #[error("{0}")]
    Settings(&'static str),
}

/// TLS of a server, ready for QUIC.
#[derive(Clone)]
pub struct ServerTls(pub(super) Arc<QuicServerConfig>);

impl ServerTls {
    /// Sets HTTP/3's ALPN and no early data.
    pub fn new(mut tls: rustls::ServerConfig) -> Result<Self, ConfigError> {
        tls.alpn_protocols = vec![ALPN_H3.to_vec()];
        tls.max_early_data_size = 0;
        let quic =
            QuicServerConfig::try_from(tls).map_err(|_| ConfigError::NoInitialCipherSuite)?;
        Ok(Self(Arc::new(quic)))
    }
}

/// TLS of a client, ready for QUIC.
#[derive(Clone)]
pub struct ClientTls(pub(super) Arc<QuicClientConfig>);

impl ClientTls {
    /// Sets HTTP/3's ALPN and no early data.
    pub fn new(mut tls: rustls::ClientConfig) -> Result<Self, ConfigError> {
        tls.alpn_protocols = vec![ALPN_H3.to_vec()];
        tls.enable_early_data = false;
        let quic =
            QuicClientConfig::try_from(tls).map_err(|_| ConfigError::NoInitialCipherSuite)?;
        Ok(Self(Arc::new(quic)))
    }
}

/// RFC 9002's `kPacketThreshold` behind a tunnel that repairs losses.
const REPAIR_PACKET_THRESHOLD: u32 = 1000;

/// RFC 9002's `kTimeThreshold` behind a tunnel that repairs losses.
const REPAIR_TIME_THRESHOLD: f32 = 1.75;

impl Transport {
    /// The engine's form of these settings, except for the controller: each connection has its own.
    pub(super) fn to_noq(&self, limits: &Limits) -> TransportConfig {
        let mut config = TransportConfig::default();
        let idle =
            VarInt::from_u32(u32::try_from(limits.connection_idle.as_millis()).unwrap_or(u32::MAX));
        config
            .max_concurrent_bidi_streams(VarInt::from_u32(limits.request_streams))
            // Control, QPACK encoder, QPACK decoder, and room for unknown types that are ignored.
            .max_concurrent_uni_streams(VarInt::from_u32(8))
            .max_idle_timeout(Some(IdleTimeout::from(idle)))
            .keep_alive_interval(self.keep_alive)
            .initial_rtt(self.initial_rtt)
            .initial_mtu(self.mtu.start)
            .min_mtu(self.mtu.least)
            .mtu_discovery_config(self.mtu_discovery())
            .stream_receive_window(self.window(STREAM_RECEIVE_WINDOW))
            .receive_window(self.window(RECEIVE_WINDOW))
            .send_window(u64::from(RECEIVE_WINDOW))
            .datagram_receive_buffer_size(Some(DATAGRAM_RECEIVE_BUFFER))
            .datagram_send_buffer_size(DATAGRAM_SEND_BUFFER);
        if self.loss_detection == LossDetection::BehindRepair {
            config.packet_threshold(REPAIR_PACKET_THRESHOLD).time_threshold(REPAIR_TIME_THRESHOLD);
        }
        #[cfg(feature = "qlog")]
        if let Some(qlog) = &self.qlog {
            config.qlog_from_path(&qlog.dir, &qlog.prefix);
        }
        config
    }

    fn window(&self, default: u32) -> VarInt {
        let window = self.receive_window.map_or(u64::from(default), ByteCount::get);
        VarInt::from_u64(window).unwrap_or(VarInt::MAX)
    }

    fn mtu_discovery(&self) -> Option<MtuDiscoveryConfig> {
        let Mtu { start, least, probe_up_to, .. } = self.mtu;
        (probe_up_to > least).then(|| {
            let mut discovery = MtuDiscoveryConfig::default();
            discovery.upper_bound(probe_up_to).black_hole_cooldown(BLACK_HOLE_COOLDOWN);
            if start == probe_up_to {
                // One probe tells whether the size is back; nothing in between is of use.
                discovery.minimum_change(probe_up_to - least).interval(PROBE_INTERVAL);
            }
            discovery
        })
    }
}

/// Settings of an endpoint; with a seed, every random choice of the engine follows from it.
pub(super) fn endpoint_config(transport: &Transport, seed: Option<u64>) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    // The engine would also speak drafts 29 to 34.
    config.supported_versions(vec![VERSION]);
    let mtu = transport.mtu;
    if let Some(ResetSecret(secret)) = &transport.reset_secret {
        config.reset_key(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, secret)));
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
    config.cid_generator(Arc::new(move || Box::new(RandomCids::new(seed))));
    config
}

/// Chooses the destination connection IDs of a client's first packets: 20 bytes
/// (RFC 9000 §7.2: at least 8, unpredictable).
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

/// Random connection IDs that repeat with the seed; noq's own draw from the thread.
struct RandomCids(Generator);

impl RandomCids {
    fn new(seed: Option<u64>) -> Self {
        Self(rng(seed))
    }
}

impl ConnectionIdGenerator for RandomCids {
    fn generate_cid(&mut self) -> noq_proto::ConnectionId {
        noq_proto::ConnectionId::new(&self.0.random::<[u8; CONNECTION_ID_LEN]>())
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// What every random choice of a node is drawn from. The algorithm is named, because that of
/// `rand::rngs::StdRng` may change with any version of `rand`, and the meaning of all seeds with it.
type Generator = ChaCha12Rng;

fn rng(seed: Option<u64>) -> Generator {
    seed.map_or_else(Generator::from_os_rng, Generator::seed_from_u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_bytes_for_ever() {
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

    #[test]
    fn a_seed_means_the_same_connection_ids_for_ever() {
        let mut ids = RandomCids::new(Some(7));
        for expected in
            [[190, 233, 134, 232, 205, 70, 153, 5], [182, 173, 224, 79, 210, 171, 138, 160]]
        {
            assert_eq!(*ids.generate_cid(), expected);
        }
    }
}
