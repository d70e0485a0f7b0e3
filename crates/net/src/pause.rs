//! When the driver lets packets gather before it waits for the next one.
//!
//! To be woken costs a thread about as much as to handle a packet. While packets come evenly and fast, each would wake
//! it. So after its work it sleeps for a moment without being woken, and then handles what has come: what network cards
//! do with their interrupts. A pause is of no use when nothing comes in it, as between bursts, and it would delay a lone
//! program that waits for each answer before it asks again. Therefore a thread pauses only while one side alone, the
//! tunnels or the targets, sends packets faster than such a program could, and while something mostly has come in the
//! pauses before.

use std::time::{Duration, Instant};

use tandem_node::node::SocketId;

/// Whether, and for how long, a driver lets packets gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Each packet wakes the thread.
    Off,
    /// The thread pauses for this long at most while packets come faster than that.
    UpTo(Duration),
}

impl Default for Pause {
    fn default() -> Self {
        Self::AUTO
    }
}

impl Pause {
    /// The length that gains most of what can be gained, by measurement.
    pub const AUTO: Self = Self::UpTo(Duration::from_micros(100));
}

/// The time over which packets are counted.
const WINDOW: Duration = Duration::from_millis(2);

/// The trust in pauses goes from 0 to this number.
const TRUST_MAX: u8 = 16;

/// How much trust a pause costs in which nothing came. One in which something came brings 1, so that two of three must.
const VAIN: u8 = 2;

/// After so many waits without trust, one pause tries again.
const RETRY: u8 = 64;

/// Decides about pauses.
pub(crate) struct Pauses {
    length: Option<Duration>,
    /// The socket with most packets: at a server the listening one, at a client that of its tunnel.
    main: Option<SocketId>,
    /// The packets of the main socket, and of all others, in this window.
    count: [u64; 2],
    began: Instant,
    /// Whether the packets of one side came fast enough in the last window.
    is_fast: bool,
    trust: u8,
    /// Waits since the last pause.
    waits: u8,
    /// Whether the thread's timers are exact.
    is_exact: bool,
}

impl Pauses {
    pub(crate) fn new(pause: Pause, now: Instant) -> Self {
        let pause = match std::env::var("T_PAUSE").ok().and_then(|it| it.parse().ok()) {
            Some(us) => Pause::UpTo(Duration::from_micros(us)),
            None => pause,
        };
        let length = match pause {
            Pause::Off => None,
            Pause::UpTo(length) => Some(length),
        };
        Self {
            length,
            main: None,
            count: [0; 2],
            began: now,
            is_fast: false,
            trust: 0,
            waits: 0,
            is_exact: false,
        }
    }

    /// Notes how many datagrams have come from a socket.
    pub(crate) fn on_received(&mut self, socket: SocketId, datagrams: u64) {
        let main = *self.main.get_or_insert(socket);
        let [of_main, of_others] = &mut self.count;
        if socket == main {
            *of_main += datagrams;
            return;
        }
        *of_others += datagrams;
        if *of_main == 0 {
            self.main = Some(socket); // the other one has been silent for all of the window
            self.count = [datagrams, 0];
        }
    }

    /// How long the driver sleeps before it waits, which it does now. `deadline`: when the node is due.
    pub(crate) fn before_wait(
        &mut self,
        now: Instant,
        deadline: Option<Instant>,
    ) -> Option<Duration> {
        let length = self.length?;
        let elapsed = now.saturating_duration_since(self.began);
        if elapsed >= WINDOW {
            let fastest = self.count.into_iter().max().unwrap_or_default();
            // Packets 1.25 lengths apart, or closer. A program that waits for each answer gets one of each side in the
            // time for a round trip, which is longer.
            self.is_fast = u128::from(fastest) * length.as_nanos() * 5 >= elapsed.as_nanos() * 4;
            (self.began, self.count) = (now, [0; 2]);
        }
        if !self.is_fast {
            return None;
        }
        self.waits += 1;
        if self.trust == 0 && self.waits < RETRY {
            return None;
        }
        self.waits = 0;
        let left = deadline.map_or(length, |at| at.saturating_duration_since(now));
        Some(length.min(left)).filter(|pause| !pause.is_zero())
    }

    /// Notes how long the driver had to wait after a pause. If something has come in it, that is next to nothing.
    pub(crate) fn after_pause(&mut self, waited: Duration) {
        let Some(length) = self.length else { return }; // it makes no pauses
        self.trust = if waited < length / 2 {
            TRUST_MAX.min(self.trust + 1)
        } else {
            self.trust.saturating_sub(VAIN)
        };
    }

    /// Sleeps for this long, which nothing ends early.
    pub(crate) fn sleep(&mut self, length: Duration) {
        if !std::mem::replace(&mut self.is_exact, true) {
            #[cfg(target_os = "linux")]
            // else the kernel sleeps for 50 us longer, as it does for all threads
            rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))
                .unwrap_or_default();
        }
        std::thread::sleep(length);
    }
}
