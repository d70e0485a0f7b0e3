use super::agreement::Repair;

/// How payloads travel through a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TunnelMode {
    /// HTTP Datagrams in QUIC DATAGRAM frames, which the tunnel does not repair.
    #[default]
    Mdt,
    /// DATAGRAM capsules on the request stream: repaired, and in order.
    Mst,
    /// As [`TunnelMode::Mst`], but spread over 2 to 16 request streams that do not wait for each other.
    /// If the proxy cannot do that, the flow has one.
    Msgt(u8),
    /// HTTP Datagrams. Those that are lost are sent again if the proxy can do that; otherwise as
    /// [`TunnelMode::Mdt`].
    Rmdt(Repair),
    /// As [`TunnelMode::Rmdt`], and the proxy reports on the tunnel. In a download the reports go to
    /// the origin, which learns the access link's rate and loss.
    Tecc(Repair),
}
