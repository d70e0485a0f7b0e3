//! Drives Tandem's nodes with real sockets, name servers, files and the real clock.
//!
//! [`driver::run`] is the whole of it; the other modules are what it uses. Everything that decides
//! is in `tandem-node`: this crate only carries out.
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
//! Give each node a runtime of its own, of one thread (`tokio::runtime::Builder::new_current_thread`):
//! on a runtime of several threads, waking the driver often means waking another processor core,
//! which costs more than handling a packet.
//!
//! # Telling an origin of a tunnel
//!
//! A program that wants its server to know how fast the access link is (TECC) opens a tunnel with a
//! [`Client`](tandem_node::Client) in mode [`Tecc`](tandem_node::client::TunnelMode::Tecc):
//!
//! - a download ([`Task::Fetch`](tandem_node::client::Task)) tells its origin by itself;
//! - a client that forwards gives an [`Event::TunnelInfo`](tandem_node::Event::TunnelInfo) for each report
//!   on a local program's flow. Pass it on to that program's server as you have agreed with it:
//!   [`TunnelInfo::encode`](tandem_node::client::TunnelInfo::encode) writes it, and servers read it with
//!   `tandem-congestion`;
//! - a download through somebody else's tunnel is given reports as
//!   [`Input::TunnelInfo`](tandem_node::Input::TunnelInfo), in [`Application::tick`].
//!
//! `examples/relay_feedback.rs` does all of it.

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

pub use driver::{Application, DriveError, DriverOptions, Finished, run};
pub use files::Files;
pub use resolver::Resolver;
pub use socket::SocketOptions;
pub use stats::DriverStats;
