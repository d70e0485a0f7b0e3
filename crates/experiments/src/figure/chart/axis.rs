//! The positions of values and ticks on an axis.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use tandem_netem::SyntheticTrace;

use super::{
    PaperNumber, Series,
    text::{self, TEXT},
};
use crate::figure::Scale;

/// The approximate number of ticks of an axis.
const TICKS: f64 = 5.0;

/// The largest number of ticks of a logarithmic axis, so that their labels do not touch.
const TICKS_MAX: usize = 10;

/// The largest number of rows of labels along an axis, and the least distance between two labels in
/// a row.
const LABEL_ROWS_MAX: usize = 3;
const LABEL_DISTANCE: i32 = 2;

/// The horizontal distance between the points of different lines at the same x, as a share of the
/// axis.
const ASIDE: f64 = 0.012;

/// One axis. Its coordinates are the values, or their decimal logarithms.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    scale: Scale,
    range: Range<f64>,
    ticks: Vec<Tick>,
    /// A key of the numbers that replace names, if the names have no room.
    numbered: Option<String>,
}

#[derive(Clone, Debug)]
struct Tick {
    /// Its coordinate.
    at: f64,
    /// The value at the tick.
    text: String,
    /// The label of the tick.
    label: String,
}

/// A label below a tick of an x axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) text: String,
    /// Pixels from the axis's left end to the label's middle.
    pub(super) middle: i32,
    /// The number of rows of labels above it.
    pub(super) row: i32,
}

impl Tick {
    fn new(at: f64, text: String) -> Self {
        Self { at, label: text.clone(), text }
    }

    fn is_name(&self) -> bool {
        self.text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '$')
    }
}

impl Axis {
    /// An x axis of a length in pixels, with a tick at each x of the lines.
    pub(super) fn of_points(scale: Scale, lines: &[&Series], width: i32) -> Self {
        let points = lines.iter().flat_map(|line| &line.points);
        let mut ticks: Vec<_> = points
            .map(|point| Tick::new(coordinate(scale, point.x), point.x_text.clone()))
            .collect();
        ticks.sort_by(|a, b| a.at.total_cmp(&b.at));
        ticks.dedup_by(|a, b| a.text == b.text);
        let numbered = shorten(&mut ticks, width);
        let first = ticks.first().map_or(0.0, |tick| tick.at);
        let last = ticks.last().map_or(1.0, |tick| tick.at);
        let space = if last > first { (last - first) * 0.06 } else { 1.0 };
        Self { scale, range: first - space..last + space, ticks, numbered }
    }

    /// A key of the numbers that replace names, if there are such numbers.
    pub(super) fn numbered(&self) -> Option<&str> {
        self.numbered.as_deref()
    }

    /// The labels along this axis, which has this length in pixels. Each label is placed in the
    /// first row in which it overlaps no other label and stays within `room`. A label that fits no
    /// row is omitted.
    pub(super) fn labels(&self, length: i32, room: &Range<i32>) -> Vec<Label> {
        let mut ends: Vec<i32> = Vec::new();
        let mut labels = Vec::new();
        for tick in &self.ticks {
            let width = text::width(&tick.label, TEXT);
            let half = width.div_euclid(2) + 1;
            let least = room.start + half;
            let middle = self.map(&tick.at, (0, length)).clamp(least, least.max(room.end - half));
            let start = middle - width.div_euclid(2);
            let is_free = |end: &i32| end + LABEL_DISTANCE <= start;
            let row = ends.iter().position(is_free).unwrap_or(ends.len());
            if row == LABEL_ROWS_MAX {
                continue;
            }
            ends.resize(ends.len().max(row + 1), 0);
            if let Some(end) = ends.get_mut(row) {
                *end = start + width;
            }
            let row = i32::try_from(row).unwrap_or(0);
            labels.push(Label { text: tick.label.clone(), middle, row });
        }
        labels
    }

    /// Width in pixels of the widest label of a y axis.
    pub(super) fn widest_label(&self) -> i32 {
        self.ticks.iter().map(|tick| text::width(&tick.label, TEXT)).max().unwrap_or(0)
    }

    /// An x axis for continuous values.
    pub(super) fn of_distributed(scale: Scale, lines: &[&Series]) -> Self {
        let points = lines.iter().flat_map(|line| &line.points);
        Self::over(scale, points.map(|point| point.x))
    }

    /// A y axis for all values, their bars and the paper's numbers.
    pub(super) fn of_values(scale: Scale, lines: &[&Series], theirs: &[&PaperNumber]) -> Self {
        let points = || lines.iter().flat_map(|line| &line.points);
        let values = points().flat_map(|point| [point.low, point.value, point.high]);
        Self::over(scale, values.chain(theirs.iter().map(|number| number.value)))
    }

    fn over(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let bounds = (f64::INFINITY, f64::NEG_INFINITY);
        let has_place = |value: &f64| scale == Scale::Linear || *value > 0.0;
        let values = values.filter(has_place);
        let (low, high) = values.fold(bounds, |(low, high), it| (low.min(it), high.max(it)));
        match scale {
            _ if low > high => Self::linear(0.0, 1.0), // there are no values
            Scale::Linear if low == 0.0 && high == 0.0 => Self::linear(0.0, 1.0),
            Scale::Linear => Self::linear(low.min(0.0), high.max(0.0)),
            Scale::Log => Self::logarithmic(low, high),
        }
    }

