//! The driver that runs Tandem's nodes on real sockets, name servers, files and the real clock.
//!
//! There are two ways in. [`Client`] is for programs that send and receive UDP payloads through a
//! tunnel by themselves. [`driver::run`] runs any node, also a server, and uses the other modules.
//! All decisions are made in `tandem-node`; this crate only carries them out.
//!
//! # A tunnel in a program
//!
//! ```no_run
//! use tandem_net::{Client, ClientError, ClientEvent, ClientOptions};
//!
//! async fn ask(question: &[u8]) -> Result<Vec<u8>, ClientError> {
//!     let options = ClientOptions::new("https://proxy.example").token("0123456789abcdef");
//!     let client = Client::connect(options).await?;
//!     let mut events = client.events();
//!     tokio::spawn(async move {
//!         while let Some(event) = events.next().await {
//!             if let ClientEvent::TunnelLost { error, retry_in, .. } = event {
//!                 eprintln!("the tunnel was lost: {error}; the next attempt is in {retry_in:?}");
//!             }
//!         }
//!     });
//!     let flow = client.open_udp("dns.example", 53).await?;
//!     flow.send(question).await?;
//!     let answer = flow.recv().await?;
//!     flow.close(); // as dropping it does; the client can open others
//!     client.close().await?;
//!     Ok(answer.to_vec())
//! }
//! ```
//!
//! The client has a thread of its own, its handles work on every runtime, and all queues are
//! bounded. [`UdpFlow`] says what becomes of payloads when a queue is full, or when the tunnel is
//! rebuilt. `examples/embedded_client.rs` is a whole program.
//!
//! # A node in a program
//!
//! ```no_run
//! use std::io;
//!
//! use tandem_net::{Application, DriverOptions, Files, site::SiteContent};
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
//!     let site = Some(SiteContent::Folder(Files::below("/srv/www")?));
//!     let options = DriverOptions { site, ..DriverOptions::default() };
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

pub mod admin;
mod alarm;
pub mod client;
pub mod clock;
pub mod driver;
pub mod files;
mod listeners;
mod load_gauge;
mod memory_gauge;
pub mod neighbours;
mod network_watch;
mod owners;
mod pause;
mod ready;
mod requests;
pub mod resolver;
mod send_batch;
pub mod site;
pub mod socket;
pub mod stats;
mod tcp;
mod too_big;

pub use client::{
    Client, ClientError, ClientEvent, ClientEvents, ClientOptions, FlowConfig, UdpFlow,
};
pub use driver::{Application, DriveError, DriverOptions, Finished, run};
pub use files::Files;
pub use listeners::{Listener, Listeners, Others};
pub use pause::Pause;
pub use resolver::Resolver;
pub use socket::SocketOptions;
pub use stats::DriverStats;
pub use tcp::TCP_CLOSING_MAX;
