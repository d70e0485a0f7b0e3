//! The part above the panels: the title, the setting and the legend.

use plotters::prelude::*;

use super::{
    Canvas, Drawn, Figure, Fill, INK, INSIDE, LINE_HEIGHT, MARGIN, Mode, Plan, QUIET_INK, Series,
    diamond, lines, marker, shaded,
    text::{self, TEXT, TITLE},
};

const TOP: i32 = 20;
const TITLE_HEIGHT: i32 = 28;
const LEGEND_HEIGHT: i32 = 22;

/// Title, setting and legend.
pub(super) struct Head<'a> {
    title: Vec<String>,
    setting: Vec<String>,
    legend: &'a Legend<'a>,
}

impl<'a> Head<'a> {
    pub(super) fn of(figure: &Figure, plan: &Plan, legend: &'a Legend<'a>) -> Self {
        let title = plan.title().unwrap_or(figure.about);
        let title = text::wrapped(title, TITLE, INSIDE);
        let setting = text::wrapped(plan.description().unwrap_or_default(), TEXT, INSIDE);
        Self { title, setting, legend }
    }

    /// The height from the top of the picture to the panels.
    pub(super) fn height(&self) -> i32 {
        self.legend_top() + self.legend.rows * LEGEND_HEIGHT + 14
    }

    fn setting_top(&self) -> i32 {
        TOP + lines(&self.title) * TITLE_HEIGHT
    }

    fn legend_top(&self) -> i32 {
        self.setting_top() + lines(&self.setting) * LINE_HEIGHT + 5
    }

    pub(super) fn draw(&self, canvas: &Canvas<'_>) -> Drawn {
        for (line, row) in self.title.iter().zip(0..) {
            let at = (MARGIN, TOP + row * TITLE_HEIGHT);
            canvas.draw_text(line, &text::style(TITLE, INK), at)?;
        }
        for (line, row) in self.setting.iter().zip(0..) {
            let at = (MARGIN, self.setting_top() + row * LINE_HEIGHT);
            canvas.draw_text(line, &text::style(TEXT, QUIET_INK), at)?;
        }
        let middle = self.legend_top() + LEGEND_HEIGHT / 2;
        self.legend.entries.iter().try_for_each(|entry| entry.draw(canvas, middle))
    }
}

/// The names of the lines of the figure.
pub(super) struct Legend<'a> {
    /// Each line once, with its number among the lines of its mode.
    shades: Vec<(&'a Series, usize)>,
    entries: Vec<LegendEntry>,
    rows: i32,
    /// The meanings of the modes, if there is no room for them in the legend.
    pub(super) note: Option<String>,
}

/// One name, beside its colour and marker.
struct LegendEntry {
    name: String,
    /// The mode and the number of the line among those of its mode. `None` stands for the paper's
    /// numbers.
    line: Option<(Mode, usize)>,
    left: i32,
    row: i32,
}

impl<'a> Legend<'a> {
    pub(super) fn of(series: &'a [Series], has_paper: bool) -> Self {
        let mut lines: Vec<&Series> = Vec::new();
        for line in series {
            if !lines.iter().any(|other| other.name() == line.name()) {
                lines.push(line);
            }
        }
        let shades: Vec<_> = lines.iter().map(|line| (*line, shade(&lines, line))).collect();
        let meant = |mode: Mode| format!("{}: {}", short(mode), meaning(mode));
        let (entries, rows) = placed(unplaced(&shades, meant, has_paper));
        if rows <= 1 {
            return Self { shades, entries, rows, note: None };
        }
        let (entries, rows) = placed(unplaced(&shades, short, has_paper));
        let is_there = |mode: &Mode| shades.iter().any(|(line, _)| line.mode == *mode);
        let meanings: Vec<_> = Mode::ALL.into_iter().filter(is_there).map(meant).collect();
        let note = Some(format!("{}.", meanings.join("; ")));
        Self { shades, entries, rows, note }
    }

    /// The shade of its mode's colour that a line has.
    pub(super) fn shade(&self, line: &Series) -> usize {
        let entry = self.shades.iter().find(|(other, _)| other.name() == line.name());
        entry.map_or(0, |(_, shade)| *shade)
    }
}

impl LegendEntry {
    /// The offset at which the name begins.
    const fn indent(&self) -> i32 {
        if self.line.is_some() { 34 } else { 22 }
    }

    fn width(&self) -> i32 {
        self.indent() + text::width(&self.name, TEXT)
    }

    fn draw(&self, canvas: &Canvas<'_>, middle_of_first: i32) -> Drawn {
        let (x, y) = (self.left, middle_of_first + self.row * LEGEND_HEIGHT);
        match self.line {
            Some((mode, shade)) => {
                let color = shaded(mode, shade);
                canvas.draw(&PathElement::new([(x, y), (x + 26, y)], color.stroke_width(2)))?;
                marker(canvas, (x + 13, y), color, mode, Fill::Full)?;
            }
            None => diamond(canvas, (x + 8, y))?,
        }
        let style = text::style(TEXT, INK).pos(text::middle_left());
        canvas.draw_text(&self.name, &style, (x + self.indent(), y))
    }
}

/// The entries of a legend. A mode with one line has the name that `name` returns.
fn unplaced(
    shades: &[(&Series, usize)],
    name: impl Fn(Mode) -> String,
    has_paper: bool,
) -> Vec<LegendEntry> {
    let entry = |name, line| LegendEntry { name, line, left: 0, row: 0 };
    let of_line = |(line, shade): &(&Series, usize)| {
        let name = match &line.variant {
            None => name(line.mode),
            Some(variant) => format!("{}, {variant}", short(line.mode)),
        };
        entry(name, Some((line.mode, *shade)))
    };
    let paper = has_paper.then(|| entry("paper".to_owned(), None));
    shades.iter().map(of_line).chain(paper).collect()
}

/// Puts entries side by side, in as many rows as they need.
fn placed(mut entries: Vec<LegendEntry>) -> (Vec<LegendEntry>, i32) {
    const BETWEEN: i32 = 16;
    let (mut left, mut row) = (MARGIN, 0);
    for entry in &mut entries {
        if left > MARGIN && left + entry.width() > MARGIN + INSIDE {
            (left, row) = (MARGIN, row + 1);
        }
        (entry.left, entry.row) = (left, row);
        left += entry.width() + BETWEEN;
    }
    (entries, row + 1)
}

/// The number of a line among those of its mode.
fn shade(lines: &[&Series], line: &Series) -> usize {
    let same = lines.iter().filter(|other| other.mode == line.mode);
    same.take_while(|other| other.variant != line.variant).count()
}

fn short(mode: Mode) -> String {
    mode.as_str().to_uppercase()
}

const fn meaning(mode: Mode) -> &'static str {
    match mode {
        Mode::Mft => "no tunnel",
        Mode::MftTuned => "no tunnel, with the controller and initial window of tunnels",
        Mode::MftPlus => "no tunnel, larger loss-detection thresholds",
        Mode::Mdt => "datagrams, no retransmission",
        Mode::Forward => "datagrams at first, then packets are forwarded",
        Mode::Uack => "sealed packets without acknowledgements",
        Mode::UackUp => "the same towards the proxy only",
        Mode::Mst => "one stream, in order",
        Mode::Msgt => "several streams, each in order",
        Mode::Rmdt => "datagrams with retransmission",
        Mode::RmdtPlus => "datagrams with retransmission, larger loss-detection thresholds",
        Mode::Tecc => "retransmission, and reports to the origin",
        Mode::TeccPaper => "the same, as in the paper",
        Mode::Auto => "what suits the origin and the path",
    }
}
