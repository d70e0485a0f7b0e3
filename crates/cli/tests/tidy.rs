//! Tests of style rules that no linter checks: lengths of files, dependencies between crates, and fuzz targets that
//! run.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a panic is how a test fails")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The maximum length of a file in lines, without its tests.
const MAX_LINES: usize = 600;

/// The crates of the workspace that each crate may use. Dependencies have one direction.
const MAY_USE: [(&str, &[&str]); 16] = [
    ("tandem-units", &[]),
    ("tandem-wire", &["tandem-units"]),
    ("tandem-congestion", &["tandem-wire", "tandem-units"]),
    ("tandem-pep", &["tandem-wire"]),
    ("tandem-pep-linux", &["tandem-pep", "tandem-wire"]),
    ("tandem-transport", &["tandem-wire", "tandem-congestion", "tandem-units"]),
    (
        "tandem-node",
        &["tandem-wire", "tandem-congestion", "tandem-transport", "tandem-pep", "tandem-units"],
    ),
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
        "tandem-server",
        &[
            "tandem-net",
            "tandem-files",
            "tandem-node",
            "tandem-pep",
            "tandem-wire",
            "tandem-congestion",
            "tandem-units",
        ],
    ),
    (
        "tandem",
        &[
            "tandem-server",
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
const SANS_IO: [&str; 10] = [
    "tandem-units",
    "tandem-wire",
    "tandem-congestion",
    "tandem-transport",
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
        for dependency in ["tokio", "noq-udp", "socket2", "hickory-proto"] {
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
            !parses || tests.contains("independent_of_caller"),
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

/// Types that cannot show misleading text: numbers, addresses, names from fixed lists, messages of the operating
/// system, and text that is already escaped.
const HARMLESS: [&str; 36] = [
    "ResponseCode",
    "OsError",
    "bool",
    "char",
    "u8",
    "u16",
    "u32",
    "u64",
    "i32",
    "i64",
    "usize",
    "Duration",
    "HumanDuration",
    "ByteCount",
    "IpAddr",
    "SocketAddr",
    "PathBuf",
    "ErrorKind",
    "io::Error",
    "StatusCode",
    "Code",
    "VarInt",
    "StreamKind",
    "Transform",
    "Refusal",
    "Agreement",
    "Cause",
    "ControllerName",
    "Mode",
    "AdminAddr",
    "StrangerText",
    // HTTP allows only visible ASCII in them, and an error on a stream is shown as a StrangerText.
    "HeaderName",
    "Method",
    // Their texts are constants.
    "hyper::Error",
    "SyntaxError",
    // Those of files on this machine.
    "rustls::Error",
];

/// Errors of crates that meet no strangers, and of libraries whose texts are put into a `StrangerText` before they are
/// shown.
const ERRORS_OF_OTHERS: [&str; 13] = [
    "PlanError",
    "RateTraceError",
    "RunError",
    "SyntheticError",
    "UnknownFigure",
    "ResultsError",
    "SweepError",
    "RelayError",
    "TunError",
    "TeccConfigError",
    "PasswordError",
    "AcmeError",
    // Another name of the errors of nodes.
    "TunnelError",
];

/// Fields that hold a bare text, and who has written it.
const OWN_TEXTS: [(&str, &str); 31] = [
    ("AbTestError.Part.0", "a setting"),
    ("ClientError.peer", "the authority in a URL of the user, checked to be visible ASCII"),
    ("RequestError.template", "the proxy's own setting"),
    ("UnknownMode.seen", "a setting"),
    ("UnknownMode.allowed", "a constant"),
    ("Fault.reason", "a file of the operator"),
    ("ValueError.reason", "a setting"),
    ("ValueError.expected", "a constant"),
    ("ConfigError.url", "a setting"),
    ("ProfileError.client", "a word of this program"),
    ("ConfigError.reason", "a setting"),
    ("FileError.key", "a setting"),
    ("FileError.seen", "a setting"),
    ("FileError.reason", "a setting"),
    ("TlsError.name", "a setting"),
    ("StoreError.reason", "what SQLite says of a file of the operator"),
    ("QlogError.chain", "a flag"),
    ("DemoError.received", "a hash, in hexadecimal"),
    ("DemoError.sent", "a hash, in hexadecimal"),
    ("TakeOverError.reason", "the process that this one takes over from"),
    ("PepError.reason", "what the kernel says"),
    ("JwtKeysError.Malformed.0", "a file of the operator"),
    ("JwtKeysError.reason", "a file of the operator"),
    ("TcpPortsError.0", "a setting"),
    ("TargetRulesError.0", "a setting"),
    ("PvdError.host", "what the user has named"),
    ("UpError.proxy", "what the user has named"),
    ("UpError.old", "what the user has named before"),
    ("UpError.new", "what the user has named"),
    ("UpError.reason", "what this program says of its own file"),
    ("UpError.command", "a command of this program"),
];

/// The crates that meet strangers, or show what they have written.
const MEETS_STRANGERS: [&str; 6] = ["wire", "node", "net", "files", "server", "cli"];

/// The errors of a crate: the names of the types, and each field as `Type.Variant.field` with its type.
#[derive(Default)]
struct Errors {
    names: Vec<String>,
    fields: Vec<(String, String)>,
}

impl Errors {
    /// Reads all types of a file that derive `Error`. The file is formatted by rustfmt.
    fn read(&mut self, code: &str) {
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            let is_error = line.trim().starts_with("#[derive(") && line.contains("Error");
            if !is_error {
                continue;
            }
            let is_type = |line: &&str| line.contains("enum ") || line.contains("struct ");
            let Some(head) = lines.by_ref().find(is_type) else { return };
            let indent = head.len() - head.trim_start().len();
            let (_, rest) =
                head.split_once("enum ").or_else(|| head.split_once("struct ")).unwrap();
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
            let mut body = vec![rest[name.len()..].to_owned()];
            if !head.ends_with(';') {
                let end = format!("{:indent$}}}", "");
                body.extend(lines.by_ref().take_while(|line| *line != end).map(str::to_owned));
            }
            self.read_body(&name, &body);
            self.names.push(name);
        }
    }

    fn read_body(&mut self, name: &str, body: &[String]) {
        let (mut variant, mut number) = (String::new(), 0);
        let (mut in_attribute, mut in_tuple) = (false, false);
        for line in body {
            let mut line = line.trim().replace("#[from] ", "").replace("#[source] ", "");
            for visibility in ["pub(crate) ", "pub(super) ", "pub "] {
                line = line.replace(visibility, "");
            }
            in_attribute |= line.starts_with("#[");
            in_tuple = line.ends_with('(') || in_tuple && !line.starts_with(')');
            if in_attribute || line.starts_with("//") {
                in_attribute &= !line.ends_with(']');
                continue;
            }
            let mut rest = line.trim_end_matches(['{', '}', ')', ',', ';', ' ']);
            let start = rest
                .find(['(', '{'])
                .filter(|at| rest[..*at].trim().chars().all(char::is_alphanumeric));
            if let Some(start) = start {
                (variant, number) = (rest[..start].trim().to_owned(), 0);
                rest = rest[start + 1..].trim();
            } else if line.ends_with(['{', '(']) {
                (variant, number) = (rest.trim_end_matches('(').to_owned(), 0);
                continue;
            }
            for field in rest.split(", ").filter(|field| !field.is_empty()) {
                let is_unit_variant = start.is_none() && !field.contains(": ") && !in_tuple;
                if is_unit_variant {
                    continue;
                }
                let (label, ty) = field
                    .split_once(": ")
                    .map_or((number.to_string(), field), |(label, ty)| (label.to_owned(), ty));
                number += 1;
                self.fields.push((format!("{name}.{variant}.{label}"), ty.to_owned()));
            }
        }
    }
}

/// The first part of a type that is neither harmless nor an error of ours.
fn bare_text(ty: &str, errors: &[String]) -> Option<String> {
    // A text that the program contains.
    if ty == "&'static str" {
        return None;
    }
    let mut parts = ty.split(['<', '>', ',', ' ']).filter(|part| !part.is_empty());
    let bare = parts.find(|part| {
        let path: Vec<_> = part.split("::").collect();
        let last = path[path.len() - 1];
        let end = path[path.len().saturating_sub(2)..].join("::");
        let is_known = |name: &str| HARMLESS.contains(&name) || ERRORS_OF_OTHERS.contains(&name);
        let is_wrapper = ["Option", "Box", "Vec", "Arc"].contains(&last);
        !is_wrapper && !is_known(last) && !is_known(&end) && !errors.iter().any(|it| it == last)
    });
    bare.map(str::to_owned)
}

#[test]
fn the_fields_of_errors_are_found_in_each_form() {
    let mut errors = Errors::default();
    errors.read(
        "#[derive(Debug, thiserror::Error)]\n#[error(\"x {0}\")]\npub struct One(pub String);\n\
         #[derive(Clone, thiserror::Error)]\npub enum Two {\n    /// Doc.\n    #[error(\n        \"a\"\n    )]\n    \
         Unit,\n    #[error(\"b\")]\n    Tuple(#[from] io::Error, Vec<u8>),\n    Inline { a: u8, b: Option<String> },\n    \
         Long {\n        /// Doc.\n        c: &'static str,\n    },\n    Last,\n    Broken(\n        String,\n    ),\n    \
         Unit,\n}\n\
         #[derive(Debug, thiserror::Error)]\nstruct Three {\n    pub(crate) d: String,\n}\n",
    );
    assert_eq!(errors.names, ["One", "Two", "Three"]);
    let found: Vec<_> = errors.fields.iter().map(|(place, ty)| format!("{place} {ty}")).collect();
    let expected = [
        "One..0 String",
        "Two.Tuple.0 io::Error",
        "Two.Tuple.1 Vec<u8>",
        "Two.Inline.a u8",
        "Two.Inline.b Option<String>",
        "Two.Long.c &'static str",
        "Two.Broken.0 String",
        "Three..d String",
    ];
    assert_eq!(found, expected);
    let bare: Vec<_> = errors.fields.iter().map(|(_, ty)| bare_text(ty, &[]).is_some()).collect();
    assert_eq!(bare, [true, false, false, false, true, false, true, true]);
}

#[test]
fn no_error_holds_a_bare_text_of_a_stranger() {
    let mut errors = Errors::default();
    for krate in MEETS_STRANGERS {
        let mut files = Vec::new();
        files_below(&root().join("crates").join(krate).join("src"), ".rs", &mut files);
        for file in files.iter().filter(|file| !file.ends_with("tests.rs")) {
            let text = fs::read_to_string(file).unwrap();
            let by_hand = text.contains("impl Error for") || text.contains("::Error for");
            assert!(
                !by_hand,
                "{}: derive Error, so that this test sees its fields",
                file.display()
            );
            errors.read(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default());
        }
    }
    assert!(errors.names.len() > 40 && errors.fields.len() > 100, "{:?}", errors.names);
    let mut used = vec![false; OWN_TEXTS.len()];
    let mut bare = Vec::new();
    for (place, ty) in &errors.fields {
        let Some(part) = bare_text(ty, &errors.names) else { continue };
        let parts: Vec<_> = place.split('.').collect();
        let short = format!("{}.{}", parts[0], parts[2]);
        match OWN_TEXTS.iter().position(|(own, _)| own == place || *own == short) {
            Some(own) => used[own] = true,
            None => bare.push(format!("{place}: {part}")),
        }
    }
    assert!(bare.is_empty(), "make it a StrangerText, or say whose text it is: {bare:#?}");
    let unused: Vec<_> = OWN_TEXTS.iter().zip(used).filter(|(_, used)| !used).collect();
    assert!(unused.is_empty(), "these texts are gone: {unused:?}");
}

/// Where bytes become text otherwise than by `StrangerText::from_bytes`, and why.
const BYTES_TO_TEXT: [(&str, &str); 18] = [
    ("node/src/client/local/socks4.rs", "the name of a target, which is checked"),
    ("cli/src/generate.rs", "a script for the shell that this program has made"),
    (
        "cli/src/pep/findings.rs",
        "the output of a program of this machine, in which words are looked for",
    ),
    ("cli/src/profile/apple.rs", "XML that this program has made"),
    ("cli/src/rules.rs", "rules of the user, whose errors do not show them"),
    ("cli/src/top/mod.rs", "JSON whose texts have been checked"),
    ("cli/src/up/plan.rs", "a document that is kept in a file and not shown"),
    ("node/src/tunnel/capsules.rs", "a structured field, which is parsed and not shown"),
    ("node/src/client/local/address.rs", "the name of a target, which is checked afterwards"),
    ("node/src/client/local/http1/answer.rs", "fields that this program has encoded"),
    ("node/src/client/local/http1/fields.rs", "the digits of a number"),
    (
        "node/src/client/local/http1/request.rs",
        "a host, which is checked afterwards, and the digits of a number",
    ),
    (
        "node/src/client/transfer/ranges.rs",
        "a reference to a URL, which becomes a StrangerText, and a range",
    ),
    (
        "node/src/fields.rs",
        "a line that is parsed, and whose parser makes errors of a StrangerText",
    ),
    ("wire/src/message.rs", "a pseudo-header field, which is checked afterwards"),
    ("wire/src/stranger_text.rs", "the type itself"),
    ("net/src/resolver/names.rs", "Name::from_utf8 reads a host that was checked"),
    ("net/src/resolver/watched.rs", "files of the operator, whose names become names of DNS"),
];

#[test]
fn bytes_become_text_only_where_it_is_known_what_is_shown() {
    let mut used = vec![false; BYTES_TO_TEXT.len()];
    for krate in MEETS_STRANGERS {
        let mut files = Vec::new();
        files_below(&root().join("crates").join(krate).join("src"), ".rs", &mut files);
        for file in
            files.iter().filter(|file| !file.ends_with("tests.rs") && !file.ends_with("model.rs"))
        {
            let text = fs::read_to_string(file).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            if !code.contains("from_utf8") {
                continue;
            }
            let name = file.to_string_lossy();
            let known = BYTES_TO_TEXT.iter().position(|(place, _)| name.ends_with(place));
            used[known.unwrap_or_else(|| panic!("{name}: use StrangerText::from_bytes"))] = true;
        }
    }
    let unused = BYTES_TO_TEXT.iter().zip(used).find(|(_, used)| !used);
    assert_eq!(unused, None, "it makes no texts");
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
