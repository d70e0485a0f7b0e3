//! The last part of the demo: the same download in each mode, as a table.

use std::collections::BTreeSet;

use super::{
    Demo,
    journey::Journey,
    live::Live,
    prose,
    result::JsonEntry,
    runner::Runner,
    table::{cells, table},
};
use crate::error::CliError;

/// The modes that are compared unless the user names others.
const DEFAULT: [&str; 7] = ["mft", "mdt", "mst", "rmdt", "tecc", "rmdt:off@cubic", "rmdt@cubic"];

/// What the columns of the table mean.
const COLUMNS: &str = "\
FCT/ideal is the flow completion time (FCT) divided by the least time that the link allows. \
\"Retransmitted\" is the share of packets that the server had to retransmit. The RTT is the one that \
the client saw at the end. With \"@cubic\" the server has the controller CUBIC, and with \":off\" \
packets leave the tunnel in the order in which they arrive.";

/// Downloads the file in each mode and prints the table.
pub(super) fn show(runner: &mut Runner<'_>) -> Result<Vec<JsonEntry>, CliError> {
    let demo = runner.demo;
    let journeys = demo.distinct_journeys();
    demo.explain(prose::wrap(&format!(
        "\nThird part: the same download of {} in each mode. The congestion controller is {} unless the \
         mode names another.",
        demo.size,
        demo.controller
    )));
    demo.explain(meanings(&journeys));
    let mut live = Live::open(demo, &journeys);
    let mut results = Vec::new();
    for (place, &journey) in journeys.iter().enumerate() {
        let result = runner.download(journey, &mut live, place)?;
        live.end(place, cells(&result));
        results.push(result);
    }
    drop(live); // before the results are printed
    demo.print(table(&results))?;
    demo.explain(prose::wrap(COLUMNS));
    Ok(results.into_iter().map(Box::new).map(JsonEntry::Modes).collect())
}

/// A line for each mode, which says what its tunnel does.
fn meanings(journeys: &[Journey]) -> String {
    let mut said = BTreeSet::new();
    let new = journeys.iter().filter(|journey| said.insert(journey.mode));
    let line = |journey: &Journey| format!("  {:<10}  {}", journey.mode, journey.meaning());
    new.map(line).collect::<Vec<_>>().join("\n")
}

impl Demo {
    fn distinct_journeys(&self) -> Vec<Journey> {
        let mut seen = BTreeSet::new();
        let default = || DEFAULT.map(|name| name.parse().expect("the default is valid")).to_vec();
        let journeys = self.modes.clone().unwrap_or_else(default);
        journeys.into_iter().filter(|journey| seen.insert(journey.to_string())).collect()
    }
}
