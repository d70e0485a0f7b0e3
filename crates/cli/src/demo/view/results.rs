//! The results of all journeys so far: the part of the table that fits.

use ratatui::{
    buffer::Buffer,
    layout::{Alignment, Rect},
    style::Style,
    text::Text,
    widgets::{Cell, Row, Table, Widget},
};

use super::{
    super::table::{Cells, HEADER},
    chart::{FAINT, STRONG},
};

/// The most interesting columns first; those that do not fit are left out.
const COLUMNS_BY_INTEREST: [usize; HEADER.len()] = [0, 1, 2, 5, 4, 3];

/// A journey in the list of all.
#[derive(Clone, Debug)]
pub(in super::super) enum JsonEntry {
    /// Its name.
    Waiting(String),
    /// Its name.
    Running(String),
    /// Its results.
    Finished(Cells),
}

impl JsonEntry {
    pub(super) const fn is_running(&self) -> bool {
        matches!(self, Self::Running(_))
    }

    fn row(&self) -> (Cells, Style) {
        let unfinished = |name: &String, state: &str| {
            let mut cells = Cells::default();
            let [mode, time, ..] = &mut cells;
            mode.clone_from(name);
            state.clone_into(time);
            cells
        };
        match self {
            Self::Waiting(name) => (unfinished(name, "waiting"), FAINT),
            Self::Running(name) => (unfinished(name, "running"), STRONG),
            Self::Finished(cells) => (cells.clone(), Style::new()),
        }
    }
}

/// Draws the list. The running journey is always visible.
pub(super) fn render(entries: &[JsonEntry], area: Rect, buffer: &mut Buffer) {
    let header = (HEADER.map(str::to_owned), STRONG);
    let rows: Vec<_> = entries.iter().map(JsonEntry::row).collect();
    let columns = columns(&header.0, &rows, area.width);
    let running = entries.iter().position(JsonEntry::is_running);
    let seen = usize::from(area.height.saturating_sub(1));
    let skipped = running.map_or(0, |index| (index + 1).saturating_sub(seen));
    let row = |(cells, style): &(Cells, Style)| {
        let cell = |&(column, _): &(usize, u16)| {
            let text = Text::raw(cells.get(column).cloned().unwrap_or_default());
            let side = if column == 0 { Alignment::Left } else { Alignment::Right };
            Cell::from(text.alignment(side))
        };
        Row::new(columns.iter().map(cell)).style(*style)
    };
    Table::new(rows.iter().skip(skipped).map(row), columns.iter().map(|&(_, width)| width))
        .header(row(&header))
        .render(area, buffer);
}

/// The columns that fit, in the table's order, with their widths.
fn columns(header: &Cells, rows: &[(Cells, Style)], room: u16) -> Vec<(usize, u16)> {
    let mut left = room;
    let mut columns = Vec::new();
    for column in COLUMNS_BY_INTEREST {
        let lines = rows.iter().map(|(cells, _)| cells).chain([header]);
        let widths = lines.filter_map(|cells| cells.get(column)).map(|text| text.chars().count());
        let width = widths.max().and_then(|width| u16::try_from(width).ok()).unwrap_or(u16::MAX);
        let space = u16::from(!columns.is_empty());
        match left.checked_sub(width.saturating_add(space)) {
            Some(rest) => left = rest,
            None if columns.is_empty() => left = 0, // a name is cut off rather than left out
            None => break,
        }
        columns.push((column, width));
    }
    columns.sort_unstable();
    columns
}
