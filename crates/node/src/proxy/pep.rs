//! The proxy as a PEP: it tells servers which of their QUIC packets it has received (`docs/design/wire.md`). Its
//! PEP-ACKs leave through the socket of the flow, so that they need no privileges.

use std::{net::SocketAddr, time::Instant};

use tandem_pep::{Notice, Observed, Pep, Servers};
use tandem_wire::Slice;

use super::Proxy;
use crate::node::{Output, SocketId, Transmit};

/// What makes a proxy a PEP.
#[derive(Clone, Debug)]
pub struct PepSettings {
    /// The PEP's identifier and key, and the flows that it knows at a time.
    pub pep: tandem_pep::Config,
    /// The targets to which their packets are acknowledged.
    pub servers: Vec<Servers>,
}

/// A flow: its socket and its target.
type UdpFlow = (SocketId, SocketAddr);

/// The PEP of a proxy.
pub(super) struct ProxyPep {
    /// `None`: it has observed nothing yet.
    pep: Option<Pep<UdpFlow>>,
    settings: PepSettings,
}

impl ProxyPep {
    pub(super) const fn new(settings: PepSettings) -> Self {
        Self { pep: None, settings }
    }

    /// Notes a payload from the target of a flow.
    pub(super) fn observe(&mut self, now: Instant, flow: UdpFlow, payload: &[u8]) {
        let is_short = payload.first().is_some_and(|first| first & 0x80 == 0);
        let Some(slice) = Slice::of(payload).filter(|_| is_short) else { return }; // of a handshake
        if self.settings.servers.iter().any(|server| server.contains(flow.1)) {
            let pep = self.pep.get_or_insert_with(|| Pep::new(self.settings.pep.clone(), now));
            pep.observe(now, Observed::Quic { ends: flow, slice });
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.pep.as_ref().and_then(Pep::next_timeout)
    }

    pub(super) fn stats(&self) -> tandem_pep::Stats {
        self.pep.as_ref().map(|pep| *pep.stats()).unwrap_or_default()
    }
}

impl Proxy {
    /// The next PEP-ACK.
    pub(super) fn poll_pep(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<Output> {
        let pep = self.pep.as_mut()?.pep.as_mut()?;
        while let Some(notice) = pep.poll(now) {
            let Notice::Udp { ends: (socket, destination), payload } = notice else { continue }; // it observes no TCP
            if self.targets.flow_of(socket).is_none() {
                continue; // the flow has ended
            }
            buf.extend_from_slice(&payload);
            let size = payload.len();
            let transmit =
                Transmit { destination, src_ip: None, ecn: None, size, segment_size: None };
            return Some(Output::Transmit { socket, transmit });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use tandem_wire::PepId;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "only differences to it matter")]
    fn only_short_headers_from_listed_servers_are_told() {
        let servers = vec!["192.0.2.1:443".parse().unwrap()];
        let config = tandem_pep::Config {
            id: PepId(1),
            key: None,
            flows_max: 10,
            tcp_form: tandem_pep::TcpForm::default(),
        };
        let mut pep = ProxyPep::new(PepSettings { pep: config, servers });
        let now = Instant::now();
        let flow = |server: &str| (SocketId(7), server.parse().unwrap());
        pep.observe(now, flow("192.0.2.1:80"), &[0x40; 1200]);
        pep.observe(now, flow("192.0.2.1:443"), &[0xc0; 1200]);
        pep.observe(now, flow("192.0.2.1:443"), &[0x40; 34]);
        assert_eq!((pep.stats().observed, pep.next_timeout()), (0, None));
        pep.observe(now, flow("192.0.2.1:443"), &[0x40; 35]);
        assert!(pep.stats().observed == 1 && pep.next_timeout().is_some());
    }
}
