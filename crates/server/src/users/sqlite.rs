//! What users have used, in an `SQLite` file that other processes can read at the same time.

use std::{
    fs::File,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};
use rustix::fs::{FlockOperation, flock};
use tandem_node::proxy::{EachWay, KeptUsage, Month};

use super::{Row, StoreError};
use crate::process::secret;

/// Marks the file as a store of this form (`PRAGMA user_version`).
const VERSION: i64 = 1;

/// How long one process waits for another one that reads or writes at the moment.
const BUSY: Duration = Duration::from_secs(2);

/// The number of months that stay in the store, so that an operator can compare a year.
const MONTHS: i64 = 13;

/// What `SQLite` calls its files beside the store. A process that was killed leaves one behind.
const SIDE_FILES: [&str; 3] = ["-journal", "-wal", "-shm"];

const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS usage (
    name TEXT NOT NULL,
    month TEXT NOT NULL,
    to_target INTEGER NOT NULL,
    to_client INTEGER NOT NULL,
    month_limit INTEGER,
    last_seen INTEGER NOT NULL,
    PRIMARY KEY (name, month)
) WITHOUT ROWID";

/// The file whose name is longer by this.
fn beside(file: &Path, name: &str) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(name);
    path.into()
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    file: PathBuf,
    connection: Connection,
    /// Held while a proxy writes to the store. The limits of a second one would not count what the first one adds.
    lock: Option<File>,
}

impl Store {
    /// Opens a store that this process writes to, and makes it if it does not exist.
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        let wrong = |reason: String| StoreError { file: file.to_owned(), what: "opened", reason };
        let lock = secret::open_or_create(&beside(file, ".lock"));
        let lock = lock.map_err(|error| wrong(error.to_string()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| wrong("another process writes to it".to_owned()))?;
        // It names people. What SQLite writes beside it gets the mode that it has (-journal, -wal, -shm).
        secret::open_or_create(file).map_err(|error| wrong(error.to_string()))?;
        for name in SIDE_FILES {
            secret::keep_for_owner(&beside(file, name));
        }
        let open = || {
            let connection = Connection::open(file)?;
            connection.busy_timeout(BUSY)?;
            Ok(connection)
        };
        let connection = open().map_err(|error: rusqlite::Error| wrong(error.to_string()))?;
        let store = Self { file: file.to_owned(), connection, lock: Some(lock) };
        let found = store.version("opened")?;
        if found == 0 {
            let make = store.connection.execute_batch(SCHEMA);
            let mark =
                make.and_then(|()| store.connection.pragma_update(None, "user_version", VERSION));
            mark.map_err(|error| store.error("opened", &error))?;
        }
        store.check(found)?;
        Ok(store)
    }

