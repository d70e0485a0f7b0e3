//! Which connections are served, and which one ends when there are too many.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::oneshot;

/// The places of all connections, the oldest first.
#[derive(Debug)]
pub(crate) struct Places {
    max: usize,
    taken: VecDeque<(Place, oneshot::Sender<()>)>,
    next: u64,
}

/// The place of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) number: u64,
    /// Whether a whole request has arrived.
    pub(crate) has_asked: Arc<AtomicBool>,
}

impl Places {
    /// So many places.
    pub(crate) const fn new(max: usize) -> Self {
        Self { max, taken: VecDeque::new(), next: 0 }
    }

    /// Gives a new connection a place. If there is none left, the oldest connection without a request loses its own,
    /// and if all have made one, the oldest of them. The receiver says when this one has lost its place.
    pub(crate) fn give(&mut self) -> (Place, oneshot::Receiver<()>) {
        if self.taken.len() >= self.max {
            let is_silent = |(place, _): &(Place, _)| !place.has_asked.load(Ordering::Relaxed);
            let loses = self.taken.iter().position(is_silent).unwrap_or_default();
            drop(self.taken.remove(loses));
        }
        let (keeps, is_lost) = oneshot::channel();
        let place = Place { number: self.next, has_asked: Arc::default() };
        self.next += 1;
        self.taken.push_back((place.clone(), keeps));
        (place, is_lost)
    }

    /// Takes back the place of a connection that has ended, if it still has it.
    pub(crate) fn take_back(&mut self, number: u64) {
        self.taken.retain(|(place, _)| place.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECTIONS_MAX: usize = 32;

    #[test]
    fn the_oldest_connection_without_a_request_loses_its_place() {
        let mut places = Places::new(CONNECTIONS_MAX);
        let mut all: Vec<_> = (0..CONNECTIONS_MAX).map(|_| places.give()).collect();
        all[0].0.has_asked.store(true, Ordering::Relaxed);
        all[2].0.has_asked.store(true, Ordering::Relaxed);
        let lost = |all: &mut Vec<(Place, oneshot::Receiver<()>)>| {
            let is_lost = |it: &mut oneshot::Receiver<()>| {
                it.try_recv() == Err(oneshot::error::TryRecvError::Closed)
            };
            let lost = all.iter_mut().filter_map(|(place, it)| is_lost(it).then_some(place.number));
            lost.collect::<Vec<_>>()
        };
        assert!(lost(&mut all).is_empty());
        all.push(places.give());
        assert_eq!(lost(&mut all), [1]);
        all.push(places.give());
        assert_eq!(lost(&mut all), [1, 3]);
        // One that has ended makes room.
        places.take_back(0);
        places.take_back(3);
        all.push(places.give());
        assert_eq!(lost(&mut all), [0, 1, 3]);
        // When all have asked, the oldest goes.
        for (place, _) in &all {
            place.has_asked.store(true, Ordering::Relaxed);
        }
        all.push(places.give());
        assert_eq!(lost(&mut all), [0, 1, 2, 3]);
        assert_eq!(places.taken.len(), CONNECTIONS_MAX);
    }
}
