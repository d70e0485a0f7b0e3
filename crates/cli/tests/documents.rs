//! The commands and quotations of the documents. The unit tests of the program check that every other
//! command parses.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::{
    env, fs,
    io::{self, Write},
    net::UdpSocket,
    path::{Path, PathBuf},
    process::Stdio,
};

use crate::support::{Scene, sha256, tandem};

/// Numbers of errors on Linux.
const EADDRINUSE: i32 = 98;
const ECONNREFUSED: i32 = 111;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(document: &str) -> String {
    fs::read_to_string(root().join(document)).unwrap()
}

/// The contents of the code block that contains this text.
fn block(document: &str, text: &str) -> String {
    let document = read(document);
    let blocks = document.split("```").skip(1).step_by(2);
    let mut found = blocks.filter(|block| block.contains(text));
    let block = found.next().unwrap_or_else(|| panic!("no block with {text:?}"));
    assert!(found.next().is_none(), "several blocks with {text:?}");
    block.split_once('\n').unwrap().1.to_owned()
}

/// Replaces a port in all lines by one that is free.
fn with_free_port(lines: &str, port: &str) -> String {
    assert!(lines.contains(port), "no port {port} in\n{lines}");
    let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    lines.replace(port, &format!(":{}", free.port()))
}

#[test]
fn the_tunnel_at_home_works_when_it_is_pasted() {
    let lines = block("docs/guide/tasks.md", "tandem generate certificate dev");
    let lines: Vec<_> = lines.lines().map(|line| line.strip_prefix("$ ").unwrap()).collect();
    let lines = with_free_port(&with_free_port(&lines.join("\n"), ":4433"), ":8443");
    let scene = Scene::new();
    let folder = tandem().parent().unwrap().to_owned();
    let inherited = env::var_os("PATH").unwrap();
    let path = [folder].into_iter().chain(env::split_paths(&inherited));
    let mut shell = scene
        .other_program("sh")
        .env("PATH", env::join_paths(path).unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The servers are ended by their process IDs.
    let noted = lines.replace(" &\n", " &\nservers=\"$servers $!\"\n");
    assert_eq!(noted.matches("$servers").count(), 2, "{lines}");
    let script = noted + "\nstatus=$?; kill $servers; wait; exit $status\n";
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = shell.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{lines}\n{said}");
    assert_eq!(fs::metadata(scene.path("file")).unwrap().len(), 10_000_000);
    assert_eq!(sha256(&scene.path("file")), sha256(&scene.path("www/file")));
}

#[test]
fn the_readmes_table_is_what_the_lab_prints() {
    let block = block("README.md", "tandem lab run");
    let (line, table) = block.split_once('\n').unwrap();
    let line = line.strip_prefix("$ tandem ").unwrap();
    assert_eq!(Scene::new().run(line).succeeds(), table);
}

#[test]
fn the_configuration_that_is_shipped_is_accepted() {
    let scene = Scene::new();
    scene.run("generate certificate dev").succeeds();
    scene.write("tokens.txt", "alice 0123456789abcdef\n");
    let config = read("deploy/proxy.toml")
        .replace("/etc/tandem/chain.pem", "dev/cert.pem")
        .replace("/etc/tandem/key.pem", "dev/key.pem")
        .replace("/etc/tandem/tokens.txt", "tokens.txt");
    scene.write("proxy.toml", &config);
    let setup = scene.run("proxy --config proxy.toml --check").succeeds();
    assert!(setup.contains("[::]:443") && setup.contains("tokens.txt"), "{setup}");
    assert!(!config.contains("/etc/tandem/") || config.starts_with("# /etc/tandem/"), "{config}");
}

#[test]
fn the_errors_that_are_explained_are_those_of_the_program() {
    let mut sources = String::new();
    for folder in fs::read_dir(root().join("crates")).unwrap() {
        add_sources(&folder.unwrap().path().join("src"), &mut sources);
    }
    // What the operating system prints for its errors.
    for number in [EADDRINUSE, ECONNREFUSED] {
        sources += &io::Error::from_raw_os_error(number).to_string().to_ascii_lowercase();
    }
    // A text that continues on the next line, as the compiler reads it.
    let mut joined = String::new();
    for piece in sources.split("\\\n") {
        joined.push_str(piece.trim_start_matches(' '));
    }
    let document = read("docs/guide/troubleshooting.md");
    let tables = document.split("| it prints |").skip(1);
    let rows = tables.flat_map(|table| table.lines().skip(2).take_while(|it| it.starts_with('|')));
    let mut quotations = 0;
    for row in rows {
        let printed = row.split(" | ").next().unwrap();
        for quotation in printed.split('`').skip(1).step_by(2) {
            for part in quotation.split('…').filter(|part| part.chars().any(char::is_alphabetic))
            {
                assert!(joined.contains(part), "no source prints {part:?} of {quotation:?}");
                quotations += 1;
            }
        }
    }
    assert!(quotations > 25, "only {quotations} were found");
}

fn add_sources(folder: &Path, sources: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_sources(&path, sources);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            sources.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn the_links_of_the_documents_lead_somewhere() {
    let mut documents: Vec<_> =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name)).into();
    for folder in ["docs", "docs/guide", "docs/design", "docs/design/adr", "docs/pictures"] {
        let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        documents.extend(entries.filter(|path| path.extension().is_some_and(|it| it == "md")));
    }
    for document in documents {
        let text = fs::read_to_string(&document).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://") && !link.starts_with('#')) {
            let file = link.split('#').next().unwrap();
            let target = document.parent().unwrap().join(file);
            assert!(target.exists(), "{}: {link}", document.display());
        }
    }
}

