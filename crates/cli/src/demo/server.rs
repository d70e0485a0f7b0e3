//! The first part of the demo: a download from an ordinary server, without a tunnel and through one.

use std::time::Duration;

use tandem_congestion::ControllerName;
use tandem_node::mode::Mode;
use tandem_units::ByteCount;

use super::{
    Demo,
    journey::Journey,
    live::Live,
    prose,
    result::{DemoResult, JsonEntry, OriginPackets, ServerResult},
    runner::{ObservedDownload, Runner},
    table,
};
use crate::{
    error::CliError,
    outcome::{Outcome, round, seconds},
};

/// The start of the download without a tunnel, in which the controller finds its rate.
const SETTLING: Duration = Duration::from_secs(3);

/// The time after that in which the rate is measured.
const MEASURED: Duration = Duration::from_secs(5);

/// Most servers have CUBIC, as Linux and Windows do.
const CONTROLLER: ControllerName = ControllerName::Cubic;

/// Downloads the file twice, of which the first download is stopped early, and compares them.
pub(super) fn show(runner: &mut Runner<'_>) -> Result<Vec<JsonEntry>, CliError> {
    let demo = runner.demo;
    demo.explain(prose::wrap(&format!(
        "\nFirst part: a download of {} from an ordinary server, whose congestion controller is \
         {CONTROLLER}.",
        demo.size
    )));
    let journeys = [Mode::Mft, Mode::Rmdt].map(|mode| Journey::from_server(mode, CONTROLLER));
    let [without, with] = journeys;
    let mut live = Live::open(demo, &journeys);
    let (observed, packets) = runner.observe(without, &mut live, (SETTLING, MEASURED))?;
    let observed = demo.estimate(without, &observed);
    live.end(0, cells(&observed, packets));
    let result = runner.download(with, &mut live, 1)?;
    live.end(1, table::cells(&result));
    drop(live); // before the results are printed
    let DemoResult { journey, origin_controller, outcome, .. } = result;
    let tunnelled = ServerResult::complete(journey, origin_controller, &outcome);
    demo.print(describe(&observed, &tunnelled))?;
    Ok([observed, tunnelled].map(JsonEntry::Server).to_vec())
}

impl Demo {
    /// The completion time of a download that may have been stopped, from its rate at the end.
    fn estimate(&self, journey: Journey, observed: &ObservedDownload) -> ServerResult {
        let controller = self.origin_controller(journey).to_string();
        let (before, after) = match *observed {
            ObservedDownload::Complete(ref outcome) => {
                return ServerResult::complete(journey.to_string(), controller, outcome);
            }
            ObservedDownload::Stopped { before, after } => (before, after),
        };
        let bytes = self.size.get();
        #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 bytes")]
        let [came, left] =
            [after.saturating_sub(before), bytes.saturating_sub(after)].map(|it| it as f64);
        let rate = came / MEASURED.as_secs_f64();
        let observed_s = seconds(SETTLING + MEASURED);
        ServerResult {
            journey: journey.to_string(),
            origin_controller: controller,
            bytes,
            fct_s: (rate > 0.0).then(|| round(observed_s + left / rate, 1e3)),
            is_estimate: true,
            goodput_mbps: round(rate * 8.0 / 1e6, 1e3),
            observed_s,
            observed_bytes: after,
        }
    }
}

impl ServerResult {
    fn complete(journey: String, origin_controller: String, outcome: &Outcome) -> Self {
        Self {
            journey,
            origin_controller,
            bytes: outcome.bytes,
            fct_s: Some(outcome.fct_s),
            is_estimate: false,
            goodput_mbps: outcome.goodput_mbps,
            observed_s: outcome.fct_s,
            observed_bytes: outcome.bytes,
        }
    }
}

/// The row of the live table. The sign ~ marks an estimate.
fn cells(result: &ServerResult, packets: OriginPackets) -> table::Cells {
    let about = if result.is_estimate { "~" } else { "" };
    let time = result.fct_s.map_or_else(|| "?".to_owned(), |time| format!("{about}{time:.0} s"));
    [
        result.journey.clone(),
        time,
        String::new(),
        format!("{about}{:.2} Mbit/s", result.goodput_mbps),
        format!("{:.1} %", packets.lost_share() * 100.0),
        String::new(),
    ]
}

