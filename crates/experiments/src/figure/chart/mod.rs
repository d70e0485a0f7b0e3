//! A figure as SVG: title, legend, panels side by side, and the paper's words below.

mod axis;
mod mark;

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use self::{
    axis::Axis,
    mark::{Fill, color, diamond, marker, shaded},
};
use super::{Chart, Figure, Panel, PaperNumber, Point, Series, paper::Paper, traces::Traces};
use crate::{plan::Plan, run::Mode};

const WIDTH: u32 = 1040;
const MARGIN: i32 = 28;
/// From the top to the panels: title, setting, legend.
const HEAD: i32 = 122;
const PANEL_HEIGHT: i32 = 330;
/// From the top of one row of panels to that of the next.
const ROW: i32 = PANEL_HEIGHT + 24;
const PANELS_IN_A_ROW: i32 = 3;
/// Between two panels of a row.
const GAP: i32 = 34;
const LINE_HEIGHT: i32 = 19;
/// Of a panel: its title and the y axis's label above, both axes' numbers, the x axis's label.
const PANEL_HEAD: i32 = 52;
const LEFT_LABELS: i32 = 52;
const BOTTOM_LABELS: i32 = 30;
const X_LABEL: i32 = 24;

const PAPER: RGBColor = RGBColor(255, 255, 255);
const INK: RGBColor = RGBColor(31, 41, 51);
const QUIET_INK: RGBColor = RGBColor(97, 110, 124);
const GRID: RGBColor = RGBColor(226, 232, 238);

/// What stands for them and for the modes' colours on dark screens.
const DARK: [(RGBColor, &str); 13] = [
    (PAPER, "#14181D"),
    (INK, "#E4E9EE"),
    (QUIET_INK, "#9AA5B1"),
    (GRID, "#2C343D"),
    (color(Mode::Mft), "#AAB4BF"),
    (color(Mode::MftPlus), "#D8C7A0"),
    (color(Mode::Mdt), "#56B4E9"),
    (color(Mode::Mst), "#F0803C"),
    (color(Mode::Msgt), "#E39AC3"),
    (color(Mode::Rmdt), "#2CC295"),
    (color(Mode::RmdtPlus), "#B4C46A"),
    (color(Mode::Tecc), "#FF7C9C"),
    (color(Mode::TeccPaper), "#F2C14E"),
];

/// Plotters sizes fonts by their line, 1.24 times what SVG calls their size.
const TITLE: f64 = 20.0 * 1.24;
const HEADING: f64 = 15.0 * 1.24;
const TEXT: f64 = 13.0 * 1.24;

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plane<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;
type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// Where the panels end.
fn below_panels(panels: &[Panel]) -> i32 {
    let count = i32::try_from(panels.len()).unwrap_or(1).max(1);
    HEAD + ROW * (count - 1).div_euclid(PANELS_IN_A_ROW) + PANEL_HEIGHT + 14
}

/// Draws it all.
pub(super) fn draw(
    figure: &Figure,
    plan: &Plan,
    panels: &[Panel],
    series: &[Series],
    paper: &Paper,
) -> String {
    let notes = notes(plan, panels, series, paper);
    let lines = i32::try_from(notes.len()).unwrap_or(0);
    let height = below_panels(panels) + lines * LINE_HEIGHT + MARGIN / 2;
    let mut svg = String::new();
    let size = (WIDTH, u32::try_from(height).unwrap_or(WIDTH));
    {
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        canvas
            .fill(&PAPER)
            .and_then(|()| head(&canvas, figure, plan, series, paper))
            .and_then(|()| all_panels(&canvas, panels, series, paper))
            .and_then(|()| below(&canvas, below_panels(panels), &notes))
            .and_then(|()| canvas.present())
            .expect("a string can be drawn to");
    }
    with_dark_colours(&svg)
}

/// Makes the picture follow the reader's choice of light or dark, wherever it is shown. Plotters
/// writes colours as attributes, which a style sheet overrides.
fn with_dark_colours(svg: &str) -> String {
    let rule = |(RGBColor(red, green, blue), dark): (RGBColor, &str)| {
        let light = format!("#{red:02X}{green:02X}{blue:02X}");
        ["fill", "stroke"].map(|name| format!("[{name}=\"{light}\"]{{{name}:{dark}}}")).concat()
    };
    let rules = DARK.map(rule).concat();
    let style = format!("<style>@media (prefers-color-scheme:dark){{{rules}}}</style>");
    svg.replacen(">\n", &format!(">\n{style}\n"), 1)
}

