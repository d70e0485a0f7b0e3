//! Drives Tandem's nodes with real sockets, name servers, files and the real clock.
//!
//! [`driver::run`] is the whole of it; the other modules are what it uses. Everything that decides
//! is in `tandem-node`: this crate only carries out.
//!
//! Give each node a runtime of its own, of one thread (`tokio::runtime::Builder::new_current_thread`):
//! on a runtime of several threads, waking the driver often means waking another processor core,
//! which costs more than handling a packet.

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
