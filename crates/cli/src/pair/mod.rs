//! `tandem serve` and `tandem connect`: a proxy and a client with one target that is fixed.

mod connect;
mod files;
mod serve;

use crate::{
    config::{ListenAddr, Target},
    error::ConfigError,
};
pub(crate) use connect::{Connect, ConnectSettings};
pub(crate) use serve::{Serve, ServeSettings};

/// The settings that both commands need.
const REQUIRED: &[&str] = &["dest", "listen"];

/// The settings that both commands need, or the error that one is missing.
fn both_addresses(
    dest: Option<Target>,
    listen: Option<ListenAddr>,
) -> Result<(Target, ListenAddr), ConfigError> {
    let missing = |key, value, variable| ConfigError::Missing { key, value, variable };
    Ok((
        dest.ok_or(missing("dest", "HOST:PORT", "TANDEM_DEST"))?,
        listen.ok_or(missing("listen", "ADDR", "TANDEM_LISTEN"))?,
    ))
}
