//! The largest packet that the path carries ([RFC 8899]).
//!
//! A path that drops large packets and lets small ones pass is a black hole. Random loss is none: a black hole takes
//! *every* large packet, while smaller ones that left later arrive, several times in a row. The size then falls to the
//! least one, and probes find what passes.
//!
//! [RFC 8899]: https://www.rfc-editor.org/rfc/rfc8899

use std::time::{Duration, Instant};

/// How often in a row large packets are lost, each time while a smaller one arrives that left later, until the path is
/// taken for a black hole. Where a fifth of all packets is lost, and none follows another, this happens by chance once
/// in ten thousand packets.
const EVIDENCE: u32 = 5;

/// `MAX_PROBES` (RFC 8899 §5.1.2): after this many lost probes, a size is taken not to pass.
const PROBES: u32 = 3;

/// The search ends when the sizes that pass and that do not pass are no further apart than this, in bytes.
const NEAR: u16 = 20;

/// The time from a fall to the first probe. It doubles with each search that finds nothing, up to [`PROBE_WAIT_MOST`].
const PROBE_WAIT: Duration = Duration::from_millis(200);

/// `PMTU_RAISE_TIMER` is 600 s in the RFC. A path that was taken for a black hole by chance should not wait that long.
const PROBE_WAIT_MOST: Duration = Duration::from_secs(60);

/// The sizes of packets on a path.
#[derive(Debug)]
pub(crate) struct Mtu {
    /// The size that every path carries.
    least: u16,
    /// The size that the owner has found.
    most: u16,
    /// The size at present.
    size: u16,
    /// When the newest small packet left that has arrived.
    small_sent: Option<Instant>,
    /// Only large packets that left after this time are evidence.
    since: Option<Instant>,
    evidence: u32,
    search: Option<Search>,
}

/// The search for a larger size after a fall.
#[derive(Debug)]
struct Search {
    /// The least size that does not pass, as far as is known.
    fails: Option<u16>,
    /// The packet number of the probe in flight.
    probe: Option<u64>,
    lost: u32,
    next: Instant,
    wait: Duration,
}

impl Mtu {
    pub(crate) fn new(least: u16, most: u16) -> Self {
        let most = most.max(least);
        Self { least, most, size: most, small_sent: None, since: None, evidence: 0, search: None }
    }

    /// The largest packet in bytes.
    pub(crate) const fn size(&self) -> u16 {
        self.size
    }

    /// The owner has found that packets of this size pass, or that no larger ones do.
    pub(crate) fn set_most(&mut self, most: u16) {
        self.most = most.max(self.least);
        if self.search.is_none() || self.size > self.most {
            self.size = self.most;
        }
    }

    /// The size of a probe that is to leave now.
    pub(crate) fn probe(&self, now: Instant) -> Option<u16> {
        let search = self.search.as_ref()?;
        let is_due = search.probe.is_none() && search.next <= now;
        is_due.then(|| self.next_size(search))
    }

    fn next_size(&self, search: &Search) -> u16 {
        match search.fails {
            None => self.most,
            Some(fails) => self.size.midpoint(fails.min(self.most)),
        }
    }

    pub(crate) fn on_probe_sent(&mut self, number: u64) {
        if let Some(search) = &mut self.search {
            search.probe = Some(number);
        }
    }

    /// A packet that left at `sent` has arrived.
    pub(crate) fn on_acked(&mut self, now: Instant, number: u64, size: u16, sent: Instant) {
        if size <= self.least {
            self.small_sent = self.small_sent.max(Some(sent));
            return;
        }
        self.evidence = 0;
        if let Some(search) = self.search.as_mut().filter(|search| search.probe == Some(number)) {
            self.size = size.min(self.most);
            (search.probe, search.lost, search.next, search.wait) = (None, 0, now, PROBE_WAIT);
            let rest = search.fails.map_or(0, |fails| fails - size.min(fails));
            if search.fails.is_none() || self.size == self.most {
                self.search = None;
            } else if rest <= NEAR {
                (search.fails, search.next) = (None, now + PROBE_WAIT_MOST);
            }
        }
    }

