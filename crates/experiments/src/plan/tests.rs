use super::*;

fn parse(text: &str) -> Result<Plan, PlanError> {
    Plan::parse(Path::new("folder/plan.toml"), text, Variant::Full)
}

fn error(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

#[test]
fn every_combination_of_lists_and_seeds_is_one_run() {
    let plan = parse("size = ['1MB', '2MB']\nloss = '5%'\nmode = ['mst', 'mft']\nseeds = '3..5'");
    let plan = plan.unwrap();
    let runs: Vec<_> = plan.runs().collect();
    assert_eq!(runs.len(), 12);
    assert_eq!(plan.varied().collect::<Vec<_>>(), ["size", "mode"]);
    let shown = |run: &Parameters| format!("{} {} {}", run.size, run.mode, run.seed);
    let first: Vec<_> = runs.iter().take(4).map(shown).collect();
    assert_eq!(first, ["1 MB mst 3", "1 MB mst 4", "1 MB mst 5", "1 MB mft 3"]);
    assert_eq!(shown(&runs[11]), "2 MB mft 5");
    assert!(runs.iter().all(|run| run.proxies == Parameters::default().proxies));
}

#[test]
fn an_empty_plan_is_one_run_of_defaults() {
    let runs: Vec<_> = parse("").unwrap().runs().collect();
    assert_eq!(runs, [Parameters::default()]);
}

#[test]
fn the_short_variant_replaces_what_it_names_and_keeps_the_order() {
    let text = "size = ['1MB', '2MB']\nmode = ['mst', 'mft']\nseeds = '1..9'\n\
                [short]\nmode = ['mdt', 'mst', 'mft']\nsize = '3MB'\nseeds = 4\n";
    let file = Path::new("plan.toml");
    let short = Plan::parse(file, text, Variant::Short).unwrap();
    assert_eq!((short.len(), short.seeds()), (3, Seeds::one(4)));
    assert_eq!(short.varied().collect::<Vec<_>>(), ["mode"]);
    assert_eq!(Plan::parse(file, text, Variant::Full).unwrap().len(), 36);
}

#[test]
fn recordings_replace_what_they_name_in_the_full_variant_if_there_are_any() {
    let text = "trace = 'synthetic:driving'\n[recordings]\ntrace = ['a.down', 'b.down']";
    let len = |variant, has| parse::parse(Path::new("p.toml"), text, variant, has).unwrap().len();
    assert_eq!(len(Variant::Full, true), 2);
    assert_eq!(len(Variant::Full, false), 1);
    assert_eq!(len(Variant::Short, true), 1);
}

#[test]
fn a_value_for_one_mode_is_not_varied_in_that_mode() {
    let text = "mode = ['mft', 'mdt', 'tecc']\nresequence = ['off', 'ordered']\nproxies = [1, 2]\n\
                [for.tecc]\nresequence = 'window'\n[for.mdt]\nproxies = 3";
    let plan = parse(text).unwrap();
    let shown = |run: Parameters| {
        let order = run.resequence.map(|order| order.to_string());
        format!("{} {} {}", run.mode, order.unwrap_or_default(), run.proxies)
    };
    let runs: Vec<_> = plan.runs().map(shown).collect();
    assert_eq!(runs, ["mft off 1", "mdt off 3", "tecc window 1", "tecc window 2"]);
}

#[test]
fn mistakes_name_file_line_and_what_is_allowed() {
    for (text, words) in [
        ("\nsizes = '1MB'", &["plan.toml:2:", "unknown key \"sizes\"", "size", "origin_rtt"][..]),
        ("mode = [\n'mft',\n'mxt']", &["plan.toml:3:", "mode = 'mxt'", "mst"]),
        ("rate = '10Mb'", &["plan.toml:1:", "rate = '10Mb'", "Mbit/s"]),
        ("loss = [0.05]", &["plan.toml:1:", "loss = 0.05", "for example"]),
        ("proxies = -1", &["plan.toml:1:", "proxies = -1", "u64"]),
        ("title = 'x'\nsize = []", &["plan.toml:2:", "size has no values"]),
        ("seeds = '8..1'", &["plan.toml:1:", "seeds", "1..8"]),
        ("seeds = [1, 2]", &["plan.toml:1:", "seeds", "1..8"]),
        ("seed = 4", &["plan.toml:1:", "unknown key \"seed\"", "seeds"]),
        ("seeds = '1..99999999'", &["99999999 runs", "at most 100000"]),
        ("mode = 'mst'\nproxies = [1, 9]", &["plan.toml:2:", "proxies", "4"]),
        ("size = ", &["plan.toml:1:"]),
        ("[short]\npanel = 'x'", &["plan.toml:2:", "unknown key \"panel\""]),
        ("[for]\nmxt = { rate = '1Mbit/s' }", &["plan.toml:2:", "for", "mxt", "tecc-paper"]),
        ("[for.mdt]\nrate = ['1Mbit/s']", &["plan.toml:2:", "rate", "one value for one mode"]),
        ("[for.mdt]\nmode = 'mft'", &["plan.toml:2:", "unknown key \"mode\""]),
        ("for = 1", &["plan.toml:1:", "for = 1", "[for]"]),
        ("trace = '$TANDEM_NO_SUCH_VARIABLE/x'", &["TANDEM_NO_SUCH_VARIABLE", "not set"]),
    ] {
        let error = error(text);
        for word in words {
            assert!(error.contains(word), "{text:?}: no {word:?} in {error:?}");
        }
    }
}

#[test]
fn the_hash_is_of_the_runs_and_not_of_the_text() {
    let hash = |text| parse(text).unwrap().hash();
    let one = hash("mode = 'mst'\nsize = ['1MB', '2MB']");
    assert_eq!(one, hash("title = 'x'\nmode = ['mst']\nsize = ['1000 kB', '2MB'] # two\n"));
    assert_ne!(one, hash("mode = 'mst'\nsize = ['1MB', '3MB']"));
    assert_ne!(one, hash("mode = 'mst'\nsize = ['1MB', '2MB']\nseeds = 2"));
    assert_eq!(one.len(), 64);
}

#[test]
fn traces_are_beside_the_plan() {
    let plan = parse("trace = 'subway.down'").unwrap();
    let text = canonical(&plan.runs().next().unwrap());
    assert!(text.contains("folder/subway.down"), "{text}");
}