/// Compares the two downloads in whole sentences.
fn describe(without: &ServerResult, with: &ServerResult) -> String {
    let &ServerResult { observed_s, observed_bytes, goodput_mbps, .. } = without;
    let came = ByteCount::new(observed_bytes / 1_000 * 1_000);
    let first = match without.fct_s {
        Some(time) if without.is_estimate => format!(
            "Without a tunnel, the download would take about {:.0} s. That is an estimate: the demo \
             stopped it after {observed_s:.0} s, when {came} had arrived and the rate was \
             {goodput_mbps:.2} Mbit/s.",
            two_digits(time)
        ),
        Some(time) => format!("Without a tunnel, the download took {time:.2} s."),
        None => format!(
            "Without a tunnel, the download stood still: the demo stopped it after {observed_s:.0} s, \
             when {came} had arrived."
        ),
    };
    let tunnelled = with.fct_s.unwrap_or_default();
    let gain = without.fct_s.map_or_else(String::new, |time| {
        let factor = time / tunnelled.max(1e-6);
        let about = if without.is_estimate { "about " } else { "" };
        match factor {
            1.5.. => format!(", {about}{} times as fast", two_digits(factor)),
            1.05.. => format!(", {about}{:.0} % faster", (factor - 1.0) * 100.0),
            0.95.. => ", which is as fast".to_owned(),
            _ => ", which is slower".to_owned(),
        }
    });
    prose::wrap(&format!(
        "{first}\nThrough a tunnel that retransmits lost packets (mode rmdt), the same server took \
         {tunnelled:.2} s{gain}."
    ))
}

/// Rounds to two digits: an estimate has no more.
fn two_digits(value: f64) -> f64 {
    let unit = 10_f64.powf(value.max(1e-3).log10().floor() - 1.0);
    round((value / unit).round() * unit, 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without(fct_s: Option<f64>, is_estimate: bool) -> ServerResult {
        ServerResult {
            journey: "mft@cubic".to_owned(),
            origin_controller: "cubic".to_owned(),
            bytes: 6_000_000,
            fct_s,
            is_estimate,
            goodput_mbps: 0.4,
            observed_s: 9.0,
            observed_bytes: 450_000,
        }
    }

    fn with_a_tunnel(fct_s: f64) -> ServerResult {
        ServerResult { observed_bytes: 6_000_000, ..without(Some(fct_s), false) }
    }

    fn in_one_line(without: &ServerResult, with: &ServerResult) -> String {
        describe(without, with).replace('\n', " ")
    }

    #[test]
    fn an_estimate_is_called_one() {
        let said = in_one_line(&without(Some(117.6), true), &with_a_tunnel(6.2));
        assert!(said.contains("would take about 120 s. That is an estimate"), "{said}");
        assert!(said.contains("after 9 s, when 450 kB had arrived"), "{said}");
        assert!(said.ends_with("took 6.20 s, about 19 times as fast."), "{said}");
    }

    #[test]
    fn the_gain_is_what_was_measured() {
        for (time, gain) in [
            (7.5, "3.00 s, 2.5 times as fast."),
            (3.6, "3.00 s, 20 % faster."),
            (3.0, "3.00 s, which is as fast."),
            (2.0, "3.00 s, which is slower."),
        ] {
            let said = in_one_line(&without(Some(time), false), &with_a_tunnel(3.0));
            assert!(said.contains(&format!("took {time:.2} s.")) && said.ends_with(gain), "{said}");
            assert!(!said.contains("estimate") && !said.contains("about"), "{said}");
        }
    }

    #[test]
    fn nothing_is_estimated_from_a_download_that_stands_still() {
        let said = in_one_line(&without(None, true), &with_a_tunnel(6.2));
        assert!(said.contains("stood still") && said.ends_with("took 6.20 s."), "{said}");
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "two digits are exact")]
    fn an_estimate_has_two_digits() {
        let rounded = [117.6, 18.96, 4.449, 0.1234].map(two_digits);
        assert_eq!(rounded, [120.0, 19.0, 4.4, 0.12]);
    }
}
