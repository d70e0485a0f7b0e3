//! The proxies on the way, for `get` and `client` alike.

use std::{iter, ops::RangeInclusive, path::PathBuf};

use tandem_node::{
    client::{HopConfig, TunnelMode},
    limits::Limits,
    proxy::Token,
};
use tandem_units::HumanDuration;

use crate::{
    config::{Setting, TransportSetup, Via, Within, WorkFor},
    error::ConfigError,
    tls::ClientTls,
    tokens,
};

/// Request streams of one flow in mode msgt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupStreams;

impl Setting for GroupStreams {
    type Value = u8;
    const ALLOWED: RangeInclusive<u8> = TunnelMode::GROUP_STREAMS;
}

/// The setting, or the default.
pub(crate) fn group_streams(chosen: Option<Within<GroupStreams>>) -> Within<GroupStreams> {
    chosen.unwrap_or(Within(TunnelMode::GROUP_STREAMS_DEFAULT))
}

/// The help of `--group-streams`.
pub(crate) fn group_streams_help() -> String {
    let text = "Request streams of each flow in mode msgt";
    GroupStreams::help(text, TunnelMode::GROUP_STREAMS_DEFAULT)
}

/// The help of `--timeout`.
pub(crate) fn timeout_help() -> String {
    let Limits { setup_timeout, connection_idle, .. } = Limits::default();
    format!(
        "Time without a packet from a server after which the client gives up on it [default: {} until \
         its first answer, then {}]",
        HumanDuration(setup_timeout),
        HumanDuration(connection_idle),
    )
}

/// Limits of a client that gives up on a silent server after this time, before and after its first
/// answer.
pub(crate) fn limits(timeout: Option<HumanDuration>) -> Limits {
    let mut limits = Limits::default();
    if let Some(timeout) = timeout {
        limits.setup_timeout = timeout.into();
        limits.connection_idle = timeout.into(); // QUIC makes it at least three probe timeouts
    }
    limits
}

/// The hops, nearest proxy first. Each proxy receives the token of its own file; one file alone is for
/// all of them.
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
