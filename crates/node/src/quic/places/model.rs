//! Connections from many prefixes that come, prove themselves and go, as the input says.
//!
//! The decision about each new connection is the one that the rules name when they are applied to a plain list of all
//! connections. No prefix has more unproven connections than its share, a proven connection ends only for the sake of a
//! prefix below its share, and nothing is kept for prefixes without connections.

use std::{cmp::Reverse, net::IpAddr};

use super::{ConnectionId, Place, Places};
use crate::{prefix::Prefix, script::Reader};

/// The largest number of steps of one run.
const STEPS_MAX: usize = 1000;

/// The prefixes of each family.
const PREFIXES: u8 = 16;

/// A connection of the plain list, which is in the order of age.
#[derive(Clone, Copy, Debug)]
struct Known {
    id: ConnectionId,
    prefix: Prefix,
    is_proven: bool,
}

struct PlacesRun {
    places: Places,
    share: usize,
    /// The most connections.
    max: usize,
    known: Vec<Known>,
    next_id: u64,
}

/// Drives the places of a server as the input says.
///
/// # Panics
///
/// A promise is broken.
#[cfg_attr(not(fuzzing), expect(unreachable_pub, reason = "only a fuzz target is outside"))]
pub fn run(input: &[u8]) {
    let mut reader = Reader::new(input);
    let share = usize::from(reader.byte() % 8) + 1;
    let max = share * (usize::from(reader.byte() % 8) + 1);
    let (places, known) = (Places::new(share), Vec::new());
    let mut run = PlacesRun { places, share, max, known, next_id: 0 };
    reader.steps(STEPS_MAX, |reader| run.step(reader));
    for known in std::mem::take(&mut run.known) {
        run.places.remove(known.prefix, known.id);
    }
    run.check();
}

impl PlacesRun {
    fn step(&mut self, reader: &mut Reader<'_>) {
        let (what, which) = (reader.byte(), reader.byte());
        match what % 8 {
            0 => {
                if let Some(known) = self.nth(which) {
                    self.places.remove(known.prefix, known.id);
                    self.known.retain(|other| other.id != known.id);
                }
            }
            1 | 2 => {
                if let Some(known) = self.nth(which) {
                    self.places.prove(known.prefix, known.id);
                    for other in self.known.iter_mut().filter(|other| other.id == known.id) {
                        other.is_proven = true;
                    }
                }
            }
            // The server may be short of memory.
            3 => self.arrive(prefix(which), false),
            _ => self.arrive(prefix(which), true),
        }
        self.check();
    }

    fn nth(&self, which: u8) -> Option<Known> {
        let index = usize::from(which).checked_rem(self.known.len())?;
        self.known.get(index).copied()
    }

    fn arrive(&mut self, prefix: Prefix, has_memory: bool) {
        let has_room = has_memory && self.known.len() < self.max;
        let place = self.places.find(prefix, has_room);
        assert_eq!(place, self.expected(prefix, has_room), "{:?}", self.known);
        match place {
            Place::Free => {}
            Place::None => return,
            Place::Instead(id) => {
                let index = self.known.iter().position(|known| known.id == id);
                let ended = self.known.remove(index.expect("only a connection makes room"));
                let own = self.of(prefix).count();
                assert!(!ended.is_proven || own < self.share, "{ended:?} ends for {prefix:?}");
                self.places.remove(ended.prefix, id);
            }
        }
        let id = ConnectionId(self.next_id);
        self.next_id += 1;
        self.places.insert(prefix, id);
        self.known.push(Known { id, prefix, is_proven: false });
    }

    fn of(&self, prefix: Prefix) -> impl Iterator<Item = &Known> {
        self.known.iter().filter(move |known| known.prefix == prefix)
    }

    fn unproven(&self, prefix: Prefix) -> usize {
        self.of(prefix).filter(|known| !known.is_proven).count()
    }

    /// What the rules say, in their order.
    fn expected(&self, prefix: Prefix, has_room: bool) -> Place {
        let oldest = self.of(prefix).find(|known| !known.is_proven);
        match oldest {
            Some(oldest) if self.unproven(prefix) >= self.share => {
                return Place::Instead(oldest.id);
            }
            _ if has_room => return Place::Free,
            _ => {}
        }
        let unproven = self.known.iter().filter(|known| !known.is_proven);
        let most = unproven
            .max_by_key(|known| (self.unproven(known.prefix), known.prefix, Reverse(known.id)));
        if let Some(oldest) = most {
            return Place::Instead(oldest.id);
        }
        let most = self
            .known
            .iter()
            .max_by_key(|known| (self.of(known.prefix).count(), known.prefix, known.id));
        match most {
            Some(newest)
                if self.of(newest.prefix).count() > self.share
                    && self.of(prefix).count() < self.share =>
            {
                Place::Instead(newest.id)
            }
            _ => Place::None,
        }
    }

    fn check(&self) {
        let Places { by_prefix, by_unproven, by_total, .. } = &self.places;
        let total: usize = by_prefix.values().map(super::Holders::total).sum();
        assert_eq!(total, self.known.len());
        assert!(total <= self.max, "{total} connections");
        assert_eq!(by_total.len(), by_prefix.len());
        assert!(by_unproven.len() <= by_prefix.len());
        for (prefix, holders) in by_prefix {
            assert!(holders.total() > 0, "{prefix:?} has no connections");
            assert!(holders.unproven.len() <= self.share, "{prefix:?} has more than its share");
        }
    }
}

/// One of few prefixes, so that several connections have the same.
fn prefix(which: u8) -> Prefix {
    let [site, host] = [which % PREFIXES, which / 2];
    Prefix::of_network(if which & 0x80 == 0 {
        IpAddr::from([192, 0, site, host])
    } else {
        IpAddr::from([0x2001, 0xdb8, 0, u16::from(site) << 8, 0, 0, 0, u16::from(host)])
    })
}
