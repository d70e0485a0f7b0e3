//! The PEP that is attached to a device.

use std::{io, net::IpAddr, time::Duration};

use aya::{
    Ebpf, EbpfLoader,
    maps::{
        Map, PerCpuArray,
        lpm_trie::{Key, LpmTrie},
    },
    programs::{SchedClassifier, TcAttachType, tc},
    util::KernelVersion,
};
use tandem_pep::{Config, Servers, TcpForm};

use crate::{kernel::Kernel, user_space::UserSpace};

/// The key of the map of servers: port and address, behind the length of the prefix.
const PORT_BITS: u32 = 16;

/// The program for the ingress of a device, and that for its egress: of user space, and of the kernel.
const MIRROR: &str = "tandem_mirror";
const ACKS: &str = "tandem_acks";
const TELL: &str = "tandem_tell";
const LEAVE: &str = "tandem_leave";

/// Who makes the PEP-ACKs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Maker {
    /// This program, of what a BPF program mirrors.
    #[default]
    UserSpace,
    /// A BPF program, so that none of them waits for the scheduler.
    Kernel {
        /// A PEP-ACK leaves with every packet of a flow with this number, 1 to [`Maker::PACKETS_MAX`], or if there was
        /// none for a millisecond. Until then, the last packets of a burst wait for the next one.
        packets: u8,
    },
}

impl Maker {
    /// The most packets that a PEP-ACK of the kernel covers.
    pub const PACKETS_MAX: u8 = 8;
}

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
    /// PEP-ACKs for TCP were asked for that only user space makes.
    #[error("PEP-ACKs that the kernel makes for TCP have no flags, also not ACK")]
    Form,
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
    inner: Inner,
    /// Detaches the programs when it is dropped.
    _program: Ebpf,
}

enum Inner {
    UserSpace(Box<UserSpace>),
    Kernel(Kernel),
}

impl Router {
    /// Attaches to the devices behind which the servers are. Needs `CAP_BPF`, `CAP_NET_ADMIN`, and `CAP_NET_RAW` with
    /// [`Maker::UserSpace`] or `CAP_PERFMON` with [`Maker::Kernel`].
    pub fn attach(
        devices: &[String],
        servers: &[Servers],
        config: Config,
        maker: Maker,
    ) -> Result<Self, RouterError> {
        let mut program = loaded(maker, config.flows_max)?;
        list(&mut program, servers)?;
        let (ingress, egress, inner) = match (maker, config.tcp_form) {
            (Maker::UserSpace, form) => {
                let egress = (form == TcpForm::OldAck).then_some(ACKS);
                let inner = UserSpace::new(&mut program, config)?;
                (MIRROR, egress, Inner::UserSpace(Box::new(inner)))
            }
            (Maker::Kernel { .. }, TcpForm::OldAck) => return Err(RouterError::Form),
            (Maker::Kernel { packets }, TcpForm::Flagless) => {
                let inner = Kernel::new(&mut program, &config, packets)?;
                (TELL, Some(LEAVE), Inner::Kernel(inner))
            }
        };
        for device in devices {
            // Attach the consumer of the clones before the program that clones.
            if let Some(egress) = egress {
                attach(&mut program, egress, (device, TcAttachType::Egress))?;
            }
            attach(&mut program, ingress, (device, TcAttachType::Ingress))?;
        }
        Ok(Self { inner, _program: program })
    }

    /// Whether the kernel takes the BPF programs; nothing is attached.
    pub fn check(maker: Maker) -> Result<(), RouterError> {
        loaded(maker, 1).map(drop)
    }

    /// Whether the programs stay attached unless the process detaches them, which needs `CAP_NET_ADMIN`:
    /// kernels before 6.6 do not detach them with the end of the process.
    pub fn has_to_detach() -> bool {
        KernelVersion::current().is_ok_and(|version| version < KernelVersion::new(6, 6, 0))
    }