fn head(
    canvas: &Canvas<'_>,
    figure: &Figure,
    plan: &Plan,
    series: &[Series],
    paper: &Paper,
) -> Drawn {
    let title = plan.title().unwrap_or(figure.about);
    canvas.draw_text(title, &text(TITLE, INK), (MARGIN, 20))?;
    let setting = wrapped(plan.description().unwrap_or_default());
    for (line, y) in setting.iter().zip([48, 65]) {
        canvas.draw_text(line, &text(TEXT, QUIET_INK), (MARGIN, y))?;
    }
    let legend = legend(series);
    let (names, _) = names(&legend, !paper.numbers.is_empty());
    let mut x = MARGIN;
    let y = 96;
    for ((line, shade), name) in legend.into_iter().zip(names) {
        let color = shaded(line.mode, shade);
        canvas.draw(&PathElement::new([(x, y), (x + 26, y)], color.stroke_width(2)))?;
        marker(canvas, (x + 13, y), color, line.mode, Fill::Full)?;
        canvas.draw_text(&name, &text(TEXT, INK).pos(middle_left()), (x + 34, y))?;
        x += name_width(&name);
    }
    if !paper.numbers.is_empty() {
        diamond(canvas, (x + 8, y))?;
        canvas.draw_text("the paper", &text(TEXT, INK).pos(middle_left()), (x + 22, y))?;
    }
    Ok(())
}

fn all_panels(canvas: &Canvas<'_>, panels: &[Panel], series: &[Series], paper: &Paper) -> Drawn {
    let count = i32::try_from(panels.len()).unwrap_or(1).clamp(1, PANELS_IN_A_ROW);
    let inside = i32::try_from(WIDTH).unwrap_or(0) - 2 * MARGIN;
    let width = (inside - GAP * (count - 1)) / count;
    let legend = legend(series);
    for (panel, number) in panels.iter().zip(1..) {
        let left = MARGIN + (width + GAP) * ((number - 1) % PANELS_IN_A_ROW);
        let top = HEAD + ROW * ((number - 1) / PANELS_IN_A_ROW);
        let lines: Vec<_> =
            series.iter().filter(|line| i32::try_from(line.panel) == Ok(number)).collect();
        let theirs = paper.numbers.iter();
        let theirs: Vec<_> = theirs.filter(|it| i32::try_from(it.panel) == Ok(number)).collect();
        let origin = (left, top);
        canvas.draw_text(&panel.title, &text(HEADING, INK), origin)?;
        canvas.draw_text(&panel.y_label, &text(TEXT, QUIET_INK), (left, top + 25))?;
        let size = (width, PANEL_HEIGHT - PANEL_HEAD - X_LABEL);
        let area = canvas.clone().shrink((left, top + PANEL_HEAD), size);
        let middle = (left + LEFT_LABELS + (width - LEFT_LABELS) / 2, top + PANEL_HEIGHT - 8);
        if lines.is_empty() {
            let style = text(TEXT, QUIET_INK).pos(Pos::new(HPos::Center, VPos::Center));
            canvas.draw_text("no run of this plan belongs here", &style, (middle.0, top + 150))?;
            continue;
        }
        one_panel(&area, panel, &shaded_lines(&legend, &lines), &theirs)?;
        let style = text(TEXT, QUIET_INK).pos(Pos::new(HPos::Center, VPos::Bottom));
        canvas.draw_text(&panel.x_label, &style, middle)?;
    }
    Ok(())
}

fn one_panel(
    area: &Canvas<'_>,
    panel: &Panel,
    shaded_lines: &[(&Series, usize)],
    theirs: &[&PaperNumber],
) -> Drawn {
    let lines: Vec<_> = shaded_lines.iter().map(|(line, _)| *line).collect();
    let width = i32::try_from(area.dim_in_pixel().0).unwrap_or(0) - LEFT_LABELS - 10;
    let x = match panel.chart {
        Chart::Points | Chart::Flows => Axis::of_points(panel.x_scale, &lines, width),
        Chart::Distribution | Chart::Time => Axis::of_distributed(panel.x_scale, &lines),
    };
    let y = Axis::of_values(panel.y_scale, &lines, theirs);
    let mut plane = ChartBuilder::on(area)
        .set_label_area_size(LabelAreaPosition::Left, LEFT_LABELS)
        .set_label_area_size(LabelAreaPosition::Bottom, BOTTOM_LABELS)
        .margin_top(8)
        .margin_right(10)
        .build_cartesian_2d(x.clone(), y.clone())?;
    plane
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(QUIET_INK)
        .label_style(text(TEXT, QUIET_INK))
        .draw()?;
    if y.crosses_zero() {
        let zero = [(x.range().start, 0.0), (x.range().end, 0.0)];
        plane.draw_series([PathElement::new(zero, QUIET_INK)])?;
    }
    the_papers(area, &mut plane, (&x, &y), theirs)?;
    let count = lines.len();
    for (place, (line, shade)) in shaded_lines.iter().enumerate() {
        if matches!(panel.chart, Chart::Distribution | Chart::Time) {
            let path = line.points.iter().map(|point| (x.at(point.x), y.at(point.value)));
            let is_covered = place == 0 && panel.chart == Chart::Distribution;
            let width = if is_covered { 5 } else { 2 }; // seen on both sides of the one that covers it
            let style = shaded(line.mode, *shade).stroke_width(width);
            plane.draw_series([PathElement::new(path.collect::<Vec<_>>(), style)])?;
            continue;
        }
        let aside = x.aside(place, count);
        let spot = |at: f64, value: f64| (x.at(at) + aside, y.at(value));
        if !x.has_names() {
            let path = line.points.iter().map(|point| spot(point.x, point.value));
            let style = shaded(line.mode, *shade).stroke_width(2);
            plane.draw_series([PathElement::new(path.collect::<Vec<_>>(), style)])?;
        }
        points(area, &plane, (line, *shade), spot)?;
    }
    Ok(())
}

