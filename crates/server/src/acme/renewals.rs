//! Gets certificates and renews them.

use std::{
    thread,
    time::{Duration, SystemTime},
};

use instant_acme::Error as AcmeError;
use tandem_node::StrangerText;
use tokio::{sync::oneshot, time};

use super::{folder::Folder, order};
use crate::{
    process::{SystemError, WriteError, runtime, say},
    tls::AcmeSetup,
};

/// The wait after the first failure. It grows by [`GROWTH`], so that a name that cannot be proven costs four of the
/// five failures that Let's Encrypt allows within an hour.
const FIRST_WAIT: Duration = Duration::from_secs(60);

/// See [`FIRST_WAIT`].
const GROWTH: u32 = 3;

/// The longest wait after a failure: a certificate of six days is tried for seven times in its last two.
const LONGEST_WAIT: Duration = Duration::from_secs(6 * 60 * 60);

/// The least wait after the server has said that there were too many requests. Its limits are by the hour or longer.
const WAIT_OF_LIMITS: Duration = Duration::from_secs(60 * 60);

/// The longest time until the clock is looked at again, because a machine that sleeps does not count it.
const LOOK: Duration = Duration::from_secs(60 * 60);

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum RenewalFailure {
    #[error("{}", StrangerText::from(.0.to_string()))]
    Acme(#[from] AcmeError),
    #[error("the server refuses the order: {0}")]
    Refused(StrangerText),
    #[error("{0}")]
    Here(#[from] SystemError),
    /// A file cannot be written.
    #[error(transparent)]
    Folder(#[from] WriteError),
    #[error("cannot listen at {address} for the server's proof (acme-listen): {error}")]
    Listen { address: std::net::SocketAddr, error: std::io::Error },
    #[error(
        "the certificate that it has issued is due for renewal already, or lacks a name; is the clock right?"
    )]
    DueAlready,
}

impl RenewalFailure {
    /// Whether the server has named this problem (RFC 8555 §6.7).
    fn is(&self, name: &str) -> bool {
        let Self::Acme(AcmeError::Api(problem)) = self else { return false };
        let kind =
            problem.r#type.as_deref().and_then(|it| it.strip_prefix("urn:ietf:params:acme:error:"));
        kind == Some(name)
    }

    /// The wait before the next try, after this number of failures.
    fn wait(&self, failures: u32) -> Duration {
        let growth = GROWTH.saturating_pow(failures.saturating_sub(1));
        let wait = FIRST_WAIT.saturating_mul(growth).min(LONGEST_WAIT);
        if self.is("rateLimited") { wait.max(WAIT_OF_LIMITS) } else { wait }
    }
}

/// Gets certificates until it is dropped.
#[derive(Debug)]
pub(crate) struct Renewals {
    _end: oneshot::Sender<()>,
}

impl Renewals {
    /// Starts a thread, which does not delay the end of the process.
    pub(crate) fn start(setup: &AcmeSetup) -> Result<Self, SystemError> {
        let (end, ended) = oneshot::channel();
        let (setup, runtime) = (setup.clone(), runtime()?);
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = renew(&setup) => {}
                    _ = ended => {}
                }
            });
        };
        thread::Builder::new()
            .name("tandem-acme".to_owned())
            .spawn(run)
            .map_err(SystemError::thread)?;
        Ok(Self { _end: end })
    }
}

/// Gets a certificate whenever one is due.
async fn renew(setup: &AcmeSetup) {
    let folder = Folder::new(setup);
    let mut failures = 0;
    loop {
        let due = folder.due();
        let left = due.duration_since(now()).unwrap_or_default();
        if !left.is_zero() {
            time::sleep(left.min(LOOK)).await;
            continue;
        }
        let names = setup.acme_domain.join(", ");
        let ordered = order::certificate(setup, &folder).await;
        match ordered.and_then(|()| lasting(folder.due(), now())) {
            Ok(()) => {
                failures = 0;
                say(format_args!("{} has issued a certificate for {names}", setup.host()));
            }
            Err(failure) => {
                failures += 1;
                let wait = failure.wait(failures);
                if failure.is("accountDoesNotExist") {
                    folder.forget_account(); // the next try makes another one
                }
                // A server could send control characters, which must not reach the terminal.
                let failure = failure.to_string().replace(char::is_control, " ");
                say(format_args!(
                    "error: no certificate for {names} from {}: {failure}; the server goes on with the one that it has \
                     and asks again in {} min",
                    setup.host(),
                    wait.as_secs() / 60
                ));
                time::sleep(wait).await;
            }
        }
    }
}

/// The failure of an order whose certificate is due at once. Another order would bring the same, and so on.
fn lasting(due: SystemTime, now: SystemTime) -> Result<(), RenewalFailure> {
    if due > now { Ok(()) } else { Err(RenewalFailure::DueAlready) }
}

#[expect(clippy::disallowed_methods, reason = "certificates end by the real clock")]
fn now() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_certificate_that_is_due_already_is_a_failure() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        assert!(lasting(now + Duration::from_secs(1), now).is_ok());
        for due in [now, now - Duration::from_secs(1), SystemTime::UNIX_EPOCH] {
            assert_eq!(lasting(due, now).unwrap_err().wait(1), FIRST_WAIT);
        }
    }

    #[test]
    fn failures_are_repeated_less_and_less_often() {
        let failure = RenewalFailure::Refused("no".into());
        let minutes: Vec<_> = (1..=8).map(|count| failure.wait(count).as_secs() / 60).collect();
        assert_eq!(minutes, [1, 3, 9, 27, 81, 243, 360, 360]);
        let limit = serde_json::from_str(r#"{"type": "urn:ietf:params:acme:error:rateLimited"}"#);
        let limit = RenewalFailure::Acme(AcmeError::Api(limit.unwrap()));
        assert_eq!(limit.wait(1), WAIT_OF_LIMITS);
        assert_eq!(limit.wait(100), LONGEST_WAIT);
    }
}
