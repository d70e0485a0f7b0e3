//! Lines over time, with axes and a legend that says where each line is now.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    symbols::Marker,
    text::{Line, Span},
    widgets::{Axis, Chart, Dataset, GraphType, Widget},
};

use super::scale::{RoundScale, short};

/// Charts at least this high have numbers at the quarters of the vertical axis too.
const QUARTERS_HEIGHT_MIN: u16 = 15;

/// The appearance of the lines of one layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// The name in the legend.
    key: &'static str,
    marker: Marker,
    style: Style,
}

impl Look {
    /// The key of a legend and the name of the layer.
    pub(super) fn legend(self, name: &str) -> [Span<'static>; 2] {
        [Span::styled(format!(" {} ", self.key), self.style), Span::raw(format!("{name} "))]
    }
}

/// The appearance of all lines.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Palette {
    pub(super) e2e: Look,
    pub(super) tunnel: Look,
}

impl Palette {
    /// The tunnel's lines are made of larger dots than the server's, so that colour is never the only
    /// difference. Magenta and green differ on light and dark terminals and for colour-blind eyes.
    pub(in super::super) fn new(has_colour: bool) -> Self {
        let style = |colour: Color| if has_colour { Style::new().fg(colour) } else { Style::new() };
        let server = Look { key: "⠒", marker: Marker::Braille, style: style(Color::Magenta) };
        let tunnel = Look { key: "•", marker: Marker::Dot, style: style(Color::Green) };
        Self { e2e: server, tunnel }
    }
}

/// The style of less important texts.
pub(super) const FAINT: Style = Style::new().add_modifier(Modifier::DIM);

/// The style of more important texts.
pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

/// One quantity of one layer.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    name: &'static str,
    look: Look,
    /// Seconds and values. Values above the scale are drawn at its upper end.
    points: Vec<(f64, f64)>,
    last: Option<f64>,
}

impl Curve {
    /// Makes a curve without unknown values.
    pub(super) fn new(
        name: &'static str,
        look: Look,
        points: impl Iterator<Item = (f64, Option<f64>)>,
    ) -> Self {
        let points: Vec<_> = points.filter_map(|(at, value)| Some((at, value?))).collect();
        let last = points.last().map(|&(_, value)| value);
        Self { name, look, points, last }
    }

    /// The largest value; 0 if there is none.
    pub(super) fn max(&self) -> f64 {
        self.points.iter().map(|&(_, value)| value).fold(0.0, f64::max)
    }

    fn bound(mut self, scale: RoundScale) -> Self {
        for (_, value) in &mut self.points {
            *value = value.min(scale.max);
        }
        self
    }

    fn legend(&self) -> Vec<Span<'static>> {
        let value = self.last.map_or_else(|| "-".to_owned(), short);
        let [key, name] = self.look.legend(self.name);
        vec![key, name, Span::styled(value, STRONG)]
    }

    fn dataset(&self, graph: GraphType) -> Dataset<'_> {
        let Look { marker, style, .. } = self.look;
        Dataset::default().marker(marker).style(style).graph_type(graph).data(&self.points)
    }
}

/// One chart.
#[derive(Clone, Debug)]
pub(super) struct DemoChart {
    /// The quantity and its unit.
    title: &'static str,
    seconds: RoundScale,
    values: RoundScale,
    curves: Vec<Curve>,
    graph: GraphType,
}

impl DemoChart {
    /// Lines.
    pub(super) fn lines(
        title: &'static str,
        (seconds, values): (RoundScale, RoundScale),
        curves: impl IntoIterator<Item = Curve>,
    ) -> Self {
        let curves = curves.into_iter().map(|curve| curve.bound(values)).collect();
        Self { title, seconds, values, curves, graph: GraphType::Line }
    }

    /// The same, with the area below the lines filled.
    pub(super) fn filled(self) -> Self {
        Self { graph: GraphType::Area, ..self }
    }
}

impl Widget for DemoChart {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let [head, body] =
            Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
        let legend: Line<'_> = self.curves.iter().flat_map(Curve::legend).collect();
        Span::styled(self.title, STRONG).render(head, buffer);
        legend.right_aligned().render(head, buffer);
        let steps = if body.height < QUARTERS_HEIGHT_MIN { 2 } else { 4 };
        let seconds = Axis::default()
            .bounds(self.seconds.bounds())
            .labels(self.seconds.labels(2, " s"))
            .style(FAINT);
        let values = Axis::default()
            .bounds(self.values.bounds())
            .labels(self.values.labels(steps, ""))
            .style(FAINT);
        // The first curve is the more important one, so it is drawn last.
        let datasets = self.curves.iter().rev().map(|curve| curve.dataset(self.graph)).collect();
        Chart::new(datasets).x_axis(seconds).y_axis(values).render(body, buffer);
    }
}
