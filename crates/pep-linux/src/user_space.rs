//! PEP-ACKs from user space: records of a BPF program, raw sockets, and the loop between them.

use std::{
    io,
    net::SocketAddr,
    num::NonZeroU64,
    thread,
    time::{Duration, Instant},
};

use aya::{
    Ebpf,
    maps::{Array, MapData, PerCpuArray, RingBuf},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    thread::set_current_timer_slack,
    time::{ClockId, clock_gettime},
};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tandem_pep::{Config, Notice, Pep};

use crate::{
    packet, record,
    router::{RouterError, Stats, take, total},
};

/// How many records are read at most before PEP-ACKs leave.
const RECORDS_MAX: usize = 4096;

/// The most records that wait: those of 4 MiB.
const RING_MAX: usize = (1 << 22) / record::LEN;

/// How long it sleeps while packets come: as long as a packet waits for others of its flow.
const NAP: Duration = Duration::from_millis(1);

/// How long it sleeps if PEP-ACKs have no room for another packet before they are due, so that those leave in time.
const SHORT_NAP: Duration = Duration::from_micros(50);

/// After this silence, the next packet wakes it; and after this time without a full PEP-ACK, naps are long again.
const LINGER: Duration = Duration::from_millis(10);

/// The kernel may wake it later than asked by this many nanoseconds; 50,000 without this.
const TIMER_SLACK: NonZeroU64 = NonZeroU64::MIN;

pub(crate) struct UserSpace {
    pep: Pep,
    records: RingBuf<MapData>,
    /// Whether the thread sleeps exactly.
    is_exact: bool,
    /// Whether the last step left records unread, so that others may have found no room.
    was_behind: bool,
    /// How many records had found no room when that was last looked at.
    lost_before: u64,
    /// Records that were thrown away, because others had been lost among them.
    discarded: u64,
    /// When the last record was read.
    last: Instant,
    /// When a PEP-ACK last had no room for another packet.
    filled: Option<Instant>,
    /// Tells the BPF program whether to wake this one.
    sleeps: Array<MapData, u32>,
    lost: PerCpuArray<MapData, u64>,
    ipv4: Socket,
    ipv6: Socket,
    unsent: u64,
}

impl UserSpace {
    /// What `bpf/build.sh` builds from `bpf/mirror.bpf.c`.
    pub(crate) const OBJECT: &[u8] = include_bytes!("../bpf/mirror.bpf.o");

    pub(crate) fn new(program: &mut Ebpf, config: Config) -> Result<Self, RouterError> {
        let (ipv4, ipv6) = raw_sockets().map_err(RouterError::Socket)?;
        let (records, sleeps) = (take(program, "records")?, take(program, "sleeps")?);
        let (lost, start) = (take(program, "lost")?, now());
        let pep = Pep::new(config, start);
        Ok(Self {
            pep,
            records,
            is_exact: false,
            was_behind: false,
            lost_before: 0,
            discarded: 0,
            last: start,
            filled: None,
            sleeps,
            lost,
            ipv4,
            ipv6,
            unsent: 0,
        })
    }

    /// The number of flows that are known.
    pub(crate) fn flows(&self) -> usize {
        self.pep.flows()
    }

    /// Waits for packets, for at most `longest`, and sends the PEP-ACKs that are due.
    pub(crate) fn step(&mut self, longest: Duration) -> Result<(), RouterError> {
        if !self.was_behind {
            self.wait(longest)?;
        }
        self.read();
        self.send_due();
        Ok(())
    }

