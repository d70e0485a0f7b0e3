//! Draws the content of a panel.

use plotters::prelude::*;

use super::{
    Canvas, Chart, Drawn, Fill, GRID, INK, LINE_HEIGHT, PaperNumber, Plane, Point, QUIET_INK,
    Series, diamond,
    layout::{
        ABOVE_PLANE, BELOW_HEADING, BESIDE_PLANE, HEADING_HEIGHT, PLANE, Plot, X_LABEL_HEIGHT,
    },
    lines, marker, shaded,
    text::{self, HEADING, TEXT},
};

impl Plot<'_> {
    pub(super) fn draw(&self, canvas: &Canvas<'_>) -> Drawn {
        self.draw_headings(canvas)?;
        let middle = self.left + self.y_labels + self.length() / 2;
        let style = text::style(TEXT, QUIET_INK).pos(text::top_center());
        if self.lines.is_empty() {
            let at = (middle, self.top + PLANE / 2);
            return canvas.draw_text("this plan has no run for this panel", &style, at);
        }
        let size = (self.width, PLANE + self.x_labels);
        let area = canvas.clone().shrink((self.left, self.top), size);
        self.draw_plane(&area)?;
        for label in &self.labels {
            let at = (self.y_labels + label.middle, PLANE + 10 + label.row * X_LABEL_HEIGHT);
            area.draw_text(&label.text, &style, at)?;
        }
        for (line, row) in self.x_label.iter().zip(0..) {
            let at = (middle, self.top + PLANE + self.x_labels + 3 + row * LINE_HEIGHT);
            canvas.draw_text(line, &style, at)?;
        }
        Ok(())
    }

    /// Draws the title, and below it the y axis's label, above the plane.
    fn draw_headings(&self, canvas: &Canvas<'_>) -> Drawn {
        let label_top = self.top - ABOVE_PLANE - lines(&self.y_label) * LINE_HEIGHT;
        let title_top = label_top - BELOW_HEADING - lines(&self.title) * HEADING_HEIGHT;
        for (line, row) in self.title.iter().zip(0..) {
            let at = (self.left, title_top + row * HEADING_HEIGHT);
            canvas.draw_text(line, &text::style(HEADING, INK), at)?;
        }
        for (line, row) in self.y_label.iter().zip(0..) {
            let at = (self.left, label_top + row * LINE_HEIGHT);
            canvas.draw_text(line, &text::style(TEXT, QUIET_INK), at)?;
        }
        Ok(())
    }

    fn draw_plane(&self, area: &Canvas<'_>) -> Drawn {
        let (x, y) = (&self.x, &self.y);
        let mut plane = ChartBuilder::on(area)
            .set_label_area_size(LabelAreaPosition::Left, self.y_labels)
            .set_label_area_size(LabelAreaPosition::Bottom, self.x_labels)
            .margin_top(8)
            .margin_right(BESIDE_PLANE)
            .build_cartesian_2d(x.clone(), y.clone())?;
        plane
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(QUIET_INK)
            .x_label_style(text::style(TEXT, QUIET_INK).color(&TRANSPARENT)) // drawn by `draw`
            .y_label_style(text::style(TEXT, QUIET_INK))
            .draw()?;
        if y.crosses_zero() {
            let zero = [(x.range().start, 0.0), (x.range().end, 0.0)];
            plane.draw_series([PathElement::new(zero, QUIET_INK)])?;
        }
        self.draw_theirs(area, &mut plane)?;
        (0..)
            .zip(&self.lines)
            .try_for_each(|(number, line)| self.draw_line(area, &mut plane, number, *line))
    }

    /// Draws the line with this number.
    fn draw_line(
        &self,
        area: &Canvas<'_>,
        plane: &mut Plane<'_, '_>,
        number: usize,
        (line, shade): (&Series, usize),
    ) -> Drawn {
        let (x, y, chart) = (&self.x, &self.y, self.panel.chart);
        let is_spread = matches!(chart, Chart::Distribution | Chart::Time);
        let aside = if is_spread { 0.0 } else { x.aside(number, self.lines.len()) };
        let spot = |at: f64, value: f64| (x.at(at) + aside, y.at(value));
        if is_spread || !x.has_names() {
            let is_covered = number == 0 && chart == Chart::Distribution;
            let width = if is_covered { 5 } else { 2 }; // wider than a line that covers it
            let path = line.points.iter().map(|point| spot(point.x, point.value));
            let style = shaded(line.mode, shade).stroke_width(width);
            plane.draw_series([PathElement::new(path.collect::<Vec<_>>(), style)])?;
        }
        if is_spread { Ok(()) } else { points(area, plane, (line, shade), spot) }
    }

    /// Draws the paper's numbers: diamonds, and dashed lines for numbers that hold for every x.
    fn draw_theirs(&self, area: &Canvas<'_>, plane: &mut Plane<'_, '_>) -> Drawn {
        let (x, y) = (&self.x, &self.y);
        for PaperNumber { x: place, value, .. } in self.theirs.iter().copied() {
            let value = y.at(*value);
            if place.is_empty() {
                let ends = [(x.range().start, value), (x.range().end, value)];
                plane.draw_series(DashedLineSeries::new(ends, 6, 4, INK.stroke_width(1)))?;
                let (left, top) = pixel(area, plane, (x.range().end, value));
                diamond(area, (left - 8, top))?;
            } else if let Some(at) = x.place(place) {
                diamond(area, pixel(area, plane, (at, value)))?;
            }
        }
        Ok(())
    }
}

/// Draws a line's points with error bars. Markers are hollow if not all runs completed.
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

/// Converts a position in the plane to pixels in the panel's area. Markers are drawn in the area,
/// because the plane would clip them at its edge.
fn pixel(area: &Canvas<'_>, plane: &Plane<'_, '_>, spot: (f64, f64)) -> (i32, i32) {
    let ((x, y), (left, top)) = (plane.backend_coord(&spot), area.get_base_pixel());
    (x - left, y - top)
}
