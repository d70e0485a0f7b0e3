//! What a PEP needs of the machine, and whether it is there: `tandem pep --check`.

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    fs,
    path::PathBuf,
    process::Command,
};

use ipnet::IpNet;
use serde::Serialize;
use tandem_pep_linux::Router;

use super::{PepSetup, rights};
use crate::{
    error::{CliError, PepError},
    text,
};

/// Something that the machine has or lacks, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) state: FindingState,
    /// What was looked at.
    what: String,
    /// What was found, and what to do.
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FindingState {
    Ok,
    /// The PEP runs, but perhaps not as it should.
    Warning,
    /// The PEP does not run.
    Missing,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.text)
    }
}

impl Finding {
    fn new(state: FindingState, what: impl Into<String>, text: impl Into<String>) -> Self {
        Self { state, what: what.into(), text: text.into() }
    }
}

/// Prints what is in force, and what was found. An error says that something is missing.
pub(super) fn print(setup: &PepSetup, checked: &str) -> Result<(), CliError> {
    let mut findings = vec![rights(setup)];
    findings.push(kernel(setup));
    findings.extend(of(setup));
    let is_ready = findings.iter().all(|finding| finding.state != FindingState::Missing);
    if setup.json {
        let report = serde_json::json!({ "is_ready": is_ready, "findings": findings });
        text::print(report)?;
    } else {
        let mut lines = format!("{checked}\n# This machine:\n");
        for finding in &findings {
            let state = match finding.state {
                FindingState::Ok => "ok     ",
                FindingState::Warning => "warning",
                FindingState::Missing => "missing",
            };
            writeln!(lines, "# {state} {finding}").expect("a text takes every line");
        }
        text::print(lines.trim_end())?;
    }
    if is_ready { Ok(()) } else { Err(PepError::NotReady.into()) }
}

/// What can be found without any privilege.
pub(super) fn of(setup: &PepSetup) -> Vec<Finding> {
    let devices = setup.device.iter().flat_map(|device| of_device(device));
    let user = user(setup.user.as_deref(), rustix::process::geteuid().is_root());
    devices.chain(forwarding(setup)).chain(user).collect()
}

/// What the programs of the kernel need.
fn lacking(setup: &PepSetup) -> Vec<&'static str> {
    let mut lacking = rights::lacking(&rights::NEEDED);
    if setup.in_kernel {
        lacking.extend(rights::lacking(&rights::IN_KERNEL));
    }
    lacking
}

fn rights(setup: &PepSetup) -> Finding {
    let what = "privileges";
    let mut lacking = lacking(setup);
    if setup.user.is_some() {
        lacking.extend(rights::lacking(&rights::FOR_USER));
    }
    if lacking.is_empty() {
        return Finding::new(
            FindingState::Ok,
            what,
            "all that the start needs; later they are dropped",
        );
    }
    let text = format!(
        "{} missing; start it as root, or by deploy/tandem-pep.service",
        lacking.join(" and ")
    );
    Finding::new(FindingState::Missing, what, text)
}

fn kernel(setup: &PepSetup) -> Finding {
    let what = "kernel";
    match Router::check(setup.maker()) {
        Ok(()) if Router::has_to_detach() => {
            let text = "it takes the BPF programs; before Linux 6.6, what SIGKILL leaves attached is \
                        removed by the next start";
            Finding::new(FindingState::Ok, what, text)
        }
        Ok(()) => Finding::new(FindingState::Ok, what, "it takes the BPF programs"),
        Err(_) if !lacking(setup).is_empty() => {
            let text = "whether it takes the BPF programs is not known without privileges";
            Finding::new(FindingState::Warning, what, text)
        }
        Err(error) => {
            let text = format!("{error}; it has to be Linux 5.8 or newer, with BPF for tc");
            Finding::new(FindingState::Missing, what, text)
        }
    }
}

fn of_device(device: &str) -> Vec<Finding> {
    let what = format!("device {device}");
    let folder = PathBuf::from("/sys/class/net").join(device);
    let kind = fs::read_to_string(folder.join("type"));
    let is_name = !device.is_empty() && !device.contains('/') && device != "." && device != "..";
    let Some(kind) = kind.ok().filter(|_| is_name) else {
        let text = "there is none of this name; `ip link` lists all";
        return vec![Finding::new(FindingState::Missing, what, text)];
    };
    if kind.trim() != "1" {
        let text = "its packets have no Ethernet header, and the PEP reads only Ethernet; choose the \
                    device below it, or another place";
        return vec![Finding::new(FindingState::Missing, what, text)];
    }
    let is_up = fs::read_to_string(folder.join("operstate")).is_ok_and(|it| it.trim() != "down");
    let first = if is_up {
        Finding::new(FindingState::Ok, what, "it is there, and is up")
    } else {
        let text = format!("it is down; `ip link set {device} up`");
        Finding::new(FindingState::Warning, what, text)
    };
    [Some(first), Some(merging(device)), reverse_path(device)].into_iter().flatten().collect()
}

