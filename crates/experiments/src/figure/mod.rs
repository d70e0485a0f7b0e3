//! Figures of papers, reproduced: a plan of runs, a drawing of their results, and the paper's
//! numbers.

mod chart;
mod data;
mod flows;
mod golden;
mod measure;
mod over_time;
mod panel;
mod paper;
mod traces;

use std::path::Path;

use serde::Serialize;

use crate::{
    plan::{Plan, Variant},
    run::RunRecord,
};

pub use data::{Point, Series};
pub use golden::golden;
pub use measure::Measure;
pub use panel::{Chart, Panel, Scale, Show};
pub use paper::{PaperNumber, PaperStatement};
use traces::Traces;

/// A figure that can be reproduced.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The name of the paper and of the experiment, such as `tecc/t2a`.
    pub id: &'static str,
    /// Its subject, in one line.
    pub about: &'static str,
    /// The text of its plan.
    plan: &'static str,
    /// The text of the paper's numbers.
    paper: &'static str,
}

macro_rules! figure {
    ($id:literal, $about:literal) => {
        Figure {
            id: $id,
            about: $about,
            plan: include_str!(concat!("../../figures/", $id, ".toml")),
            paper: include_str!(concat!("../../figures/", $id, ".paper.csv")),
        }
    };
}

/// Every figure: the figures of papers in the order of their numbers, then our own.
pub const FIGURES: [Figure; 40] = [
    figure!("tecc/t2a", "completion time by tunnel mode and flow size at 10 % loss (Fig. 2a)"),
    figure!("tecc/t2b", "delay of the end-to-end packets by tunnel mode at 10 % loss (Fig. 2b)"),
    figure!(
        "tecc/t3",
        "a tunnel with retransmission, with and without congestion control (Fig. 3)"
    ),
    figure!("tecc/t4", "rates, RTTs and queues of two nested controllers over time (Fig. 4)"),
    figure!("tecc/t10", "completion time by flow size at 10 Mbit/s (Fig. 10)"),
    figure!("tecc/t11", "completion time of 30 MB by RTT between client and proxy (Fig. 11)"),
    figure!("tecc/t12", "completion time of 30 MB by loss rate at 10 Mbit/s (Fig. 12)"),
    figure!("tecc/t13", "completion time of 30 MB on five mobile traces (Fig. 13)"),
    figure!("tecc/t14", "cost of a tunnel without loss: set-up and extra bytes (Fig. 14)"),
    figure!("tecc/t15", "arriving and departing flows (Fig. 15)"),
    figure!("tecc/tt2", "fairness among eight flows by RTT (Table 2)"),
    figure!("tecc/tt3", "completion time of requests in a mix of networks (Table 3)"),
    figure!("tecc/tdup", "unnecessary retransmissions by the origin (§4.2.5)"),
    figure!("tcp-over-quic/q1", "TCP through a tunnel by bandwidth (Table 1)"),
    figure!("tcp-over-quic/q2", "TCP through a tunnel by loss (Table 2)"),
    figure!("tcp-over-quic/q3", "TCP through a tunnel by delay (Table 3)"),
    figure!("tcp-over-quic/q4", "TCP through a tunnel by reordering (Table 4)"),
    figure!("nested-acks/n4", "acknowledgements in chains of up to four proxies (Fig. 4)"),
    figure!("nested-acks/n5", "chains with delayed acknowledgements, or none (Figs. 5 and 6)"),
    figure!("nested-acks/delays", "how long tunnels wait before they acknowledge (our own)"),
    figure!("nested-acks/bad-first-hop", "chains behind a bad first hop, by mode (our own)"),
    figure!("pep/p4", "a blockage of the line of sight, by buffer (Fig. 4, Table III)"),
    figure!("pep/p5", "the same by the RTT before the PEP, with CoDel (Fig. 5)"),
    figure!("pep/losses", "random loss before a PEP and behind it (our own)"),
    figure!("pep/shared", "a wired bottleneck shared with CUBIC (our own)"),
    figure!("pep/unreliable", "lost and forged PEP-ACKs (our own)"),
    figure!("tecc/traces", "completion time of 10 MB on twelve recordings (our own)"),
    figure!("tecc/outages", "completion time with outages for a quarter of the time (our own)"),
    figure!("tecc/rates", "access links of 10 to 100 Mbit/s (our own)"),
    figure!("tecc/bursts", "loss in bursts (our own)"),
    figure!("tecc/loss-before", "loss before the bottleneck (our own)"),
    figure!("tecc/queues", "queues from 30 kB to 2 MB (our own)"),
    figure!("tecc/client-rtt", "10 to 100 ms between client and proxy (our own)"),
    figure!("tecc/origin-rtt", "10 to 200 ms between proxy and origin (our own)"),
    figure!("tecc/uplink-traces", "acknowledgements over an uplink of varying rate (our own)"),
    figure!("tecc/uplink-rates", "uplinks of down to a twentieth of the downlink (our own)"),
    figure!("tecc/ten-flows", "several flows in one tunnel (our own)"),
    figure!("tecc/behind-proxy", "a bottleneck behind the proxy (our own)"),
    figure!("tecc/sharing", "sharing the access link with CUBIC and BBRv1 (our own)"),
    figure!("tandem/servers", "servers that are unaware of tunnels, over a bad link (our own)"),
];

