//! Where the connections of an origin have their bottlenecks, as PEPs on their paths show: in the log, as
//! lines of JSON, as a qlog file, and as metrics.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    net::SocketAddr,
    path::Path,
    time::Duration,
};

use serde::Serialize;
use serde_json::json;
use tandem_congestion::{DomainRtt, Place};
use tandem_net::clock;
use tandem_node::{PathReport, seldom::LineBudget};
use tracing::info;

use crate::{
    admin::{LostAtPlaces, PathTotals, PlaceCounts, SecondsAtPlaces},
    error::ServeError,
    process::{
        WriteError,
        outlet::{self, Outlet, Target},
        qlog::{self, since_1970},
        say,
    },
};

/// What is known of the path of one connection. Times of the path are in milliseconds.
#[derive(Debug, Serialize)]
struct PathStatus {
    /// Seconds since 1970.
    time_s: f64,
    connection: u64,
    client: Option<SocketAddr>,
    has_ended: bool,
    pep: u32,
    /// Whether the PEP has authenticated what it said. The sender follows nothing else.
    authentic: bool,
    pep_acks: u64,
    /// `null`: nothing was observed for long enough.
    bottleneck: Option<Place>,
    /// For how long the bottleneck was where.
    bottleneck_s: SecondsAtPlaces,
    lost_packets: LostAtPlaces,
    wired_rtt_ms: RttSample,
    access_rtt_ms: RttSample,
    /// Bytes between the PEP and the receiver.
    behind_pep_bytes: u64,
}

/// `null`: there is no sample.
#[derive(Debug, Serialize)]
struct RttSample {
    latest: Option<f64>,
    smoothed: Option<f64>,
    least: Option<f64>,
}

impl From<DomainRtt> for RttSample {
    fn from(rtt: DomainRtt) -> Self {
        let ms = |time: Duration| rtt.is_known().then_some(rounded(time.as_secs_f64() * 1e3));
        Self { latest: ms(rtt.latest), smoothed: ms(rtt.smoothed), least: ms(rtt.least) }
    }
}

impl PathStatus {
    fn new(time: f64, report: &PathReport) -> Self {
        let PathReport { connection, client, has_ended, domains } = *report;
        let times = domains.bottleneck.unwrap_or_default();
        Self {
            time_s: time,
            connection,
            client,
            has_ended,
            pep: domains.pep.0,
            authentic: domains.is_authentic,
            pep_acks: domains.pep_acks,
            bottleneck: domains.bottleneck.map(|bottleneck| bottleneck.place),
            bottleneck_s: SecondsAtPlaces {
                wired: rounded(times.wired.as_secs_f64()),
                access: rounded(times.access.as_secs_f64()),
                sender: rounded(times.sender.as_secs_f64()),
            },
            lost_packets: LostAtPlaces {
                wired: domains.losses.wired,
                access: domains.losses.access,
                unknown: domains.losses.unknown,
            },
            wired_rtt_ms: domains.wired.into(),
            access_rtt_ms: domains.access.into(),
            behind_pep_bytes: domains.behind_pep.get(),
        }
    }
}

/// The name of a place.
const fn name(place: Place) -> &'static str {
    match place {
        Place::Wired => "wired",
        Place::Access => "access",
        Place::Sender => "sender",
    }
}

/// The last report on a connection.
#[derive(Clone, Copy, Debug, Default)]
struct LastReport {
    place: Option<Place>,
    seconds: SecondsAtPlaces,
    lost: LostAtPlaces,
}

/// Tells what PEPs show.
#[derive(Debug)]
pub(super) struct Paths {
    json: Option<Outlet>,
    totals: PathTotals,
    qlog: Option<Outlet>,
    /// Bounds the lines about bottlenecks that move, of which clients decide how many there are.
    moves: LineBudget,
    /// What is known from each node of the origin, by its index.
    nodes: BTreeMap<usize, FromNode>,
}

/// What is known from one node of an origin.
#[derive(Debug, Default)]
struct FromNode {
    told: BTreeMap<u64, LastReport>,
    /// The bottlenecks of open connections.
    places: Vec<Place>,
}

impl Paths {
    /// Begins a qlog file in a folder, if there is one.
    pub(super) fn new(has_json: bool, qlog_dir: Option<&Path>) -> Result<Self, ServeError> {
        let json = has_json.then(|| Outlet::start("tandem-json", Lines::ToStdout)).transpose()?;
        let qlog = |dir| {
            Ok::<_, ServeError>(Outlet::start("tandem-paths", Lines::ToFile(begin_qlog(dir)?))?)
        };
        let qlog = qlog_dir.map(qlog).transpose()?;
        let (totals, moves, nodes) = Default::default();
        Ok(Self { json, totals, qlog, moves, nodes })
    }

    /// Tells what has become known from the node with this index since the last call.
    pub(super) fn tell(&mut self, index: usize, reports: &[PathReport]) {
        let time = rounded(since_1970().as_secs_f64());
        for report in reports {
            self.tell_of(index, &PathStatus::new(time, report));
        }
        let open: Vec<_> = reports.iter().filter(|report| !report.has_ended).collect();
        let node = self.nodes.entry(index).or_default();
        node.told.retain(|id, _| open.iter().any(|report| report.connection == *id));
        node.places =
            open.iter().filter_map(|it| it.domains.bottleneck.map(|at| at.place)).collect();
    }

