//! The program `ip` of iproute2, which configures namespaces and devices.

use std::{
    io,
    process::{Command, Output, Stdio},
};

use super::NetnsName;

/// The reason for which a link between two TUN devices cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The process does not run as root.
    #[error(
        "network namespaces and TUN devices need root: run this program with sudo, or emulate the \
         link between UDP sockets"
    )]
    NotRoot,
    /// The kernel's driver is missing.
    #[error(
        "/dev/net/tun is missing: load it with `modprobe tun`, or give it to the container with \
         --device /dev/net/tun"
    )]
    NoTun,
    /// iproute2 is not installed.
    #[error("the program `ip` is missing: install iproute2")]
    NoIp,
    /// `ip` could not be started.
    #[error("cannot run `ip`: {0}")]
    Start(io::Error),
    /// `ip` failed.
    #[error("`ip {command}` failed: {stderr}")]
    Refused {
        /// Its arguments.
        command: String,
        /// Its error output.
        stderr: String,
    },
    /// A network namespace could not be entered.
    #[error(
        "cannot enter the network namespace {name}: {error}; if it is not needed, remove it with \
         `ip netns delete {name}`"
    )]
    Enter {
        /// The name of the namespace.
        name: NetnsName,
        /// The cause.
        error: io::Error,
    },
    /// The device exists already.
    #[error(
        "the network namespace {netns} has a device {device} already: another link uses it; \
         end that link or choose other names"
    )]
    Busy {
        /// The namespace.
        netns: NetnsName,
        /// The device.
        device: String,
    },
    /// The device could not be made.
    #[error(
        "cannot make the TUN device {device}: {error}; root and the capability NET_ADMIN are needed"
    )]
    Device {
        /// The device.
        device: String,
        /// The cause.
        error: io::Error,
    },
    /// A device was taken away, or failed in another way.
    #[error("the link cannot continue: {0}; was a device or a namespace removed?")]
    Lost(io::Error),
}

/// Runs `ip` with these arguments, and returns what it prints.
pub(super) fn ip(words: &[&str]) -> Result<String, TunError> {
    // The caller's PATH may lack the folders of system programs.
    let output = ip_at("ip", words).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => ip_at("/sbin/ip", words),
        _ => Err(error),
    });
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => TunError::NoIp,
        _ => TunError::Start(error),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(TunError::Refused { command: words.join(" "), stderr })
}

fn ip_at(program: &str, words: &[&str]) -> io::Result<Output> {
    Command::new(program).args(words).stdin(Stdio::null()).output()
}
