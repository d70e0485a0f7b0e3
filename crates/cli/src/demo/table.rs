//! The demo's results for people.

use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};

use super::result::DemoResult;

/// The headings of the columns.
pub(super) const HEADER: [&str; 6] =
    ["mode", "time", "FCT/ideal", "goodput", "retransmitted", "RTT"];

/// The cells of one row.
pub(super) type Cells = [String; HEADER.len()];

/// A table with one row for each mode. It is valid Markdown.
pub(super) fn table(results: &[DemoResult]) -> String {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(HEADER).add_rows(results.iter().map(cells));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// One row.
pub(super) fn cells(result: &DemoResult) -> Cells {
    let DemoResult { journey, outcome, fct_over_ideal, e2e_retransmit_ratio, .. } = result;
    [
        journey.clone(),
        format!("{:.2} s", outcome.fct_s),
        format!("{fct_over_ideal:.2}"),
        format!("{:.2} Mbit/s", outcome.goodput_mbps),
        format!("{:.1} %", e2e_retransmit_ratio * 100.0),
        format!("{:.0} ms", outcome.rtt_ms),
    ]
}
