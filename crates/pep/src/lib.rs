//! The lightweight performance-enhancing proxy (PEP) as a state machine, without sockets and without a
//! clock.
//!
//! A router forwards packets as always, and tells a [`Pep`] which ones it has [`Observed`] on their way
//! to clients. [`Pep::poll`] returns the [`Notice`]s that the router sends to the servers: PEP-ACKs
//! (`docs/design/wire.md`). The forwarding of a packet never waits for any of this.
//!
//! The memory is bounded by [`Config::flows_max`]: a flow takes some 1.5 kB.

mod batch;
mod flows;
mod midstates;
mod pep_lines;
mod servers;

use std::time::{Duration, Instant};

use tandem_wire::{Ends, PepId, PepKey, Slice, pep_ack::tcp::SeenBytes};

use flows::Flows;
pub use midstates::midstates;
pub use pep_lines::parse_peps;
pub use servers::{Servers, ServersError};

/// How many packets of a flow wait until a PEP-ACK covers them.
const BATCH: usize = 10;

/// How long a packet waits for others of its flow at most; and the least time between two PEP-ACKs of a
/// flow, unless one is full.
const WAIT: Duration = Duration::from_millis(1);

/// After this silence a flow has ended.
const SILENCE: Duration = Duration::from_secs(10);

/// The settings of a PEP.
#[derive(Clone, Debug)]
pub struct Config {
    /// The identifier, which servers know.
    pub id: PepId,
    /// The key that servers know. `None`: its PEP-ACKs are not authentic.
    pub key: Option<PepKey>,
    /// The largest number of flows at a time. The one that has been silent for longest makes room.
    pub flows_max: usize,
    /// The form of PEP-ACKs for TCP.
    pub tcp_form: TcpForm,
}

/// The form of a segment that TCP ignores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcpForm {
    /// Without flags. Firewalls that follow connections drop it.
    #[default]
    Flagless,
    /// With an acknowledgement that is older than the client's newest one, which has to be known: see
    /// [`Observed::Client`].
    OldAck,
}

/// A packet on its way from a server to a client, or a segment on its way back. `U` names a flow of UDP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed<U = Ends> {
    /// A QUIC packet with a short header.
    Quic {
        /// Source and destination, or what else names the flow.
        ends: U,
        /// Its slice.
        slice: Slice,
    },
    /// A TCP segment.
    Tcp {
        /// Source and destination.
        ends: Ends,
        /// The sequence numbers of its data; empty if `start == end`.
        bytes: SeenBytes,
        /// Its acknowledgement number, which is the next sequence number that the server accepts.
        acknowledges: u32,
        /// Whether it has FIN or RST, so that there is no further PEP-ACK.
        is_last: bool,
    },
    /// A TCP segment with ACK of a client, which only [`TcpForm::OldAck`] needs.
    Client {
        /// Source and destination.
        ends: Ends,
        /// Its acknowledgement number.
        acknowledges: u32,
        /// The sequence number after its data.
        next: u32,
    },
}

/// A packet that the router sends to a server in the name of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice<U = Ends> {
    /// A UDP datagram.
    Udp {
        /// The flow, as it was observed.
        ends: U,
        /// The UDP payload.
        payload: Vec<u8>,
    },
    /// A TCP segment without data.
    Tcp {
        /// Source and destination.
        ends: Ends,
        /// The sequence number.
        sequence: u32,
        /// The acknowledgement number. `None`: it has no flags, also not ACK.
        acknowledges: Option<u32>,
        /// The options, a multiple of 4 bytes.
        options: Vec<u8>,
    },
}

/// What a PEP has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets of servers that were observed.
    pub observed: u64,
    /// PEP-ACKs that left.
    pub notices: u64,
    /// Packets of which no PEP-ACK tells, because too many waited, or their flow made room for another.
    pub untold: u64,
}

/// The PEP. `U` names its flows of UDP packets: by their ends on a router, by sockets in a program that
/// receives the packets itself.
#[derive(Debug)]
pub struct Pep<U = Ends> {
    config: Config,
    flows: Flows<U>,
    start: Instant,
    stats: Stats,
}

impl<U: Copy + Ord> Pep<U> {
    /// A PEP whose clock starts `now`.
    pub fn new(config: Config, now: Instant) -> Self {
        let flows = Flows::new(config.flows_max.max(1));
        Self { config, flows, start: now, stats: Stats::default() }
    }

    /// Notes a packet, at the time at which it came. Times never decrease.
    pub fn observe(&mut self, now: Instant, packet: Observed<U>) {
        if let Observed::Client { ends, acknowledges, next } = packet {
            return self.flows.observe_client(now, ends, (acknowledges, next));
        }
        self.stats.observed += 1;
        self.stats.untold += self.flows.observe(now, packet);
    }

    /// Notes that some packets passed unobserved. Their flows are unknown, so that in each flow a sequence
    /// number is missing from now on, as if a PEP-ACK had been lost.
    pub fn miss(&mut self) {
        self.flows.miss();
    }

    /// Whether the last packet has filled a PEP-ACK. Then [`Self::poll`] has to be called before the next packet.
    pub const fn is_full(&self) -> bool {
        self.flows.is_full()
    }

    /// The next PEP-ACK that has to leave. `None`: there is none before [`Self::next_timeout`].
    pub fn poll(&mut self, now: Instant) -> Option<Notice<U>> {
        let notice = self.flows.poll(now, self.start, &self.config)?;
        self.stats.notices += 1;
        Some(notice)
    }

    /// When [`Self::poll`] has to be called at the latest. `None`: not before the next packet.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.flows.next_timeout()
    }

    /// What was counted.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The number of flows that are known.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }
}

#[cfg(test)]
mod tests;
