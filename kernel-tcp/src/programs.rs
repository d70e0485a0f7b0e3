//! The BPF programs in the kernel.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use libbpf_rs::{Link, MapCore as _, MapFlags, Object, ObjectBuilder, ProgramMut};
use tandem_pep::midstates;
use tandem_wire::{PepId, PepKey};

use crate::counters::Counters;

/// The name of the congestion control, for `TCP_CONGESTION`.
pub const NAME: &str = "tandem_mdcc";

/// What `build.rs` has compiled.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tandem_mdcc.bpf.o"));

/// The settings of the programs.
pub struct Settings {
    /// The devices on which PEP-ACKs arrive.
    pub devices: Vec<String>,
    /// The PEP that is believed.
    pub pep: PepId,
    /// The key that it has.
    pub key: [u8; PepKey::LEN],
    /// The queue that data may have behind the PEP.
    pub queue_target: Duration,
}

/// The loaded programs. The kernel removes all of them when this is dropped, and also when the process
/// dies: connections that exist keep their congestion control, without PEP-ACKs, and no new one gets it.
pub struct Programs {
    object: Object,
    _links: Vec<Link>,
}

impl Programs {
    /// Loads the programs, and begins to use them.
    pub fn load(settings: &Settings) -> Result<Self> {
        let mut object = ObjectBuilder::default()
            .open_memory(OBJECT)?
            .load()
            .context("the kernel refuses the programs; it takes root and Linux 6.10 or newer")?;
        // Everything is set before the first packet can come.
        map(&object, "config")?.update(&0_u32.to_ne_bytes(), &encode(settings), MapFlags::ANY)?;
        let mut links = Vec::new();
        links.push(program(&object, "mdcc_sent_again")?.attach()?);
        for device in &settings.devices {
            let index = fs::read_to_string(format!("/sys/class/net/{device}/ifindex"))
                .with_context(|| format!("there is no device {device}"))?;
            // libbpf has one function for all links to a device. The section of the program, tcx/ingress,
            // says that it is none for XDP.
            let link = program(&object, "tandem_pep_in")?.attach_xdp(index.trim().parse()?);
            links.push(link.with_context(|| format!("cannot attach to {device}"))?);
        }
        let registered = object
            .maps_mut()
            .find(|map| map.name() == NAME)
            .ok_or_else(|| anyhow!("the object has no {NAME}"))?
            .attach_struct_ops()
            .with_context(|| format!("cannot register {NAME}; does another loader run?"))?;
        links.push(registered);
        Ok(Self { object, _links: links })
    }

    /// What was counted until now.
    pub fn counters(&self) -> Result<Counters> {
        let map = map(&self.object, "counters")?;
        let mut values = [0; Counters::LEN];
        for (value, index) in values.iter_mut().zip(0_u32..) {
            let bytes = map.lookup(&index.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
            *value = u64::from_ne_bytes(*bytes.first_chunk().context("a counter has 8 bytes")?);
        }
        Ok(Counters::new(values))
    }
}

/// The bytes of `struct config` in `bpf/connection.h`.
fn encode(settings: &Settings) -> Vec<u8> {
    let micros = u32::try_from(settings.queue_target.as_micros()).unwrap_or(u32::MAX);
    let midstates = midstates(&settings.key);
    let words = [settings.pep.0, micros].into_iter().chain(midstates.into_iter().flatten());
    words.flat_map(u32::to_ne_bytes).collect()
}

fn map<'a>(object: &'a Object, name: &str) -> Result<libbpf_rs::Map<'a>> {
    object.maps().find(|map| map.name() == name).ok_or_else(|| anyhow!("the object has no {name}"))
}

fn program<'a>(object: &'a Object, name: &str) -> Result<ProgramMut<'a>> {
    let mut programs = object.progs_mut();
    programs
        .find(|program| program.name() == name)
        .ok_or_else(|| anyhow!("the object has no {name}"))
}
