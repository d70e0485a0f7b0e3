use std::{fs, path::PathBuf};

use tempfile::TempDir;

use super::*;
use crate::plan::Variant;

/// A plan that takes milliseconds.
const PLAN: &str = "size = ['10kB', '20kB']\nmode = ['mft', 'mdt']\nseeds = '1..3'";
const TWO: NonZeroUsize = NonZeroUsize::new(2).unwrap();

struct Bench {
    dir: TempDir,
    plan: Plan,
}

impl Bench {
    fn new() -> Self {
        let plan = Plan::parse("plan.toml".as_ref(), PLAN, Variant::Full).unwrap();
        Self { dir: tempfile::tempdir().unwrap(), plan }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("plan.jsonl")
    }

    /// Runs until this many runs have ended, and returns what was found and how many ended.
    fn sweep(&self, at_most: usize) -> (Found, usize) {
        let (stop, mut done, mut known) = (AtomicBool::new(false), 0, 0);
        let mut sweep = Sweep::open(&self.plan, Part::WHOLE, &self.file(), |_| known += 1).unwrap();
        let found = sweep.found();
        let one = NonZeroUsize::MIN;
        let jobs = if at_most < 12 { one } else { TWO };
        let traces = load_traces(&self.plan).unwrap();
        let ended = sweep.run(&traces, jobs, &stop, |_| {
            done += 1;
            stop.store(done >= at_most, Ordering::Relaxed);
        });
        ended.unwrap();
        assert_eq!(found.finished, known);
        (found, done)
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(self.file()).unwrap().lines().map(str::to_owned).collect()
    }
}

#[test]
fn a_sweep_on_two_threads_measures_what_one_does() {
    let (parallel, serial) = (Bench::new(), Bench::new());
    assert_eq!(parallel.sweep(12).1, 12);
    while serial.sweep(4).1 > 0 {}
    let sorted = |bench: &Bench| {
        let mut lines = bench.lines();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&parallel), sorted(&serial));
}

#[test]
fn an_interrupted_sweep_continues_where_it_ended() {
    let bench = Bench::new();
    let (_, first) = bench.sweep(5);
    assert!((5..12).contains(&first), "{first}");
    let (found, second) = bench.sweep(12);
    assert_eq!((found.finished, second), (first as u64, 12 - first));
    assert_eq!(bench.sweep(12).1, 0);
    assert_eq!(bench.lines().len(), 12);
}

#[test]
fn parts_that_are_merged_are_the_whole_plan() {
    let (whole, split) = (Bench::new(), Bench::new());
    whole.sweep(12);
    let traces = load_traces(&split.plan).unwrap();
    let part_file = |index: usize| split.dir.path().join(format!("part-{index}.jsonl"));
    for index in 0..3 {
        let part = format!("{index}/3").parse().unwrap();
        let mut sweep = Sweep::open(&split.plan, part, &part_file(index), |_| {}).unwrap();
        assert_eq!(sweep.len(), 4);
        sweep.run(&traces, TWO, &AtomicBool::new(false), |_| {}).unwrap();
    }
    let mut known = 0;
    let mut sweep = Sweep::open(&split.plan, Part::WHOLE, &split.file(), |_| {}).unwrap();
    for index in [0, 1, 2, 1] {
        sweep.merge(&part_file(index), |_| known += 1).unwrap();
    }
    assert_eq!((sweep.found().finished, known), (12, 12), "each run counts once");
    drop(sweep);
    let sorted = |bench: &Bench| {
        let mut lines = bench.lines();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&split), sorted(&whole));
    assert_eq!(split.sweep(12).1, 0, "nothing is left to do");
}

#[test]
fn an_incomplete_last_line_is_removed_and_its_run_is_repeated() {
    let bench = Bench::new();
    bench.sweep(12);
    let text = fs::read_to_string(bench.file()).unwrap();
    let torn = text.len() - 20;
    fs::write(bench.file(), &text[..torn]).unwrap();
    let (found, again) = bench.sweep(12);
    assert_eq!((found.finished, again), (11, 1));
    let last = text.lines().last().unwrap().len() as u64;
    assert_eq!(found.torn, Some(Torn { bytes: last + 1 - 20 }));
    let mut lines = bench.lines();
    lines.sort();
    let mut before: Vec<_> = text.lines().map(str::to_owned).collect();
    before.sort();
    assert_eq!(lines, before);
}

#[test]
fn a_file_with_other_contents_is_refused_and_stays() {
    let bench = Bench::new();
    for text in ["my notes", "my notes\n", "{\"mode\":\"mft\"}\n", "\n", "{}"] {
        fs::write(bench.file(), text).unwrap();
        let error = Sweep::open(&bench.plan, Part::WHOLE, &bench.file(), |_| {}).expect_err(text);
        assert!(matches!(error, ResultsError::Foreign { line: 1, .. }), "{text:?}: {error}");
        assert_eq!(fs::read_to_string(bench.file()).unwrap(), text);
    }
}

#[test]
fn two_sweeps_do_not_write_to_one_file() {
    let bench = Bench::new();
    let _first = Sweep::open(&bench.plan, Part::WHOLE, &bench.file(), |_| {}).unwrap();
    let error = Sweep::open(&bench.plan, Part::WHOLE, &bench.file(), |_| {}).expect_err("in use");
    assert!(matches!(error, ResultsError::InUse { .. }), "{error}");
}

#[test]
fn runs_of_other_plans_stay_and_are_not_counted() {
    let bench = Bench::new();
    bench.sweep(12);
    let plan = "size = '20kB'\nmode = 'mdt'\nseeds = '2..5'";
    let plan = Plan::parse("other.toml".as_ref(), plan, Variant::Full).unwrap();
    let sweep = Sweep::open(&plan, Part::WHOLE, &bench.file(), |_| {}).unwrap();
    assert_eq!(sweep.found(), Found { finished: 2, others: 10, torn: None });
}