    fn linear(low: f64, high: f64) -> Self {
        let space = (high - low).max(1e-9) * 0.07;
        let start = if low < 0.0 { low - space } else { 0.0 };
        let end = if high > 0.0 { high + space } else { 0.0 };
        let step = nice((end - start) / TICKS);
        #[expect(clippy::cast_possible_truncation, reason = "about five ticks")]
        let first = (start / step).ceil() as i64;
        let decimals = decimals(step);
        #[expect(clippy::cast_precision_loss, reason = "about five ticks")]
        let ticks = (first..).map(|number| number as f64 * step).take_while(|at| *at <= end);
        let label = |at: f64| format!("{at:.decimals$}").replace('-', "\u{2212}");
        let ticks = ticks.map(|at| Tick::new(at, label(at))).collect();
        Self { scale: Scale::Linear, range: start..end, ticks, numbered: None }
    }

    fn logarithmic(low: f64, high: f64) -> Self {
        let range = (low / 1.2).log10()..(high * 1.2).log10();
        #[expect(clippy::cast_possible_truncation, reason = "a few decades")]
        let decades = range.start.floor() as i32..=range.end.ceil() as i32;
        let ticks = |steps: &[f64]| -> Vec<_> {
            let values =
                decades.clone().flat_map(|n| steps.iter().map(move |m| m * 10_f64.powi(n)));
            let ticks = values.map(|value| Tick::new(value.log10(), format!("{}", round(value))));
            ticks.filter(|tick| range.contains(&tick.at)).collect()
        };
        let few = ticks(&[1.0, 2.0, 5.0]);
        let ticks = match few.len() {
            ..4 => ticks(&[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]),
            4..=TICKS_MAX => few,
            _ => {
                let decades = ticks(&[1.0]);
                let step = decades.len().div_ceil(TICKS_MAX);
                decades.into_iter().step_by(step).collect()
            }
        };
        Self { scale: Scale::Log, range, ticks, numbered: None }
    }

    /// The coordinate of a value. It is the lower end of the axis if the value has no logarithm.
    pub(super) fn at(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Log if value <= 0.0 => self.range.start,
            scale => coordinate(scale, value),
        }
    }

    /// The coordinate of the tick with this value.
    pub(super) fn place(&self, text: &str) -> Option<f64> {
        self.ticks.iter().find(|tick| tick.text == text).map(|tick| tick.at)
    }

    /// The horizontal offset of the points of one of several lines, so that their error bars can be
    /// distinguished. It is small enough that points do not seem to belong to the next tick.
    #[expect(clippy::cast_precision_loss, reason = "a few lines")]
    pub(super) fn aside(&self, place: usize, count: usize) -> f64 {
        let width = self.range.end - self.range.start;
        let gaps = self.ticks.iter().zip(self.ticks.iter().skip(1)).map(|(a, b)| b.at - a.at);
        let room = gaps.fold(width, f64::min) * 0.8 / count.max(1) as f64;
        (place as f64 - (count.saturating_sub(1)) as f64 / 2.0) * room.min(ASIDE * width)
    }

    /// Whether the ticks are names, between which there are no values.
    pub(super) fn has_names(&self) -> bool {
        self.ticks.iter().all(Tick::is_name)
    }

    /// Whether zero is inside the range, and not at its edge.
    pub(super) fn crosses_zero(&self) -> bool {
        self.scale == Scale::Linear && self.range.start < 0.0 && self.range.end > 0.0
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, at: &f64, (first, last): (i32, i32)) -> i32 {
        let share = (at - self.range.start) / (self.range.end - self.range.start);
        #[expect(clippy::cast_possible_truncation, reason = "pixels")]
        let pixels = (share * f64::from(last - first)).round() as i32;
        first + pixels
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|tick| tick.at).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, at: &f64) -> String {
        let tick = self.ticks.iter().find(|tick| (tick.at - at).abs() < 1e-9);
        tick.map(|tick| tick.label.clone()).unwrap_or_default()
    }
}

/// Shortens the names of traces by their folder and ending. If names are too long to fit side by
/// side, it replaces them with numbers and returns a key of these.
fn shorten(ticks: &mut [Tick], width: i32) -> Option<String> {
    for tick in ticks.iter_mut().filter(|tick| tick.is_name()) {
        let file = tick.label.rsplit('/').next().unwrap_or_default();
        let name = file.trim_end_matches(".down").trim_end_matches(".up");
        tick.label = name.trim_start_matches(SyntheticTrace::PREFIX).to_owned();
    }
    let widest = ticks.iter().map(|tick| text::width(&tick.label, TEXT)).max()?;
    let room = width / i32::try_from(ticks.len()).ok()?;
    if widest <= room || !ticks.iter().all(Tick::is_name) {
        return None;
    }
    let mut names = Vec::new();
    for (tick, number) in ticks.iter_mut().zip(1..) {
        names.push(format!("{number} {}", tick.label));
        tick.label = number.to_string();
    }
    Some(names.join(", "))
}

