//! The BPF program, the raw sockets, and the loop between them.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use aya::{
    Ebpf,
    maps::{
        MapData, PerCpuArray, RingBuf,
        lpm_trie::{Key, LpmTrie},
    },
    programs::{SchedClassifier, TcAttachType, tc},
    util::KernelVersion,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    time::{ClockId, clock_gettime},
};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tandem_pep::{Config, Notice, Pep, Servers, TcpForm};

use crate::{packet, record};

/// The object that `bpf/build.sh` builds from `bpf/mirror.bpf.c`.
const OBJECT: &[u8] = include_bytes!("../bpf/mirror.bpf.o");

/// The program for the ingress of a device, and that for its egress.
const MIRROR: &str = "tandem_mirror";
const ACKS: &str = "tandem_acks";

/// How many records are read before PEP-ACKs leave.
const RECORDS_MAX: usize = 64;

/// The most records that wait: those of 4 MiB.
const RING_MAX: usize = (1 << 22) / record::LEN;

/// The key of the map of servers: port and address, behind the length of the prefix.
const PORT_BITS: u32 = 16;

/// Why the PEP does not start, or ends.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// The kernel refused the BPF program.
    #[error("the kernel does not load the BPF program: {0}")]
    Load(String),
    /// The program does not attach to the device.
    #[error("the BPF program does not attach to {device}: {cause}")]
    Attach {
        /// The name of the device.
        device: String,
        /// What the kernel said.
        cause: String,
    },
    /// A raw socket does not open.
    #[error("no raw socket: {0}")]
    Socket(#[source] io::Error),
    /// The kernel does not wait for records.
    #[error("no records from the kernel: {0}")]
    Records(#[source] io::Error),
}

/// What a router has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// What the PEP has counted.
    pub pep: tandem_pep::Stats,
    /// Records that found no room on their way to user space, and those that waited then.
    pub lost: u64,
    /// PEP-ACKs that the kernel did not send.
    pub unsent: u64,
}

/// A PEP that is attached to a device until it is dropped.
pub struct Router {
    pep: Pep,
    records: RingBuf<MapData>,
    lost: PerCpuArray<MapData, u64>,
    ipv4: Socket,
    ipv6: Socket,
    unsent: u64,
    /// Whether the last step left records unread, so that others may have found no room.
    was_behind: bool,
    /// How many records had found no room when that was last looked at.
    lost_before: u64,
    /// Records that were thrown away, because others had been lost among them.
    discarded: u64,
    /// Detaches the program when it is dropped.
    _program: Ebpf,
}

impl Router {
    /// Attaches to the ingress of the devices behind which the servers are. Needs `CAP_BPF`, `CAP_NET_ADMIN` and `CAP_NET_RAW`.
    pub fn attach(
        devices: &[String],
        servers: &[Servers],
        config: Config,
    ) -> Result<Self, RouterError> {
        let load = |error: &dyn std::error::Error| RouterError::Load(with_causes(error));
        let missing = |name: &str| RouterError::Load(format!("it has no {name}"));
        let mut program = loaded()?;
        let map = program.map_mut("servers").ok_or_else(|| missing("servers"))?;
        let mut listed: LpmTrie<_, [u8; 18], u64> =
            LpmTrie::try_from(map).map_err(|error| load(&error))?;
        for server in servers {
            listed.insert(&key(server), 1, 0).map_err(|error| load(&error))?;
        }
        let records = program.take_map("records").ok_or_else(|| missing("records"))?;
        let records = RingBuf::try_from(records).map_err(|error| load(&error))?;
        let lost = program.take_map("lost").ok_or_else(|| missing("lost"))?;
        let lost = PerCpuArray::try_from(lost).map_err(|error| load(&error))?;
        let (ipv4, ipv6) = raw_sockets().map_err(RouterError::Socket)?;
        for device in devices {
            attach(&mut program, MIRROR, (device, TcAttachType::Ingress))?;
            if config.tcp_form == TcpForm::OldAck {
                attach(&mut program, ACKS, (device, TcAttachType::Egress))?;
            }
        }
        let pep = Pep::new(config, now());
        Ok(Self {
            pep,
            records,
            lost,
            ipv4,
            ipv6,
            unsent: 0,
            was_behind: false,
            lost_before: 0,
            discarded: 0,
            _program: program,
        })
    }

    /// Whether the kernel takes the BPF programs; nothing is attached.
    pub fn check() -> Result<(), RouterError> {
        loaded().map(drop)
    }

    /// Whether the programs stay attached unless the process detaches them, which needs `CAP_NET_ADMIN`:
    /// kernels before 6.6 do not detach them with the end of the process.
    pub fn has_to_detach() -> bool {
        KernelVersion::current().is_ok_and(|version| version < KernelVersion::new(6, 6, 0))
    }

