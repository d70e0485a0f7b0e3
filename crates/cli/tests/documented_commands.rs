//! `docs/guide/commands.md` states the exit codes and the keys of every JSON output. These tests compare it
//! with what the program prints.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::{collections::BTreeSet, fs, net::UdpSocket, path::Path};

use serde_json::Value;

use crate::support::Scene;

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/commands.md");
    fs::read_to_string(path).unwrap()
}

/// The rows of the table under this heading: the texts of the first cell in backticks, or the cell.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let document = document();
    let section = document.split(&format!("\n{heading}\n")).nth(1).unwrap();
    let section = section.split("\n#").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(2);
    let cells = rows.map(|row| row.split(" | ").next().unwrap().trim_start_matches("| "));
    cells
        .map(|cell| {
            match cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>() {
                keys if keys.is_empty() => vec![cell.to_owned()],
                keys => keys,
            }
        })
        .collect()
}

fn documented(command: &str) -> BTreeSet<String> {
    let rows = rows(&format!("### `{command}`"));
    assert!(!rows.is_empty(), "{command}");
    rows.into_iter().flatten().collect()
}

/// The keys of a value, those of its objects with a point between.
fn keys(value: &Value, before: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let path = format!("{before}{key}");
                let parent = match key.as_str() {
                    "to_target" | "to_client" => "DIRECTION.".to_owned(),
                    "near" | "far" => "END.".to_owned(),
                    _ => format!("{path}."),
                };
                keys(value, &parent, found);
                found.insert(path);
            }
        }
        Value::Array(elements) => elements.iter().for_each(|element| keys(element, before, found)),
        _ => {}
    }
}

fn printed(outputs: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in outputs.iter().flat_map(|output| output.lines()) {
        keys(&serde_json::from_str(line).unwrap(), "", &mut found);
    }
    assert!(!found.is_empty());
    found
}

/// The flags of `lab run`, as its records have them.
fn parameters(scene: &Scene) -> BTreeSet<String> {
    let help = scene.run("lab run --help").succeeds();
    let flags = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    let names = flags.map(|flag| flag.split([' ', '=']).next().unwrap().replace('-', "_"));
    names.chain(["seed".to_owned()]).collect()
}

#[test]
fn the_keys_of_downloads_are_documented() {
    let scene = Scene::new();
    scene.write("root/f", "carried");
    let origin = scene.origin();
    let get = scene.run(&format!("get https://{}/f --ca origin.pem -o f --json", origin.address));
    let get = printed(&[get.succeeds()]);
    assert_eq!(get, documented("tandem get --json"));

    let parts = "--parts server,pages,modes --modes mft,mst";
    let demo = scene.run(&format!("demo --size 20kB {parts} --json")).succeeds();
    let of_get = documented("tandem get --json");
    let of_demo = documented("tandem demo --json");
    assert_eq!(printed(&[demo]), of_get.union(&of_demo).cloned().collect());
}

#[test]
fn the_keys_of_experiments_are_documented() {
    let scene = Scene::new();
    let run = |line: &str| scene.run(line).succeeds();
    let records = [
        run("lab run --mode rmdt --size 20kB --json --quiet"),
        run(
            "lab run --mode mst --workload parallel:2 --size 20kB --samples 3 --others cubic --json",
        ),
        run("lab run --mode mdt --workload datagrams:100kbit/s,1s --json"),
    ];
    let parameters = parameters(&scene);
    let documented_keys = documented("tandem lab run --json");
    let records = printed(&records);
    let undocumented: Vec<_> = records.difference(&documented_keys).collect();
    assert!(undocumented.iter().all(|key| parameters.contains(*key)), "{undocumented:?}");
    assert_eq!(documented_keys.difference(&records).count(), 0, "{documented_keys:?}");

    scene.write("plan.toml", "mode = ['mft']\nsize = '20kB'\nseeds = '1..2'\n");
    let mut sweep = printed(&[run("lab sweep plan.toml --json")]);
    assert!(sweep.remove("mode"), "the plan varies it");
    assert_eq!(sweep, documented("tandem lab sweep --json"));

    let figure = printed(&[run("lab figure tecc/t2b --out results --json --quiet")]);
    assert_eq!(figure, documented("tandem lab figure --json"));

    scene.write("a.trace", "1\n2\n5\n");
    let trace = printed(&[run("lab trace --check a.trace --json")]);
    assert_eq!(trace, documented("tandem lab trace --check FILE --json"));
}

#[test]
fn the_keys_of_links_are_documented() {
    let scene = Scene::new();
    let target = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let relay = scene.serve(&format!("lab relay --listen 127.0.0.1:0 --to {target}"));
    assert_eq!(printed(&[relay.stop_and_read()]), documented("tandem lab relay"));
    let proxy = scene.proxy("proxy.pem");
    let client = scene.serve(&format!(
        "client --udp 127.0.0.1:0={target} --via https://{} --ca proxy.pem --json",
        proxy.address
    ));
    assert_eq!(printed(&[client.stop_and_read()]), documented("tandem client --json"));
}

#[test]
fn the_keys_of_routes_and_states_are_documented() {
    let scene = Scene::new();
    let with_home = |line: &str| {
        let mut command = scene.command(line.split_whitespace());
        let output = command.env("HOME", scene.path("home")).output().unwrap();
        printed(&[String::from_utf8(output.stdout).unwrap()])
    };
    let route = with_home("route a.example --rule refuse=* --json");
    assert_eq!(route, documented("tandem route --json"));
    assert_eq!(with_home("status --json"), documented("tandem status --json"));
}

#[test]
fn the_exit_codes_are_those_of_the_help_and_of_the_program() {
    let scene = Scene::new();
    let help = scene.run("--help").succeeds();
    let codes = help.split("Exit codes:\n").nth(1).unwrap();
    let codes: Vec<_> = codes.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(rows("## Exit codes").concat(), codes);
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (line, code) in [
        ("lab figure --list".to_owned(), "0"),
        (format!("get https://{closed}/ --insecure -o f"), "1"),
        ("get https://a/ -o .".to_owned(), "2"),
    ] {
        let seen = scene.run(&line).code().unwrap().to_string();
        assert!(seen == code && codes.contains(&code), "tandem {line}: {seen}");
    }
}

#[test]
fn the_page_names_every_file_that_is_generated() {
    let scene = Scene::new();
    let help = scene.run("generate -h").succeeds();
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: BTreeSet<_> = names.filter_map(|line| line.split_whitespace().next()).collect();
    let rows = rows("## Files for packages and tests").concat();
    let documented = rows.iter().map(|command| command.split(' ').nth(2).unwrap());
    let documented: BTreeSet<_> = documented.chain(["help"]).collect();
    assert_eq!(names, documented);
    assert_eq!(scene.run("generate man .").code(), Some(0));
}
