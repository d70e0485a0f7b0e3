//! A PEP on a Linux router. A BPF program mirrors headers at the ingress of a device, and PEP-ACKs leave
//! through a raw socket; or BPF programs make them from clones of packets. Packets are forwarded as
//! always, and never wait for user space.
#![cfg(target_os = "linux")]

mod kernel;
mod packet;
mod record;
mod router;
mod user_space;

pub use router::{Maker, Router, RouterError, Stats};
