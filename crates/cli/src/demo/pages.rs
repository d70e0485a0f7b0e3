//! The second part of the demo: short requests, as those of a web page are.

use std::time::Duration;

use tandem_node::mode::Mode;
use tandem_units::ByteCount;

use super::{
    Demo,
    file::DemoFile,
    journey::Journey,
    prose,
    result::{JsonEntry, PagesResult, median},
    runner::Runner,
};
use crate::{
    error::CliError,
    outcome::{Outcome, round, seconds},
    progress::{Bars, Show},
};

/// Length of each response.
const PAGE: ByteCount = ByteCount::new(100_000);

/// Number of requests in a row.
const REQUESTS: usize = 7;

/// The pause between two requests. In it the connections of the last request are closed too.
const THINK: Duration = Duration::from_millis(500);

/// Makes the requests without a tunnel and with one whose proxy and server cooperate.
pub(super) fn show(runner: &mut Runner<'_>) -> Result<Vec<JsonEntry>, CliError> {
    let demo = runner.demo;
    demo.explain(prose::wrap(&format!(
        "\nSecond part: short requests, as those of a web page are. The client makes {REQUESTS} \
         requests for {PAGE} in a row, with a pause of {} s between them. Each request has a \
         connection of its own to the server.",
        THINK.as_secs_f64()
    )));
    let page = DemoFile::create(PAGE, demo.seed())?;
    let journeys = [Mode::Mft, Mode::Tecc].map(Journey::of_mode);
    let bars = Bars::new(if demo.is_silent() { Show::Never } else { Show::OnTerminal });
    let rows = journeys.map(|journey| (journey, bars.add(&journey.to_string(), "waiting")));
    let mut results = Vec::new();
    for (journey, bar) in rows {
        let outcomes = runner.requests(journey, &page, (REQUESTS, THINK), &bar)?;
        let result = demo.pages_result(journey, &outcomes);
        bar.finish(format!("median {:.2} s", result.median_s));
        results.push(result);
    }
    bars.clear();
    if let [without, with] = results.as_slice() {
        demo.print(describe(without, with))?;
    }
    Ok(results.into_iter().map(JsonEntry::Pages).collect())
}

impl Demo {
    fn pages_result(&self, journey: Journey, outcomes: &[Outcome]) -> PagesResult {
        PagesResult {
            journey: journey.to_string(),
            origin_controller: self.origin_controller(journey).to_string(),
            page_bytes: PAGE.get(),
            think_s: seconds(THINK),
            median_s: median(outcomes.iter().map(|outcome| outcome.fct_s)),
            times_s: outcomes.iter().map(|outcome| outcome.fct_s).collect(),
            median_setup_s: if journey.mode.has_tunnel() {
                median(outcomes.iter().map(|outcome| outcome.setup_s))
            } else {
                0.0
            },
        }
    }
}

/// Compares the medians in whole sentences, and lists the times.
fn describe(without: &PagesResult, with: &PagesResult) -> String {
    let change = (with.median_s / without.median_s.max(1e-6) - 1.0) * 100.0;
    let change = match round(change, 1.0) {
        less if less < 0.0 => format!("{:.0} % less", -less),
        more if more > 0.0 => format!("{more:.0} % more"),
        _ => "the same".to_owned(),
    };
    prose::wrap(&format!(
        "Without a tunnel (controller {}), the median time is {:.2} s: {}.\n\
         With a proxy and a server that cooperate (mode tecc), it is {:.2} s, {change}: {}.\n\
         These times begin when the tunnel is up, because a program keeps its tunnel for many \
         requests. Its set-up took {:.2} s.",
        without.origin_controller,
        without.median_s,
        list(&without.times_s),
        with.median_s,
        list(&with.times_s),
        with.median_setup_s
    ))
}

fn list(times: &[f64]) -> String {
    times.iter().map(|time| format!("{time:.2}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(journey: &str, times_s: [f64; 3]) -> PagesResult {
        PagesResult {
            journey: journey.to_owned(),
            origin_controller: "bbr1".to_owned(),
            page_bytes: 100_000,
            think_s: 0.2,
            median_s: median(times_s),
            times_s: times_s.to_vec(),
            median_setup_s: 0.085,
        }
    }

    fn in_one_line(without: &PagesResult, with: &PagesResult) -> String {
        describe(without, with).replace('\n', " ")
    }

    #[test]
    fn the_change_is_what_was_measured() {
        let without = pages("mft", [0.9, 1.0, 1.9]);
        let said = in_one_line(&without, &pages("tecc", [0.47, 0.5, 0.6]));
        assert!(said.contains("it is 0.50 s, 50 % less: 0.47 0.50 0.60."), "{said}");
        let said = in_one_line(&without, &pages("tecc", [1.0, 1.2, 1.3]));
        assert!(said.contains("it is 1.20 s, 20 % more:"), "{said}");
        let said = in_one_line(&without, &without);
        assert!(said.contains("it is 1.00 s, the same:"), "{said}");
    }
}
