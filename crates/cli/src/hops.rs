//! The proxies on the way, for `get` and `client` alike.

use std::{
    iter,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use tandem_net::clock;
use tandem_node::{
    client::{HopConfig, TunnelMode},
    error::ClientError,
    limits::Limits,
    mode::{Agreement, Mode},
    proxy::Token,
};
use tandem_server::{
    admin::words::round,
    files::{concealed, tokens},
    transport::{TransportSetup, WorkFor},
};
use tandem_units::HumanDuration;
use tracing::{field::display, info, warn};

use crate::{
    advice,
    config::{HopVia, RepairSetup, Setting, Within},
    error::ConfigError,
    tls::ClientTls,
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

/// The help of `--timeout`. `besides`: what else is to be said of the time until the first answer.
pub(crate) fn timeout_help(besides: &str) -> String {
    let Limits { setup_timeout, connection_idle, .. } = Limits::default();
    format!(
        "Time without a packet from a server after which the client gives up on it [default: {}{besides} until \
         its first answer, then {}]",
        HumanDuration(setup_timeout),
        HumanDuration(connection_idle),
    )
}

/// The help of `--retry`. `otherwise` says what happens without it.
pub(crate) fn retry_help(otherwise: &str) -> String {
    format!(
        "How long to retry after temporary failures: a server that refuses or does not \
         answer, a proxy that answers 429, 500, 503 or 504, a name without an address, a certificate of somebody \
         else, and files with certificates and tokens that do not exist yet; 0 gives up at once [default: {otherwise}]"
    )
}

/// Reads files that another program may be about to write. Tries again for a while if one of them
/// does not exist.
pub(crate) fn read_when_written<T>(
    retry: Option<HumanDuration>,
    read: impl Fn() -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    const STEP: Duration = Duration::from_millis(50);
    let mut left = retry.map_or(Duration::ZERO, Duration::from);
    let mut is_first = true;
    loop {
        match read() {
            Err(error) if error.is_missing_file() && !left.is_zero() => {
                if std::mem::take(&mut is_first) {
                    warn!("{error}; trying again");
                }
                thread::sleep(STEP.min(left));
                left = left.saturating_sub(STEP);
            }
            result => return result,
        }
    }
}

/// Logs that a hop is up. A mode other than the one that was asked for is a warning.
fn say_up(hop: usize, authority: &str, setup: Duration, agreement: Option<Agreement>) {
    let mode = agreement.map(display);
    let setup_ms = round(setup.as_secs_f64() * 1e3, 10.0);
    info!(hop, authority, setup_ms, mode, "tunnel up");
    if let Some(agreement) = agreement.filter(|agreement| agreement.lesser.is_some()) {
        say_lesser(authority, agreement, "runs");
    }
}

/// Says that a tunnel `runs` or `now runs` in another mode. A user who left the choice to the client gets no warning.
pub(crate) fn say_lesser(authority: &str, agreement: Agreement, runs: &str) {
    if agreement.asked == Mode::Auto {
        info!(authority, "the tunnel {runs} in mode {agreement}");
    } else {
        warn!(authority, "the tunnel {runs} in mode {agreement}");
    }
}

/// The time after which a failure that lasts is told again. An attempt and the wait after it take up to 16 s, so that
/// there is a line at least every 30 s.
const TOLD_AGAIN: Duration = Duration::from_secs(14);

/// How the proxies are reached: flags of commands that end by themselves.
#[derive(Debug, clap::Args)]
pub(crate) struct ReachSettings {
    /// File whose first token is sent to every proxy; repeat it to name one file for each --via
    #[arg(long, value_name = "FILE", env = "TANDEM_TOKEN_FILE", value_delimiter = ',')]
    pub(crate) token_file: Vec<PathBuf>,

    /// File with the key with which the client shows every proxy who it is (RFC 9729; `tandem generate concealed-key`
    /// makes one)
    #[arg(long, value_name = "FILE", env = "TANDEM_CONCEALED_KEY", help_heading = "TLS")]
    pub(crate) concealed_key: Option<PathBuf>,

    #[arg(long, value_name = "TIME", env = "TANDEM_TIMEOUT", help = timeout_help(""))]
    timeout: Option<HumanDuration>,

    #[arg(
        long, value_name = "TIME", env = "TANDEM_RETRY",
        help = retry_help("0 at the start, 30s for a tunnel that breaks")
    )]
    pub(crate) retry: Option<HumanDuration>,
}

impl ReachSettings {
    /// What the client shows to proxies.
    pub(crate) fn rights(&self) -> Rights<'_> {
        Rights { token_files: &self.token_file, concealed_key: self.concealed_key.as_deref() }
    }

    /// The limits of a client that is as patient.
    pub(crate) fn limits(&self) -> Limits {
        limits(self.timeout, self.retry, None)
    }
}

/// The failures of which the user was told since the tunnel was last up.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    /// When the tunnel failed, or could not be established.
    since: Option<Instant>,
    /// What the user was told last, and when.
    told: Option<(Instant, ClientError)>,
}

impl Retries {
    /// Says that a tunnel is up, so that its next failure is news.
    pub(crate) fn on_up(
        &mut self,
        hop: usize,
        authority: &str,
        setup: Duration,
        agreement: Option<Agreement>,
    ) {
        *self = Self::default();
        say_up(hop, authority, setup, agreement);
    }

