//! A figure as SVG: title, legend, panels side by side, and notes with the paper's statements
//! below.

mod axis;
mod head;
mod layout;
mod mark;
mod notes;
mod plot;
mod text;

use plotters::{coord::Shift, prelude::*};

use self::{
    axis::Axis,
    head::{Head, Legend},
    layout::Layout,
    mark::{Fill, color, diamond, marker, shaded},
    text::TEXT,
};
use super::{Chart, Figure, Panel, PaperNumber, Point, Series, paper::Paper, traces::Traces};
use crate::{plan::Plan, run::Mode};

const WIDTH: i32 = 1040;
const MARGIN: i32 = 28;
/// The width between both margins.
const INSIDE: i32 = WIDTH - 2 * MARGIN;
/// The height of a line of a longer text.
const LINE_HEIGHT: i32 = 17;
/// The height of a line of the notes below the panels.
const NOTE_HEIGHT: i32 = 19;

const PAPER: RGBColor = RGBColor(255, 255, 255);
const INK: RGBColor = RGBColor(31, 41, 51);
const QUIET_INK: RGBColor = RGBColor(97, 110, 124);
const GRID: RGBColor = RGBColor(226, 232, 238);

/// The replacements of these colours and of the modes' colours on dark screens.
const DARK: [(RGBColor, &str); 15] = [
    (PAPER, "#14181D"),
    (INK, "#E4E9EE"),
    (QUIET_INK, "#9AA5B1"),
    (GRID, "#2C343D"),
    (color(Mode::Mft), "#AAB4BF"),
    (color(Mode::MftTuned), "#B7A3F0"),
    (color(Mode::MftPlus), "#D8C7A0"),
    (color(Mode::Mdt), "#56B4E9"),
    (color(Mode::Mst), "#F0803C"),
    (color(Mode::Msgt), "#E39AC3"),
    (color(Mode::Rmdt), "#2CC295"),
    (color(Mode::RmdtPlus), "#B4C46A"),
    (color(Mode::Tecc), "#FF7C9C"),
    (color(Mode::TeccPaper), "#F2C14E"),
    (color(Mode::Auto), "#8C8CFF"),
];

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plane<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;
type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// Draws the whole figure.
pub(super) fn draw(
    figure: &Figure,
    plan: &Plan,
    panels: &[Panel],
    series: &[Series],
    paper: &Paper,
) -> String {
    let legend = Legend::of(series, !paper.numbers.is_empty());
    let head = Head::of(figure, plan, &legend);
    let layout = Layout::of(panels, series, paper, &legend, head.height());
    let notes = notes::notes(plan, series, paper, &legend, &layout);
    let below_panels = layout.bottom + 14;
    let height = below_panels + lines(&notes) * NOTE_HEIGHT + MARGIN / 2;
    let size = (WIDTH.unsigned_abs(), height.unsigned_abs());
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        canvas
            .fill(&PAPER)
            .and_then(|()| head.draw(&canvas))
            .and_then(|()| layout.plots.iter().try_for_each(|plot| plot.draw(&canvas)))
            .and_then(|()| below(&canvas, below_panels, &notes))
            .and_then(|()| canvas.present())
            .expect("a string can be drawn to");
    }
    with_dark_colours(&svg)
}

/// Makes the picture follow the reader's choice of a light or dark screen. Plotters writes colours
/// as attributes, which a style sheet overrides.
fn with_dark_colours(svg: &str) -> String {
    let rule = |(RGBColor(red, green, blue), dark): (RGBColor, &str)| {
        let light = format!("#{red:02X}{green:02X}{blue:02X}");
        ["fill", "stroke"].map(|name| format!("[{name}=\"{light}\"]{{{name}:{dark}}}")).concat()
    };
    let rules = DARK.map(rule).concat();
    let drawn = svg.trim_end().strip_suffix("</svg>").expect("an SVG ends with its closing tag");
    format!("{drawn}<style>@media (prefers-color-scheme:dark){{{rules}}}</style>\n</svg>\n")
}

fn below(canvas: &Canvas<'_>, top: i32, notes: &[String]) -> Drawn {
    for (note, line) in notes.iter().zip(0..) {
        let at = (MARGIN, top + line * NOTE_HEIGHT);
        canvas.draw_text(note, &text::style(TEXT, QUIET_INK), at)?;
    }
    Ok(())
}

/// The number of lines of a wrapped text.
fn lines(text: &[String]) -> i32 {
    i32::try_from(text.len()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
