//! Tests of style rules that no linter checks: lengths of files, dependencies between crates, and fuzz targets that run.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The maximum length of a file in lines, without its tests.
const MAX_LINES: usize = 600;

/// The crates of the workspace that each crate may use. Dependencies have one direction.
const MAY_USE: [(&str, &[&str]); 14] = [
    ("tandem-units", &[]),
    ("tandem-wire", &["tandem-units"]),
    ("tandem-congestion", &["tandem-wire", "tandem-units"]),
    ("tandem-pep", &["tandem-wire"]),
    ("tandem-pep-linux", &["tandem-pep", "tandem-wire"]),
    ("tandem-node", &["tandem-wire", "tandem-congestion", "tandem-pep", "tandem-units"]),
    ("tandem-files", &["tandem-node", "tandem-wire", "tandem-units"]),
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
            "tandem-files",
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
const SANS_IO: [&str; 9] = [
    "tandem-units",
    "tandem-wire",
    "tandem-congestion",
    "tandem-pep",
    "tandem-node",
    "tandem-files",
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

/// The names of the entries of a folder, without their endings.
fn names_in(folder: &str, ending: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap());
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_suffix(ending).map(str::to_owned)).collect()
}

/// Cargo builds, and `fuzz/run.sh` runs, only what the manifest names.
#[test]
fn every_fuzz_target_is_built_and_described() {
    let files = names_in("fuzz/fuzz_targets", ".rs");
    assert!(files.len() > 20, "only {} files found", files.len());
    let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let mut built = BTreeSet::new();
    for bin in manifest["bin"].as_array().unwrap() {
        let name = bin["name"].as_str().unwrap();
        assert_eq!(bin["path"].as_str(), Some(&*format!("fuzz_targets/{name}.rs")));
        assert!(built.insert(name.to_owned()), "{name} is built twice");
    }
    assert_eq!(built, files, "on the left what cargo builds, on the right the files");
    let described = fs::read_to_string(root().join("fuzz/README.md")).unwrap();
    let rows = described.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let rows: BTreeSet<String> = rows.map(str::to_owned).collect();
    assert_eq!(rows, files, "on the left what fuzz/README.md describes, on the right the files");
    for seeds in names_in("fuzz/seeds", "") {
        assert!(files.contains(&seeds), "fuzz/seeds/{seeds} are the seeds of no target");
    }
}

/// A document that names a target as a defence must not promise what is not there.
#[test]
fn every_fuzz_target_that_documents_name_exists() {
    const FOLDER: &str = "fuzz/fuzz_targets/";
    let files = names_in("fuzz/fuzz_targets", ".rs");
    let mut documents = Vec::new();
    files_below(&root().join("docs"), ".md", &mut documents);
    let others = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "fuzz/README.md"];
    documents.extend(others.map(|name| root().join(name)));
    let mut named = 0;
    for document in documents {
        let text = fs::read_to_string(&document).unwrap();
        // The first target of a sentence has its whole path, and those after it have their file names.
        for line in text.lines().filter(|line| line.contains(FOLDER)) {
            let (_, after) = line.split_once(FOLDER).unwrap();
            for word in after.split('`').filter_map(|word| word.strip_suffix(".rs")) {
                let name = word.strip_prefix(FOLDER).unwrap_or(word);
                if !name.contains('/') {
                    assert!(files.contains(name), "{} names {name}", document.display());
                    named += 1;
                }
            }
        }
    }
    assert!(named > 5, "only {named} targets are named");
}