/// A line's points with error bars, and markers that are hollow where not all runs completed.
fn points(
    area: &Canvas<'_>,
    plane: &Plane<'_, '_>,
    (line, shade): (&Series, usize),
    spot: impl Fn(f64, f64) -> (f64, f64),
) -> Drawn {
    let color = shaded(line.mode, shade);
    for Point { x, value, low, high, runs, completed, .. } in &line.points {
        let pixel = |value: f64| pixel(area, plane, spot(*x, value));
        let (at, (left, low), (_, high)) = (pixel(*value), pixel(*low), pixel(*high));
        if low > high + 1 {
            let style = color.stroke_width(1);
            area.draw(&PathElement::new([(left, low), (left, high)], style))?;
            for end in [low, high] {
                area.draw(&PathElement::new([(left - 3, end), (left + 3, end)], style))?;
            }
        }
        let fill = if completed == runs { Fill::Full } else { Fill::Hollow };
        marker(area, at, color, line.mode, fill)?;
    }
    Ok(())
}

/// The paper's numbers: diamonds, and lines where a number holds for every x.
fn the_papers(
    area: &Canvas<'_>,
    plane: &mut Plane<'_, '_>,
    (x, y): (&Axis, &Axis),
    theirs: &[&PaperNumber],
) -> Drawn {
    for number in theirs {
        let value = y.at(number.value);
        if number.x.is_empty() {
            let ends = [(x.range().start, value), (x.range().end, value)];
            plane.draw_series(DashedLineSeries::new(ends, 6, 4, INK.stroke_width(1)))?;
            let (left, top) = pixel(area, plane, (x.range().end, value));
            diamond(area, (left - 8, top))?;
        } else if let Some(at) = x.place(&number.x) {
            diamond(area, pixel(area, plane, (at, value)))?;
        }
    }
    Ok(())
}

/// Where in the panel's area a place in its plane is. Marks are drawn there, because the plane cuts
/// off what reaches over its edge.
fn pixel(area: &Canvas<'_>, plane: &Plane<'_, '_>, spot: (f64, f64)) -> (i32, i32) {
    let ((x, y), (left, top)) = (plane.backend_coord(&spot), area.get_base_pixel());
    (x - left, y - top)
}

fn below(canvas: &Canvas<'_>, top: i32, notes: &[String]) -> Drawn {
    for (note, line) in notes.iter().zip(0..) {
        let y = top + line * LINE_HEIGHT;
        canvas.draw_text(note, &text(TEXT, QUIET_INK), (MARGIN, y))?;
    }
    Ok(())
}

/// What stands below the panels, line by line.
fn notes(plan: &Plan, panels: &[Panel], series: &[Series], paper: &Paper) -> Vec<String> {
    let streams = plan.runs().map(|run| run.streams).max().unwrap_or(1);
    let points = || series.iter().flat_map(|series| &series.points);
    let seeds = plan.seeds();
    let streams = if streams == 1 { "1 stream".to_owned() } else { format!("{streams} streams") };
    let has_bars = points().any(|point| point.high > point.low);
    let bars = if has_bars { "; bars: 95 % confidence of the mean" } else { "" };
    let mut texts = vec![format!("Ours: seeds {seeds}, {streams}{bars}.")];
    texts.extend(names(&legend(series), !paper.numbers.is_empty()).1);
    texts.extend(numbered_names(panels, series));
    texts.extend(Traces::of(plan).map(|traces| traces.said().to_owned()));
    if points().any(|point| point.completed < point.runs) {
        texts.push("Hollow: not all runs completed; the value is over those that did.".to_owned());
    }
    for statement in &paper.statements {
        texts.push(match statement.source.as_str() {
            "" => statement.text.clone(),
            source => format!("The paper: {} [{source}]", statement.text),
        });
    }
    texts.iter().flat_map(|text| wrapped(text)).collect()
}

