//! Network namespaces, which make each end a host of its own.

use std::{fmt, fs::File, os::fd::AsFd, path::PathBuf, str::FromStr, thread};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::ip::{TunError, ip};

/// The folder in which `ip netns` keeps the names.
const FOLDER: &str = "/var/run/netns";

/// The alias of the loopback device in namespaces that this program made. It identifies them even
/// after a crash.
const MARK: &str = "made by tandem lab link";

/// The longest name in bytes. A device name consists of `to-` and this name, and has at most 15
/// bytes (IFNAMSIZ).
const NAME_MAX: usize = 12;

/// The name of a network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetnsName(String);

impl NetnsName {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NetnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The reason for which a text is not a valid name of a network namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid name of a network namespace; allowed: 1 to {NAME_MAX} letters, digits, - \
     and _, starting with a letter or a digit"
)]
pub struct NetnsNameError(String);

impl FromStr for NetnsName {
    type Err = NetnsNameError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !starts_well || name.len() > NAME_MAX || !name.bytes().all(allowed) {
            return Err(NetnsNameError(name.to_owned()));
        }
        Ok(Self(name.to_owned()))
    }
}

/// The state before a namespace was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It did not exist and was made.
    Nothing,
    /// Another program had made it. It stays at the end.
    Foreign,
    /// An earlier run had left it. It is removed at the end.
    LeftOver,
    /// Another link uses it. It stays at the end.
    InUse,
}

/// A network namespace. It is removed at the end if this program made it or an earlier run left it.
#[derive(Debug)]
pub struct Namespace {
    name: NetnsName,
    found: Found,
}

impl Namespace {
    /// Obtains the namespace of this name, and makes it if it does not exist.
    pub fn obtain(name: NetnsName) -> Result<Self, TunError> {
        if !path(&name).exists() {
            ip(&["netns", "add", name.as_str()])?;
            let made = Self { name, found: Found::Nothing };
            made.ip(&["link", "set", "lo", "alias", MARK])?;
            made.ip(&["link", "set", "lo", "up"])?;
            return Ok(made);
        }
        // The namespace counts as foreign, and so stays, unless it is known to be left over.
        let mut namespace = Self { name, found: Found::Foreign };
        if namespace.ip(&["link", "show", "lo"])?.contains(MARK) {
            let devices = namespace.ip(&["-o", "link", "show", "type", "tun"])?;
            namespace.found = if devices.is_empty() { Found::LeftOver } else { Found::InUse };
        }
        Ok(namespace)
    }

    /// The state before the namespace was obtained.
    pub fn found(&self) -> Found {
        self.found
    }

    /// Its name.
    pub fn name(&self) -> &NetnsName {
        &self.name
    }

    /// Runs `ip` inside the namespace.
    pub(super) fn ip(&self, words: &[&str]) -> Result<String, TunError> {
        let inside: Vec<_> = ["-n", self.name.as_str()].iter().chain(words).copied().collect();
        ip(&inside)
    }

    /// Runs `work` inside the namespace, for example to open a device that then belongs to it. A
    /// new thread enters the namespace and ends there, so that no other code runs in the wrong
    /// namespace.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, TunError> {
        let failed = |error| TunError::Enter { name: self.name.clone(), error };
        let namespace = File::open(path(&self.name)).map_err(failed)?;
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            });
            worker.join().expect("the worker does not panic")
        })
        .map_err(|errno: rustix::io::Errno| failed(errno.into()))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let is_ours = matches!(self.found, Found::Nothing | Found::LeftOver);
        if !is_ours || !path(&self.name).exists() {
            return;
        }
        if let Err(error) = ip(&["netns", "delete", self.name.as_str()]) {
            tracing::warn!(%error, name = %self.name, "could not remove a network namespace");
        }
    }
}

fn path(name: &NetnsName) -> PathBuf {
    [FOLDER, name.as_str()].iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_leave_room_for_the_device_and_are_no_flags_or_paths() {
        for good in ["near", "a", "0", "hop-1", "a_b", "twelve-bytes"] {
            assert_eq!(good.parse::<NetnsName>().unwrap().as_str(), good);
        }
        for bad in ["", "-n", "_a", "..", "a/b", "a b", "ä", "a.b", "thirteen-long"] {
            let error = bad.parse::<NetnsName>().unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")) && error.contains("12"), "{error}");
        }
    }
}
