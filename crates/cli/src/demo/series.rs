//! `--series`: the samples as CSV, for programs.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use super::{journey::Journey, sample::DemoSample};
use crate::error::CliError;

/// The first line of the file; the names are those of `lab run --series`.
const HEADER: [&str; 7] = [
    "mode",
    "at_s",
    "e2e_pacing_mbps",
    "tunnel_pacing_mbps",
    "e2e_srtt_ms",
    "tunnel_srtt_ms",
    "tunnel_queue_bytes",
];

/// A CSV file with one line for each sample of each journey. Missing values are empty.
#[derive(Debug)]
pub(super) struct SeriesFile {
    path: PathBuf,
    writer: csv::Writer<File>,
}

impl SeriesFile {
    /// Creates the file, so that an invalid name is refused before the first download.
    pub(super) fn create(path: &Path) -> Result<Self, CliError> {
        let file = File::create(path).map_err(CliError::write(path))?;
        let writer = csv::WriterBuilder::new().has_headers(false).from_writer(file);
        let mut series = Self { path: path.to_owned(), writer };
        let written = series.writer.write_record(HEADER).map_err(io::Error::from);
        written.map_err(CliError::write(path))?;
        Ok(series)
    }

    /// Adds a journey.
    pub(super) fn add(&mut self, journey: Journey, samples: &[DemoSample]) -> Result<(), CliError> {
        let mode = journey.to_string();
        let lines = samples.iter().map(|sample| (mode.as_str(), sample));
        let written = (|| {
            for line in lines {
                self.writer.serialize(line)?;
            }
            self.writer.flush()
        })();
        written.map_err(CliError::write(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_sample_is_a_line_under_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("series.csv");
        let mut series = SeriesFile::create(&path).unwrap();
        let tunnelled = DemoSample {
            at_s: 0.35,
            e2e_pacing_mbps: Some(9.5),
            tunnel_pacing_mbps: Some(10.25),
            e2e_srtt_ms: Some(151.0),
            tunnel_srtt_ms: Some(44.125),
            tunnel_queue_bytes: Some(20_000),
        };
        let untunnelled = DemoSample {
            tunnel_pacing_mbps: None,
            tunnel_srtt_ms: None,
            tunnel_queue_bytes: None,
            ..tunnelled
        };
        series.add("mft".parse().unwrap(), &[untunnelled]).unwrap();
        series.add("rmdt:off@cubic".parse().unwrap(), &[tunnelled]).unwrap();
        let expected = "mode,at_s,e2e_pacing_mbps,tunnel_pacing_mbps,e2e_srtt_ms,tunnel_srtt_ms,\
                        tunnel_queue_bytes\n\
                        mft,0.35,9.5,,151.0,,\n\
                        rmdt:off@cubic,0.35,9.5,10.25,151.0,44.125,20000\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("no/series.csv");
        let error = SeriesFile::create(&path).unwrap_err().to_string();
        assert!(error.contains("no/series.csv"), "{error}");
    }
}