/// Packets that are merged before the PEP sees them, so that it would see only the first slice.
fn merging(device: &str) -> Finding {
    const MERGING: [&str; 3] = ["rx-udp-gro-forwarding", "rx-gro-list", "large-receive-offload"];
    let what = format!("offloads of {device}");
    let output = Command::new("ethtool").args(["-k", device]).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        let text = "not known without the program ethtool; no UDP packets may be merged on this \
                    device (UDP GRO)";
        return Finding::new(FindingState::Warning, what, text);
    };
    let output = String::from_utf8_lossy(&output.stdout);
    let features = output.lines().filter_map(|line| line.trim().split_once(": "));
    let features: BTreeMap<_, _> = features.collect();
    let is_on = |name: &&str| features.get(*name).is_some_and(|value| value.starts_with("on"));
    let on: Vec<_> = MERGING.into_iter().filter(|name| is_on(name)).collect();
    if on.is_empty() {
        return Finding::new(FindingState::Ok, what, "no UDP packets are merged");
    }
    let off = on.join(" off ");
    let text = format!(
        "UDP packets may be merged before the PEP sees them; `ethtool -K {device} {off} off`"
    );
    Finding::new(FindingState::Warning, what, text)
}

/// Strict filtering drops packets after the PEP has acknowledged them.
fn reverse_path(device: &str) -> Option<Finding> {
    let of = |name: &str| -> u8 {
        let value = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"));
        value.ok().and_then(|value| value.trim().parse().ok()).unwrap_or_default()
    };
    // The larger one is in force.
    let is_strict = of("all").max(of(device)) == 1;
    is_strict.then(|| {
        let text = format!(
            "strict: if the route to a server leads through another device, its packets are dropped here \
             after the PEP has acknowledged them; `sysctl -w net.ipv4.conf.{device}.rp_filter=2` if routes \
             differ"
        );
        Finding::new(FindingState::Warning, format!("rp_filter of {device}"), text)
    })
}

fn forwarding(setup: &PepSetup) -> Vec<Finding> {
    let is_listed =
        |is_v4: bool| setup.server.iter().any(|it| matches!(it.prefix, IpNet::V4(_)) == is_v4);
    let families = [
        (true, "net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward"),
        (false, "net.ipv6.conf.all.forwarding", "/proc/sys/net/ipv6/conf/all/forwarding"),
    ];
    let listed = families.into_iter().filter(|(is_v4, ..)| is_listed(*is_v4));
    let finding = |(_, name, file): (bool, &str, &str)| {
        let is_on = fs::read_to_string(file).is_ok_and(|value| value.trim() != "0");
        let (state, text) = if is_on {
            (FindingState::Ok, "it is on".to_owned())
        } else {
            (FindingState::Warning, format!("this machine is no router; `sysctl -w {name}=1`"))
        };
        Finding::new(state, name, text)
    };
    listed.map(finding).collect()
}

/// `is_root`: the program runs as root now.
fn user(name: Option<&str>, is_root: bool) -> Option<Finding> {
    let Some(name) = name else {
        // It has no capabilities, but the files of the system are root's.
        let text = "without --user the PEP stays root, and what could make it run other code could change files \
                    of the system; give it a user of its own";
        return is_root.then(|| Finding::new(FindingState::Warning, "user", text));
    };
    let what = format!("user {name}");
    Some(match rights::user(name) {
        Ok(user) if user.uid.is_root() => {
            Finding::new(FindingState::Warning, what, "root; another user could do less harm")
        }
        Ok(_) => Finding::new(FindingState::Ok, what, "it exists"),
        Err(_) => {
            let text = format!("it does not exist; `useradd --system {name}` makes it");
            Finding::new(FindingState::Missing, what, text)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pep_that_stays_root_is_warned_of() {
        let state = |name, is_root| user(name, is_root).map(|finding| finding.state);
        assert_eq!(state(None, true), Some(FindingState::Warning));
        assert_eq!(state(None, false), None, "systemd has switched the user");
        assert_eq!(state(Some("root"), true), Some(FindingState::Warning));
        assert_eq!(state(Some("nobody"), true), Some(FindingState::Ok));
        assert_eq!(state(Some("no-such-user"), true), Some(FindingState::Missing));
    }
}
