//! Tests of style rules that no linter checks: lengths of files, and dependencies between crates.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The maximum length of a file in lines, without its tests.
const MAX_LINES: usize = 600;

/// The crates of the workspace that each crate may use. Dependencies have one direction.
const MAY_USE: [(&str, &[&str]); 13] = [
    ("tandem-units", &[]),
    ("tandem-wire", &["tandem-units"]),
    ("tandem-congestion", &["tandem-wire", "tandem-units"]),
    ("tandem-pep", &["tandem-wire"]),
    ("tandem-pep-linux", &["tandem-pep", "tandem-wire"]),
    ("tandem-node", &["tandem-wire", "tandem-congestion", "tandem-pep", "tandem-units"]),
    ("tandem-net", &["tandem-node", "tandem-units"]),
    ("tandem-netem", &["tandem-units"]),
    ("tandem-emulate", &["tandem-netem", "tandem-units"]),
    ("tandem-lab", &["tandem-netem", "tandem-node", "tandem-pep", "tandem-wire", "tandem-units"]),
    (
        "tandem-experiments",
        &["tandem-lab", "tandem-netem", "tandem-node", "tandem-congestion", "tandem-units"],
    ),
    ("tandem-siege", &["tandem-wire", "tandem-units"]),
    (
        "tandem",
        &[
            "tandem-net",
            "tandem-emulate",
            "tandem-experiments",
            "tandem-lab",
            "tandem-netem",
            "tandem-node",
            "tandem-pep",
            "tandem-pep-linux",
            "tandem-wire",
            "tandem-congestion",
            "tandem-units",
        ],
    ),
];

/// Crates that must not use sockets of an operating system or a runtime.
const SANS_IO: [&str; 8] = [
    "tandem-units",
    "tandem-wire",
    "tandem-congestion",
    "tandem-pep",
    "tandem-node",
    "tandem-netem",
    "tandem-lab",
    "tandem-experiments",
];

/// Folders of the crates that open real sockets and TUN devices, and load BPF programs.
const REAL_IO: [&str; 4] = ["net", "emulate", "siege", "pep-linux"];

/// The only code that may name the QUIC engine, besides tests, benchmarks, examples and fuzzing. A
/// change of the engine only affects this code.
const KNOWS_THE_ENGINE: [&str; 3] =
    ["crates/node/src/quic/", "crates/congestion/src/noq.rs", "crates/net/src/socket.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files_below(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                files_below(&path, ending, found);
            }
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
}

/// The name and the dependencies of each crate, without development dependencies.
fn manifests() -> BTreeMap<String, Vec<String>> {
    let mut paths = Vec::new();
    files_below(&root().join("crates"), "Cargo.toml", &mut paths);
    let parse = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let manifest: toml::Table = text.parse().unwrap();
        let name = manifest["package"]["name"].as_str().unwrap().to_owned();
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        let dependencies = dependencies.map(|table| table.keys().cloned().collect());
        (name, dependencies.unwrap_or_default())
    };
    paths.iter().map(parse).collect()
}

#[test]
fn no_file_is_too_long() {
    let mut files = Vec::new();
    files_below(&root().join("crates"), ".rs", &mut files);
    assert!(files.len() > 50, "only {} files found", files.len());
    for file in files {
        let is_test = file.components().any(|part| part.as_os_str() == "tests")
            || file.file_name().is_some_and(|name| name == "tests.rs");
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = code.lines().count();
        assert!(is_test || lines <= MAX_LINES, "{} has {lines} lines", file.display());
    }
}

#[test]
fn dependencies_between_crates_have_one_direction() {
    let manifests = manifests();
    assert_eq!(manifests.len(), MAY_USE.len(), "a crate is missing from the table");
    for (name, may_use) in MAY_USE {
        let ours = manifests[name].iter().filter(|dependency| dependency.starts_with("tandem"));
        for dependency in ours {
            assert!(may_use.contains(&dependency.as_str()), "{name} must not use {dependency}");
        }
    }
}

