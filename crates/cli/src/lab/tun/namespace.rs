//! Network namespaces, where the two ends are hosts of their own.

use std::{fmt, fs::File, os::fd::AsFd, path::PathBuf, str::FromStr, thread};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::ip::{TunError, ip};
use crate::text;

/// Where `ip netns` keeps the names.
const FOLDER: &str = "/var/run/netns";

/// Written to the loopback device of namespaces that we made, so that they can be told from others
/// even after a crash.
const MARK: &str = "made by tandem lab link";

/// Longest name in bytes: a device that is called `to-` and the name has room for 15 (IFNAMSIZ).
const NAME_MAX: usize = 12;

/// Name of a network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetnsName(String);

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

/// Why something is no name for a network namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name for a network namespace here; allowed: 1 to {NAME_MAX} letters, digits, - and \
     _, the first one a letter or a digit"
)]
pub(crate) struct NetnsNameError(String);

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

/// A network namespace; removed at the end if we made it.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: NetnsName,
    is_ours: bool,
}

impl Namespace {
    /// The namespace of this name, made if there is none.
    pub(crate) fn obtain(name: NetnsName) -> Result<Self, TunError> {
        if !path(&name).exists() {
            ip(&["netns", "add", name.as_str()])?;
            let made = Self { name, is_ours: true };
            made.ip(&["link", "set", "lo", "alias", MARK])?;
            made.ip(&["link", "set", "lo", "up"])?;
            return Ok(made);
        }
        let mut found = Self { name, is_ours: false };
        let name = &found.name;
        if !found.ip(&["link", "show", "lo"])?.contains(MARK) {
            text::say(format_args!(
                "the network namespace {name} exists and was not made by tandem: it is used, and \
                 stays"
            ));
        } else if found.ip(&["-o", "link", "show", "type", "tun"])?.is_empty() {
            text::say(format_args!(
                "the network namespace {name} was left by an earlier run: it is used, and removed \
                 at the end"
            ));
            found.is_ours = true;
        } else {
            text::say(format_args!(
                "the network namespace {name} belongs to another link: it is used, and stays as \
                 long as that"
            ));
        }
        Ok(found)
    }

    pub(crate) fn name(&self) -> &NetnsName {
        &self.name
    }

    /// Runs `ip` inside.
    pub(super) fn ip(&self, words: &[&str]) -> Result<String, TunError> {
        let inside: Vec<_> = ["-n", self.name.as_str()].iter().chain(words).copied().collect();
        ip(&inside)
    }

    /// Does something inside, such as opening a file that then belongs to this namespace. A thread
    /// of its own goes there and ends there, so that no other code is ever in the wrong one.
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
        if !self.is_ours || !path(&self.name).exists() {
            return;
        }
        if let Err(error) = ip(&["netns", "delete", self.name.as_str()]) {
            text::say(format_args!("the network namespace {} is left: {error}", self.name));
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
