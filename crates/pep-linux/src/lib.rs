//! A PEP on a Linux router: a BPF program mirrors headers at the ingress of a device, and PEP-ACKs leave
//! through a raw socket. Packets are forwarded as always, and never wait for any of this.
#![cfg(target_os = "linux")]

mod packet;
mod record;
mod router;

pub use router::{Router, RouterError, Stats};