    /// The sums over all connections, for metrics.
    pub(super) fn totals(&self) -> PathTotals {
        let mut connections = PlaceCounts::default();
        for place in self.nodes.values().flat_map(|node| &node.places) {
            *match place {
                Place::Wired => &mut connections.wired,
                Place::Access => &mut connections.access,
                Place::Sender => &mut connections.sender,
            } += 1;
        }
        PathTotals { connections, ..self.totals }
    }

    fn tell_of(&mut self, index: usize, shown: &PathStatus) {
        let node = self.nodes.entry(index).or_default();
        let told = node.told.entry(shown.connection).or_default();
        if let Some(place) = shown.bottleneck
            && !shown.has_ended
            && told.place.replace(place) != Some(place)
            && let Some(left_out) = self.moves.due(clock::now())
        {
            let (connection, place) = (shown.connection, name(place));
            let left_out = (left_out > 0).then_some(left_out);
            info!(connection, place, left_out, "the bottleneck has moved");
        }
        let (now, then, total) = (shown.bottleneck_s, told.seconds, &mut self.totals.seconds);
        total.wired += (now.wired - then.wired).max(0.0);
        total.access += (now.access - then.access).max(0.0);
        total.sender += (now.sender - then.sender).max(0.0);
        let (now, then, total) = (shown.lost_packets, told.lost, &mut self.totals.lost);
        total.wired += now.wired.saturating_sub(then.wired);
        total.access += now.access.saturating_sub(then.access);
        total.unknown += now.unknown.saturating_sub(then.unknown);
        (told.seconds, told.lost) = (shown.bottleneck_s, shown.lost_packets);
        if let Some(json) = &self.json {
            json.put(format!("{}\n", json!(shown)).as_bytes());
        }
        if let Some(qlog) = &self.qlog {
            qlog.put(qlog_event(shown).as_bytes());
        }
    }
}

/// Where lines about paths go.
enum Lines {
    ToStdout,
    ToFile(File),
}

impl Lines {
    const fn what(&self) -> &'static str {
        match self {
            Self::ToStdout => "lines of JSON on standard output",
            Self::ToFile(_) => "lines of the qlog file of paths",
        }
    }
}

impl Target for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::ToStdout => outlet::write(io::stdout(), bytes),
            Self::ToFile(file) => file.write(bytes),
        }
    }

    /// Other lines than those that are promised would confuse who reads them.
    fn notice(&self, _: u64) -> Option<String> {
        None
    }

    fn on_failed(&self, error: &io::Error) {
        say(format_args!("warning: {} are lost: {error}", self.what()));
    }

    fn on_recovered(&self, lost: u64) {
        say(format_args!("warning: {lost} {} were lost", self.what()));
    }
}

/// Three decimals, which is what the clocks are good for.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// Begins a file `origin-paths-TIME.sqlog`, whose time is in milliseconds since 1970. Its only kind of
/// event, `tandem:path`, has the fields of `tandem origin --json`.
fn begin_qlog(dir: &Path) -> Result<File, WriteError> {
    let path = dir.join(format!("origin-paths-{}.sqlog", since_1970().as_millis()));
    let write = |error| WriteError { file: path.clone(), error };
    let header = qlog::record(&qlog::header("the two domains of paths with PEPs", "server"));
    fs::write(&path, header).map_err(write)?;
    File::options().append(true).open(&path).map_err(write)
}

fn qlog_event(shown: &PathStatus) -> String {
    qlog::record(
        &json!({ "time": rounded(shown.time_s * 1e3), "name": "tandem:path", "data": shown }),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tandem_congestion::{Bottleneck, DomainStats, Losses};

    use super::*;

    #[test]
    fn each_report_becomes_an_event_of_the_qlog_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut paths = Paths::new(false, Some(dir.path())).unwrap();
        let access = Duration::from_micros(1_500_400);
        let domains = DomainStats {
            losses: Losses { access: 3, ..Losses::default() },
            bottleneck: Some(Bottleneck { place: Place::Access, access, ..Bottleneck::default() }),
            ..DomainStats::default()
        };
        let client = Some("192.0.2.1:5000".parse().unwrap());
        let mut report = PathReport { connection: 8, client, has_ended: false, domains };
        paths.tell(1, &[report]);
        assert_eq!(paths.nodes[&1].told[&8].place, Some(Place::Access));
        paths.tell(0, &[]);
        assert_eq!(paths.nodes[&1].told.len(), 1, "a report of another node");
        report.has_ended = true;
        paths.tell(1, &[report]);
        assert!(paths.nodes[&1].told.is_empty());
        drop(paths);

        let file = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap();
        let text = fs::read_to_string(file.path()).unwrap();
        let records: Vec<Value> =
            text.split('\u{1e}').skip(1).map(|text| serde_json::from_str(text).unwrap()).collect();
        assert_eq!((records.len(), &records[0]["qlog_version"]), (3, &json!("0.3")));
        let data = &records[1]["data"];
        assert_eq!(data["bottleneck"], "access");
        assert_eq!(data["bottleneck_s"]["access"], 1.5);
        assert_eq!(data["lost_packets"], json!({ "wired": 0, "access": 3, "unknown": 0 }));
        assert_eq!(data["wired_rtt_ms"]["least"], Value::Null);
        assert_eq!(records[2]["data"]["has_ended"], true);
    }
}
