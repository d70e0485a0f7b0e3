//! Runs a PEP on this machine until a signal ends it.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::CapabilitySet;
use tandem_pep::Config;
use tandem_pep_linux::{Maker, Router};
use tandem_server::{
    capacity::memory,
    process::{self, Signals, SystemError, log},
};
use tandem_wire::{PepId, PepKey};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::{
    Counters, PepSetup, TcpFormFlag,
    findings::{self, FindingState},
    rights,
};
use crate::{
    error::{CliError, PepError},
    text,
};

/// The longest wait for packets, after which the program looks whether it has to end.
const WAIT: Duration = Duration::from_millis(200);

/// The interval between two looks at the devices.
const LOOK: Duration = Duration::from_secs(1);

/// The interval between two lines of the log.
const REPORT: Duration = Duration::from_secs(60);

/// Runs the PEP.
pub(super) fn run(setup: &PepSetup, (id, key): (PepId, Option<PepKey>)) -> Result<(), CliError> {
    let failed = |reason: String| PepError::Failed { reason };
    let system = |what| move |error| SystemError { what, error };
    let user = setup.user.as_deref().map(rights::user).transpose();
    let user = user.map_err(system("switch the user"))?;
    for finding in
        findings::of(setup).iter().filter(|finding| finding.state == FindingState::Warning)
    {
        warn!("{finding}");
    }
    // From here on a signal ends the program only after it has detached everything.
    let runtime = process::runtime()?;
    let mut signals = runtime.block_on(async { Signals::with_hangup() })?;
    let is_keyless = key.is_none();
    let router = Router::attach(&setup.device, &setup.server, setup.to_pep(id, key), setup.maker());
    let router = router.map_err(|error| failed(error.to_string()))?;
    let keep =
        if Router::has_to_detach() { CapabilitySet::NET_ADMIN } else { CapabilitySet::empty() };
    let dropped = memory::without_threads(|| rights::drop_all(user.as_ref(), keep));
    dropped.map_err(system("drop privileges"))?;
    // A thread that began before would keep its privileges.
    log::use_own_thread()?;
    if is_keyless {
        warn!("the PEP has no key: servers hear its PEP-ACKs, but do not follow them");
    }
    text::say(format_args!("ready: PEP {} at {}", id.0, setup.device.join(", ")));
    let stop = AtomicBool::new(false);
    let (ended, end) = oneshot::channel::<()>();
    let counters = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let result = Worker::new(router, &setup.device).run(&stop);
            drop(ended);
            result
        });
        runtime.block_on(async {
            tokio::select! {
                () = signals.any() => {}
                _ = end => {}
            }
        });
        stop.store(true, Ordering::Relaxed);
        worker.join().expect("the PEP does not panic")
    });
    let counters = counters.map_err(failed)?;
    if setup.json {
        return text::print(serde_json::to_string(&counters).expect("numbers are JSON"));
    }
    text::say(counters);
    Ok(())
}

impl PepSetup {
    /// Who makes the PEP-ACKs.
    pub(super) const fn maker(&self) -> Maker {
        if self.in_kernel {
            Maker::Kernel { packets: Maker::PACKETS_MAX }
        } else {
            Maker::UserSpace
        }
    }

    fn to_pep(&self, id: PepId, key: Option<PepKey>) -> Config {
        let tcp_form = match self.tcp_form {
            TcpFormFlag::Flagless => tandem_pep::TcpForm::Flagless,
            TcpFormFlag::OldAck => tandem_pep::TcpForm::OldAck,
        };
        let flows_max = usize::try_from(self.flows_max.0).unwrap_or(usize::MAX);
        Config { id, key, flows_max, tcp_form }
    }
}

/// The PEP and its devices, which may disappear.
struct Worker<'a> {
    router: Router,
    devices: Vec<(&'a str, Option<String>)>,
    looked: Instant,
    reported: (Instant, Counters),
}

impl<'a> Worker<'a> {
    fn new(router: Router, devices: &'a [String]) -> Self {
        let devices = devices.iter().map(|device| (device.as_str(), index(device))).collect();
        let reported = (now(), Counters::default());
        Self { router, devices, looked: now(), reported }
    }

    /// Runs until it is told to stop. An error is the reason why it ends.
    fn run(mut self, stop: &AtomicBool) -> Result<Counters, String> {
        while !stop.load(Ordering::Relaxed) {
            self.router.step(WAIT).map_err(|error| error.to_string())?;
            let now = now();
            if now.duration_since(self.looked) < LOOK {
                continue;
            }
            self.looked = now;
            for (device, first) in &self.devices {
                if index(device) != *first {
                    return Err(format!("the device {device} was removed"));
                }
            }
            if now.duration_since(self.reported.0) >= REPORT {
                self.report(now);
            }
        }
        Ok(self.counters())
    }

    /// Logs what was counted, if something was.
    fn report(&mut self, now: Instant) {
        let counters = self.counters();
        let before = std::mem::replace(&mut self.reported, (now, counters)).1;
        if counters.missed_packets > before.missed_packets {
            warn!("packets came faster than this program has read them; PEP-ACKs are missing");
        }
        if counters != before {
            info!(flows = self.router.flows(), "since the start it {counters}");
        }
    }

    fn counters(&self) -> Counters {
        let stats = self.router.stats();
        Counters {
            seen_packets: stats.pep.observed,
            pep_acks: stats.pep.notices.saturating_sub(stats.unsent),
            untold_packets: stats.pep.untold,
            missed_packets: stats.lost,
            refused_pep_acks: stats.unsent,
        }
    }
}

/// The index of a device, which another device of the same name does not have.
fn index(device: &str) -> Option<String> {
    fs::read_to_string(Path::new("/sys/class/net").join(device).join("ifindex")).ok()
}

#[expect(clippy::disallowed_methods, reason = "the PEP runs by the real clock")]
fn now() -> Instant {
    Instant::now()
}
