//! `tandem lab report`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tandem_experiments::{
    report::{Report as Page, ReportFigure, ReportTable},
    summary::{Summaries, Varied},
    sweep::{Torn, read_results},
};
use tandem_server::files::FileError;

use crate::{
    error::{CliError, LabError},
    text,
};

/// The largest number of files of a report, which guards against a wrong folder.
const FILES_MAX: usize = 1000;

/// The largest depth of folders that are searched. Figures are in the folder of their paper.
const DEPTH_MAX: usize = 3;

/// The largest size of a picture in bytes.
const SVG_LEN_MAX: u64 = 10_000_000;

/// Make one HTML page of the figures and results in a folder. It includes every .svg with its
/// .meta.json and every .jsonl of runs. The page needs no other file and no network.
#[derive(Debug, clap::Args)]
pub(crate) struct Report {
    /// Folder with figures and results of sweeps
    dir: PathBuf,

    /// File for the page [default: DIR/report.html]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// The page's title
    #[arg(long, value_name = "TEXT", default_value = "Tunnels in virtual time")]
    title: String,
}

impl Report {
    /// Writes the page.
    pub(crate) fn run(self) -> Result<(), CliError> {
        let mut files = Vec::new();
        find(&self.dir, DEPTH_MAX, &mut files)?;
        let named = |ending: &'static str| {
            let is_it = move |file: &&PathBuf| file.extension().is_some_and(|it| it == ending);
            files.iter().filter(is_it)
        };
        let figures = named("svg").map(|file| self.figure(file)).collect::<Result<Vec<_>, _>>()?;
        let tables = named("jsonl").map(|file| self.table(file)).collect::<Result<Vec<_>, _>>()?;
        if figures.is_empty() && tables.is_empty() {
            return Err(LabError::NothingToReport { folder: self.dir }.into());
        }
        let file = self.out.clone().unwrap_or_else(|| self.dir.join("report.html"));
        let page = Page { title: self.title, figures, tables };
        fs::write(&file, page.html()).map_err(CliError::write(&file))?;
        text::print(format_args!("{}", file.display()))
    }

    fn figure(&self, file: &Path) -> Result<ReportFigure, CliError> {
        let unreadable = |error| FileError::Unreadable { file: file.to_owned(), error };
        let len = fs::metadata(file).map_err(unreadable)?.len();
        if len > SVG_LEN_MAX {
            let (file, max) = (file.to_owned(), SVG_LEN_MAX);
            return Err(FileError::TooLong { file, len, max }.into());
        }
        let svg = fs::read_to_string(file).map_err(unreadable)?;
        let meta = fs::read_to_string(file.with_extension("meta.json")).unwrap_or_default();
        let facts: BTreeMap<String, Value> = serde_json::from_str(&meta).unwrap_or_default();
        let facts = facts.into_iter().filter(|(_, value)| !value.is_null());
        let facts = facts.map(|(name, value)| match value {
            Value::String(text) => (name.replace('_', " "), text),
            other => (name.replace('_', " "), other.to_string()),
        });
        Ok(ReportFigure { name: self.name(file), svg, facts: facts.collect() })
    }

    /// Reads a file twice, so that only its numbers are in memory.
    fn table(&self, file: &Path) -> Result<ReportTable, CliError> {
        let mut varied = Varied::default();
        let torn = read_results(file, |record| varied.see(&record)).map_err(LabError::from)?;
        let mut summaries = Summaries::new(varied.keys());
        read_results(file, |record| summaries.add(&record)).map_err(LabError::from)?;
        summaries.sort();
        let torn = torn.map(|Torn { bytes }| {
            format!("The file's last line is unfinished; its {bytes} bytes are left out.")
        });
        let runs: u64 = summaries.summaries().iter().map(|summary| summary.runs).sum();
        let notes =
            [format!("{runs} runs.")].into_iter().chain(summaries.note()).chain(torn).collect();
        Ok(ReportTable { name: self.name(file), table: summaries.table(), notes })
    }

    /// The path of a file in the folder, without its extension.
    fn name(&self, file: &Path) -> String {
        let inside = file.strip_prefix(&self.dir).unwrap_or(file);
        inside.with_extension("").to_string_lossy().into_owned()
    }
}

/// All files of a folder, sorted.
fn find(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), CliError> {
    let unreadable = |error| FileError::Unreadable { file: folder.to_owned(), error };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        paths.push(entry.map_err(unreadable)?.path());
    }
    paths.sort();
    for path in paths {
        if path.is_dir() {
            if depth > 1 {
                find(&path, depth - 1, found)?;
            }
        } else {
            found.push(path);
        }
        if found.len() > FILES_MAX {
            let (folder, max) = (folder.to_owned(), FILES_MAX);
            return Err(LabError::TooManyFiles { folder, max }.into());
        }
    }
    Ok(())
}
