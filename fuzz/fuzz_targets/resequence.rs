//! The resequencer with arbitrary numbers, floors, payloads and times. No number is released twice,
//! payloads leave in the order that the mode promises, the memory stays within its bounds, timers
//! lie within theirs, and nothing is left after a flush.

#![no_main]

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_fuzz::input::Reader;
use tandem_node::tunnel::resequence::{
    Bounds, OVERHEAD, Resequence, Resequencer, ResequencerStats, Sequenced,
};
use tandem_wire::VarInt;

/// The largest number of steps of one run.
const STEPS_MAX: usize = 400;

/// The memory of a flow that holds nothing: which numbers arrived, and room for released payloads.
const FLOW_MEMORY: usize = 4096;

/// The longest payload.
const PAYLOAD_MAX: usize = 1500;

static PAYLOAD: [u8; PAYLOAD_MAX] = [0; PAYLOAD_MAX];

struct Run {
    resequencer: Resequencer,
    mode: Resequence,
    bounds: Bounds,
    now: Instant,
    /// The highest number that was pushed.
    highest: u64,
    accepted: BTreeSet<u64>,
    released: BTreeSet<u64>,
    /// The last number that was released in order.
    last: Option<u64>,
}

impl Run {
    fn new(reader: &mut Reader<'_>) -> Self {
        let mode = match reader.byte() % 4 {
            0 => Resequence::Off,
            1 => Resequence::Window(u32::from(reader.byte())),
            _ => Resequence::Ordered,
        };
        let bounds = Bounds {
            bytes: 100 * usize::from(reader.number()),
            packets: 1 + u32::from(reader.byte()) * 30,
            gap_max: Duration::from_millis(reader.number().into()),
            ..Bounds::default()
        };
        Self {
            resequencer: Resequencer::new(mode, bounds),
            mode,
            bounds,
            now: Instant::now(),
            highest: 0,
            accepted: BTreeSet::new(),
            released: BTreeSet::new(),
            last: None,
        }
    }

    fn step(&mut self, reader: &mut Reader<'_>) {
        match reader.byte() % 16 {
            // The next number, as nearly always.
            0..=5 => self.push(self.highest.saturating_add(1), reader),
            6 => self.push(self.highest.saturating_add(reader.byte().into()), reader),
            7 => self.push(self.highest.saturating_sub(reader.byte().into()), reader),
            8 => self.push(self.highest.saturating_add(reader.number().into()), reader),
            9 => self.push(self.highest.saturating_sub(reader.number().into()), reader),
            10 => self.push(u64::from(reader.number()) << (reader.byte() % 48), reader),
            11 => {
                let floor = self.highest.saturating_sub(reader.byte().into());
                self.resequencer.raise_floor(self.now, floor);
            }
            12 => self.now += Duration::from_millis(reader.number().into()),
            13 => self.now += Duration::from_micros(reader.number().into()),
            14 => {
                let rtt = Duration::from_millis(reader.number().into());
                self.resequencer.set_smoothed_rtt(rtt);
            }
            _ => self.resequencer.flush(self.now),
        }
    }

    fn push(&mut self, number: u64, reader: &mut Reader<'_>) {
        let floor = number.saturating_sub(reader.byte().into()).saturating_add(1);
        let len = (usize::from(reader.byte()) * 6).max(8).min(PAYLOAD_MAX);
        let (before, before_jump) = (*self.resequencer.stats(), self.highest);
        let mut payload = number.to_be_bytes().to_vec();
        payload.extend_from_slice(&PAYLOAD[8..len]);
        let [sequence, floor] = [number, floor].map(VarInt::saturating_from);
        let payload = Bytes::from(payload);
        self.resequencer.push(self.now, Sequenced { sequence, floor, payload });
        let after = *self.resequencer.stats();
        if dropped(&after) == dropped(&before) {
            assert!(self.accepted.insert(number), "{number} was taken twice");
            self.highest = self.highest.max(number);
        } else {
            assert_eq!(self.highest, before_jump);
        }
    }

    fn take(&mut self) {
        let late_before = self.resequencer.stats().late;
        while let Some(payload) = self.resequencer.poll_release(self.now) {
            let number = payload.first_chunk().copied().map(u64::from_be_bytes);
            let number = number.expect("each payload begins with its number");
            assert!(self.accepted.contains(&number), "{number} was never taken");
            assert!(self.released.insert(number), "{number} was released twice");
            if self.mode == Resequence::Ordered && late_before == 0 {
                assert!(self.last.is_none_or(|last| last < number), "{number} is not in order");
                self.last = Some(number);
            }
        }
    }

    fn check(&self) {
        let window = match self.mode {
            Resequence::Window(packets) => packets as usize,
            Resequence::Off | Resequence::Ordered => 0,
        };
        // Payloads within the window do not wait, but may show gaps.
        let bytes_max = self.bounds.bytes + window * OVERHEAD;
        let held = self.resequencer.held_bytes();
        assert!(held <= bytes_max, "{held} of {bytes_max} bytes are held");
        let memory = self.resequencer.memory();
        assert!(memory <= held + FLOW_MEMORY, "{memory} bytes of memory, {held} are held");
        let waiting = self.accepted.len() - self.released.len();
        assert!(waiting < self.bounds.packets as usize, "{waiting} payloads wait");
        if let Some(due) = self.resequencer.next_timeout() {
            assert!(waiting > 0 && due > self.now && due <= self.now + self.bounds.gap_max);
        }
    }

    fn end(&mut self) {
        // A timer that is due makes progress.
        while let Some(due) = self.resequencer.next_timeout() {
            self.now = due;
            self.take();
            let next = self.resequencer.next_timeout();
            assert!(next.is_none_or(|next| next > due), "a timer that was due has no effect");
        }
        self.resequencer.flush(self.now);
        self.take();
        assert_eq!(self.resequencer.held_bytes(), 0);
        assert_eq!(self.accepted, self.released);
        assert!(self.resequencer.memory() <= FLOW_MEMORY);
    }
}

fn dropped(stats: &ResequencerStats) -> u64 {
    stats.out_of_range + stats.stale + stats.duplicates + stats.overrun
}

fuzz_target!(|input: &[u8]| {
    let mut reader = Reader::new(input);
    let mut run = Run::new(&mut reader);
    for _ in 0..STEPS_MAX {
        if reader.is_empty() {
            break;
        }
        run.step(&mut reader);
        run.take();
        run.check();
    }
    run.end();
});