    /// While packets come, it sleeps until a PEP-ACK is due, or for a while. Otherwise the next packet wakes it.
    fn wait(&mut self, longest: Duration) -> Result<(), RouterError> {
        if !std::mem::replace(&mut self.is_exact, true) {
            // Without it PEP-ACKs leave later, but they leave.
            set_current_timer_slack(Some(TIMER_SLACK)).ok();
        }
        let now = now();
        let due = self.pep.next_timeout().map(|at| at.saturating_duration_since(now));
        if due.is_some() || now.saturating_duration_since(self.last) < LINGER {
            let is_fast = self.filled.is_some_and(|at| now.saturating_duration_since(at) < LINGER);
            let nap = if is_fast { SHORT_NAP } else { NAP };
            thread::sleep(due.unwrap_or(nap).min(nap).min(longest));
            return Ok(());
        }
        if self.sleeps.set(0, 1, 0).is_err() {
            // Before Linux 5.19, a program without privileges may be refused: then nothing wakes it.
            thread::sleep(NAP.min(longest));
            return Ok(());
        }
        // A record that came before is seen here.
        let longest = Timespec::try_from(longest).ok();
        match poll(&mut [PollFd::new(&self.records, PollFlags::IN)], longest.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(RouterError::Records(error.into())),
        }
    }

    /// Reads some records.
    fn read(&mut self) {
        let (now, kernel) = (now(), kernel_now());
        let mut is_empty = false;
        for _ in 0..RECORDS_MAX {
            let Some(item) = self.records.next() else {
                is_empty = true;
                break;
            };
            self.last = now;
            if let Some((at, packet)) = record::decode(&item) {
                let age = kernel.saturating_sub(at);
                self.pep.observe(now.checked_sub(age).unwrap_or(now), packet);
            }
            drop(item);
            if self.pep.is_full() {
                self.filled = Some(now);
                self.send_due();
            }
        }
        let may_have_lost = self.was_behind || !is_empty;
        self.was_behind = !is_empty;
        if may_have_lost && total(&self.lost, 0) != self.lost_before {
            self.lost_before = total(&self.lost, 0);
            self.discard();
        }
    }

    /// Throws away all records that wait. Others were lost between them at unknown places, and one PEP-ACK
    /// must not cover packets on both sides of one that was lost.
    fn discard(&mut self) {
        for _ in 0..RING_MAX {
            if self.records.next().is_none() {
                break;
            }
            self.discarded += 1;
        }
        self.was_behind = true;
        self.pep.miss();
    }

    fn send_due(&mut self) {
        while let Some(notice) = self.pep.poll(now()) {
            if self.send(&notice).is_none() {
                self.unsent += 1;
            }
        }
    }

    fn send(&self, notice: &Notice) -> Option<()> {
        let (Notice::Udp { ends, .. } | Notice::Tcp { ends, .. }) = notice;
        let packet = packet::encode(notice)?;
        let socket = if ends.server.is_ipv4() { &self.ipv4 } else { &self.ipv6 };
        // Ports mean nothing to raw sockets, and IPv6 refuses others than 0.
        let to = SockAddr::from(SocketAddr::new(ends.server.ip(), 0));
        socket.send_to(&packet, &to).ok().map(drop)
    }

    /// What was counted.
    pub(crate) fn stats(&self) -> Stats {
        let lost = total(&self.lost, 0) + self.discarded;
        Stats { pep: *self.pep.stats(), lost, unsent: self.unsent }
    }
}

fn raw_sockets() -> io::Result<(Socket, Socket)> {
    let raw = Some(Protocol::from(255)); // IPPROTO_RAW: the header is ours
    let ipv4 = Socket::new(Domain::IPV4, Type::RAW, raw)?;
    ipv4.set_header_included_v4(true)?;
    let ipv6 = Socket::new(Domain::IPV6, Type::RAW, raw)?;
    ipv6.set_header_included_v6(true)?;
    ipv4.set_nonblocking(true)?;
    ipv6.set_nonblocking(true)?;
    Ok((ipv4, ipv6))
}

#[expect(
    clippy::disallowed_methods,
    reason = "this crate is the edge between the PEP and a real clock"
)]
fn now() -> Instant {
    Instant::now()
}

/// The clock of `bpf_ktime_get_ns`.
fn kernel_now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}
