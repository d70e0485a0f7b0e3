//! The numbers that are drawn.

use serde::Serialize;

use super::{PaperNumber, traces::Traces};
use crate::run::Mode;

/// One line of a panel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Number of the panel, from 1.
    pub panel: usize,
    /// The mode of the line.
    pub mode: Mode,
    /// The name of the line among those of its mode, if the mode has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// The points from left to right.
    pub points: Vec<Point>,
}

impl Series {
    /// The name that distinguishes it from the other lines of a figure, such as `rmdt ordered`.
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
    /// The position on the x axis, in the base unit.
    pub x: f64,
    /// The same position as text, with its unit.
    pub x_text: String,
    /// The position on the y axis, in the axis's unit.
    pub value: f64,
    /// Lower bound of the 95 % confidence interval; the value itself if there is no interval.
    pub low: f64,
    /// Upper bound of the interval.
    pub high: f64,
    /// Number of runs that the point summarizes.
    pub runs: usize,
    /// Number of runs that completed. Completion times count the others as the time limit, and other
    /// values are over the completed runs.
    pub completed: usize,
}

/// A table with one line for each point. Values have six digits after the point. The column `paper`
/// has the paper's number, if it prints one. The column `traces` says whether links followed
/// recordings or synthetic traces, if they followed any.
pub(super) fn csv(series: &[Series], paper: &[PaperNumber], traces: Option<Traces>) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header =
        ["panel", "mode", "x", "value", "low", "high", "runs", "completed", "paper", "traces"];
    writer.write_record(header).expect("a write to memory does not fail");
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
                .expect("a write to memory does not fail");
        }
    }
    super::golden::text(writer)
}
