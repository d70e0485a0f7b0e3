//! Notices a thread of a server that does not come back to its event loop, because of an error in the program or of
//! a disk that does not answer.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tracing::{error, warn};

/// The time between two looks at the threads.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// The time after which a thread counts as stuck. A turn of the event loop takes milliseconds, and a client whose
/// packets are not answered for longer than this begins to give up its tunnel.
const STUCK_AFTER: Duration = Duration::from_secs(5);

/// How often a thread has begun or ended a turn of its event loop. The number is odd while the thread works.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// Performs a future, which is all that the thread does.
    pub(crate) async fn of<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            self.step();
            let poll = work.as_mut().poll(context);
            self.step();
            poll
        })
        .await
    }

    /// Only the thread itself writes, so that nothing has to be added atomically.
    fn step(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// What the main thread knows of the other threads.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    threads: Vec<WatchedThread>,
    /// How often a thread was found stuck.
    stuck: Arc<AtomicU64>,
}

#[derive(Debug)]
struct WatchedThread {
    pulse: Pulse,
    /// The number at the last look, and since when it has been the same.
    last: Option<(u64, Instant)>,
    is_stuck: bool,
}

impl Watch {
    /// Adds a thread. The first one has the number 0.
    pub(crate) fn add(&mut self) -> Pulse {
        let pulse = Pulse::default();
        self.threads.push(WatchedThread { pulse: pulse.clone(), last: None, is_stuck: false });
        pulse
    }

    /// Looks at all threads. Each that is stuck, or no longer stuck, is told once.
    pub(crate) fn look(&mut self, now: Instant) {
        for (thread, watched) in self.threads.iter_mut().enumerate() {
            let number = watched.pulse.0.load(Ordering::Relaxed);
            let (last, since) = watched.last.unwrap_or((number, now));
            let lasted = now.saturating_duration_since(since);
            let seconds = lasted.as_secs();
            let is_same = last == number;
            watched.last = Some((number, if is_same { since } else { now }));
            let is_working = number % 2 == 1;
            let is_stuck = is_same && is_working && lasted >= STUCK_AFTER;
            match (std::mem::replace(&mut watched.is_stuck, is_stuck), is_stuck) {
                (false, true) => {
                    self.stuck.fetch_add(1, Ordering::Relaxed);
                    error!(
                        thread,
                        seconds,
                        "a thread of this server does not come back to its work: its clients get no answer until it \
                         does; the others are served"
                    );
                }
                (true, false) => warn!(thread, seconds, "a thread that was stuck is back"),
                _ => {}
            }
        }
    }

    /// Whether no thread did its work at the last look.
    pub(crate) fn are_all_stuck(&self) -> bool {
        !self.threads.is_empty() && self.threads.iter().all(|thread| thread.is_stuck)
    }

    /// How often a thread was found stuck.
    pub(crate) fn stuck(&self) -> u64 {
        self.stuck.load(Ordering::Relaxed)
    }

    /// The same number, for others to read.
    pub(crate) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.stuck)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn only_a_thread_that_works_on_one_turn_for_long_is_stuck() {
        let mut watch = Watch::default();
        let [waits, works, is_stuck] = [watch.add(), watch.add(), watch.add()];
        let begin = tandem_net::clock::now();
        waits.step();
        waits.step();
        works.step();
        is_stuck.step();
        for second in 0..=20 {
            watch.look(begin + INTERVAL * second);
            works.step();
            works.step();
            let found = watch.threads.iter().map(|thread| thread.is_stuck).collect::<Vec<_>>();
            assert_eq!(found, [false, false, second >= 5], "after {second} s");
            assert!(!watch.are_all_stuck());
        }
        is_stuck.step();
        works.step();
        watch.look(begin + INTERVAL * 21);
        assert!(watch.threads.iter().all(|thread| !thread.is_stuck));
        is_stuck.step();
        for second in 22..=30 {
            watch.look(begin + INTERVAL * second);
        }
        assert_eq!(watch.stuck(), 2);
    }

    #[test]
    fn a_thread_whose_work_blocks_is_stuck_and_one_that_waits_is_not() {
        let mut watch = Watch::default();
        let (started, until_started) = mpsc::channel();
        let mut holds = Vec::new();
        let threads: Vec<_> = [true, false]
            .map(|blocks| {
                let (pulse, started) = (watch.add(), started.clone());
                let (end, until_end) = mpsc::channel::<()>();
                let (notify, notified) = oneshot::channel::<()>();
                holds.push((end, notify));
                let work = async move {
                    started.send(()).unwrap();
                    if blocks {
                        until_end.recv().unwrap_err();
                    }
                    notified.await.unwrap_err();
                };
                thread::spawn(move || crate::process::runtime().unwrap().block_on(pulse.of(work)))
            })
            .into();
        for _ in &threads {
            until_started.recv().unwrap();
        }
        // The second thread comes back to its event loop within a moment.
        while watch.threads[1].pulse.0.load(Ordering::Relaxed) % 2 == 1 {
            thread::yield_now();
        }
        let begin = tandem_net::clock::now();
        watch.look(begin);
        watch.look(begin + STUCK_AFTER);
        assert!(watch.threads[0].is_stuck && !watch.threads[1].is_stuck);
        drop(holds);
        for thread in threads {
            thread.join().unwrap();
        }
        watch.look(begin + STUCK_AFTER + INTERVAL);
        assert!(!watch.threads[0].is_stuck);
        assert_eq!(watch.stuck(), 1);
    }
}
