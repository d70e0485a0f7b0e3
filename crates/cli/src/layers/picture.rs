//! Draws panels with a common time axis as SVG.

use plotters::{coord::Shift, prelude::*};

/// The colours of the layers, which people with colour blindness can tell apart (Okabe and Ito).
pub(super) const COLORS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
];

const WIDTH: u32 = 1040;
const HEAD: u32 = 88;
const PANEL: u32 = 204;
/// Room for the numbers beside a panel.
const BESIDE: i32 = 76;
/// The width of a name in the legend.
const NAME: i32 = 220;

const INK: RGBColor = RGBColor(31, 41, 51);
const GRID: RGBColor = RGBColor(226, 232, 238);

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawnPicture = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// A curve. Times are in milliseconds.
#[derive(Debug)]
pub(super) struct PictureCurve {
    pub(super) color: RGBColor,
    pub(super) points: Vec<(f64, f64)>,
}

/// Curves with one scale.
pub(super) struct CurvePanel {
    pub(super) title: &'static str,
    /// The least end of its axis.
    pub(super) least: f64,
    pub(super) format: fn(f64) -> String,
    pub(super) lines: Vec<PictureCurve>,
}

/// Draws all panels below each other, under a title with a smaller line. `names` are those of the colours.
pub(super) fn draw(title: &[String; 2], names: &[String], panels: &[CurvePanel]) -> String {
    let count = u32::try_from(panels.len()).unwrap_or(0);
    let points = panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points);
    let end = points.map(|&(time, _)| time).fold(1.0, f64::max);
    let mut svg = String::new();
    {
        let size = (WIDTH, HEAD + count * PANEL);
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        canvas.fill(&WHITE).and_then(|()| head(&canvas, title, names)).expect("a string takes all");
        let (_, below) = canvas.split_vertically(HEAD);
        let areas = below.split_evenly((panels.len(), 1));
        for (panel, area) in panels.iter().zip(&areas) {
            panel.draw(area, end).expect("a string takes all");
        }
        canvas.present().expect("a string takes all");
    }
    svg
}

fn head(canvas: &Canvas<'_>, [title, note]: &[String; 2], names: &[String]) -> DrawnPicture {
    canvas.draw_text(title, &font(20).color(&INK), (16, 10))?;
    canvas.draw_text(note, &font(12).color(&INK), (16, 38))?;
    let mut left = BESIDE;
    for (name, color) in names.iter().zip(COLORS.iter().cycle()) {
        let style = color.stroke_width(3);
        canvas.draw(&PathElement::new([(left, 70), (left + 24, 70)], style))?;
        canvas.draw_text(name, &font(14).color(&INK), (left + 30, 62))?;
        left += NAME;
    }
    Ok(())
}

fn font(size: i32) -> FontDesc<'static> {
    ("sans-serif", size).into_font()
}

impl CurvePanel {
    fn draw(&self, area: &Canvas<'_>, end: f64) -> DrawnPicture {
        let points = self.lines.iter().flat_map(|line| &line.points);
        let top = points.map(|&(_, value)| value).fold(0.0, f64::max);
        let top = (top * 1.08).max(self.least);
        let is_empty = self.lines.iter().all(|line| line.points.iter().all(|point| point.1 <= 0.0));
        let title = if is_empty { format!("{}: none", self.title) } else { self.title.to_owned() };
        let mut plane = ChartBuilder::on(area)
            .caption(title, font(15).color(&INK))
            .set_label_area_size(LabelAreaPosition::Left, BESIDE)
            .set_label_area_size(LabelAreaPosition::Bottom, 40)
            .margin_right(20)
            .margin_left(4)
            .build_cartesian_2d(0.0..end / 1000.0, 0.0..top)?;
        let format = self.format;
        plane
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(font(13).color(&INK))
            .x_label_formatter(&|seconds| format!("{} s", (seconds * 1e3).round() / 1e3))
            .y_label_formatter(&|value| format(*value))
            .x_desc("time since the client began")
            .y_labels(6)
            .draw()?;
        for line in &self.lines {
            let points = thinned(&line.points, end);
            let style = line.color.stroke_width(2);
            plane.draw_series(LineSeries::new(points, style))?;
        }
        Ok(())
    }
}

/// The points of a curve in seconds, of which each pixel has no more than the first, the least, the largest and
/// the last.
fn thinned(points: &[(f64, f64)], end: f64) -> Vec<(f64, f64)> {
    let pixels = f64::from(WIDTH);
    #[expect(clippy::cast_possible_truncation, reason = "a number of pixels")]
    let pixel = |&(time, _): &(f64, f64)| (time / end * pixels) as i64;
    let chunks = points.chunk_by(|a, b| pixel(a) == pixel(b));
    let some = chunks.flat_map(|chunk| {
        let order = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let least = chunk.iter().min_by(order);
        let most = chunk.iter().max_by(order);
        let mut some: Vec<_> =
            [chunk.first(), least, most, chunk.last()].into_iter().flatten().copied().collect();
        some.sort_by(|a, b| a.0.total_cmp(&b.0));
        some
    });
    some.map(|(time, value)| (time / 1000.0, value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_all_names_and_few_points() {
        let points: Vec<_> = (0..100_000).map(|it| (f64::from(it), f64::from(it % 1000))).collect();
        assert!(thinned(&points, 100_000.0).len() <= 4 * 1041);
        let line = || PictureCurve { color: COLORS[0], points: points.clone() };
        let panel = CurvePanel {
            title: "Window",
            least: 1.0,
            format: |it| format!("{it} B"),
            lines: vec![line()],
        };
        let empty = CurvePanel {
            title: "Losses",
            least: 5.0,
            format: |it| format!("{it:.0}"),
            lines: Vec::new(),
        };
        let names = ["tunnel 1".to_owned(), "end to end".to_owned()];
        let title = ["Download: 7 s".to_owned(), "a note".to_owned()];
        let svg = draw(&title, &names, &[panel, empty]);
        for words in
            ["Download: 7 s", "a note", "tunnel 1", "end to end", "Window", "20 s", "400 B"]
        {
            assert!(svg.contains(words), "no {words}");
        }
        let (_, losses) = svg.split_once("Losses: none").unwrap();
        let words = losses.lines().map(str::trim);
        let marks: Vec<_> = words.filter_map(|it| it.parse::<u32>().ok()).collect();
        let mut whole = marks.clone();
        whole.dedup();
        assert!(marks.len() >= 4 && marks == whole, "no number comes twice: {marks:?}");
        assert!(svg.len() < 1_000_000, "{} bytes", svg.len());
    }
}
