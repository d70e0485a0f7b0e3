//! Tables for people; also valid Markdown.

use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};
use tandem_experiments::summary::SummaryTable;

/// All columns but the first hold numbers.
pub(super) fn markdown(SummaryTable { header, rows }: &SummaryTable) -> String {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header(header).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}
