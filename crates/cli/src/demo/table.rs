//! The demo's results for people.

use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};

use super::DemoResult;

/// One row for each mode. Also valid Markdown.
pub(super) fn table(results: &[DemoResult]) -> String {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(["mode", "time", "FCT/ideal", "goodput", "retransmitted", "RTT"]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for DemoResult { journey, outcome, fct_over_ideal, e2e_retransmit_ratio, .. } in results {
        table.add_row([
            journey.clone(),
            format!("{:.2} s", outcome.fct_s),
            format!("{fct_over_ideal:.2}"),
            format!("{:.2} Mbit/s", outcome.goodput_mbps),
            format!("{:.1} %", e2e_retransmit_ratio * 100.0),
            format!("{:.0} ms", outcome.rtt_ms),
        ]);
    }
    table.to_string()
}
