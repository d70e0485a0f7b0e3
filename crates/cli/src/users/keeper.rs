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
    store::{Row, Store, StoreError},
    successor::{Successor, Told, listen, since},
};
use crate::{error::CliError, text};

/// How often the time is told. A month begins and a token ends this much too late at most, when the clock was set.
const TICK: Duration = Duration::from_secs(1);

/// How many ticks pass between two writes. A crash loses the bytes of a minute.
const WRITE_EVERY: u32 = 60;

/// Runs until it is dropped, which writes the store for the last time.
#[derive(Debug)]
pub(crate) struct Keeper {
    orders: Option<mpsc::Sender<(Order, mpsc::Sender<()>)>>,
    thread: Option<JoinHandle<()>>,
}

/// What a keeper is told.
#[derive(Debug)]
enum Order {
    /// Take over what is in a store, and keep it up to date from now on.
    Open(PathBuf),
    /// Close the store, and tell another process what users use from now on.
    HandOver(UnixStream),
}

/// Where what users use is kept.
enum Place {
    Memory,
    Store(Kept),
    Successor(Successor),
}

impl Place {
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
    pub(crate) fn start(users: Users) -> Result<Self, CliError> {
        tell_time(&users);
        let (orders, ordered) = mpsc::channel::<(Order, mpsc::Sender<()>)>();
        let run = move || {
            let mut place = Place::Memory;
            let mut ticks = 0_u32;
            loop {
                match ordered.recv_timeout(TICK) {
                    Ok((Order::Open(file), _done)) => {
                        // This process knows what it has told one that has died.
                        let told = match &place {
                            Place::Successor(successor) => successor.told().clone(),
                            Place::Memory | Place::Store(_) => Told::new(),
                        };
                        place = open(&file, &users, &told).map_or(Place::Memory, Place::Store);
                        continue;
                    }
                    Ok((Order::HandOver(to), _done)) => {
                        place.write(&users);
                        let is_stored = matches!(place, Place::Store(_));
                        place = Place::Successor(Successor::new(to, &users, is_stored));
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                ticks = ticks.wrapping_add(1);
                let is_new_month = users.month() != Some(Month::of(unix()));
                if is_new_month || ticks.is_multiple_of(WRITE_EVERY) {
                    place.write(&users);
                }
                tell_time(&users);
            }
            place.write(&users);
        };
        let thread = thread::Builder::new().name("tandem-users".to_owned()).spawn(run);
        let thread = thread.map_err(|error| CliError::System { what: "start a thread", error })?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    /// Takes over what is in a store, and what the process before this one tells until its end.
    pub(crate) fn begin(&self, store: Option<&Path>, users: &Users, told: Option<UnixStream>) {
        if let Some(store) = store {
            self.order(Order::Open(store.to_owned()));
        }
        if let Some(told) = told {
            let users = users.clone();
            // It ends with the other process.
            thread::spawn(move || listen(told, &users));
        }
    }

    /// Closes the store, and tells another process what users use from now on.
    pub(crate) fn hand_over(&self, to: UnixStream) {
        self.order(Order::HandOver(to));
    }

    /// Returns when it is done.
    fn order(&self, order: Order) {
        let (done, is_done) = mpsc::channel();
        if let Some(orders) = &self.orders
            && orders.send((order, done)).is_ok()
        {
            is_done.recv().ok();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.orders.take());
        // A panic has been printed.
        self.thread.take().map(JoinHandle::join).transpose().ok();
    }
}

#[expect(clippy::disallowed_methods, reason = "months and tokens end by the real clock")]
pub(super) fn unix() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn tell_time(users: &Users) {
    users.set_time(clock::now(), unix());
}

/// Opens a store and takes over what it has, without what the users know: it was told another process.
fn open(file: &Path, users: &Users, told: &Told) -> Option<Kept> {
    let read = || -> Result<Store, StoreError> {
        let store = Store::open(file)?;
        let rows = users.month().map_or(Ok(Vec::new()), |month| store.month(month))?;
        users.restore(rows.into_iter().map(|row| since(row.kept, told)));
        Ok(store)
    };
    match read() {
        Ok(store) => Some(Kept { store, has_failed: false }),
        Err(error) => {
            text::say(format_args!(
                "warning: {error}; the proxy serves without it: what users use is counted from now on, and is \
                 lost at the end; correct it and restart the proxy"
            ));
            None
        }
    }
}

/// A store, and whether the last write has failed.
struct Kept {
    store: Store,
    has_failed: bool,
}

impl Kept {
    /// Writes what has changed. Says so when writes begin to fail, and when they succeed again.
    fn write(&mut self, users: &Users) {
        let month = users.month();
        let rows: Vec<_> = users.usage().iter().filter_map(|usage| row(usage, month?)).collect();
        match self.store.write(&rows) {
            Ok(()) if self.has_failed => {
                self.has_failed = false;
                text::say(format_args!("the usage store is written again, and nothing is missing"));
            }
            Err(error) if !self.has_failed => {
                self.has_failed = true;
                text::say(format_args!(
                    "warning: {error}; the proxy goes on with what it has in memory, and tries again every minute"
                ));
            }
            Ok(()) | Err(_) => {}
        }
    }
}

/// What to write of a user.
fn row(usage: &UserUsage, month: Month) -> Option<Row> {
    let kept = KeptUsage {
        name: usage.name.clone(),
        month,
        bytes: usage.month_bytes,
        last_seen: usage.last_seen?,
    };
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

    #[test]
    fn the_end_writes_what_the_next_start_reads() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.db");
        let users = Users::default();
        let keeper = Keeper::start(users.clone()).unwrap();
        keeper.begin(Some(&file), &users, None);
        users.restore([kept("alice", &users)]);
        drop(keeper);
        let users = Users::default();
        let keeper = Keeper::start(users.clone()).unwrap();
        keeper.begin(Some(&file), &users, None);
        assert_eq!(bytes_of(&users), 7);
    }

    #[test]
    fn a_process_that_takes_over_gets_what_users_have_used_before_and_since() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.db");
        for store in [Some(file.as_path()), None] {
            let (old, new) = (Users::default(), Users::default());
            let (old_keeper, new_keeper) =
                (Keeper::start(old.clone()).unwrap(), Keeper::start(new.clone()).unwrap());
            old_keeper.begin(store, &old, None);
            old.restore([kept("alice", &old)]);
            let (told, tells) = UnixStream::pair().unwrap();
            old_keeper.hand_over(tells);
            new_keeper.begin(store, &new, Some(told));
            old.restore([kept("alice", &old), kept("bob", &old)]);
            drop(old_keeper);
            for _ in 0..500 {
                if bytes_of(&new) == 21 {
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
            assert_eq!((bytes_of(&old), bytes_of(&new)), (21, 21), "{store:?}");
            drop(new_keeper);
        }
        let users = Users::default();
        let keeper = Keeper::start(users.clone()).unwrap();
        keeper.begin(Some(&file), &users, None);
        assert_eq!(bytes_of(&users), 21, "the store has all");
    }

    #[test]
    fn what_a_process_that_died_has_stored_is_added_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.db");
        let (old, new) = (Users::default(), Users::default());
        let (old_keeper, new_keeper) =
            (Keeper::start(old.clone()).unwrap(), Keeper::start(new.clone()).unwrap());
        old_keeper.begin(Some(&file), &old, None);
        old.restore([kept("alice", &old)]);
        let (told, tells) = UnixStream::pair().unwrap();
        old_keeper.hand_over(tells);
        new_keeper.begin(Some(&file), &new, Some(told));
        new.restore([kept("alice", &new), kept("bob", &new)]);
        drop(new_keeper);
        old.restore([kept("alice", &old)]);
        old_keeper.begin(Some(&file), &old, None);
        assert_eq!(bytes_of(&old), 28);
        drop(old_keeper);
        let users = Users::default();
        let keeper = Keeper::start(users.clone()).unwrap();
        keeper.begin(Some(&file), &users, None);
        assert_eq!(bytes_of(&users), 28, "the store has all");
    }

    #[test]
    fn without_a_store_that_can_be_opened_the_memory_counts() {
        let folder = tempfile::tempdir().unwrap();
        let users = Users::default();
        let keeper = Keeper::start(users.clone()).unwrap();
        keeper.begin(Some(folder.path()), &users, None);
        users.restore([kept("alice", &users)]);
        assert_eq!(bytes_of(&users), 7);
    }

    #[test]
    fn a_full_store_is_written_when_there_is_room_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.db");
        let users = Users::default();
        tell_time(&users);
        let mut store = open(&file, &users, &Told::new()).unwrap();
        users.restore((0..500).map(|number| kept(&format!("user-{number}"), &users)));
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
