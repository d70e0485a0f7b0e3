//! The numbers and statements of the paper, from `ID.paper.csv`.

use serde::Deserialize;

use crate::run::Mode;

/// The numbers and statements of a paper about a figure.
#[derive(Clone, Debug, Default)]
pub(super) struct Paper {
    pub(super) numbers: Vec<PaperNumber>,
    pub(super) statements: Vec<PaperStatement>,
}

/// A number that the paper prints. It is drawn beside our results.
#[derive(Clone, Debug, PartialEq)]
pub struct PaperNumber {
    /// Number of the panel, from 1.
    pub panel: usize,
    /// The mode of the number. Without a mode it holds for every tunnel.
    pub mode: Option<Mode>,
    /// The position on the x axis, as text. An empty text means a bound for every x.
    pub x: String,
    /// The position on the y axis.
    pub value: f64,
}

impl PaperNumber {
    /// Whether the number holds for this mode.
    pub(super) fn concerns(&self, mode: Mode) -> bool {
        self.mode.map_or(mode.has_tunnel(), |whose| whose == mode)
    }
}

/// A statement of the paper, in our words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaperStatement {
    /// The statement.
    pub text: String,
    /// Its place in the paper.
    pub source: String,
}

#[derive(Deserialize)]
struct PaperRow {
    panel: Option<usize>,
    mode: Option<Mode>,
    x: String,
    value: Option<f64>,
    statement: String,
    source: String,
}

/// Rows with a value are numbers, rows with a statement are statements; a row may be both.
pub(super) fn parse(text: &str) -> Paper {
    let mut paper = Paper::default();
    for row in csv::Reader::from_reader(text.as_bytes()).into_deserialize() {
        let PaperRow { panel, mode, x, value, statement, source } =
            row.expect("a test parses each table of ours");
        if let (Some(panel), Some(value)) = (panel, value) {
            paper.numbers.push(PaperNumber { panel, mode, x, value });
        }
        if !statement.is_empty() {
            paper.statements.push(PaperStatement { text: statement, source });
        }
    }
    paper
}
