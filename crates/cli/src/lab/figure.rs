//! `tandem lab figure`.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use serde::Serialize;
use tandem_experiments::{
    figure::{Drawing, FIGURES, Figure as Paper, Meta},
    plan::Variant,
    summary::{SummaryTable, counted},
};

use super::{
    programs::{ProgramBuild, programs},
    stop,
    sweep::{How, SweepWork, refuse_violations},
    table,
};
use crate::{
    error::{CliError, LabError},
    text,
};

/// The largest number of points of a line that the table on standard output shows.
const POINTS_MAX: usize = 12;

/// Make a figure of a paper: CSV, SVG with the paper's numbers, and a list of its inputs.
///
/// Without --full it makes a short version in seconds, with fewer seeds and points. Runs are kept
/// in DIR, so an interrupted command continues when it is run again.
#[derive(Debug, clap::Args)]
pub(crate) struct Figure {
    /// Name of a figure, see --list; tecc/all for every figure of a paper; or all
    #[arg(required_unless_present = "list")]
    id: Option<String>,

    /// List all figures
    #[arg(long, conflicts_with_all = ["id", "full", "json"])]
    list: bool,

    /// Folder for ID.csv, ID.svg, ID.meta.json and the runs, ID.jsonl
    #[arg(short, long, value_name = "DIR", default_value = "figures")]
    out: PathBuf,

    /// Run all seeds and points, which takes minutes to hours
    #[arg(long)]
    full: bool,

    #[command(flatten)]
    how: How,

    /// Print a line of JSON for each line of the figure instead of a table
    #[arg(long)]
    json: bool,
}

impl Figure {
    /// Runs the missing runs and draws the figure.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let Some(id) = &self.id else {
            return list();
        };
        let figures = Paper::find_all(id).map_err(LabError::from)?;
        let stop = stop::on_signal()?;
        figures.iter().try_for_each(|figure| self.make(figure, &stop))
    }

    fn make(&self, figure: &Paper, stop: &AtomicBool) -> Result<(), CliError> {
        let plan = figure.plan(if self.full { Variant::Full } else { Variant::Short });
        let stem = self.out.join(figure.id);
        let folder = stem.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(folder).map_err(CliError::write(folder))?;
        let mut records = Vec::new();
        let runs = stem.with_extension("jsonl");
        self.how.run_all(&SweepWork::whole(&plan, &runs), stop, |record| {
            records.push(record.clone());
        })?;
        let drawing = figure.draw(&plan, &records);
        write(&stem, &drawing, &runs)?;
        if self.json {
            for series in &drawing.series {
                text::print(serde_json::to_string(series).expect("numbers and texts are JSON"))?;
            }
        } else {
            text::print(table::markdown(&points(&drawing)))?;
            let Meta { runs, completed, .. } = drawing.meta;
            if let Some(counted) = counted(runs as u64, completed as u64) {
                text::print(format_args!("\n{counted} Other values are over the completed runs."))?;
            }
        }
        refuse_violations(drawing.meta.violations)
    }
}

fn list() -> Result<(), CliError> {
    let lines = FIGURES.iter().map(|figure| format!("{:<14} {}", figure.id, figure.about));
    text::print(lines.collect::<Vec<_>>().join("\n"))
}

/// The content of ID.meta.json.
#[derive(Serialize)]
struct WholeMeta<'a> {
    #[serde(flatten)]
    figure: &'a Meta,
    /// The builds that made the runs.
    programs: Vec<ProgramBuild>,
}

fn write(stem: &Path, drawing: &Drawing, runs: &Path) -> Result<(), CliError> {
    let meta = WholeMeta { figure: &drawing.meta, programs: programs(runs) };
    let meta = serde_json::to_string_pretty(&meta).expect("numbers and texts are JSON");
    for (ending, content) in
        [("csv", drawing.csv.as_str()), ("svg", &drawing.svg), ("meta.json", &format!("{meta}\n"))]
    {
        let file = stem.with_extension(ending);
        fs::write(&file, content).map_err(CliError::write(&file))?;
        text::say(format_args!("wrote {}", file.display()));
    }
    Ok(())
}

/// The CSV as a table. Lines with many points are thinned out.
fn points(drawing: &Drawing) -> SummaryTable {
    let mut reader =
        csv::ReaderBuilder::new().has_headers(false).from_reader(drawing.csv.as_bytes());
    let mut lines =
        reader.records().flatten().map(|line| line.iter().map(str::to_owned).collect::<Vec<_>>());
    let header = lines.next().unwrap_or_default();
    let mut rows = Vec::new();
    for series in &drawing.series {
        let count = series.points.len();
        let step = count.div_ceil(POINTS_MAX);
        let some = lines.by_ref().take(count).enumerate().filter(|(place, _)| place % step == 0);
        rows.extend(some.map(|(_, row)| row));
    }
    SummaryTable { header, rows }
}
