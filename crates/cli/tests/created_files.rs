//! Every file that the program creates is listed here, with the reason for its mode, so that a new one which names
//! people or holds a secret does not follow the umask by mistake.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// What creates a file, or may.
const CREATES: [&str; 11] = [
    "File::create",
    "fs::write(",
    "OpenOptions::new",
    "Connection::open(",
    "NamedTempFile::new",
    "tempfile::Builder",
    "tempfile::tempdir",
    "tempfile()",
    "create_dir",
    "DirBuilder",
    "csv::Writer::from_path",
];

/// Files of the program in which one of these stands, and what they create.
const LISTED: [(&str, &str); 21] = [
    ("cli/src/demo/file.rs", "noise for the demonstration, and its folder"),
    ("cli/src/demo/pages.rs", "a page for the demonstration, by file.rs"),
    ("cli/src/demo/runner.rs", "noise for the demonstration, by file.rs"),
    ("cli/src/demo/series.rs", "rates of the demonstration"),
    (
        "cli/src/download/part.rs",
        "what its user downloads: the umask's or the replaced file's mode",
    ),
    ("cli/src/lab/figure.rs", "figures of simulations"),
    ("cli/src/lab/programs.rs", "the commits of the programs that made results"),
    ("cli/src/lab/report.rs", "reports of simulations"),
    ("cli/src/lab/run.rs", "records of simulations"),
    ("cli/src/layers/mod.rs", "a drawing that its user asks for"),
    (
        "cli/src/pair/files.rs",
        "a folder; the files in it are written by server/src/process/secret.rs",
    ),
    (
        "cli/src/up/folder.rs",
        "folders of 0700; the files in them are written by server/src/process/secret.rs",
    ),
    ("cli/src/up/service.rs", "a unit of systemd, which has no secret, and its folder"),
    ("experiments/src/sweep/results.rs", "results of simulations"),
    ("net/src/files.rs", "nothing: it reads what an origin serves"),
    ("server/src/acme/folder.rs", "keys and certificates: 0600 in a folder of 0700"),
    ("server/src/process/secret.rs", "files that name people, and secrets: 0600"),
    ("server/src/role/paths.rs", "the first line of the qlog of paths, without addresses"),
    ("server/src/tls/development.rs", "a folder; the files in it are written by process/secret.rs"),
    ("server/src/tls/server.rs", "the certificate of a CA, which is public"),
    (
        "server/src/users/sqlite.rs",
        "what users have used: made by process/secret.rs before SQLite opens it",
    ),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_file_that_the_program_creates_is_listed() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for krate in fs::read_dir(&crates).unwrap().map(Result::unwrap) {
        // The attacker is no part of the program.
        if krate.file_name() != "siege" {
            sources(&krate.path().join("src"), &mut files);
        }
    }
    let may_create = |file: &&PathBuf| {
        let text = fs::read_to_string(file).unwrap();
        let code = text.split("\nmod tests {").next().unwrap_or_default();
        let mut lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.any(|line| CREATES.iter().any(|name| line.contains(name)))
    };
    let name = |file: &PathBuf| file.strip_prefix(&crates).unwrap().to_string_lossy().into_owned();
    let found: BTreeSet<_> = files.iter().filter(may_create).map(name).collect();
    let listed: BTreeSet<_> = LISTED.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(
        found, listed,
        "a file that names people or holds a secret needs server/src/process/secret.rs"
    );
}
