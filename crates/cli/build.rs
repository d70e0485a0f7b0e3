//! Tells the program from which commit it is built, and whether its sources were as committed.
//!
//! It runs again when the commit changes or a source of a crate that the program consists of, which is when Cargo
//! builds this crate anyway. No other crate is built again for a new commit.

use std::{env, fs, path::Path, process::Command};

/// What the program is made of, relative to this crate.
const SOURCES: [&str; 2] = ["../../Cargo.toml", "../../Cargo.lock"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=TANDEM_COMMIT");
    let commit = env::var("TANDEM_COMMIT").ok().filter(|commit| !commit.is_empty());
    if let Some(commit) = commit.or_else(of_git).or_else(of_package) {
        println!("cargo:rustc-env=TANDEM_COMMIT={commit}");
    }
}

/// The commit of the repository in which this file is tracked, with `-dirty` if sources differ from it.
fn of_git() -> Option<String> {
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo:rerun-if-changed={log}");
    // An archive of the sources may lie in somebody else's repository.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let crates = fs::read_dir("..").ok()?.flatten().map(|entry| entry.path());
    let folders = ["src", "Cargo.toml", "figures", "bpf"];
    let parts = crates.flat_map(|it| folders.map(|part| it.join(part)));
    let sources = SOURCES.iter().map(Into::into).chain(parts.filter(|it| it.exists()));
    sources.for_each(|source| println!("cargo:rerun-if-changed={}", source.display()));
    let commit = git(&["rev-parse", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--", "..", SOURCES[0], SOURCES[1]])?;
    Some(if changed.is_empty() { commit } else { format!("{commit}-dirty") })
}

/// The commit that `cargo package` writes into a package.
fn of_package() -> Option<String> {
    let file = Path::new(".cargo_vcs_info.json");
    let text = fs::read_to_string(file).ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    let commit = rest.split('"').nth(1).filter(|it| it.chars().all(|it| it.is_ascii_hexdigit()))?;
    let is_dirty = text.contains("\"dirty\"");
    Some(if is_dirty { format!("{commit}-dirty") } else { commit.to_owned() })
}

/// The output of git, without its last line break. `None`: there is no git, or it failed.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}