#[test]
fn the_overview_lists_every_document_and_the_index_every_decision() {
    for (overview, folders) in [
        ("docs/README.md", &["docs/guide", "docs/design"][..]),
        ("docs/design/adr/README.md", &["docs/design/adr"][..]),
    ] {
        let text = read(overview);
        for folder in folders {
            for entry in fs::read_dir(root().join(folder)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                let is_listed = [format!("/{name})"), format!("({name})")];
                let stem = name.strip_suffix(".md");
                let is_document = stem.is_some_and(|stem| stem != "README");
                let is_found = is_listed.iter().any(|link| text.contains(link));
                assert!(!is_document || is_found, "{overview} does not list {folder}/{name}");
            }
        }
    }
}

#[test]
fn every_decision_has_a_status() {
    for entry in fs::read_dir(root().join("docs/design/adr")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let has_status = text.lines().nth(2).is_some_and(|line| line.starts_with("Status: "));
        assert!(has_status || path.ends_with("README.md"), "{} has no status", path.display());
    }
}

/// The code in backticks of a text, each piece without them.
fn code_in(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// A document that promises a defence must not name a file that has moved, or a test that is gone.
#[test]
fn the_files_and_tests_that_the_design_names_exist() {
    let mut sources = String::new();
    add_sources(&root().join("crates"), &mut sources);
    let has_test = |name: &str| sources.contains(&format!("fn {name}("));
    let (mut files, mut tests) = (0, 0);
    for document in ["threats", "architecture", "conformance", "scale", "wire"] {
        let text = read(&format!("docs/design/{document}.md"));
        for code in code_in(&text) {
            let (path, item) = code.split_once("::").map_or((code, None), |it| (it.0, Some(it.1)));
            let path = path.strip_prefix("crates/").unwrap_or(path);
            let folder = path
                .split_once('/')
                .filter(|(krate, _)| root().join("crates").join(krate).is_dir());
            let is_path = folder
                .is_some_and(|(_, rest)| rest.starts_with("src/") || rest.starts_with("tests/"));
            if is_path && !path.contains([' ', '*', '{', '<']) {
                let file = root().join("crates").join(path);
                assert!(file.exists(), "{document}.md names {path}, which is not there");
                let is_in = |item: &str| fs::read_to_string(&file).unwrap().contains(item);
                assert!(item.is_none_or(is_in), "{document}.md: {path} has no {}", item.unwrap());
                files += 1;
            }
        }
        for line in text.split("**Tests:**").skip(1) {
            let line = line.split("\n\n").next().unwrap().split("\n- ").next().unwrap();
            for code in code_in(line) {
                let name = code.rsplit("::").next().unwrap();
                let is_name = name.contains('_')
                    && name
                        .chars()
                        .all(|it| it.is_ascii_lowercase() || it == '_' || it.is_ascii_digit());
                if is_name && !root().join("fuzz/fuzz_targets").join(format!("{name}.rs")).exists()
                {
                    assert!(
                        has_test(name),
                        "{document}.md names the test {name}, which is not there"
                    );
                    tests += 1;
                }
            }
        }
    }
    assert!(files > 100 && tests > 80, "only {files} files and {tests} tests are named");
}

/// Each attack has a heading, and below it at most one line of each kind, of which none is empty.
#[test]
fn each_threat_says_what_defends_and_what_is_open() {
    const KINDS: [&str; 5] = ["Attack", "Attacker", "Defence", "Open", "Tests"];
    let threats = read("docs/design/threats.md");
    let mut attacks = 0;
    for attack in threats.split("\n### ").skip(1) {
        let (heading, below) = attack.split_once('\n').unwrap();
        let below = below.split("\n## ").next().unwrap();
        let mut kinds = Vec::new();
        for line in below.split("\n- **").skip(1) {
            let (kind, text) = line.split_once(":**").unwrap();
            assert!(KINDS.contains(&kind) && !kinds.contains(&kind), "{heading}: {kind}");
            assert!(text.chars().any(char::is_alphabetic), "{heading}: {kind} says nothing");
            kinds.push(kind);
        }
        let is_said = kinds.contains(&"Defence") || kinds.contains(&"Open");
        assert!(is_said, "{heading}: is there a defence?");
        attacks += 1;
    }
    assert!(attacks > 150, "only {attacks} attacks were found");
}
