//! `tandem serve` and `tandem connect`: a proxy and a client with one target that is fixed.

mod connect;
mod files;
mod serve;

pub(crate) use connect::{Connect, ConnectSettings, SERVICE_PORT};
pub(crate) use serve::{Serve, ServeSettings};