    /// Opens a store to read it, also while a proxy writes to it.
    pub fn open_to_read(file: &Path) -> Result<Self, StoreError> {
        let wrong = |error: rusqlite::Error| StoreError {
            file: file.to_owned(),
            what: "read",
            reason: error.to_string(),
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(file, flags).map_err(wrong)?;
        connection.busy_timeout(BUSY).map_err(wrong)?;
        let store = Self { file: file.to_owned(), connection, lock: None };
        let found = store.version("read")?;
        store.check(found)?;
        Ok(store)
    }

    /// Reads every page.
    pub fn check_all(&self) -> Result<(), StoreError> {
        let found = self.connection.pragma_query_value(None, "quick_check", |row| row.get(0));
        let found: String = found.map_err(|error| self.error("read", &error))?;
        let damaged = |reason| StoreError { file: self.file.clone(), what: "read", reason };
        if found == "ok" { Ok(()) } else { Err(damaged(found)) }
    }

    fn version(&self, what: &'static str) -> Result<i64, StoreError> {
        let version = self.connection.pragma_query_value(None, "user_version", |row| row.get(0));
        version.map_err(|error| self.error(what, &error))
    }

    fn check(&self, found: i64) -> Result<(), StoreError> {
        if found == VERSION || (found == 0 && self.lock.is_some()) {
            return Ok(());
        }
        let reason = format!("it is of version {found}, and this program knows version {VERSION}");
        Err(StoreError { file: self.file.clone(), what: "read", reason })
    }

    fn error(&self, what: &'static str, error: &rusqlite::Error) -> StoreError {
        StoreError { file: self.file.clone(), what, reason: error.to_string() }
    }

    /// All rows of a month, in the order of names.
    pub fn month(&self, month: Month) -> Result<Vec<Row>, StoreError> {
        let read = || {
            let mut select = self.connection.prepare(
                "SELECT name, to_target, to_client, month_limit, last_seen FROM usage \
                 WHERE month = ?1 ORDER BY name",
            )?;
            let rows = select.query_map([month.to_string()], |row| {
                let number = |index| row.get(index).map(i64::unsigned_abs);
                let bytes = EachWay { to_target: number(1)?, to_client: number(2)? };
                let last_seen = Duration::from_secs(number(4)?);
                let kept = KeptUsage { name: row.get(0)?, month, bytes, last_seen };
                Ok(Row { kept, limit: row.get::<_, Option<i64>>(3)?.map(i64::unsigned_abs) })
            })?;
            rows.collect::<Result<Vec<_>, rusqlite::Error>>()
        };
        read().map_err(|error| self.error("read", &error))
    }

    /// Adds the bytes of these rows to what the store has, in one transaction, and forgets months that are long past.
    pub fn add(&mut self, rows: &[Row]) -> Result<(), StoreError> {
        let Self { connection, .. } = self;
        let mut write = || {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut insert = transaction.prepare(
                "INSERT INTO usage (name, month, to_target, to_client, month_limit, last_seen) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                 ON CONFLICT (name, month) DO UPDATE SET \
                 to_target = to_target + excluded.to_target, to_client = to_client + excluded.to_client, \
                 month_limit = excluded.month_limit, last_seen = max(last_seen, excluded.last_seen)",
            )?;
            let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            for Row { kept, limit } in rows {
                let KeptUsage { name, month, bytes, last_seen } = kept;
                let (to_target, to_client) = (number(bytes.to_target), number(bytes.to_client));
                let (limit, seen) = (limit.map(number), number(last_seen.as_secs()));
                insert.execute(params![
                    name,
                    month.to_string(),
                    to_target,
                    to_client,
                    limit,
                    seen
                ])?;
            }
            drop(insert);
            transaction.execute(
                "DELETE FROM usage WHERE month NOT IN \
                 (SELECT DISTINCT month FROM usage ORDER BY month DESC LIMIT ?1)",
                [MONTHS],
            )?;
            transaction.commit()
        };
        write().map_err(|error| self.error("written", &error))
    }

    /// Lets the store have no more than this many pages, as if the disk was full.
    #[cfg(test)]
    pub(super) fn fill(&self, pages: u32) {
        self.connection.pragma_update(None, "max_page_count", pages).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn row(name: &str, month: &str, bytes: u64) -> Row {
        let bytes = EachWay { to_target: bytes, to_client: 2 * bytes };
        let last_seen = Duration::from_secs(1_800_000_000);
        let kept =
            KeptUsage { name: name.to_owned(), month: month.parse().unwrap(), bytes, last_seen };
        Row { kept, limit: Some(1000) }
    }

    #[test]
    fn what_is_written_is_read_by_others_and_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.db");
        let mut store = Store::open(&file).unwrap();
        store.add(&[row("bob", "2026-11", 1), row("alice", "2026-11", 2)]).unwrap();
        store.add(&[row("bob", "2026-11", 3), row("bob", "2026-12", 4)]).unwrap();
        let reader = Store::open_to_read(&file).unwrap();
        let november = "2026-11".parse().unwrap();
        let expected = [row("alice", "2026-11", 2), row("bob", "2026-11", 4)];
        assert_eq!(reader.month(november).unwrap(), expected);
        let error = Store::open(&file).unwrap_err().to_string();
        assert!(error.contains("usage.db") && error.contains("another process"), "{error}");
        drop(store);
        assert_eq!(Store::open(&file).unwrap().month(november).unwrap(), expected);
    }

    #[test]
    fn only_the_owner_reads_a_store_whatever_its_mode_was() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.db");
        let shared = || fs::Permissions::from_mode(0o644);
        for round in ["new", "of an earlier version"] {
            // A process that was killed has left this behind; SQLite takes an empty one for none.
            fs::write(beside(&file, "-journal"), "").unwrap();
            fs::set_permissions(beside(&file, "-journal"), shared()).unwrap();
            let mut store = Store::open(&file).unwrap();
            store.add(&[row("alice", "2026-11", 1)]).unwrap();
            for entry in fs::read_dir(folder.path()).unwrap() {
                let entry = entry.unwrap();
                let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
                assert_eq!(mode, 0o600, "{round}: {}", entry.path().display());
                fs::set_permissions(entry.path(), shared()).unwrap();
            }
        }
    }

    #[test]
    fn old_months_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(&folder.path().join("usage.db")).unwrap();
        let months: Vec<_> = (1..=12).map(|it| format!("2026-{it:02}")).collect();
        for month in months.iter().map(String::as_str).chain(["2027-01", "2027-02"]) {
            store.add(&[row("alice", month, 1)]).unwrap();
        }
        assert!(store.month("2026-01".parse().unwrap()).unwrap().is_empty());
        assert_eq!(store.month("2026-02".parse().unwrap()).unwrap().len(), 1);
    }

    #[test]
    fn a_store_that_cannot_be_used_is_named_and_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.db");
        let garbage = b"this is no database, but it is long enough to be one".repeat(40);
        fs::write(&file, &garbage).unwrap();
        for error in [Store::open(&file), Store::open_to_read(&file)] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains("usage.db") && error.contains("not a database"), "{error}");
        }
        assert_eq!(fs::read(&file).unwrap(), garbage);
        assert!(Store::open_to_read(&folder.path().join("none")).is_err());
        let newer = folder.path().join("newer");
        let connection = Connection::open(&newer).unwrap();
        connection.pragma_update(None, "user_version", 2).unwrap();
        let error = Store::open(&newer).unwrap_err().to_string();
        assert!(error.contains("version 2"), "{error}");
    }

    #[test]
    fn a_full_store_keeps_what_it_had() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(&folder.path().join("usage.db")).unwrap();
        store.add(&[row("alice", "2026-11", 1)]).unwrap();
        store.fill(3);
        let many: Vec<_> =
            (0..1000).map(|number| row(&format!("user-{number}"), "2026-11", 1)).collect();
        let error = store.add(&many).unwrap_err().to_string();
        assert!(error.contains("full"), "{error}");
        assert_eq!(store.month("2026-11".parse().unwrap()).unwrap().len(), 1);
        store.fill(1000);
        store.add(&many).unwrap();
    }
}
