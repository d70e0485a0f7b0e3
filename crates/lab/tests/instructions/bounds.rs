//! Compares counts of instructions with their bounds, or writes new ones.

use std::{fmt::Write as _, fs, path::Path, process::Command};

/// By how many hundredths a count may exceed its bound with another compiler than that of the bounds.
const GROWTH_BY_COMPILER: u64 = 10;

/// The instructions for each payload in one case.
pub(crate) struct Count {
    /// The first fields of a line of the bounds, with commas between them.
    pub(crate) name: String,
    pub(crate) instructions: u64,
}

/// A file of bounds.
pub(crate) struct Bounds<'a> {
    pub(crate) file: &'a Path,
    /// The names of the fields in a `Count`'s name, with commas between them.
    pub(crate) fields: &'a str,
    /// By how many hundredths a count may exceed its bound.
    pub(crate) growth: u64,
}

impl Bounds<'_> {
    pub(crate) fn write(&self, counts: &[Count]) {
        let mut csv = format!("{},instructions with {}\n", self.fields, compiler());
        for Count { name, instructions } in counts {
            writeln!(csv, "{name},{instructions}").expect("a string takes all");
        }
        fs::write(self.file, csv).expect("the bounds are written");
    }

    /// Prints the counts, and returns whether none has grown.
    pub(crate) fn hold(&self, counts: &[Count]) -> bool {
        let bounds = fs::read_to_string(self.file).expect("the bounds are there");
        let is_same = bounds.lines().next().is_some_and(|head| head.ends_with(&compiler()));
        let growth = if is_same { self.growth } else { GROWTH_BY_COMPILER };
        if !is_same {
            println!("the bounds are of another compiler, so that counts may grow by {growth} %");
        }
        let mut hold = true;
        for Count { name, instructions } in counts {
            let bound = bounds
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(',')?.parse().ok());
            let bound: u64 = bound.unwrap_or(0);
            let has_grown = instructions * 100 > bound * (100 + growth);
            let verdict = if has_grown { "TOO MANY" } else { "" };
            println!("{name:20} {instructions:7} instructions, bound {bound:7} {verdict}");
            hold &= !has_grown;
        }
        hold
    }
}

/// A command whose language and options are not those of the caller; only where programs and toolchains are comes from
/// there.
pub(crate) fn clean(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear();
    for name in ["PATH", "HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "CARGO_HOME"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command
}

fn compiler() -> String {
    let version = clean("rustc").arg("-V").output().expect("rustc is installed");
    String::from_utf8_lossy(&version.stdout).trim().to_owned()
}
