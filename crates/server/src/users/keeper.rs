//! Keeps what users have used over restarts, and tells the nodes what time it is. It has a thread of its own, so that
//! neither packets nor signals wait for a disk.

use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tandem_net::clock;
use tandem_node::proxy::{KeptUsage, Month, UserUsage, Users};

use super::{
    Row, Store, StoreError,
    successor::{StoreSuccessor, listen},
};
use crate::process::{SystemError, say};

/// How often the time is told. A month begins and a token ends this much too late at most, when the clock was set.
const TICK: Duration = Duration::from_secs(1);

/// How many ticks pass between two writes. A crash loses the bytes of a minute.
const WRITE_EVERY: u32 = 60;

/// Runs until it is dropped, which writes the store for the last time.
#[derive(Debug)]
pub struct Keeper {
    orders: mpsc::Sender<KeeperOrder>,
    thread: Option<JoinHandle<()>>,
}

/// What a keeper is told.
#[derive(Debug)]
enum KeeperOrder {
    /// Take over what is in a store, and keep it up to date from now on. The channel gets the reason why that is not
    /// possible, and is closed when it is done.
    Open(PathBuf, Option<mpsc::Sender<StoreError>>),
    /// Close the store, and tell another process what users use from now on.
    HandOver(UnixStream),
    /// Write for the last time.
    End,
}

/// Where what users use is kept.
enum StorePlace {
    Memory,
    Store(KeptStore),
    Successor(StoreSuccessor),
}

impl StorePlace {
    fn write(&mut self, users: &Users) {
        match self {
            Self::Memory => {}
            Self::Store(kept) => kept.write(users),
            Self::Successor(successor) => successor.tell(users),
        }
    }
}

impl Keeper {
    /// Tells the users what time it is, and goes on doing so.
    pub fn start(users: Users) -> Result<Self, SystemError> {
        tell_time(&users);
        let (orders, ordered) = mpsc::channel();
        let run = move || {
            let mut place = StorePlace::Memory;
            let mut ticks = 0_u32;
            loop {
                match ordered.recv_timeout(TICK) {
                    Ok(KeeperOrder::Open(file, done)) => {
                        place = open(&file, &users).map_or_else(
                            |error| {
                                match done {
                                    Some(done) => drop(done.send(error)),
                                    None => say_unusable(&error),
                                }
                                StorePlace::Memory
                            },
                            StorePlace::Store,
                        );
                        continue;
                    }
                    Ok(KeeperOrder::HandOver(to)) => {
                        place.write(&users);
                        // This closes the store.
                        drop(place);
                        place = StorePlace::Successor(StoreSuccessor::new(to));
                        place.write(&users);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(KeeperOrder::End) | Err(RecvTimeoutError::Disconnected) => break,
                }
                ticks = ticks.wrapping_add(1);
                let is_new_month = users.month() != Some(Month::of(unix()));
                if is_new_month || ticks.is_multiple_of(WRITE_EVERY) {
                    place.write(&users);
                }
                tell_time(&users);
                if is_new_month {
                    // The store may have something of this month, if the clock was wrong for a while.
                    place.write(&users);
                }
            }
            place.write(&users);
        };
        let thread = thread::Builder::new().name("tandem-users".to_owned()).spawn(run);
        let thread = thread.map_err(SystemError::thread)?;
        Ok(Self { orders, thread: Some(thread) })
    }

    /// Takes over what is in a store. If a process before this one still has it, this happens when that one has closed
    /// it, without waiting here, and what that one tells until its end is added. An error says why the store cannot be
    /// used, if that is known now; what users use is then counted in memory.
    pub fn begin(
        &self,
        store: Option<&Path>,
        users: &Users,
        told: Option<UnixStream>,
    ) -> Result<(), StoreError> {
        let store = store.map(Path::to_owned);
        if let Some(told) = told {
            let (users, orders) = (users.clone(), self.orders.clone());
            let open = move || store.map(|file| orders.send(KeeperOrder::Open(file, None)));
            // It ends with the other process.
            thread::spawn(move || listen(told, &users, open));
        } else if let Some(file) = store {
            let (done, is_open) = mpsc::channel();
            self.order(KeeperOrder::Open(file, Some(done)));
            return is_open.recv().map_or(Ok(()), Err);
        }
        Ok(())
    }

    /// Closes the store, and tells another process what users use from now on. This does not wait for it.
    pub fn hand_over(&self, to: UnixStream) {
        self.order(KeeperOrder::HandOver(to));
    }

    fn order(&self, order: KeeperOrder) {
        // A thread that has ended has panicked, which has been printed.
        self.orders.send(order).ok();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.order(KeeperOrder::End);
        // A panic has been printed.
        self.thread.take().map(JoinHandle::join).transpose().ok();
    }
}

#[expect(clippy::disallowed_methods, reason = "months and tokens end by the real clock")]
/// The time since 1970, by the real clock.
pub fn unix() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn tell_time(users: &Users) {
    users.set_time(clock::now(), unix());
}

/// Opens a store and takes over what it has.
fn open(file: &Path, users: &Users) -> Result<KeptStore, StoreError> {
    let mut kept = KeptStore { store: Store::open(file)?, restored: None, has_failed: false };
    kept.restore(users)?;
    Ok(kept)
}

/// Says that the proxy serves although its store cannot be used.
pub fn say_unusable(error: &StoreError) {
    say(format_args!(
        "warning: {error}; the proxy serves without it: what users use is counted from now on, and is lost at the \
         end; correct it and restart the proxy"
    ));
}

/// A store.
struct KeptStore {
    store: Store,
    /// The month of which the users have what the store has.
    restored: Option<Month>,
    /// Whether the last write has failed.
    has_failed: bool,
}

impl KeptStore {
    /// Takes over what the store has of the present month, if that has not been done.
    fn restore(&mut self, users: &Users) -> Result<(), StoreError> {
        if let Some(month) = users.month().filter(|month| self.restored != Some(*month)) {
            users.restore(self.store.month(month)?.into_iter().map(|row| row.kept));
            self.restored = Some(month);
        }
        Ok(())
    }

