//! What is drawn, as numbers.

use serde::Serialize;

use super::{PaperNumber, traces::Traces};
use crate::run::Mode;

/// One line of a panel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Number of the panel, from 1.
    pub panel: usize,
    /// Whose line it is.
    pub mode: Mode,
    /// Which of the mode's lines, where it has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// From left to right.
    pub points: Vec<Point>,
}

impl Series {
    /// What tells it from the other lines of a figure, such as `rmdt ordered`.
    pub fn name(&self) -> String {
        match &self.variant {
            None => self.mode.to_string(),
            Some(variant) => format!("{} {variant}", self.mode),
        }
    }
}

/// One point of a line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Where on the x axis, in the base unit.
    pub x: f64,
    /// The same as text, with its unit.
    pub x_text: String,
    /// Where on the y axis, in the axis's unit.
    pub value: f64,
    /// Lower bound of the 95 % confidence interval; the value itself if it has none.
    pub low: f64,
    /// Upper bound of it.
    pub high: f64,
    /// Runs that the point stands for.
    pub runs: usize,
    /// How many of them completed; the value is over these.
    pub completed: usize,
}

/// One line a point. Values have six digits after the point; `paper` is the paper's own, if it
/// prints one; `traces` whether links followed recordings, if they followed any trace.
pub(super) fn csv(series: &[Series], paper: &[PaperNumber], traces: Option<Traces>) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header =
        ["panel", "mode", "x", "value", "low", "high", "runs", "completed", "paper", "traces"];
    writer.write_record(header).expect("memory can be written");
    for line in series {
        let Series { panel, mode, points, .. } = line;
        for point in points {
            let theirs = paper.iter().find(|number| {
                number.panel == *panel && number.concerns(*mode) && number.x == point.x_text
            });
            let number = |value: f64| format!("{value:.6}");
            writer
                .write_record([
                    panel.to_string(),
                    line.name(),
                    point.x_text.clone(),
                    number(point.value),
                    number(point.low),
                    number(point.high),
                    point.runs.to_string(),
                    point.completed.to_string(),
                    theirs.map(|theirs| theirs.value.to_string()).unwrap_or_default(),
                    traces.map(|traces| traces.as_str().to_owned()).unwrap_or_default(),
                ])
                .expect("memory can be written");
        }
    }
    super::golden::text(writer)
}
