//! What a PEP may do: much until it has started, and then as little as possible.

use std::io;

use nix::unistd::{User, setgid, setgroups, setuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities,
    set_no_new_privs,
};

/// What the start needs.
pub(super) const NEEDED: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
];

/// What the start needs with `--in-kernel`, too: without it the verifier allows no program that computes so much.
pub(super) const IN_KERNEL: [(CapabilitySet, &str); 1] = [(CapabilitySet::PERFMON, "CAP_PERFMON")];

/// What a switch to another user needs, too.
pub(super) const FOR_USER: [(CapabilitySet, &str); 2] =
    [(CapabilitySet::SETUID, "CAP_SETUID"), (CapabilitySet::SETGID, "CAP_SETGID")];

/// The names of the capabilities that this process lacks.
pub(super) fn lacking(needed: &[(CapabilitySet, &'static str)]) -> Vec<&'static str> {
    let has = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let lacking = needed.iter().filter(|(capability, _)| !has.contains(*capability));
    lacking.map(|(_, name)| *name).collect()
}

/// The user of this name.
pub(super) fn user(name: &str) -> io::Result<User> {
    let found = User::from_name(name)?;
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no user {name}")))
}

/// Becomes this user, if there is one, and gives up every capability but those to keep. Threads that begin
/// later have no more.
pub(super) fn drop_all(user: Option<&User>, keep: CapabilitySet) -> io::Result<()> {
    set_no_new_privs(true)?;
    if let Some(user) = user {
        set_keep_capabilities(!keep.is_empty())?;
        setgroups(&[user.gid])?;
        setgid(user.gid)?;
        setuid(user.uid)?;
    }
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: keep, permitted: keep, inheritable })?;
    Ok(())
}
