//! The proxies on the way, for `get` and `client` alike.

use std::{iter, path::PathBuf};

use tandem_node::{
    client::{HopConfig, TunnelMode},
    limits::Limits,
    proxy::Token,
};
use tandem_units::HumanDuration;

use crate::{
    config::{TransportSetup, Via, WorkFor},
    error::ConfigError,
    tls::ClientTls,
    tokens,
};

/// Limits of a client that gives up on a silent server after this time, before and after it first
/// answered.
pub(crate) fn limits(timeout: Option<HumanDuration>) -> Limits {
    let mut limits = Limits::default();
    if let Some(timeout) = timeout {
        limits.setup_timeout = timeout.into();
        limits.connection_idle = timeout.into(); // QUIC makes it at least three probe timeouts
    }
    limits
}

/// The hops, nearest proxy first. Each proxy is shown the token of its own file; one file alone is
/// for all of them.
pub(crate) fn hops(
    via: &[Via],
    tls: &ClientTls,
    transport: &TransportSetup,
    token_files: &[PathBuf],
    mode: TunnelMode,
) -> Result<Vec<HopConfig>, ConfigError> {
    let tokens: Result<Vec<_>, _> =
        token_files.iter().map(|file| tokens::read_first(file)).collect();
    let tokens = match tokens?.as_slice() {
        [] => vec![None; via.len()],
        [one] => iter::repeat_n(Some(one.clone()), via.len()).collect(),
        tokens if tokens.len() == via.len() => tokens.iter().cloned().map(Some).collect(),
        tokens => {
            return Err(ConfigError::TokenFiles { files: tokens.len(), proxies: via.len() });
        }
    };
    let hop = |(via, token): (&Via, Option<Token>)| {
        Ok(HopConfig {
            template: via.0.clone(),
            tls: tls.proxy.clone(),
            transport: transport.to_node("tunnel", WorkFor::Tunnel),
            token,
            mode,
        })
    };
    via.iter().zip(tokens).map(hop).collect()
}
