//! Where the client of a setup runs: as a unit of the user's systemd, or in a terminal.

use std::{
    env, fs, io,
    os::unix::{net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tandem_node::StrangerText;

use super::folder::{absolute, config_home};
use crate::error::{CliError, UpError};

/// The name of the unit.
pub(super) const UNIT: &str = "tandem-up.service";

/// How often it is looked whether something has happened.
const STEP: Duration = Duration::from_millis(50);

/// How long a client may take to begin, which is before its tunnel is up.
const BEGIN: Duration = Duration::from_secs(10);

/// How long a client may take to end: it closes its connections within a second.
const END: Duration = Duration::from_secs(10);

/// The systemd of the user.
#[derive(Debug)]
pub(super) struct Systemd {
    unit: PathBuf,
}

impl Systemd {
    /// That of the user, if there is one that answers.
    pub(super) fn of_user() -> Option<Self> {
        absolute("XDG_RUNTIME_DIR")?; // `systemctl` finds it there
        let systemd = Self { unit: config_home()?.join("systemd/user").join(UNIT) };
        Self::ctl(&["show-environment"]).is_ok().then_some(systemd)
    }

    /// Whether the unit was written.
    pub(super) fn has_unit(&self) -> bool {
        self.unit.exists()
    }

    /// Whether the unit runs.
    pub(super) fn is_active(&self) -> bool {
        self.has_unit() && Self::ctl(&["--quiet", "is-active", UNIT]).is_ok()
    }

    /// Writes the unit and starts it, now and with the user's session.
    pub(super) fn start(&self, config: &Path) -> Result<(), CliError> {
        let program = env::current_exe().map_err(UpError::Start)?;
        let folder = self.unit.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder).map_err(CliError::write(folder))?;
        let next = self.unit.with_extension("service.next");
        fs::write(&next, unit(&program, config)).map_err(CliError::write(&next))?;
        fs::rename(&next, &self.unit).map_err(CliError::write(&self.unit))?;
        Self::ctl(&["daemon-reload"])?;
        Self::ctl(&["--quiet", "enable", UNIT])?;
        Ok(Self::ctl(&["restart", UNIT])?)
    }

    /// Stops the unit and removes it.
    pub(super) fn stop(&self) -> Result<(), CliError> {
        Self::ctl(&["--quiet", "disable", "--now", UNIT])?;
        fs::remove_file(&self.unit).map_err(CliError::write(&self.unit))?;
        Ok(Self::ctl(&["daemon-reload"])?)
    }

    fn ctl(command: &[&str]) -> Result<(), UpError> {
        let failed =
            |reason: StrangerText| UpError::Systemctl { command: command.join(" "), reason };
        let mut systemctl = Command::new("systemctl");
        systemctl.arg("--user").args(command).stdin(Stdio::null());
        let output = systemctl.output().map_err(|error| failed(error.to_string().into()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(failed(StrangerText::from_bytes(output.stderr.trim_ascii())))
    }
}

/// The text of the unit.
fn unit(program: &Path, config: &Path) -> String {
    let (program, config) = (quoted(program), quoted(config));
    format!(
        "# Written by `tandem up`; `tandem down` removes it.\n\
         [Unit]\n\
         Description=Tandem client\n\
         \n\
         [Service]\n\
         ExecStart={program} client --config {config}\n\
         Restart=on-failure\n\
         RestartSec=5\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n"
    )
}

/// A path as a word of a unit (systemd.service(5), systemd.unit(5)).
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let text =
        text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    format!("\"{text}\"")
}

/// The process of the client that listens at this socket.
pub(super) fn process_at(socket: Option<&Path>) -> Option<i32> {
    let stream = UnixStream::connect(socket?).ok()?; // nobody listens
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    Some(peer.pid.as_raw_nonzero().get())
}

/// Waits until a client listens at this socket.
pub(super) fn wait_for(socket: Option<&Path>) -> Result<(), UpError> {
    if socket.is_none() || until(BEGIN, || process_at(socket).is_some()) {
        return Ok(());
    }
    Err(UpError::NotBegun { seconds: BEGIN.as_secs(), unit: UNIT })
}

/// Ends the client that listens at this socket. Returns its process ID, if there was one.
pub(super) fn end(socket: Option<&Path>) -> Result<Option<i32>, UpError> {
    let Some(process) = process_at(socket) else { return Ok(None) };
    if let Some(pid) = Pid::from_raw(process) {
        // It may have ended a moment ago.
        kill_process(pid, Signal::TERM).unwrap_or_default();
    }
    if until(END, || process_at(socket) != Some(process)) {
        return Ok(Some(process));
    }
    Err(UpError::DoesNotEnd { process })
}

/// Looks again and again, for this time at most. Returns whether it has happened.
fn until(time: Duration, has_happened: impl Fn() -> bool) -> bool {
    let steps = time.as_millis() / STEP.as_millis();
    (0..steps).any(|_| {
        let has_happened = has_happened();
        if !has_happened {
            thread::sleep(STEP);
        }
        has_happened
    })
}

/// Becomes the client with this configuration. Returns only if that fails.
pub(super) fn become_client(config: &Path) -> UpError {
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return UpError::Start(error),
    };
    let error: io::Error = Command::new(program).arg("client").arg("--config").arg(config).exec();
    UpError::Start(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_units_are_quoted() {
        for (path, word) in [
            ("/usr/bin/tandem", "\"/usr/bin/tandem\""),
            ("/home/a b/100%", "\"/home/a b/100%%\""),
            ("/a\"b\\c$d", "\"/a\\\"b\\\\c$$d\""),
        ] {
            assert_eq!(quoted(Path::new(path)), word);
        }
        let text = unit(Path::new("/p"), Path::new("/c"));
        assert!(text.contains("\nExecStart=\"/p\" client --config \"/c\"\n"), "{text}");
    }
}