    /// Adds what has been used since the last time.
    fn add(&mut self, users: &Users) -> Result<(), StoreError> {
        let month = users.month();
        let rows: Vec<_> = users.usage().iter().filter_map(|usage| row(usage, month?)).collect();
        self.store.add(&rows)?;
        users.note_kept(rows.iter().map(|row| &row.kept));
        Ok(())
    }

    /// Brings users and store together. Says so when this begins to fail, and when it succeeds again.
    fn write(&mut self, users: &Users) {
        match self.restore(users).and_then(|()| self.add(users)) {
            Ok(()) if self.has_failed => {
                self.has_failed = false;
                say(format_args!("the usage store is written again, and nothing is missing"));
            }
            Err(error) if !self.has_failed => {
                self.has_failed = true;
                say(format_args!(
                    "warning: {error}; the proxy goes on with what it has in memory, and tries again every minute"
                ));
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// What is to be kept of a user.
pub(super) fn unkept(usage: &UserUsage, month: Month) -> Option<KeptUsage> {
    let UserUsage { unkept_bytes: bytes, last_seen, .. } = usage;
    Some(KeptUsage { name: usage.name.clone(), month, bytes: *bytes, last_seen: (*last_seen)? })
}

/// What to add to a store of a user.
fn row(usage: &UserUsage, month: Month) -> Option<Row> {
    let kept = unkept(usage, month)?;
    Some(Row { kept, limit: usage.limits.month_bytes.get().map(|limit| limit.get()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(name: &str, users: &Users) -> KeptUsage {
        let bytes = tandem_node::proxy::EachWay { to_target: 3, to_client: 4 };
        let month = users.month().unwrap();
        KeptUsage { name: name.to_owned(), month, bytes, last_seen: unix() }
    }

    fn bytes_of(users: &Users) -> u64 {
        users.usage().iter().map(|usage| usage.month_bytes.total()).sum()
    }

    /// A user uses seven bytes.
    fn use_some(users: &Users, name: &str) {
        users.add_used([kept(name, users)]);
    }

    /// The users and the keeper of a process with this store.
    fn begun(store: Option<&Path>) -> (Users, Keeper) {
        let users = Users::default();
        let keeper = Keeper::start(users.clone()).unwrap();
        drop(keeper.begin(store, &users, None));
        (users, keeper)
    }

    /// Waits until users have used so much, at this process and at one that tells it.
    #[track_caller]
    fn await_bytes(users: &Users, bytes: u64) {
        for _ in 0..500 {
            if bytes_of(users) == bytes {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("{} bytes instead of {bytes}", bytes_of(users));
    }

    #[test]
    fn the_end_writes_what_the_next_start_reads() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.db");
        let (users, keeper) = begun(Some(&file));
        users.add_used([kept("alice", &users)]);
        drop(keeper);
        let (users, _keeper) = begun(Some(&file));
        assert_eq!(bytes_of(&users), 7);
    }

    #[test]
    fn a_process_that_takes_over_gets_what_users_have_used_before_and_since() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.db");
        for store in [Some(file.as_path()), None] {
            let ((old, old_keeper), (new, new_keeper)) = (begun(store), begun(None));
            old.add_used([kept("alice", &old)]);
            let (told, tells) = UnixStream::pair().unwrap();
            old_keeper.hand_over(tells);
            new_keeper.begin(store, &new, Some(told)).unwrap();
            old.add_used([kept("alice", &old), kept("bob", &old)]);
            drop(old_keeper);
            await_bytes(&new, 21);
            assert_eq!(bytes_of(&old), 21, "{store:?}");
            drop(new_keeper);
        }
        let (users, _keeper) = begun(Some(&file));
        assert_eq!(bytes_of(&users), 21, "the store has all");
    }

    /// What a store has of the users' present month.
    fn stored(kept: &KeptStore, users: &Users) -> u64 {
        let rows = kept.store.month(users.month().unwrap()).unwrap();
        rows.iter().map(|row| row.kept.bytes.total()).sum()
    }

    #[test]
    fn a_clock_that_is_wrong_for_a_while_takes_nothing_from_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.db");
        let set_time =
            |users: &Users, unix| users.set_time(clock::now(), Duration::from_secs(unix));
        let right = 1_793_923_200; // November 2026
        let users = Users::default();
        set_time(&users, right);
        let mut store = open(&file, &users).unwrap();
        use_some(&users, "alice");
        store.write(&users);
        drop(store);
        let users = Users::default();
        set_time(&users, 1);
        let mut store = open(&file, &users).unwrap();
        for (time, used) in [(right, 14), (right + 40 * 86_400, 7), (right, 21)] {
            store.write(&users);
            set_time(&users, time);
            store.write(&users);
            use_some(&users, "alice");
            store.write(&users);
            assert_eq!((bytes_of(&users), stored(&store, &users)), (used, used), "{time}");
        }
    }

    #[test]
    fn a_user_who_was_forgotten_is_added_to_what_the_store_has() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.db");
        let users = Users::default();
        tell_time(&users);
        let mut store = open(&file, &users).unwrap();
        use_some(&users, "alice");
        store.write(&users);
        let users = Users::default(); // all are forgotten
        tell_time(&users);
        use_some(&users, "alice");
        store.write(&users);
        assert_eq!((bytes_of(&users), stored(&store, &users)), (7, 14));
    }

    #[test]
    fn what_many_users_have_used_is_handed_over_without_a_reader_and_without_a_store() {
        const USERS: u64 = 5000; // more than a socket has room for
        let ((old, old_keeper), (new, new_keeper)) = (begun(None), begun(None));
        (0..USERS).for_each(|number| use_some(&old, &format!("user-{number}")));
        let (told, tells) = UnixStream::pair().unwrap();
        // The other process reads when this call has returned.
        old_keeper.hand_over(tells);
        new_keeper.begin(None, &new, Some(told)).unwrap();
        drop(old_keeper);
        await_bytes(&new, 7 * USERS);
    }

    #[test]
    fn what_a_process_that_died_has_stored_is_added_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.db");
        let ((old, old_keeper), (new, new_keeper)) = (begun(Some(&file)), begun(None));
        use_some(&old, "alice");
        let (told, tells) = UnixStream::pair().unwrap();
        old_keeper.hand_over(tells);
        new_keeper.begin(Some(&file), &new, Some(told)).unwrap();
        await_bytes(&new, 7);
        use_some(&new, "alice");
        use_some(&new, "bob");
        drop(new_keeper);
        use_some(&old, "alice");
        old_keeper.begin(Some(&file), &old, None).unwrap();
        assert_eq!(bytes_of(&old), 28);
        drop(old_keeper);
        let (users, _keeper) = begun(Some(&file));
        assert_eq!(bytes_of(&users), 28, "the store has all");
    }

    #[test]
    fn without_a_store_that_can_be_opened_the_memory_counts() {
        let folder = tempfile::tempdir().unwrap();
        let (users, keeper) = begun(Some(folder.path()));
        assert!(keeper.begin(Some(folder.path()), &users, None).is_err(), "a folder is no store");
        users.add_used([kept("alice", &users)]);
        assert_eq!(bytes_of(&users), 7);
    }

    #[test]
    fn a_full_store_is_written_when_there_is_room_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.db");
        let users = Users::default();
        tell_time(&users);
        let mut store = open(&file, &users).unwrap();
        users.add_used((0..500).map(|number| kept(&format!("user-{number}"), &users)));
        store.store.fill(3);
        store.write(&users);
        assert!(store.has_failed);
        store.store.fill(1000);
        store.write(&users);
        assert!(!store.has_failed);
        assert_eq!(
            Store::open_to_read(&file).unwrap().month(users.month().unwrap()).unwrap().len(),
            500
        );
    }
}