    /// Says that a tunnel was lost or is not there, unless the user was told of this a short time ago.
    pub(crate) fn on_lost(&mut self, error: &ClientError, retry_in: Duration) {
        if let Some(line) = self.line(clock::now(), error, retry_in) {
            warn!("{line}");
        }
    }

    /// The line for a failure after which the client tries again. `None`: the user was told of this cause a short time
    /// ago.
    fn line(&mut self, now: Instant, error: &ClientError, retry_in: Duration) -> Option<String> {
        let away = now.saturating_duration_since(*self.since.get_or_insert(now));
        let is_known =
            |(at, told): &(Instant, ClientError)| told == error && now < *at + TOLD_AGAIN;
        if self.told.as_ref().is_some_and(is_known) {
            return None;
        }
        self.told = Some((now, error.clone()));
        let wait = match retry_in {
            Duration::ZERO => String::new(),
            wait => format!(" in {:.1} s", wait.as_secs_f64()),
        };
        let since = if away < TOLD_AGAIN {
            String::new()
        } else {
            format!("; there has been no tunnel for {} s", away.as_secs())
        };
        let advice = advice::while_trying(error);
        Some(format!("{error}{advice}; trying again{wait}{since}"))
    }
}

/// Limits of a client that gives up on a silent server after `timeout`, before and after its first
/// answer, and that tries again for the time `retry`, or for the usual time if the user says nothing.
pub(crate) fn limits(
    timeout: Option<HumanDuration>,
    retry: Option<HumanDuration>,
    usual: Option<Duration>,
) -> Limits {
    let mut limits = Limits {
        retry: retry.map(Duration::from).or(usual),
        retry_mistakes: retry.is_some(),
        ..Limits::default()
    };
    if let Some(timeout) = timeout {
        limits.setup_timeout = timeout.into();
        limits.connection_idle = timeout.into(); // QUIC makes it at least three probe timeouts
    }
    limits
}

/// The modes of the tunnels of a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Modes {
    /// That of the tunnel to the nearest proxy.
    first: TunnelMode,
    /// That of all tunnels behind it.
    beyond: TunnelMode,
}

impl Modes {
    pub(crate) fn new(
        (first, beyond): (Mode, Mode),
        repair: RepairSetup,
        group_streams: Within<GroupStreams>,
    ) -> Self {
        let tunnel = |mode: Mode| repair.tunnel(mode, group_streams.0);
        Self { first: tunnel(first), beyond: tunnel(beyond) }
    }
}

/// The mode of the tunnels behind the first one, which has the mode `first`. A client that insists on its
/// modes only has modes that it was told.
pub(crate) fn beyond(
    chosen: Option<Mode>,
    via: &[HopVia],
    (first, require_mode): (Mode, bool),
) -> Result<Mode, ConfigError> {
    if chosen.is_some() && via.len() < 2 {
        let reason = "there is no second proxy";
        return Err(ConfigError::Conflict { first: "beyond", second: "via", reason });
    }
    Ok(chosen.unwrap_or(if require_mode { first } else { first.beyond() }))
}

/// The files with what a client shows to proxies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights<'a> {
    pub(crate) token_files: &'a [PathBuf],
    pub(crate) concealed_key: Option<&'a Path>,
}

/// The hops, nearest proxy first. Each proxy receives the token of its own file; one file alone is for
/// all of them.
pub(crate) fn hops(
    via: &[HopVia],
    tls: &ClientTls,
    transport: &TransportSetup,
    Rights { token_files, concealed_key }: Rights<'_>,
    modes: Modes,
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
    let concealed = concealed_key.map(concealed::read_key).transpose()?;
    let modes = iter::once(modes.first).chain(iter::repeat(modes.beyond));
    let hop = |((via, token), mode): ((&HopVia, Option<Token>), TunnelMode)| {
        let (template, others) = via.templates();
        Ok(HopConfig {
            template,
            others,
            tls: tls.proxy.tls.clone(),
            ech: Some(tls.proxy.ech.clone()),
            transport: transport.to_node("tunnel", WorkFor::Tunnel),
            token,
            concealed: concealed.clone(),
            mode,
        })
    };
    via.iter().zip(tokens).zip(modes).map(hop).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_lasts_is_told_again_within_30_s() {
        let begin = tandem_net::clock::now();
        let error = |peer: &str| ClientError::NoAnswer {
            peer: peer.to_owned(),
            timeout: Duration::from_secs(12),
        };
        let mut retries = Retries::default();
        let mut lines = |second, peer| {
            let now = begin + Duration::from_secs(second);
            retries.line(now, &error(peer), Duration::from_secs(4))
        };
        let first = lines(12, "p").unwrap();
        assert!(first.ends_with("trying again in 4.0 s"), "{first}");
        assert_eq!(lines(13, "p"), None);
        assert!(lines(14, "q").is_some(), "another cause");
        let times: Vec<u64> =
            (1..10).map(|it| 14 + 16 * it).filter(|it| lines(*it, "q").is_some()).collect();
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] <= 30), "{times:?}");
        let last = lines(200, "q").unwrap();
        assert!(last.ends_with("; there has been no tunnel for 188 s"), "{last}");
    }
}
