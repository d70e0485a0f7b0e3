//! Experiments in virtual time: their parameters, their results and their figures.
//!
//! A [run](mod@run) takes [`Parameters`](run::Parameters) to a [`RunRecord`](run::RunRecord): it
//! builds the hosts and links in a [`World`](tandem_lab::World) and measures them. A
//! [plan] names many runs in a TOML file, a [sweep] runs them on all cores, a
//! [summary] puts seeds together, a [figure] draws results beside the numbers of a paper,
//! and a [report] shows figures and results on one page.
//!
//! The names of the modes follow the paper TECC (Towards Efficient QUIC Tunneling via
//! Collaborative Transmission Control). MFT means no tunnel: packets are only forwarded. MDT is a
//! MASQUE datagram tunnel, MST a MASQUE stream tunnel, and MSGT a MASQUE stream group tunnel. RMDT
//! is a MASQUE datagram tunnel with retransmission. In mode TECC the tunnel also sends reports to
//! the origin. E2E stands for end-to-end, and FCT for flow completion time.

pub mod figure;
pub mod plan;
pub mod report;
pub mod run;
pub mod summary;
pub mod sweep;