/// What the numbers mean that stand for names along the panels' x axes.
fn numbered_names(panels: &[Panel], series: &[Series]) -> Vec<String> {
    let mut notes = Vec::new();
    for (panel, number) in panels.iter().zip(1..) {
        let lines: Vec<_> = series.iter().filter(|line| line.panel == number).collect();
        if matches!(panel.chart, Chart::Points | Chart::Flows) {
            let names = Axis::of_points(panel.x_scale, &lines, panel_width(panels)).numbered();
            notes.extend(names.map(|names| format!("{}: {names}.", panel.x_label)));
        }
    }
    notes.dedup();
    notes
}

/// Pixels between a panel's y axis and its right end.
fn panel_width(panels: &[Panel]) -> i32 {
    let count = i32::try_from(panels.len()).unwrap_or(1).clamp(1, PANELS_IN_A_ROW);
    let inside = i32::try_from(WIDTH).unwrap_or(0) - 2 * MARGIN;
    (inside - GAP * (count - 1)) / count - LEFT_LABELS - 10
}

/// Lines of words that fit the figure's width.
fn wrapped(text: &str) -> Vec<String> {
    let limit = i32::try_from(WIDTH).unwrap_or(0) - 2 * MARGIN;
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        let longer = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
        if text_width(&longer) > limit && !line.is_empty() {
            lines.push(word.to_owned());
        } else {
            *line = longer;
        }
    }
    lines
}

/// Each line once, and which of its mode's it is.
fn legend(series: &[Series]) -> Vec<(&Series, usize)> {
    let mut lines: Vec<&Series> = Vec::new();
    for line in series {
        if !lines.iter().any(|other| other.name() == line.name()) {
            lines.push(line);
        }
    }
    lines.iter().map(|line| (*line, shade(&lines, line))).collect()
}

/// What the legend calls its lines; what their modes mean is said there if there is room for it,
/// else in the note that comes with them.
fn names(legend: &[(&Series, usize)], has_paper: bool) -> (Vec<String>, Option<String>) {
    let meant = |mode: Mode| format!("{}: {}", mode.as_str().to_uppercase(), meaning(mode));
    let all = |name: fn(Mode) -> String| -> Vec<String> {
        let name = |(line, _): &(&Series, usize)| match &line.variant {
            None => name(line.mode),
            Some(variant) => format!("{}, {variant}", line.mode.as_str().to_uppercase()),
        };
        legend.iter().map(name).collect()
    };
    let long = all(meant);
    let end = MARGIN + long.iter().map(|name| name_width(name)).sum::<i32>();
    let end = if has_paper { end + 100 } else { end };
    if i32::try_from(WIDTH).is_ok_and(|width| end <= width) {
        return (long, None);
    }
    let is_there = |mode: &Mode| legend.iter().any(|(line, _)| line.mode == *mode);
    let meanings: Vec<_> = Mode::ALL.into_iter().filter(is_there).map(meant).collect();
    (all(|mode| mode.as_str().to_uppercase()), Some(format!("{}.", meanings.join("; "))))
}

/// How much room a name takes in the legend, with its mark.
fn name_width(name: &str) -> i32 {
    34 + text_width(name) + 26
}

/// Lines with the shades that the legend gives them.
fn shaded_lines<'a>(legend: &[(&Series, usize)], lines: &[&'a Series]) -> Vec<(&'a Series, usize)> {
    let shade = |line: &Series| {
        let entry = legend.iter().find(|(other, _)| other.name() == line.name());
        entry.map_or(0, |(_, shade)| *shade)
    };
    lines.iter().map(|line| (*line, shade(line))).collect()
}

/// Which of its mode's lines one is.
fn shade(lines: &[&Series], line: &Series) -> usize {
    let same = lines.iter().filter(|other| other.mode == line.mode);
    same.take_while(|other| other.variant != line.variant).count()
}

/// About how many pixels a text of the usual size takes.
fn text_width(text: &str) -> i32 {
    i32::try_from(text.chars().count()).unwrap_or(i32::MAX / 8).saturating_mul(13 * 52) / 100
}

const fn meaning(mode: Mode) -> &'static str {
    match mode {
        Mode::Mft => "no tunnel",
        Mode::MftPlus => "no tunnel, patient origin",
        Mode::Mdt => "datagrams, not repaired",
        Mode::Mst => "one stream, repaired in order",
        Mode::Msgt => "several streams, each in order",
        Mode::Rmdt => "datagrams, repaired",
        Mode::RmdtPlus => "datagrams, repaired, patient origin",
        Mode::Tecc => "repaired, and the origin is told",
        Mode::TeccPaper => "the same, as printed",
    }
}

fn text(size: f64, color: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&color)
}

fn middle_left() -> Pos {
    Pos::new(HPos::Left, VPos::Center)
}
