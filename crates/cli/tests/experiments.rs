//! Tests of sweeps, figures and reports, as a user would make them.

mod support;

use std::fs;

use serde_json::Value;

use crate::support::Scene;

const PLAN: &str = "mode = ['mft', 'mst']\nsize = '20kB'\nloss = ['0%', '5%']\nseeds = '1..3'\n";

#[test]
fn a_sweep_writes_each_run_once_and_sums_them_up() {
    let scene = Scene::new();
    scene.write("plan.toml", PLAN);
    let run = scene.run("lab sweep plan.toml --json");
    assert_eq!(run.code(), Some(0), "{}", run.stderr());
    let summaries: Vec<Value> =
        run.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(summaries.len(), 4, "{}", run.stdout());
    for summary in &summaries {
        assert_eq!((&summary["runs"], &summary["completed"]), (&3.into(), &3.into()), "{summary}");
        assert_eq!(summary["fct_p99_s"], Value::Null, "{summary}");
    }
    let results = fs::read_to_string(scene.path("plan.jsonl")).unwrap();
    assert_eq!(results.lines().count(), 12);

    let again = scene.run("lab sweep plan.toml");
    assert!(
        again.stderr().contains("12 runs of this plan are there already"),
        "{}",
        again.stderr()
    );
    assert!(again.stdout().contains("| mft  |   0% |"), "{}", again.stdout());
    assert_eq!(fs::read_to_string(scene.path("plan.jsonl")).unwrap(), results);
}

#[test]
fn parts_of_a_sweep_are_merged_and_what_is_missing_is_run() {
    let scene = Scene::new();
    scene.write("plan.toml", PLAN);
    for index in [0, 2] {
        let part = scene.run(&format!("lab sweep plan.toml --part {index}/3"));
        assert_eq!(part.code(), Some(0), "{}", part.stderr());
    }
    let parts = "--merge plan.part-0.jsonl plan.part-2.jsonl";
    let merged = scene.run(&format!("lab sweep plan.toml {parts}"));
    assert_eq!(merged.code(), Some(0), "{}", merged.stderr());
    let found = "8 runs of this plan are there already";
    assert!(merged.stderr().contains(found), "{}", merged.stderr());
    let whole = scene.run("lab sweep plan.toml --out whole.jsonl");
    assert_eq!(merged.stdout(), whole.stdout());
}

#[test]
fn a_run_writes_its_series_as_csv_or_json_by_the_name_of_the_file() {
    let scene = Scene::new();
    for name in ["series.csv", "series.jsonl"] {
        let run =
            scene.run(&format!("lab run --mode mft,rmdt --size 20kB --quiet --series {name}"));
        assert_eq!(run.code(), Some(0), "{}", run.stderr());
    }
    let [csv, json] =
        ["series.csv", "series.jsonl"].map(|name| fs::read_to_string(scene.path(name)).unwrap());
    assert!(csv.starts_with("mode,seed,at_s,e2e_cwnd_bytes,"), "{csv}");
    let columns = csv.lines().map(|line| line.split(',').count());
    assert!(columns.clone().all(|count| Some(count) == columns.clone().next()), "{csv}");
    assert_eq!(csv.lines().count(), json.lines().count() + 1);
    let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!((&first["mode"], &first["at_s"]), (&"mft".into(), &0.0.into()));
}

#[test]
fn the_error_in_a_plan_or_file_has_its_place_and_no_file_changes() {
    let scene = Scene::new();
    scene.write("plan.toml", PLAN);
    scene.write("unit.toml", "mode = 'mst'\nrate = '10Mb'");
    scene.write("key.toml", "sizes = '1MB'");
    scene.write("impossible.toml", "size = '1MB'\nproxies = 9");
    scene.write("notes.txt", "not mine");
    for (line, words) in [
        ("lab sweep none.toml", &["none.toml", "No such file"][..]),
        ("lab sweep unit.toml", &["unit.toml:2", "10Mb", "Mbit/s"]),
        ("lab sweep key.toml", &["key.toml:1", "sizes", "origin_rtt"]),
        ("lab sweep impossible.toml", &["impossible.toml:2", "proxies", "1 to 4"]),
        ("lab sweep plan.toml --out notes.txt", &["notes.txt:1", "nothing was written"]),
        ("lab sweep plan.toml --jobs 0", &["--jobs", "0"]),
        ("lab sweep plan.toml --part 2/2", &["--part", "0/10"]),
        ("lab sweep plan.toml --merge none.jsonl", &["none.jsonl", "No such file"]),
        ("lab figure tecc/t99", &["tecc/t99", "tecc/t2a"]),
        ("lab figure", &["ID"]),
        ("lab report .", &[".svg", ".jsonl"]),
        ("lab report none", &["none", "No such file"]),
    ] {
        let run = scene.run(line);
        assert_eq!(run.code(), Some(2), "tandem {line}: {}", run.stderr());
        for word in words {
            assert!(run.stderr().contains(word), "tandem {line}: no {word:?} in {}", run.stderr());
        }
    }
    assert_eq!(fs::read_to_string(scene.path("notes.txt")).unwrap(), "not mine");
}

#[test]
fn a_figure_is_listed_made_and_reported() {
    let scene = Scene::new();
    assert!(scene.run("lab figure --list").stdout().contains("tecc/t14"));
    let run = scene.run("lab figure tecc/t2b --out results --json --quiet");
    assert_eq!(run.code(), Some(0), "{}", run.stderr());
    let line: Value = serde_json::from_str(run.stdout().lines().next().unwrap()).unwrap();
    assert_eq!(line["points"].as_array().unwrap().len(), 101, "{line}");
    let read =
        |name: &str| fs::read_to_string(scene.path(&format!("results/tecc/{name}"))).unwrap();
    assert!(read("t2b.csv").starts_with("panel,mode,x,value"));
    assert!(read("t2b.svg").starts_with("<svg"));
    let meta: Value = serde_json::from_str(&read("t2b.meta.json")).unwrap();
    assert_eq!(meta["plan_hash"].as_str().unwrap().len(), 64, "{meta}");
    assert_eq!(meta["programs"][0]["version"], env!("CARGO_PKG_VERSION"), "{meta}");
    assert_eq!(meta["programs"].as_array().unwrap().len(), 1, "{meta}");

    let run = scene.run("lab report results");
    assert_eq!(run.code(), Some(0), "{}", run.stderr());
    let page = fs::read_to_string(scene.path("results/report.html")).unwrap();
    assert!(page.contains("Figure tecc/t2b") && page.contains("data:image/svg+xml"), "{page}");
    assert!(page.contains("<td>mst</td>"), "{page}");
}
