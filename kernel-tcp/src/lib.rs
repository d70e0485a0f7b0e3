//! Two-domain congestion control for the kernel's TCP: what loads its BPF programs (`docs/design/kernel-tcp.md`).

pub mod counters;
pub mod key;
pub mod programs;
