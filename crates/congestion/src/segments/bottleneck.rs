//! Where the bottleneck of a connection is: the second use of the feedback of a PEP.

use std::time::{Duration, Instant};

use super::domains::Losses;

/// What limits the rate of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// The path before the PEP.
    Wired,
    /// The path behind the PEP.
    Access,
    /// Neither: the application or the congestion window.
    #[default]
    Sender,
}

/// Where the bottleneck is, and for how long it was where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bottleneck {
    /// Where it is at present.
    pub place: Place,
    /// For how long it was in the wired domain.
    pub wired: Duration,
    /// For how long it was in the access domain.
    pub access: Duration,
    /// For how long the sender was the bottleneck.
    pub sender: Duration,
}

/// Shorter queues than this are no bottleneck: packets also wait for each other, and receivers wait
/// before they acknowledge.
const QUEUE_LEAST: Duration = Duration::from_millis(1);

/// The least time over which queues are observed.
const WINDOW_LEAST: Duration = Duration::from_millis(20);

/// The number of windows after which a loss no longer says where the bottleneck is.
const LOSS_LIFETIME: u32 = 10;

/// Judges windows of one RTT each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Judge {
    bottleneck: Option<Bottleneck>,
    window: Option<Window>,
    /// What the last window said. Two that agree change the verdict.
    last: Option<Place>,
    /// Losses before the window.
    losses: Losses,
    /// The domain of the last losses, and the number of windows since then.
    lossy: Option<(Place, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    since: Instant,
    /// The least queues in it.
    wired: Duration,
    access: Duration,
    is_app_limited: bool,
}

impl Judge {
    pub(super) fn observe(
        &mut self,
        now: Instant,
        (wired, access): (Duration, Duration),
        (losses, is_app_limited): (Losses, bool),
        rtt: Duration,
    ) {
        let fresh = Window { since: now, wired, access, is_app_limited };
        let window = self.window.get_or_insert(fresh);
        window.wired = window.wired.min(wired);
        window.access = window.access.min(access);
        window.is_app_limited |= is_app_limited;
        let took = now.saturating_duration_since(window.since);
        if took < rtt.max(WINDOW_LEAST) {
            return;
        }
        let place = self.place(losses);
        let bottleneck = self.bottleneck.get_or_insert_default();
        if self.last.replace(place) == Some(place) {
            bottleneck.place = place;
        }
        let counter = match bottleneck.place {
            Place::Wired => &mut bottleneck.wired,
            Place::Access => &mut bottleneck.access,
            Place::Sender => &mut bottleneck.sender,
        };
        *counter += took;
        self.window = None;
    }

    /// What the window says that ends.
    fn place(&mut self, losses: Losses) -> Place {
        let wired = losses.wired - self.losses.wired;
        let access = losses.access - self.losses.access;
        self.losses = losses;
        self.lossy = match wired.max(access) {
            0 => self.lossy.filter(|(_, age)| *age < LOSS_LIFETIME).map(|(at, age)| (at, age + 1)),
            most => Some((if most == wired { Place::Wired } else { Place::Access }, 0)),
        };
        let Some(window) = self.window.filter(|window| !window.is_app_limited) else {
            return Place::Sender;
        };
        if window.wired.max(window.access) < QUEUE_LEAST {
            return self.lossy.map_or(Place::Sender, |(place, _)| place);
        }
        if window.wired > window.access { Place::Wired } else { Place::Access }
    }

    pub(super) const fn bottleneck(&self) -> Option<Bottleneck> {
        self.bottleneck
    }
}
