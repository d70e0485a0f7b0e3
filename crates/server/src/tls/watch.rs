//! Notices that files have changed, without being told.
//!
//! The files are looked at every few seconds. What the operating system could tell (inotify) is about one file, and not
//! about the symbolic links on the way to it, which certbot and Kubernetes replace; and it is silent about network file
//! systems.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, task, time};

/// The time between two looks. A look takes some microseconds, and a renewed certificate can wait for seconds.
const INTERVAL: Duration = Duration::from_secs(2);

/// What shows that a file, behind all symbolic links, is another one or has been written: device, inode, length, and
/// the times at which content and inode changed, in seconds and nanoseconds. `None`: it cannot be looked at.
type Stamp = Option<(u64, u64, u64, (i64, i64), (i64, i64))>;

/// The stamps of all files at one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamps(Vec<Stamp>);

impl Stamps {
    /// Looks at the files.
    pub fn of(files: &[PathBuf]) -> Self {
        Self(files.iter().map(|file| fs::metadata(file).ok().map(|it| stamp(&it))).collect())
    }
}

fn stamp(it: &fs::Metadata) -> (u64, u64, u64, (i64, i64), (i64, i64)) {
    let changed = (it.ctime(), it.ctime_nsec());
    (it.dev(), it.ino(), it.len(), (it.mtime(), it.mtime_nsec()), changed)
}

/// Looks at files in threads of the runtime, because a network file system that does not answer must not delay signals.
/// Call within a runtime.
pub fn looks(files: Vec<PathBuf>) -> mpsc::Receiver<Stamps> {
    let (sender, receiver) = mpsc::channel(1);
    if files.is_empty() {
        return receiver;
    }
    task::spawn(async move {
        loop {
            time::sleep(INTERVAL).await;
            let files = files.clone();
            let Ok(stamps) = task::spawn_blocking(move || Stamps::of(&files)).await else { return };
            if sender.send(stamps).await.is_err() {
                return;
            }
        }
    });
    receiver
}

/// Decides when files are read again.
#[derive(Debug)]
pub struct Watch {
    in_use: Stamps,
    last: Stamps,
    /// What was refused, and when.
    refused: Option<(Stamps, Instant)>,
    /// The reason that was told.
    told: Option<String>,
}

impl Watch {
    /// The wait after a refusal, if the files stay as they are. Whatever the reason was, it may be gone then.
    const AGAIN_AFTER: Duration = Duration::from_secs(60);

    /// Watches files that were looked at before they were read.
    pub fn new(in_use: Stamps) -> Self {
        Self { last: in_use.clone(), in_use, refused: None, told: None }
    }

    /// Whether to read the files now: they are not those in use, and nobody has written to them since the last look.
    pub fn is_due(&mut self, now: Instant, stamps: &Stamps) -> bool {
        let is_settled = self.last == *stamps;
        self.last.clone_from(stamps);
        let was_refused = |(refused, at): &(Stamps, Instant)| {
            refused == stamps && now.saturating_duration_since(*at) < Self::AGAIN_AFTER
        };
        is_settled && *stamps != self.in_use && !self.refused.as_ref().is_some_and(was_refused)
    }

    /// Notes that the files are not usable. Returns whether the reason is a new one, which the operator has to be told.
    pub fn refuse(&mut self, now: Instant, stamps: Stamps, reason: &str) -> bool {
        self.refused = Some((stamps, now));
        let is_new = self.told.as_deref() != Some(reason);
        self.told = Some(reason.to_owned());
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_are_read_again_when_they_have_changed_and_settled() {
        let (now, later) = (tandem_net::clock::now(), Watch::AGAIN_AFTER);
        let at = |number| Stamps(vec![Some((0, number, 0, (0, 0), (0, 0)))]);
        let mut watch = Watch::new(at(1));
        for (what, seen, expected) in [
            ("unchanged", at(1), false),
            ("just changed", at(2), false),
            ("still changing", at(3), false),
            ("settled", at(3), true),
        ] {
            assert_eq!(watch.is_due(now, &seen), expected, "{what}");
        }
        assert!(watch.refuse(now, at(3), "mismatch"));
        assert!(!watch.is_due(now, &at(3)), "it was refused a moment ago");
        assert!(watch.is_due(now + later, &at(3)), "the reason may be gone");
        assert!(!watch.refuse(now + later, at(3), "mismatch"), "it was told before");
        assert!(!watch.is_due(now + later, &at(4)));
        assert!(watch.is_due(now + later, &at(4)), "other files are not refused unread");
        assert!(watch.refuse(now + later, at(4), "another reason"));
        let mut watch = Watch::new(at(4));
        assert!(!watch.is_due(now, &at(4)));
    }

    #[test]
    fn a_change_behind_a_symbolic_link_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for version in ["first", "second"] {
            fs::create_dir(path(version)).unwrap();
            fs::write(path(version).join("cert.pem"), "same length").unwrap();
        }
        symlink("first", path("live")).unwrap();
        let files = [path("live").join("cert.pem"), path("missing")];
        let first = Stamps::of(&files);
        assert_eq!(first, Stamps::of(&files));
        // As Kubernetes does: a new link takes the place of the old one.
        symlink("second", path("new")).unwrap();
        fs::rename(path("new"), path("live")).unwrap();
        let second = Stamps::of(&files);
        assert_ne!(first, second);
        fs::write(path("missing"), "").unwrap();
        assert_ne!(second, Stamps::of(&files));
    }
}
