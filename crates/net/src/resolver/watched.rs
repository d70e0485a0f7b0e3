//! The system's configuration, which is read again when its files have changed: another network brings other name
//! servers.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::Mutex, task::spawn_blocking, time::Instant};
use tracing::{info, warn};

use super::settings::{Hosts, Servers, Settings};

/// The shortest time between two looks at the files.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The largest file that is read. The rest is left out.
const BYTES_MAX: u64 = 32 << 20;

/// The files, and what they last said.
pub(super) struct Watched {
    files: Files,
    interval: Duration,
    seen: Mutex<Option<Seen>>,
}

#[derive(Clone)]
struct Files {
    resolv_conf: PathBuf,
    hosts: PathBuf,
}

struct Seen {
    at: Instant,
    stamps: [Option<Stamp>; 2],
    settings: Arc<Settings>,
}

/// What changes with a file. It has none if it cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    modified: (i64, i64),
    changed: (i64, i64),
    size: u64,
}

impl Watched {
    pub(super) fn system() -> Self {
        Self::new("/etc/resolv.conf".into(), "/etc/hosts".into(), LOOK_INTERVAL)
    }

    pub(super) fn new(resolv_conf: PathBuf, hosts: PathBuf, interval: Duration) -> Self {
        Self { files: Files { resolv_conf, hosts }, interval, seen: Mutex::new(None) }
    }

    /// What the files say now, or said a moment ago. They are read in a thread for that.
    pub(super) async fn settings(&self) -> Arc<Settings> {
        let mut seen = self.seen.lock().await;
        let now = Instant::now();
        if let Some(seen) = &mut *seen {
            if now < seen.at + self.interval {
                return Arc::clone(&seen.settings);
            }
            seen.at = now;
        }
        let known = seen.as_ref().map(|seen| seen.stamps);
        let files = self.files.clone();
        let look = spawn_blocking(move || look(&files, known)).await;
        if let Ok(Some((stamps, settings))) = look {
            if known.is_some() {
                let servers = &settings.servers.addresses;
                info!(?servers, "the configuration of names has changed");
            }
            *seen = Some(Seen { at: now, stamps, settings: Arc::new(settings) });
        }
        let nothing = || Arc::new(Settings::new(Servers::default(), Hosts::default()));
        seen.as_ref().map_or_else(nothing, |seen| Arc::clone(&seen.settings))
    }
}

/// Reads both files, unless they are as they were.
fn look(
    files: &Files,
    known: Option<[Option<Stamp>; 2]>,
) -> Option<([Option<Stamp>; 2], Settings)> {
    let stamps = [stamp(&files.resolv_conf), stamp(&files.hosts)];
    if known == Some(stamps) {
        return None;
    }
    let servers = Servers::parse(&text(&files.resolv_conf));
    if servers.addresses.is_empty() {
        let file = files.resolv_conf.display();
        warn!(%file, "there are no name servers yet: only the hosts file is used");
    }
    Some((stamps, Settings::new(servers, Hosts::parse(&text(&files.hosts)))))
}

fn stamp(path: &Path) -> Option<Stamp> {
    let file = fs::metadata(path).ok()?;
    Some(Stamp {
        file: (file.dev(), file.ino()),
        modified: (file.mtime(), file.mtime_nsec()),
        changed: (file.ctime(), file.ctime_nsec()),
        size: file.size(),
    })
}

/// The text of a file, which is empty if the file is missing.
fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    let read = fs::File::open(path)
        .and_then(|file| io::Read::read_to_end(&mut io::Read::take(file, BYTES_MAX), &mut bytes));
    if let Err(error) = read {
        tracing::debug!(file = %path.display(), %error, "a file cannot be read");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
