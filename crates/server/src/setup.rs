//! What servers of all roles are told.

use std::net::SocketAddr;

use serde::Serialize;
use tandem_files::setting::Within;

use crate::{
    admin::AdminAddr,
    capacity::{MemoryBound, Threads},
    fleet::FleetSetup,
    tls::ServerTlsSetup,
    transport::{TransportSetup, WorkFor},
};

/// What servers of all roles are told.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Setup {
    /// Where the server listens; with port 0 at any free port.
    pub listen: SocketAddr,
    /// The bound on the memory of the process.
    pub memory: Within<MemoryBound>,
    /// The number of threads, each of which runs a node.
    pub threads: Within<Threads>,
    /// Where operators reach it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<AdminAddr>,
    /// The fleet in which it is a machine.
    #[serde(flatten)]
    pub fleet: FleetSetup,
    /// Its certificate.
    #[serde(flatten)]
    pub tls: ServerTlsSetup,
    /// How its connections are.
    #[serde(flatten)]
    pub transport: TransportSetup,
}

impl Setup {
    /// A server at this address, with a thread for each processor and half of the machine's memory.
    pub fn new(listen: SocketAddr, tls: ServerTlsSetup, work: WorkFor) -> Self {
        Self {
            listen,
            memory: MemoryBound::or_default(None),
            threads: Threads::or_default(None),
            admin: None,
            fleet: FleetSetup::default(),
            tls,
            transport: TransportSetup::usual(work),
        }
    }
}