/// The inputs of a figure, which are the content of its `meta.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Meta {
    /// The ID of the figure.
    pub id: &'static str,
    /// Version of this program.
    pub version: &'static str,
    /// SHA-256 over every run's parameters.
    pub plan_hash: String,
    /// First and last seed of each combination.
    pub seeds: String,
    /// Number of streams of each download.
    pub streams: u64,
    /// Traces that links follow: recordings, or `synthetic:KIND` without recordings.
    pub traces: Vec<String>,
    /// Number of runs.
    pub runs: usize,
    /// Number of runs that completed.
    pub completed: usize,
    /// Number of violations that the verifier found in all runs.
    pub violations: u64,
}

/// A figure that was made.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// The lines, panel by panel.
    pub series: Vec<Series>,
    /// The lines as CSV, with the paper's numbers.
    pub csv: String,
    /// The picture.
    pub svg: String,
    /// The inputs of the figure.
    pub meta: Meta,
}

impl Figure {
    /// Finds a figure by its ID.
    pub fn find(id: &str) -> Result<Self, UnknownFigure> {
        let figure = FIGURES.into_iter().find(|figure| figure.id == id);
        figure.ok_or_else(|| UnknownFigure { seen: id.to_owned() })
    }

    /// Finds the figure with this ID, every figure of a paper for an ID such as `tecc/all`, or
    /// every figure for `all`.
    pub fn find_all(id: &str) -> Result<Vec<Self>, UnknownFigure> {
        let Some(paper) = id.strip_suffix("all") else { return Ok(vec![Self::find(id)?]) };
        let of_paper = |figure: &Self| figure.id.starts_with(paper);
        let figures: Vec<_> = FIGURES.into_iter().filter(of_paper).collect();
        let is_whole = paper.is_empty() || paper.ends_with('/');
        let none = || UnknownFigure { seen: id.to_owned() };
        if is_whole && !figures.is_empty() { Ok(figures) } else { Err(none()) }
    }

    /// The plan of its runs.
    #[expect(clippy::missing_panics_doc, reason = "a test parses each plan of ours")]
    pub fn plan(&self, variant: Variant) -> Plan {
        let name = format!("{}.toml", self.id);
        Plan::parse(Path::new(&name), self.plan, variant).expect("a test parses each plan of ours")
    }

    /// Draws the figure from the results of its runs.
    pub fn draw(&self, plan: &Plan, records: &[RunRecord]) -> Drawing {
        let panels = panel::panels(self.plan);
        let paper = paper::parse(self.paper);
        let series: Vec<_> = panels
            .iter()
            .zip(1..)
            .flat_map(|(panel, number)| panel.series(number, records))
            .collect();
        Drawing {
            csv: data::csv(&series, &paper.numbers, Traces::of(plan)),
            svg: chart::draw(self, plan, &panels, &series, &paper),
            meta: self.meta(plan, records),
            series,
        }
    }

    fn meta(&self, plan: &Plan, records: &[RunRecord]) -> Meta {
        Meta {
            id: self.id,
            version: env!("CARGO_PKG_VERSION"),
            plan_hash: plan.hash(),
            seeds: plan.seeds().to_string(),
            streams: plan.runs().map(|run| run.streams).max().unwrap_or(1),
            traces: traces::names(plan),
            runs: records.len(),
            completed: records.iter().filter(|record| record.completed).count(),
            violations: records.iter().map(|record| record.violations).sum(),
        }
    }
}

/// An error: no figure has this ID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{seen:?} is not a figure; allowed: {}", FIGURES.map(|figure| figure.id).join(", "))]
pub struct UnknownFigure {
    /// The ID.
    pub seen: String,
}

#[cfg(test)]
mod tests;
