//! Network namespaces, which make a host of its own of each end.

use std::{fmt, fs::File, os::fd::AsFd, path::PathBuf, str::FromStr, thread};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::ip::{TunError, ip};

/// The folder in which `ip netns` keeps the names.
const FOLDER: &str = "/var/run/netns";

/// Written to the loopback device of namespaces that we made, so that we recognize them even after
/// a crash.
const MARK: &str = "made by tandem lab link";

/// Longest name in bytes: a device that is called `to-` and the name has room for 15 (IFNAMSIZ).
const NAME_MAX: usize = 12;

/// Name of a network namespace.
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

/// Why a text is no name for a network namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name for a network namespace here; allowed: 1 to {NAME_MAX} letters, digits, - and \
     _, the first one a letter or a digit"
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

/// What was there before a namespace was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing: it was made.
    Nothing,
    /// A namespace that something else made. It stays at the end.
    Foreign,
    /// A namespace that an earlier run left. It is removed at the end.
    LeftOver,
    /// A namespace that another link uses. It stays as long as that link.
    InUse,
}

/// A network namespace; removed at the end if it was made here or left by an earlier run.
#[derive(Debug)]
pub struct Namespace {
    name: NetnsName,
    found: Found,
}

impl Namespace {
    /// The namespace of this name, made if there is none.
    pub fn obtain(name: NetnsName) -> Result<Self, TunError> {
        if !path(&name).exists() {
            ip(&["netns", "add", name.as_str()])?;
            let made = Self { name, found: Found::Nothing };
            made.ip(&["link", "set", "lo", "alias", MARK])?;
            made.ip(&["link", "set", "lo", "up"])?;
            return Ok(made);
        }
        // Until it is known to be left over it stays.
        let mut namespace = Self { name, found: Found::Foreign };
        if namespace.ip(&["link", "show", "lo"])?.contains(MARK) {
            let devices = namespace.ip(&["-o", "link", "show", "type", "tun"])?;
            namespace.found = if devices.is_empty() { Found::LeftOver } else { Found::InUse };
        }
        Ok(namespace)
    }

    /// What was there before.
    pub fn found(&self) -> Found {
        self.found
    }

    /// Its name.
    pub fn name(&self) -> &NetnsName {
        &self.name
    }

    /// Runs `ip` inside.
    pub(super) fn ip(&self, words: &[&str]) -> Result<String, TunError> {
        let inside: Vec<_> = ["-n", self.name.as_str()].iter().chain(words).copied().collect();
        ip(&inside)
    }

    /// Does something inside, such as opening a device that then belongs to this namespace. A thread
    /// of its own enters the namespace and ends there, so that no other code runs in the wrong one.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, TunError> {
        let failed = |error| TunError::Enter { name: self.name.clone(), error };
        let namespace = File::open(path(&self.name)).map_err(failed)?;
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            });
            worker.join().expect("nothing in it panics")
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
            tracing::warn!(%error, name = %self.name, "a network namespace is left");
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
