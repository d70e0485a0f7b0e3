//! The positions of the panels, and the room for their texts.

use super::{
    Axis, Chart, INSIDE, LINE_HEIGHT, Legend, MARGIN, Panel, Paper, PaperNumber, Series,
    axis::Label,
    lines,
    text::{self, HEADING, TEXT},
};

const PANELS_IN_A_ROW: usize = 3;
/// The gap between two panels of a row, and between two rows.
const GAP: i32 = 34;
const ROW_GAP: i32 = 24;
pub(super) const HEADING_HEIGHT: i32 = 20;
/// The gap between a panel's title and the y axis's label, and between that label and the plane.
pub(super) const BELOW_HEADING: i32 = 5;
pub(super) const ABOVE_PLANE: i32 = 10;
/// The height of the plane with the space above it, and the width of the space beside it.
pub(super) const PLANE: i32 = 224;
pub(super) const BESIDE_PLANE: i32 = 10;
/// The least room for the y axis's numbers, and the distance between them and the axis.
const Y_LABELS: i32 = 52;
const Y_LABEL_DISTANCE: i32 = 12;
/// Height of the first row of labels along the x axis, and of each further row.
const X_LABELS: i32 = 30;
pub(super) const X_LABEL_HEIGHT: i32 = 16;

/// All panels.
pub(super) struct Layout<'a> {
    pub(super) plots: Vec<Plot<'a>>,
    /// The bottom of the last row of panels.
    pub(super) bottom: i32,
}

/// A panel, its content and its position.
pub(super) struct Plot<'a> {
    pub(super) panel: &'a Panel,
    /// The lines, each with its shade.
    pub(super) lines: Vec<(&'a Series, usize)>,
    pub(super) theirs: Vec<&'a PaperNumber>,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) title: Vec<String>,
    pub(super) y_label: Vec<String>,
    pub(super) x_label: Vec<String>,
    /// The labels along the x axis.
    pub(super) labels: Vec<Label>,
    pub(super) left: i32,
    pub(super) width: i32,
    /// Room for the y axis's numbers.
    pub(super) y_labels: i32,
    /// The top of the plane.
    pub(super) top: i32,
    /// Room for the labels along the x axis.
    pub(super) x_labels: i32,
}

impl<'a> Layout<'a> {
    /// Puts the panels in rows, from `top` on.
    pub(super) fn of(
        panels: &'a [Panel],
        series: &'a [Series],
        paper: &'a Paper,
        legend: &Legend<'_>,
        mut top: i32,
    ) -> Self {
        let columns = panels.len().clamp(1, PANELS_IN_A_ROW);
        let count = i32::try_from(columns).unwrap_or(1);
        let width = (INSIDE - GAP * (count - 1)) / count;
        let lefts = (0..count).map(|column| MARGIN + (width + GAP) * column).cycle();
        let plots = panels.iter().zip(1..).zip(lefts).map(|((panel, number), left)| {
            let ours = series.iter().filter(|line| line.panel == number);
            let lines = ours.map(|line| (line, legend.shade(line))).collect();
            let theirs = paper.numbers.iter().filter(|theirs| theirs.panel == number).collect();
            Plot::of(panel, lines, theirs, (left, width))
        });
        let mut plots: Vec<_> = plots.collect();
        for row in plots.chunks_mut(columns) {
            let above = row.iter().map(Plot::above).max().unwrap_or(0);
            let x_labels = row.iter().map(|plot| plot.x_labels).max().unwrap_or(0);
            let below = row.iter().map(Plot::below).max().unwrap_or(0);
            for plot in row {
                (plot.top, plot.x_labels) = (top + above, x_labels);
            }
            top += above + PLANE + x_labels + below + ROW_GAP;
        }
        Self { plots, bottom: top - ROW_GAP }
    }
}

impl<'a> Plot<'a> {
    fn of(
        panel: &'a Panel,
        lines: Vec<(&'a Series, usize)>,
        theirs: Vec<&'a PaperNumber>,
        (left, width): (i32, i32),
    ) -> Self {
        let series: Vec<_> = lines.iter().map(|(line, _)| *line).collect();
        // Numbers for places that a short plan does not have are not drawn.
        let has_place = |theirs: &&PaperNumber| {
            let mut points = series.iter().flat_map(|line| &line.points);
            theirs.x.is_empty() || points.any(|point| point.x_text == theirs.x)
        };
        let theirs: Vec<_> = match panel.chart {
            Chart::Points | Chart::Flows => theirs.into_iter().filter(has_place).collect(),
            Chart::Distribution | Chart::Time => theirs,
        };
        let y = Axis::of_values(panel.y_scale, &series, &theirs);
        let y_labels = Y_LABELS.max(y.widest_label() + Y_LABEL_DISTANCE);
        let length = width - y_labels - BESIDE_PLANE;
        let x = match panel.chart {
            Chart::Points | Chart::Flows => Axis::of_points(panel.x_scale, &series, length),
            Chart::Distribution | Chart::Time => Axis::of_distributed(panel.x_scale, &series),
        };
        let labels = x.labels(length, &(-y_labels..length + BESIDE_PLANE + GAP / 2));
        let rows = labels.iter().map(|label| label.row).max().unwrap_or(0);
        Self {
            panel,
            lines,
            theirs,
            x,
            y,
            title: text::wrapped(&panel.title, HEADING, width),
            y_label: text::wrapped(&panel.y_label, TEXT, width),
            x_label: text::wrapped(&panel.x_label, TEXT, length + 2 * BESIDE_PLANE),
            labels,
            left,
            width,
            y_labels,
            top: 0,
            x_labels: X_LABELS + rows * X_LABEL_HEIGHT,
        }
    }

    /// Height of the title and the y axis's label.
    fn above(&self) -> i32 {
        let title = lines(&self.title) * HEADING_HEIGHT + BELOW_HEADING;
        title + lines(&self.y_label) * LINE_HEIGHT + ABOVE_PLANE
    }

    /// Height of the x axis's label.
    fn below(&self) -> i32 {
        lines(&self.x_label) * LINE_HEIGHT + 7
    }

    /// Pixels between the y axis and the right end.
    pub(super) const fn length(&self) -> i32 {
        self.width - self.y_labels - BESIDE_PLANE
    }
}