    /// A packet that left at `sent` is lost.
    pub(crate) fn on_lost(&mut self, now: Instant, number: u64, size: u16, sent: Instant) {
        if let Some(search) = self.search.as_mut().filter(|search| search.probe == Some(number)) {
            search.probe = None;
            search.lost += 1;
            if search.lost >= PROBES {
                (search.lost, search.fails) = (0, Some(size));
                if size - self.size.min(size) <= NEAR {
                    search.fails = None;
                    search.next = now + search.wait;
                    search.wait = (search.wait * 2).min(PROBE_WAIT_MOST);
                }
            }
            return;
        }
        let is_evidence = size > self.least
            && size <= self.size
            && self.since.is_none_or(|since| since <= sent)
            && self.small_sent.is_some_and(|small| small >= sent);
        if !is_evidence {
            return;
        }
        (self.evidence, self.since) = (self.evidence + 1, Some(now));
        if self.evidence < EVIDENCE {
            return;
        }
        (self.evidence, self.size) = (0, self.least);
        self.search = Some(Search {
            fails: None,
            probe: None,
            lost: 0,
            next: now + PROBE_WAIT,
            wait: 2 * PROBE_WAIT,
        });
    }

    /// Whether large packets may be lost because of their size.
    pub(crate) const fn is_suspect(&self) -> bool {
        self.evidence > 0
    }

    /// Whether a lost packet was a probe, whose loss is no congestion (RFC 8899 §3).
    pub(crate) fn is_probe(&self, number: u64) -> bool {
        self.search.as_ref().is_some_and(|search| search.probe == Some(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_start;

    const LEAST: u16 = 1200;

    /// A path that carries packets of this size. Each step has a large packet, and a small one after it.
    struct Path {
        mtu: Mtu,
        carries: u16,
        now: Instant,
        number: u64,
    }

    impl Path {
        fn new(carries: u16) -> Self {
            Self { mtu: Mtu::new(LEAST, 1452), carries, now: test_start(), number: 0 }
        }

        fn send(&mut self, size: u16) {
            let sent = self.now;
            self.number += 1;
            if size <= self.carries {
                self.mtu.on_acked(sent, self.number, size, sent);
            } else {
                self.mtu.on_lost(sent, self.number, size, sent);
            }
        }

        fn step(&mut self) {
            self.now += Duration::from_millis(10);
            self.mtu.on_acked(self.now, 0, 40, self.now);
            if let Some(size) = self.mtu.probe(self.now) {
                self.mtu.on_probe_sent(self.number + 1);
                self.send(size);
            } else {
                self.send(self.mtu.size());
            }
        }
    }

    #[test]
    fn a_black_hole_is_found_and_so_is_what_passes() {
        for (carries, found) in [(1452, 1452..=1452), (1200, 1200..=1200), (1340, 1320..=1340)] {
            let mut path = Path::new(carries);
            for step in 0..200 {
                path.step();
                let is_large = path.mtu.size() > LEAST;
                assert!(step != u64::from(EVIDENCE) || is_large == (carries == 1452), "{carries}");
            }
            assert!(found.contains(&path.mtu.size()), "{carries}: {}", path.mtu.size());
        }
    }

    #[test]
    fn a_path_that_grows_again_is_used_again() {
        let mut path = Path::new(1200);
        for _ in 0..100 {
            path.step();
        }
        path.carries = 1452;
        for _ in 0..200 {
            path.step();
        }
        assert_eq!(path.mtu.size(), 1452);
    }

    #[test]
    fn random_loss_and_silence_are_no_black_holes() {
        let mut mtu = Mtu::new(LEAST, 1452);
        let mut now = test_start();
        for number in 0..1000_u64 {
            now += Duration::from_millis(10);
            // Nothing arrives for a while, and then small packets that left before the large ones were lost.
            mtu.on_acked(now, number, 40, now.checked_sub(Duration::from_millis(5)).unwrap());
            mtu.on_lost(now, number, 1452, now);
            assert_eq!(mtu.size(), 1452, "it left after all that arrived");
        }
        for number in 0..1000_u64 {
            now += Duration::from_millis(10);
            mtu.on_acked(now, number, 40, now);
            // Four large packets of five are lost.
            if number % 5 == 0 {
                mtu.on_acked(now, number, 1452, now);
            } else {
                mtu.on_lost(now, number, 1452, now);
                assert_eq!(mtu.size(), 1452, "one arrives between");
            }
        }
    }

    #[test]
    fn the_size_of_the_owner_is_the_limit() {
        let mut path = Path::new(1200);
        for _ in 0..20 {
            path.step();
        }
        path.mtu.set_most(1400);
        assert_eq!(path.mtu.size(), LEAST, "it is still a black hole");
        path.mtu.set_most(1000);
        assert_eq!(path.mtu.size(), LEAST);
        let mut mtu = Mtu::new(LEAST, 1332);
        mtu.set_most(1452);
        assert_eq!(mtu.size(), 1452);
        mtu.set_most(1300);
        assert_eq!(mtu.size(), 1300);
    }
}
