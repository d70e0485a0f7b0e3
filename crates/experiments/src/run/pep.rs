//! The PEP between the link to the origin and the access link.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde_with::{DeserializeFromStr, SerializeDisplay};
use tandem_lab::{
    LinkConfig, PathId, PepConfig, PepId, PepKey, PepPlace, PepServers as Servers, TcpForm,
};
use tandem_netem::{LinkStats, LossModel};
use tandem_node::{proxy::PepSettings, quic::Peps};

use super::{DomainRecord, Parameters, outcome::round, topology::Topology};

/// Which PEP there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SerializeDisplay, DeserializeFromStr)]
pub enum PepKind {
    /// It has the key that the origin knows.
    Authentic,
    /// It has no key. The origin knows that.
    Keyless,
    /// It has another key than the origin knows.
    Forged,
}

impl PepKind {
    const ALL: [Self; 3] = [Self::Authentic, Self::Keyless, Self::Forged];
}

impl fmt::Display for PepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Authentic => "authentic",
            Self::Keyless => "keyless",
            Self::Forged => "forged",
        })
    }
}

/// An error: a text does not name a kind of PEP.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{seen:?} is not a kind of PEP; allowed: authentic, keyless, forged")]
pub struct UnknownPep {
    /// The text.
    pub seen: String,
}

impl FromStr for PepKind {
    type Err = UnknownPep;

    fn from_str(text: &str) -> Result<Self, UnknownPep> {
        let found = Self::ALL.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| UnknownPep { seen: text.to_owned() })
    }
}

const ID: PepId = PepId(1);

/// The most flows of a PEP in a run.
const FLOWS_MAX: usize = 4096;

fn key(byte: u8) -> PepKey {
    PepKey::new([byte; PepKey::LEN])
}

/// The PEPs to which the origin listens.
pub(super) fn heard(run: &Parameters) -> Option<Peps> {
    let key = match run.pep? {
        PepKind::Keyless => None,
        PepKind::Authentic | PepKind::Forged => Some(key(1)),
    };
    Some(Peps(BTreeMap::from([(ID, key)])))
}

/// The PEP of the run. `None`: it has none.
fn config(run: &Parameters) -> Option<PepConfig> {
    let key = match run.pep? {
        PepKind::Authentic => Some(key(1)),
        PepKind::Keyless => None,
        PepKind::Forged => Some(key(2)),
    };
    Some(PepConfig { id: ID, key, flows_max: FLOWS_MAX, tcp_form: TcpForm::default() })
}

/// What makes the proxy with this number, counted from 1, the PEP of the run.
pub(super) fn of_proxy(run: &Parameters, number: u64) -> Option<PepSettings> {
    let pep = config(run).filter(|_| number == run.proxies)?;
    let everyone = Servers { prefix: "0.0.0.0/0".parse().expect("a prefix"), port: None };
    Some(PepSettings { pep, servers: vec![everyone] })
}

impl Topology<'_> {
    /// Adds the PEP of the run, if it has one on the path. What it sends takes as long to the first origin
    /// as other packets.
    pub(super) fn add_pep(&mut self, to_origin: &LinkConfig) {
        let Some(config) = config(self.run).filter(|_| !self.run.mode.has_tunnel()) else { return };
        let loss = LossModel::Bernoulli(self.run.pep_loss);
        let origin = self.watched.origin;
        let hidden =
            self.world.add_host("PEP", ["10.0.6.1"], tandem_lab::endpoints::SinkHost::new(9));
        let link = LinkConfig { delay: to_origin.delay, loss, ..LinkConfig::default() };
        let back: PathId = self.world.route(hidden, origin, vec![link]);
        let place = PepPlace { before: self.watched.downlink, back };
        self.pep = Some(self.world.add_pep(config, place));
    }

    /// What the origin has learnt from the PEP. `None`: the run has none.
    pub(super) fn domain_record(&mut self) -> Option<DomainRecord> {
        self.run.pep?;
        let origin = self.world.inspect(self.watched.origin);
        let heard = origin.stats().pep_acks;
        let refused = heard.forged + heard.foreign + heard.malformed;
        let learnt = origin.connections().next().and_then(|connection| connection.domains);
        let wired =
            self.peers.first().map(|peer| self.dropped(&peer.to_access)).unwrap_or_default();
        let access = self.dropped(&[self.watched.downlink]);
        let really = DomainRecord {
            pep_acks: heard.used,
            refused,
            wired_lost_really: wired,
            access_lost_really: access,
            ..DomainRecord::default()
        };
        let Some(learnt) = learnt else { return Some(really) };
        let times = learnt.bottleneck.unwrap_or_default();
        let all = (times.wired + times.access + times.sender).as_secs_f64().max(f64::MIN_POSITIVE);
        Some(DomainRecord {
            wired_lost: learnt.losses.wired,
            access_lost: learnt.losses.access,
            unknown_lost: learnt.losses.unknown,
            wired_srtt_ms: round(learnt.wired.smoothed.as_secs_f64() * 1e3, 1e3),
            access_srtt_ms: round(learnt.access.smoothed.as_secs_f64() * 1e3, 1e3),
            wired_bottleneck_ratio: round(times.wired.as_secs_f64() / all, 1e6),
            access_bottleneck_ratio: round(times.access.as_secs_f64() / all, 1e6),
            ..really
        })
    }

    /// The packets that were lost on these paths.
    fn dropped(&self, paths: &[PathId]) -> u64 {
        let links = paths.iter().flat_map(|path| self.world.path_stats(*path));
        let causes = |link: LinkStats| [link.dropped_queue, link.dropped_codel, link.dropped_loss];
        links.flat_map(causes).map(|dropped| dropped.packets).sum()
    }

    /// Ends the PEP when its time has come.
    pub(super) fn end_pep_if_due(&mut self) {
        let is_due = self.run.pep_until.is_some_and(|until| self.world.elapsed() >= until.0);
        if is_due && let Some(pep) = self.pep.take() {
            self.world.end_pep(pep);
        }
    }
}