    /// The number of flows that are known.
    pub fn flows(&self) -> usize {
        self.pep.flows()
    }

    /// Waits for packets, for at most `longest`, and sends the PEP-ACKs that are due.
    pub fn step(&mut self, longest: Duration) -> Result<(), RouterError> {
        let wait = self
            .pep
            .next_timeout()
            .map_or(longest, |at| at.saturating_duration_since(now()).min(longest));
        let wait = Timespec::try_from(wait).ok();
        match poll(&mut [PollFd::new(&self.records, PollFlags::IN)], wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(RouterError::Records(error.into())),
        }
        let now = now();
        self.read(now);
        while let Some(notice) = self.pep.poll(now) {
            if self.send(&notice).is_none() {
                self.unsent += 1;
            }
        }
        Ok(())
    }

    /// Reads some records.
    fn read(&mut self, now: Instant) {
        let kernel = kernel_now();
        let mut is_empty = false;
        for _ in 0..RECORDS_MAX {
            let Some(item) = self.records.next() else {
                is_empty = true;
                break;
            };
            if let Some((at, packet)) = record::decode(&item) {
                let age = kernel.saturating_sub(at);
                self.pep.observe(now.checked_sub(age).unwrap_or(now), packet);
            }
        }
        let may_have_lost = self.was_behind || !is_empty;
        self.was_behind = !is_empty;
        if may_have_lost && self.lost() != self.lost_before {
            self.lost_before = self.lost();
            self.discard();
        }
    }

    /// Throws away all records that wait. Others were lost between them, nobody knows where, and a PEP-ACK
    /// must not tell of packets on both sides of one that was lost.
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

    fn send(&self, notice: &Notice) -> Option<()> {
        let (Notice::Udp { ends, .. } | Notice::Tcp { ends, .. }) = notice;
        let packet = packet::encode(notice)?;
        let socket = if ends.server.is_ipv4() { &self.ipv4 } else { &self.ipv6 };
        // Ports mean nothing to raw sockets, and IPv6 refuses others than 0.
        let to = SockAddr::from(SocketAddr::new(ends.server.ip(), 0));
        socket.send_to(&packet, &to).ok().map(drop)
    }

    /// What was counted.
    pub fn stats(&self) -> Stats {
        Stats { pep: *self.pep.stats(), lost: self.lost() + self.discarded, unsent: self.unsent }
    }

    fn lost(&self) -> u64 {
        self.lost.get(&0, 0).map_or(0, |counts| counts.iter().sum())
    }
}

/// The programs, which the kernel has verified.
fn loaded() -> Result<Ebpf, RouterError> {
    let load = |error: &dyn std::error::Error| RouterError::Load(with_causes(error));
    let mut program = Ebpf::load(OBJECT).map_err(|error| load(&error))?;
    for name in [MIRROR, ACKS] {
        classifier(&mut program, name)?.load().map_err(|error| load(&error))?;
    }
    Ok(program)
}

fn classifier<'a>(
    program: &'a mut Ebpf,
    name: &str,
) -> Result<&'a mut SchedClassifier, RouterError> {
    let missing = || RouterError::Load(format!("it has no {name}"));
    program.program_mut(name).and_then(|program| program.try_into().ok()).ok_or_else(missing)
}

/// Attaches one of the programs to a device.
fn attach(
    program: &mut Ebpf,
    name: &str,
    (device, direction): (&str, TcAttachType),
) -> Result<(), RouterError> {
    let program = classifier(program, name)?;
    if Router::has_to_detach() {
        // An error says that the queueing discipline is there already, or no program of an earlier run.
        drop(tc::qdisc_add_clsact(device));
        drop(tc::qdisc_detach_program(device, direction, name));
    }
    program.attach(device, direction).map_err(|error| RouterError::Attach {
        device: device.to_owned(),
        cause: with_causes(&error),
    })?;
    Ok(())
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

fn key(server: &Servers) -> Key<[u8; 18]> {
    let (address, bits) = match server.prefix.network() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), 96 + u32::from(server.prefix.prefix_len())),
        IpAddr::V6(ip) => (ip, u32::from(server.prefix.prefix_len())),
    };
    let mut data = [0; 18];
    let (port, rest) = data.split_at_mut(2);
    port.copy_from_slice(&server.port.unwrap_or(0).to_be_bytes());
    rest.copy_from_slice(&address.octets());
    Key::new(PORT_BITS + bits, data)
}

/// An error and its causes, without what the verifier says of each instruction.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut texts: Vec<String> = Vec::new();
    for text in causes.map(ToString::to_string) {
        let text = text.split(". Verifier output").next().unwrap_or_default().to_owned();
        // An error may have repeated its cause.
        if !texts.iter().any(|known| known.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
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
