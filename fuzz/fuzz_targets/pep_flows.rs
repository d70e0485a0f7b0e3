//! A PEP as a state machine: packets of many flows, gaps and times in, PEP-ACKs out.
//!
//! Each PEP-ACK is authentic, within its limits, and tells only of packets that have passed, each once and in
//! their order. The numbers of a flow never fall. No more flows are known than allowed, every packet is told of,
//! counted as untold or waits, and nothing waits for longer than it may. The same input gives the same output.

#![no_main]

use std::{
    collections::{BTreeMap, VecDeque},
    sync::OnceLock,
    time::{Duration, Instant},
};

use libfuzzer_sys::fuzz_target;
use tandem_fuzz::input::Reader;
use tandem_pep::{Config, Notice, Observed, Pep, TcpForm};
use tandem_wire::{
    Ends, PepAck, PepId, PepKey, Slice,
    pep_ack::tcp::{SeenBytes, TcpPepAck},
};

/// The largest number of steps of one run.
const STEPS_MAX: usize = 1000;

/// The longest wait of a packet.
const WAIT_MAX: Duration = Duration::from_millis(2);

struct Run {
    pep: Pep<u8>,
    key: PepKey,
    now: Instant,
    flows_max: usize,
    /// The QUIC packets of each flow that wait, in their order.
    waiting: BTreeMap<u8, VecDeque<Slice>>,
    /// The number of the last PEP-ACK of each flow, since it last may have been forgotten.
    next: u64,
    observed: u64,
    told: u64,
    notices: Vec<Notice<u8>>,
}

#[expect(clippy::disallowed_methods, reason = "only differences to it matter")]
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

fuzz_target!(|input: &[u8]| {
    let first = run(input);
    assert_eq!(run(input), first, "the same input has another output");
});

fn run(input: &[u8]) -> Vec<Notice<u8>> {
    let mut reader = Reader::new(input);
    let how = reader.byte();
    let flows_max = usize::from(how % 8) + 1;
    let key = PepKey::new([7; PepKey::LEN]);
    let tcp_form = if how & 0x80 == 0 { TcpForm::Flagless } else { TcpForm::OldAck };
    let config = Config { id: PepId(9), key: Some(key.clone()), flows_max, tcp_form };
    let mut run = Run {
        pep: Pep::new(config, start()),
        key,
        now: start(),
        flows_max,
        waiting: BTreeMap::new(),
        next: 0,
        observed: 0,
        told: 0,
        notices: Vec::new(),
    };
    for _ in 0..STEPS_MAX {
        if reader.is_empty() {
            break;
        }
        run.step(&mut reader);
    }
    run.wait(Duration::from_secs(1));
    assert_eq!(run.pep.next_timeout(), None, "nothing is left to wait for");
    run.notices
}

/// The ends of a TCP flow.
fn ends(flow: u8) -> Ends {
    let end = |text: &str| text.parse().expect("it is an address");
    let mut ends = Ends { client: end("192.0.2.1:50000"), server: end("[2001:db8::1]:443") };
    ends.client.set_port(50_000 + u16::from(flow));
    ends
}

impl Run {
    fn step(&mut self, reader: &mut Reader) {
        let (what, flow) = (reader.byte(), reader.byte() % 16);
        match what % 8 {
            0 => self.wait(Duration::from_micros(reader.number().into())),
            1 => self.wait(Duration::from_millis(200 * u64::from(reader.byte()))),
            2 => self.pep.miss(),
            3 => {
                let (start, len) = (u32::from(reader.number()) << 16, reader.number());
                let bytes = SeenBytes { start, end: start.wrapping_add(len.into()) };
                let acknowledges = u32::from(reader.number()) << 8;
                let is_last = what & 0x80 != 0;
                let ends = ends(flow);
                self.observe(Observed::Tcp { ends, bytes, acknowledges, is_last });
            }
            4 => {
                let (acknowledges, next) = (reader.number().into(), reader.number().into());
                self.observe(Observed::Client { ends: ends(flow), acknowledges, next });
            }
            _ => {
                for _ in 0..=what / 8 {
                    let mut slice = [0; Slice::LEN];
                    slice[..8].copy_from_slice(&self.next.to_be_bytes());
                    self.next += 1;
                    let slice = Slice(slice);
                    self.waiting.entry(flow).or_default().push_back(slice);
                    self.observe(Observed::Quic { ends: flow, slice });
                }
            }
        }
    }

    fn observe(&mut self, packet: Observed<u8>) {
        self.observed += u64::from(!matches!(packet, Observed::Client { .. }));
        self.pep.observe(self.now, packet);
        if self.pep.is_full() {
            self.drain();
        }
        self.check();
    }

    /// Advances the time from timer to timer.
    fn wait(&mut self, duration: Duration) {
        let end = self.now + duration;
        self.drain();
        while let Some(due) = self.pep.next_timeout().filter(|due| *due <= end) {
            assert!(due <= self.now + WAIT_MAX, "a packet waits for {:?}", due - self.now);
            assert!(due > self.now, "what is due was not said");
            self.now = due;
            self.drain();
        }
        self.now = end;
    }

    fn drain(&mut self) {
        while let Some(notice) = self.pep.poll(self.now) {
            match &notice {
                Notice::Udp { ends, payload } => {
                    assert!(self.key.authenticates(payload));
                    let ack = PepAck::decode(payload).expect("a PEP-ACK is sound");
                    assert_eq!(ack.pep, PepId(9));
                    let waiting = self.waiting.get_mut(ends).expect("the flow was observed");
                    for seen in &ack.seen {
                        // Those before it are told of by nobody any more.
                        let at = waiting.iter().position(|slice| *slice == seen.slice);
                        waiting.drain(..=at.expect("it has passed, and was not told of"));
                        self.told += 1;
                    }
                }
                Notice::Tcp { ends, options, .. } => {
                    assert!(ends.authenticates(&self.key, options), "{options:?}");
                    assert!(options.len().is_multiple_of(4) && options.len() <= 40);
                    TcpPepAck::decode(options).expect("a PEP-ACK is sound");
                }
            }
            self.notices.push(notice);
            self.check();
        }
    }

    fn check(&self) {
        let stats = self.pep.stats();
        assert!(self.pep.flows() <= self.flows_max, "{} flows", self.pep.flows());
        assert_eq!((stats.observed, stats.notices), (self.observed, self.notices.len() as u64));
        assert!(stats.untold + self.told <= self.observed, "{stats:?}");
    }
}