#[test]
fn only_two_modules_and_the_sockets_name_the_engine() {
    let mut files = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        files_below(&entry.unwrap().path().join("src"), ".rs", &mut files);
    }
    let mut knowing = vec![0; KNOWS_THE_ENGINE.len()];
    for file in files {
        let code = fs::read_to_string(&file).unwrap();
        let mut code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        if !code.any(|line| line.contains("noq_proto") || line.contains("noq_udp")) {
            continue;
        }
        let name = file.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        let known = KNOWS_THE_ENGINE.iter().position(|place| name.starts_with(place));
        knowing[known.unwrap_or_else(|| panic!("{name} must not name the engine"))] += 1;
    }
    assert!(knowing.iter().all(|&files| files > 0), "a place does not name it: {knowing:?}");
}

#[test]
fn nothing_below_net_names_a_runtime() {
    let manifests = manifests();
    for name in SANS_IO {
        for dependency in ["tokio", "noq-udp", "socket2", "hickory-resolver"] {
            assert!(!manifests[name].iter().any(|used| used == dependency), "{name}: {dependency}");
        }
    }
}

#[test]
fn only_four_crates_open_real_sockets_and_devices() {
    let names =
        ["UdpSocket", "TcpListener", "TcpStream", "UnixDatagram", "socket2", "tun_rs", "noq_udp"];
    for krate in fs::read_dir(root().join("crates")).unwrap() {
        let krate = krate.unwrap().path();
        if REAL_IO.iter().any(|name| krate.ends_with(name)) {
            continue;
        }
        let mut files = Vec::new();
        files_below(&krate.join("src"), ".rs", &mut files);
        for file in files.iter().filter(|file| !file.ends_with("tests.rs")) {
            let text = fs::read_to_string(file).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            for name in names {
                assert!(!code.contains(name), "{} names {name}", file.display());
            }
        }
    }
}

/// The tests of a file: all of it below `tests`, or what follows its code.
fn tests_of(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let is_test = file.components().any(|part| part.as_os_str() == "tests")
        || file.file_name().is_some_and(|name| name == "tests.rs" || name == "documents.rs");
    if is_test {
        return text;
    }
    let (_, tests) = text.split_once("#[cfg(test)]\nmod tests {").unwrap_or_default();
    tests.to_owned()
}

#[test]
fn tests_start_programs_without_the_variables_of_their_caller() {
    let mut files = Vec::new();
    files_below(&root().join("crates"), ".rs", &mut files);
    let mut starting = 0;
    for file in files.iter().filter(|file| !file.ends_with("tidy.rs")) {
        let name = file.display();
        // The attacker is a test as a whole.
        let is_attacker = file.components().any(|part| part.as_os_str() == "siege");
        let tests = if is_attacker { fs::read_to_string(file).unwrap() } else { tests_of(file) };
        let names_program = tests.contains("CARGO_BIN_EXE");
        assert!(
            !names_program || file.ends_with("cli/tests/support/mod.rs"),
            "{name} must start the program with support::Scene"
        );
        let starts =
            tests.matches("Command::new(").count() - tests.matches("clap::Command::new(").count();
        if starts == 0 || !tests.contains("process::") {
            continue;
        }
        starting += 1;
        let clears = tests.matches(".env_clear()").count();
        assert!(clears > 0, "{name} starts programs with the environment of its caller");
    }
    assert!(starting >= 5, "only {starting} files start programs");
}

#[test]
fn tests_read_command_lines_without_the_variables_and_the_terminal_of_their_caller() {
    let mut files = Vec::new();
    files_below(&root().join("crates/cli/src"), ".rs", &mut files);
    let mut reading = 0;
    for file in files {
        let tests = tests_of(&file);
        let parses = tests.contains("get_matches_from(") || tests.contains("parse_from(");
        let name = file.display();
        assert!(
            !parses || tests.contains("independent_of_caller("),
            "{name} reads variables of its caller"
        );
        let renders = tests.contains("render_help(") || tests.contains("render_long_help(");
        assert!(
            !renders || tests.contains(".term_width("),
            "{name} depends on the width of a terminal"
        );
        reading += usize::from(parses || renders);
    }
    assert!(reading >= 4, "only {reading} files read command lines");
}
