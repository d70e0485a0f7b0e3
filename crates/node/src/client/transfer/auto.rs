//! What a client chooses for a download in mode `auto`.

use std::fmt;

use tandem_wire::Order;

/// The order in which the payloads of a download leave its tunnel in mode `auto`, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Payloads leave the tunnel in their order. It is the choice for every origin that does not follow reports: most
    /// of them take a packet for lost when three later ones have arrived, and many slow down then.
    Ordered,
    /// A payload leaves the tunnel at most 100 payloads before a lost one. An origin that follows the proxy's reports
    /// (TECC) waits for repairs itself.
    Window,
}

impl Choice {
    /// The choice for an origin.
    pub(in crate::client) const fn of(follows_reports: bool) -> Self {
        if follows_reports { Self::Window } else { Self::Ordered }
    }

    /// The order.
    pub const fn order(self) -> Order {
        match self {
            Self::Ordered => Order::Ordered,
            Self::Window => Order::Window,
        }
    }
}

/// What was chosen, and why, after "the tunnel".
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ordered => {
                "keeps the order of packets, because the server does not follow the proxy's reports"
            }
            Self::Window => {
                "hardly holds packets back, because the server follows the proxy's reports"
            }
        })
    }
}