    /// The number of flows that are known. `None`: only the kernel knows it.
    pub fn flows(&self) -> Option<usize> {
        match &self.inner {
            Inner::UserSpace(inner) => Some(inner.flows()),
            Inner::Kernel(_) => None,
        }
    }

    /// Waits for at most `longest`. User space waits for packets, and sends the PEP-ACKs that are due.
    pub fn step(&mut self, longest: Duration) -> Result<(), RouterError> {
        match &mut self.inner {
            Inner::UserSpace(inner) => inner.step(longest)?,
            Inner::Kernel(_) => std::thread::sleep(longest),
        }
        Ok(())
    }

    /// What was counted.
    pub fn stats(&self) -> Stats {
        match &self.inner {
            Inner::UserSpace(inner) => inner.stats(),
            Inner::Kernel(inner) => inner.stats(),
        }
    }
}

fn list(program: &mut Ebpf, servers: &[Servers]) -> Result<(), RouterError> {
    let map = program.map_mut("servers").ok_or_else(|| missing("servers"))?;
    let mut listed: LpmTrie<_, [u8; 18], u64> =
        LpmTrie::try_from(map).map_err(|error| refused(&error))?;
    for server in servers {
        listed.insert(&key(server), 1, 0).map_err(|error| refused(&error))?;
    }
    Ok(())
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

/// The programs, which the kernel has verified.
fn loaded(maker: Maker, flows_max: usize) -> Result<Ebpf, RouterError> {
    let mut loader = EbpfLoader::new();
    let (object, names) = match maker {
        Maker::UserSpace => (UserSpace::OBJECT, [MIRROR, ACKS]),
        Maker::Kernel { .. } => {
            let flows = u32::try_from(flows_max.max(1)).unwrap_or(u32::MAX);
            loader.map_max_entries("flows", flows);
            (Kernel::OBJECT, [TELL, LEAVE])
        }
    };
    let mut program = loader.load(object).map_err(|error| refused(&error))?;
    for name in names {
        classifier(&mut program, name)?.load().map_err(|error| refused(&error))?;
    }
    Ok(program)
}

fn classifier<'a>(
    program: &'a mut Ebpf,
    name: &str,
) -> Result<&'a mut SchedClassifier, RouterError> {
    let found = program.program_mut(name).and_then(|program| program.try_into().ok());
    found.ok_or_else(|| missing(name))
}

/// Attaches one of the programs to a device.
fn attach(
    program: &mut Ebpf,
    name: &str,
    (device, direction): (&str, TcAttachType),
) -> Result<(), RouterError> {
    let program = classifier(program, name)?;
    if Router::has_to_detach() {
        // An error says that the queueing discipline is there already, or no program of an earlier run,
        // which may have had another maker.
        drop(tc::qdisc_add_clsact(device));
        for name in [MIRROR, ACKS, TELL, LEAVE] {
            drop(tc::qdisc_detach_program(device, direction, name));
        }
    }
    program.attach(device, direction).map_err(|error| RouterError::Attach {
        device: device.to_owned(),
        cause: with_causes(&error),
    })?;
    Ok(())
}

/// A map of a BPF program, which from now on belongs to the caller.
pub(crate) fn take<T: TryFrom<Map>>(program: &mut Ebpf, name: &str) -> Result<T, RouterError>
where
    T::Error: std::error::Error,
{
    let map = program.take_map(name).ok_or_else(|| missing(name))?;
    T::try_from(map).map_err(|error| refused(&error))
}

/// A counter of a BPF program, over all CPUs.
pub(crate) fn total(counters: &PerCpuArray<aya::maps::MapData, u64>, at: u32) -> u64 {
    counters.get(&at, 0).map_or(0, |counts| counts.iter().sum())
}

pub(crate) fn refused(error: &dyn std::error::Error) -> RouterError {
    RouterError::Load(with_causes(error))
}

pub(crate) fn missing(name: &str) -> RouterError {
    RouterError::Load(format!("it has no {name}"))
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
