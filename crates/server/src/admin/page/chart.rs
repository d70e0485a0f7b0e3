//! Small line charts in SVG.

use std::fmt::Write;

use maud::{Markup, html};

use super::super::words;

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 120.0;

/// The seconds that a chart shows.
const SECONDS: usize = 300;

/// Values over the last minutes.
pub(super) struct Chart<'a> {
    pub(super) title: &'static str,
    pub(super) format: fn(f64) -> String,
    pub(super) lines: &'a [Line<'a>],
}

pub(super) struct Line<'a> {
    pub(super) name: &'static str,
    pub(super) class: &'static str,
    /// One for each second, the newest last.
    pub(super) values: &'a [f64],
}

impl Chart<'_> {
    pub(super) fn draw(&self) -> Markup {
        let values = self.lines.iter().flat_map(|line| line.values);
        let max = values.copied().fold(0.0, f64::max);
        html! {
            figure {
                figcaption {
                    strong { (self.title) }
                    @if self.lines.len() > 1 {
                        @for line in self.lines { " " span class=(line.class) { "■ " (line.name) } }
                    }
                    span.max { "top: " ((self.format)(max)) }
                }
                svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" role="img"
                    aria-label=(format!("{} over the last five minutes", self.title)) {
                    @for line in self.lines {
                        polyline class=(line.class) points=(points(line.values, max)) {}
                    }
                }
                div.axis { span { "5 min ago" } span { "now" } }
            }
        }
    }
}

/// The newest value is at the right end.
fn points(values: &[f64], max: f64) -> String {
    let mut points = String::new();
    let newest = values.iter().rev().take(SECONDS);
    let step = WIDTH / (chart_float(SECONDS) - 1.0);
    for (age, value) in newest.enumerate() {
        let x = WIDTH - chart_float(age) * step;
        let y = (HEIGHT - 2.0) * (1.0 - value / max.max(1e-9)) + 1.0;
        write!(points, "{x:.0},{y:.0} ").expect("a string takes all text");
    }
    points
}

#[expect(clippy::cast_precision_loss, reason = "at most 300")]
const fn chart_float(number: usize) -> f64 {
    number as f64
}

/// A number of bytes.
#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "it was a whole number"
)]
pub(super) fn bytes(value: f64) -> String {
    words::bytes(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_value_is_at_the_right_and_the_largest_at_the_top() {
        assert_eq!(points(&[0.0, 5.0, 10.0], 10.0), "600,1 598,60 596,119 ");
        assert_eq!(points(&[], 0.0), "");
        assert_eq!(points(&[0.0], 0.0), "600,119 ");
        assert_eq!(points(&[1.0; 1000], 1.0).split(' ').count(), SECONDS + 1);
    }
}