fn coordinate(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Linear => value,
        Scale::Log => value.max(1e-9).log10(),
    }
}

/// A step near this one that is 1, 2 or 5 times a power of ten.
fn nice(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let bounds = [(1.5, 1.0), (3.0, 2.0), (7.0, 5.0)];
    let near = bounds.into_iter().find(|(bound, _)| step <= bound * power);
    near.map_or(10.0, |(_, factor)| factor) * power
}

/// The number of digits after the point that distinguish ticks.
fn decimals(step: f64) -> usize {
    (0..9)
        .find(|digits| step * 10_f64.powi(*digits) >= 0.999)
        .map_or(9, |digits| digits.unsigned_abs() as usize)
}

/// Removes the rounding errors of binary fractions.
fn round(value: f64) -> f64 {
    (value * 1e9).round() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(names: &[&str]) -> Vec<Tick> {
        names.iter().map(|name| Tick::new(0.0, (*name).to_owned())).collect()
    }

    fn labels(ticks: &[Tick]) -> Vec<&str> {
        ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn numbers_replace_names_that_have_no_room() {
        let mut few = ticks(&["$TANDEM_TRACES/cellular_home.down", "synthetic:wifi"]);
        assert_eq!(shorten(&mut few, 400), None);
        assert_eq!(labels(&few), ["cellular_home", "wifi"]);
        let key = shorten(&mut few, 100);
        assert_eq!(key.as_deref(), Some("1 cellular_home, 2 wifi"));
        assert_eq!(labels(&few), ["1", "2"]);
    }

    #[test]
    fn labels_that_have_no_room_in_a_row_stand_in_the_next() {
        let percents = [0.0, 1.0, 2.0, 5.0, 8.0];
        let ticks: Vec<_> = percents.iter().map(|at| Tick::new(*at, format!("{at}%"))).collect();
        let axis = Axis { scale: Scale::Linear, range: 0.0..8.0, ticks, numbered: None };
        let places = |length: i32| {
            let labels = axis.labels(length, &(-20..length + 20));
            labels.iter().map(|label| (label.middle, label.row)).collect::<Vec<_>>()
        };
        assert_eq!(places(400), [(0, 0), (50, 0), (100, 0), (250, 0), (400, 0)]);
        assert_eq!(places(160), [(0, 0), (20, 1), (40, 0), (100, 0), (160, 0)]);
        assert_eq!(places(80), [(0, 0), (10, 1), (20, 2), (50, 0), (80, 0)]);
        assert_eq!(places(8), [(0, 0), (1, 1), (2, 2)], "an omitted label still has a tick");
    }

    #[test]
    fn labels_stay_in_their_room() {
        let ticks = vec![Tick::new(0.0, "100 kB".to_owned()), Tick::new(1.0, "1 MB".to_owned())];
        let axis = Axis { scale: Scale::Linear, range: 0.0..1.0, ticks, numbered: None };
        let labels = axis.labels(200, &(0..200));
        let half = |label: &Label| text::width(&label.text, TEXT) / 2;
        assert!(labels[0].middle >= half(&labels[0]), "{labels:?}");
        assert!(labels[1].middle + half(&labels[1]) <= 200, "{labels:?}");
    }

    #[test]
    fn values_that_are_all_zero_or_none_have_an_axis() {
        let labels = |values: &[f64]| {
            let axis = Axis::over(Scale::Linear, values.iter().copied());
            axis.ticks.iter().map(|tick| tick.label.clone()).collect::<Vec<_>>()
        };
        assert_eq!(labels(&[0.0, 0.0]), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&[]), labels(&[0.0]));
    }

    #[test]
    fn an_axis_over_many_powers_of_ten_has_few_ticks() {
        for powers in 0..30 {
            let axis = Axis::over(Scale::Log, [1e-3, 1e-3 * 10_f64.powi(powers)].into_iter());
            let places: Vec<_> = axis.ticks.iter().map(|it| axis.map(&it.at, (0, 216))).collect();
            assert!(places.is_sorted_by(|a, b| a + 15 <= *b), "{powers}: {places:?}");
        }
    }

    #[test]
    fn a_value_without_a_logarithm_is_at_the_lower_end() {
        let with = |low: f64| Axis::over(Scale::Log, [low, 2.0, 30.0].into_iter());
        let (axis, without) = (with(-5.0), with(2.0));
        assert_eq!(axis.range, without.range);
        assert_eq!((axis.at(-5.0), axis.at(10.0)), (axis.range.start, 1.0));
    }

    #[test]
    fn a_long_value_that_is_not_a_name_is_not_replaced() {
        let mut sizes = ticks(&["100 kB", "1000 kB", "10 Mbit/s"]);
        assert_eq!(shorten(&mut sizes, 20), None);
        assert_eq!(labels(&sizes), ["100 kB", "1000 kB", "10 Mbit/s"]);
    }
}
