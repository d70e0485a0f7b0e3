//! Which builds of the program made the runs of a file of results.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};

use crate::error::CliError;

/// The largest size of a file of metadata in bytes, which guards against a wrong file.
const META_LEN_MAX: u64 = 1_000_000;

/// A build of this program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProgramBuild {
    /// The version. `None`: unknown.
    version: Option<String>,
    /// The commit from which it was built. `None`: the build did not know it.
    commit: Option<String>,
    /// Whether its sources were as committed. `None`: the build did not know it.
    clean: Option<bool>,
}

impl ProgramBuild {
    /// This program.
    fn this() -> Self {
        let described = option_env!("TANDEM_COMMIT");
        let commit = described.map(|it| it.strip_suffix("-dirty").unwrap_or(it).to_owned());
        let clean = described.map(|it| !it.ends_with("-dirty"));
        Self { version: Some(env!("CARGO_PKG_VERSION").to_owned()), commit, clean }
    }

    /// A program of which nothing is known.
    const UNKNOWN: Self = Self { version: None, commit: None, clean: None };
}

/// The content of the file of metadata beside results, FILE.meta.json for FILE.jsonl.
#[derive(Debug, Serialize, Deserialize)]
struct ResultsMeta {
    programs: Vec<ProgramBuild>,
}

/// The programs that made the runs of a file of results, in their order: more than one if a later build continued
/// what an earlier one had begun.
pub(super) fn programs(results: &Path) -> Vec<ProgramBuild> {
    let file = results.with_extension("meta.json");
    let len = fs::metadata(&file).map_or(0, |metadata| metadata.len());
    let text = (len <= META_LEN_MAX).then(|| fs::read_to_string(&file).ok()).flatten();
    let meta = text.and_then(|text| serde_json::from_str::<ResultsMeta>(&text).ok());
    meta.map_or_else(Vec::new, |meta| meta.programs)
}

/// Notes, before the missing runs of a file of results are made, which programs have made those that are there,
/// and that this program makes the others.
///
/// # Errors
///
/// The file of metadata cannot be written.
pub(super) fn note(
    results: &Path,
    merged: &[impl AsRef<Path>],
    (finished, all): (u64, u64),
) -> Result<(), CliError> {
    let mut known = programs(results);
    known.extend(merged.iter().flat_map(|other| programs(other.as_ref())));
    if known.is_empty() && finished > 0 {
        known.push(ProgramBuild::UNKNOWN);
    }
    if finished < all {
        known.push(ProgramBuild::this());
    }
    let mut programs = Vec::new();
    for program in known {
        if !programs.contains(&program) {
            programs.push(program);
        }
    }
    let file = results.with_extension("meta.json");
    let text = serde_json::to_string_pretty(&ResultsMeta { programs }).expect("it is JSON");
    fs::write(&file, text + "\n").map_err(CliError::write(&file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_name_each_program_that_made_some_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let none: [&Path; 0] = [];
        let (results, part) = (place("plan.jsonl"), place("plan.part-0.jsonl"));
        note(&results, &none, (0, 10)).unwrap();
        assert_eq!(programs(&results), [ProgramBuild::this()]);
        // An interrupted sweep goes on, and a finished one is looked at again.
        note(&results, &none, (4, 10)).unwrap();
        note(&results, &none, (10, 10)).unwrap();
        assert_eq!(programs(&results), [ProgramBuild::this()]);
        // These results have no metadata, so that the program that made them is unknown.
        note(&part, &none, (4, 10)).unwrap();
        assert_eq!(programs(&part), [ProgramBuild::UNKNOWN, ProgramBuild::this()]);
        note(&results, &[part], (10, 10)).unwrap();
        assert_eq!(programs(&results), [ProgramBuild::this(), ProgramBuild::UNKNOWN]);
    }

    #[test]
    fn the_program_knows_its_commit_in_a_repository() {
        let ProgramBuild { commit, clean, .. } = ProgramBuild::this();
        assert_eq!(commit.is_some(), clean.is_some());
        if let Some(commit) = commit {
            assert_eq!(commit.len(), 40, "{commit}");
        }
    }
}
