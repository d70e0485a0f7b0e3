//! The driver that runs Tandem's nodes on real sockets, name servers, files and the real clock.
//!
//! [`driver::run`] is the entry point; it uses the other modules. All decisions are made in
//! `tandem-node`; this crate only carries them out.
//!
//! ```no_run
//! use std::io;
//!
//! use tandem_net::{Application, DriverOptions, Files};
//! use tandem_node::{Event, Node};
//!
//! struct Log;
//!
//! impl<N> Application<N> for Log {
//!     fn event(&mut self, event: Event) {
//!         println!("{event:?}");
//!     }
//! }
//!
//! fn serve(node: impl Node) -> io::Result<()> {
//!     let files = Some(Files::below("/srv/www")?);
//!     let options = DriverOptions { files, ..DriverOptions::default() };
//!     let interrupt = async { drop(tokio::signal::ctrl_c().await) };
//!     let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//!     let finished = runtime.block_on(tandem_net::run(node, &mut Log, options, interrupt));
//!     println!("{:?}", finished.stats);
//!     finished.result.map_err(io::Error::other)
//! }
//! ```
//!
//! Give each node its own runtime with one thread (`tokio::runtime::Builder::new_current_thread`).
//! On a runtime with several threads, waking the driver often means waking another processor core,
//! which costs more than handling a packet.
//!
//! # Reports of a tunnel to an origin
//!
//! A server can adapt its sending rate to the access link if the client reports its tunnel to it,
//! as in the paper TECC (Towards Efficient QUIC Tunneling via Collaborative Transmission Control,
//! NSDI '24). The program opens a tunnel with a [`Client`](tandem_node::Client) in mode
//! [`Tecc`](tandem_node::client::TunnelMode::Tecc):
//!
//! - A download ([`Task::Fetch`](tandem_node::client::Task)) sends the reports to its origin by
//!   itself.
//! - A client that forwards local programs' packets emits an
//!   [`Event::TunnelInfo`](tandem_node::Event::TunnelInfo) for each report on a program's flow. The
//!   program sends it to its server in its own format. The method
//!   [`TunnelInfo::encode`](tandem_node::client::TunnelInfo::encode) encodes it, and servers decode
//!   it with `tandem-congestion`.
//! - A download through another client's tunnel takes reports as
//!   [`Input::TunnelInfo`](tandem_node::Input::TunnelInfo), in [`Application::tick`].
//!
//! `examples/relay_feedback.rs` shows all of this.

mod alarm;
pub mod clock;
pub mod driver;
pub mod files;
mod ready;
mod requests;
pub mod resolver;
mod send_batch;
pub mod socket;
pub mod stats;
mod too_big;

pub use driver::{Application, DriveError, DriverOptions, Finished, run};
pub use files::Files;
pub use resolver::Resolver;
pub use socket::SocketOptions;
pub use stats::DriverStats;
