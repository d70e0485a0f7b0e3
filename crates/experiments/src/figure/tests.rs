use super::*;
use tandem_units::{ByteCount, Rate};

use crate::run::{self, Mode, Parameters, TraceStore};

#[test]
fn every_figure_has_a_plan_panels_and_the_papers_words() {
    for figure in FIGURES {
        let (short, full) = (figure.plan(Variant::Short), figure.plan(Variant::Full));
        assert!(short.len() < full.len(), "{}", figure.id);
        assert!(full.title().is_some() && full.description().is_some(), "{}", figure.id);
        let panels = panel::panels(figure.plan);
        assert!(!panels.is_empty(), "{}", figure.id);
        let described = full.description().unwrap_or_default().chars().count();
        assert!(described <= 280, "{}: {described} letters do not fit two lines", figure.id);
        let paper = paper::parse(figure.paper);
        assert!(!paper.statements.is_empty(), "{}", figure.id);
        for number in paper.numbers {
            assert!(number.panel <= panels.len(), "{}: {number:?}", figure.id);
        }
    }
}

#[test]
fn the_error_for_an_unknown_figure_lists_the_known_ones() {
    let error = Figure::find("tecc/t99").expect_err("there is none").to_string();
    assert!(error.contains("tecc/t99") && error.contains("tecc/t2a"), "{error}");
}

#[test]
fn lines_that_others_are_compared_with_begin_with_the_name_of_a_mode() {
    for figure in FIGURES {
        for panel in panel::panels(figure.plan) {
            for line in panel.relative_to {
                let mode = line.split(' ').next().unwrap_or_default().parse::<Mode>();
                assert!(mode.is_ok(), "{}: {line:?}", figure.id);
            }
        }
    }
}

#[test]
fn rates_over_time_are_those_of_each_flow() {
    let workload = "flows:2,500ms".parse().unwrap();
    let size = ByteCount::new(1_000_000);
    let run = Parameters { workload, size, samples: 100, ..Parameters::default() };
    let record = run::run(&run, &TraceStore::default()).unwrap().record;
    let head = "title = 't'\nchart = 'time'\nx = 'time'\nx_label = 's'\ny_label = ''";
    let panels = panel::panels(&format!("[[panel]]\n{head}\ny = 'throughput'"));
    let series = panels[0].series(1, &[record]);
    let names: Vec<_> = series.iter().map(Series::name).collect();
    assert_eq!(names, ["mdt flow 1", "mdt flow 2"]);
    let begins = |line: &Series| line.points.iter().find(|it| it.value > 0.0).unwrap().x;
    assert!(begins(&series[0]) + 0.3 < begins(&series[1]), "{series:?}");
    for line in &series {
        let peak = line.points.iter().map(|point| point.value).fold(0.0, f64::max);
        assert!((3.0..40.0).contains(&peak), "{line:?}");
    }
}

#[test]
fn the_rate_of_a_single_download_is_drawn_for_each_value_of_a_parameter() {
    let workload = "long:3s".parse().unwrap();
    let run = Parameters { mode: Mode::Mft, workload, samples: 100, ..Parameters::default() };
    let record = run::run(&run, &TraceStore::default()).unwrap().record;
    let head = "title = 't'\nchart = 'time'\nx = 'time'\nx_label = 's'\ny_label = ''";
    let lines = "lines = 'origin_controller'";
    let panels = panel::panels(&format!("[[panel]]\n{head}\ny = 'throughput'\n{lines}"));
    let series = panels[0].series(1, &[record]);
    let [line] = series.as_slice() else { panic!("{series:?}") };
    let peak = line.points.iter().map(|point| point.value).fold(0.0, f64::max);
    assert!(line.points.len() > 30 && (5.0..40.0).contains(&peak), "{line:?}");
}

#[test]
fn all_figures_or_all_of_a_paper_can_be_requested_at_once() {
    let ids = |id| Figure::find_all(id).map(|all| all.iter().map(|it| it.id).collect::<Vec<_>>());
    assert_eq!(ids("tecc/t4").unwrap(), ["tecc/t4"]);
    assert_eq!(ids("all").unwrap().len(), FIGURES.len());
    let tecc = ids("tecc/all").unwrap();
    assert!(tecc.contains(&"tecc/t4") && tecc.iter().all(|id| id.starts_with("tecc/")), "{tecc:?}");
    for unknown in ["", "tecc", "call", "teccall", "other/all"] {
        assert!(Figure::find_all(unknown).is_err(), "{unknown:?}");
    }
}

#[test]
fn a_drawing_is_well_formed_and_has_each_point() {
    let figure = Figure::find("tecc/t2a").unwrap();
    let plan = figure.plan(Variant::Short);
    let tiny = |run: Parameters| {
        let smaller = Parameters { size: ByteCount::new(2000), ..run.clone() };
        let record = run::run(&smaller, &TraceStore::default()).unwrap().record;
        RunRecord { parameters: run, ..record }
    };
    let records: Vec<_> = plan.runs().map(tiny).collect();
    let Drawing { series, csv, svg, meta } = figure.draw(&plan, &records);
    assert_eq!((series.len(), csv.lines().count()), (10, 1 + 2 * 2 * 5), "{csv}");
    assert_eq!((meta.runs, meta.violations), (records.len(), 0));
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    for words in ["MST: one stream", "30 kB", "flow size", "The paper: MST is faster"] {
        assert!(svg.contains(words), "no {words:?}");
    }
}

#[test]
fn a_panel_over_time_has_a_line_for_each_layer_of_a_run() {
    let run_of = |mode| {
        let size = ByteCount::new(200_000);
        let run = Parameters { mode, size, samples: 50, ..Parameters::default() };
        run::run(&run, &TraceStore::default()).unwrap().record
    };
    let records = [Mode::Mft, Mode::Rmdt].map(run_of);
    let panel = |y: &str| {
        let head = "title = 't'\nchart = 'time'\nx = 'time'\nx_label = 's'\ny_label = ''";
        let panels = panel::panels(&format!("[[panel]]\n{head}\ny = '{y}'"));
        panels[0].series(1, &records)
    };
    let names = |series: &[Series]| series.iter().map(Series::name).collect::<Vec<_>>();
    let srtt = panel("srtt");
    assert_eq!(names(&srtt), ["mft end to end", "rmdt end to end", "rmdt tunnel"]);
    assert_eq!(names(&panel("pacing_rate")), names(&srtt));
    let queues = ["mft tunnel", "mft access link", "rmdt tunnel", "rmdt access link"];
    assert_eq!(names(&panel("queue")), queues);
    for line in srtt {
        assert!((20..=50).contains(&line.points.len()), "{line:?}");
        assert!(line.points.is_sorted_by_key(|point| point.x), "{line:?}");
    }
}

/// Invented runs of 1 and 2 s at 10 Mbit/s, and half as long at 20 Mbit/s. Runs of `mst` are slower
/// at the first rate and faster at the second. Runs of `rmdt` take 1 % longer than the better of
/// the two other modes.
fn invented() -> Vec<RunRecord> {
    let any = Parameters { size: ByteCount::new(2000), ..Parameters::default() };
    let any = run::run(&any, &TraceStore::default()).unwrap().record;
    let mut records = Vec::new();
    for (mode, at_10, at_20) in
        [(Mode::Rmdt, 1.01, 0.808), (Mode::Mdt, 1.0, 1.0), (Mode::Mst, 1.25, 0.8)]
    {
        for seed in [1, 2] {
            for (rate, factor) in [(10, at_10), (20, at_20 / 2.0)] {
                let rate = Rate::from_mbps(rate);
                let parameters = Parameters { mode, seed, rate, ..Parameters::default() };
                let fct_s = Some(if seed == 1 { factor } else { factor * 2.0 });
                records.push(RunRecord { parameters, fct_s, ..any.clone() });
            }
        }
    }
    records
}

fn only_panel(rest: &str) -> Panel {
    let labels = "title = 't'\nx_label = ''\ny_label = ''\ny = 'fct'";
    panel::panels(&format!("[[panel]]\n{labels}\n{rest}")).remove(0)
}

#[test]
fn runs_are_compared_with_those_that_differ_in_the_mode_alone() {
    let records = invented();
    let panel = only_panel("x = 'size'\nlines = 'rate'\nrelative_to = 'mdt'");
    let series = panel.series(1, &records);
    let percent = |name: &str| {
        let line = series.iter().find(|line| line.name() == name);
        line.unwrap_or_else(|| panic!("no {name}")).points[0].clone()
    };
    for (name, expected) in [
        ("mdt 20 Mbit/s", 0.0),
        ("mst 10 Mbit/s", 25.0),
        ("mst 20 Mbit/s", -20.0),
        ("rmdt 10 Mbit/s", 1.0),
    ] {
        let Point { value, low, high, .. } = percent(name);
        assert!((value - expected).abs() < 1e-9, "{name}: {value}");
        assert!(high - low < 1e-6, "both seeds have the same ratio: {low} to {high}");
    }
}

#[test]
fn runs_are_compared_with_the_best_of_several_modes_at_each_point() {
    let records = invented();
    for show in ["mean", "tail"] {
        let rest = format!("x = 'rate'\nrelative_to = ['mdt', 'mst']\nshow = '{show}'");
        let series = only_panel(&rest).series(1, &records);
        let rmdt = series.iter().find(|line| line.mode == Mode::Rmdt).unwrap();
        for point in &rmdt.points {
            assert!((point.value - 1.0).abs() < 1e-9, "{show}: {point:?}");
        }
    }
}

#[test]
fn a_line_can_be_compared_with_another_of_its_mode() {
    let mut records = invented();
    for record in &mut records {
        let order = if record.parameters.mode == Mode::Mst { "off" } else { "ordered" };
        record.parameters.mode = Mode::Rmdt;
        record.parameters.resequence = Some(order.parse().unwrap());
    }
    records.drain(..4); // leaves the runs that were mdt and mst
    let rest = "x = 'rate'\nlines = 'resequence'\nrelative_to = 'rmdt ordered'";
    let series = only_panel(rest).series(1, &records);
    let off = series.iter().find(|line| line.name() == "rmdt off").unwrap();
    let percent: Vec<_> = off.points.iter().map(|point| point.value.round()).collect();
    assert_eq!(percent, [25.0, -20.0]);
}

#[test]
fn a_panel_can_leave_out_the_lines_that_it_compares_with() {
    let rest = "x = 'rate'\nmodes = ['rmdt']\nrelative_to = 'mdt'\nlines = 'resequence'";
    let series = only_panel(rest).series(1, &invented());
    let names: Vec<_> = series.iter().map(Series::name).collect();
    assert_eq!(names, ["rmdt"], "a mode's only line has no name of its own");
    assert!((series[0].points[0].value - 1.0).abs() < 1e-9, "{series:?}");
}

#[test]
fn runs_without_a_completion_time_have_other_measures() {
    let mut record = invented().remove(0);
    record.fct_s = None;
    (record.jain_index, record.others_mbps, record.goodput_mbps) = (Some(0.9), Some(4.0), 6.0);
    assert_eq!(Measure::Fct.of(&record), None);
    assert_eq!(Measure::Jain.of(&record), Some(0.9));
    assert_eq!(Measure::OthersPercent.of(&record), Some(40.0));
    record.completed = false;
    assert_eq!(Measure::Jain.of(&record), None);
}

#[test]
fn runs_that_did_not_complete_count_as_the_time_limit_in_comparisons() {
    let mut records = invented();
    let is_lost = |record: &&mut RunRecord| {
        let Parameters { mode, seed, rate, .. } = record.parameters;
        (mode, seed, rate) == (Mode::Mdt, 2, Rate::from_mbps(10))
    };
    let lost = records.iter_mut().find(is_lost).unwrap();
    (lost.completed, lost.fct_s, lost.fct_over_ideal) = (false, None, None);
    let ideal_s = lost.ideal_s.unwrap();
    assert_eq!(Measure::FctOverIdeal.of(lost), Some(600.0 / ideal_s));
    let point = |rest: &str, mode: Mode| {
        let series = only_panel(rest).series(1, &records);
        series.iter().find(|line| line.mode == mode).unwrap().points[0].clone()
    };
    let mdt = point("x = 'rate'", Mode::Mdt);
    assert_eq!((mdt.value, mdt.runs, mdt.completed), (300.5, 2, 1), "the mean of 1 s and 600 s");
    let tail = point("x = 'rate'\nshow = 'tail'", Mode::Mdt);
    assert_eq!((tail.value, tail.runs, tail.completed), (600.0, 2, 1));
    // The times of mst are 1.25 and 2.5 s.
    let mst = point("x = 'rate'\nrelative_to = 'mdt'", Mode::Mst);
    let expected = (3.75 / 601.0 - 1.0) * 100.0;
    assert!((mst.value - expected).abs() < 1e-9, "{mst:?}");
    assert_eq!((mst.runs, mst.completed), (2, 2));
    let mst = point("x = 'rate'\nrelative_to = 'mdt'\nshow = 'tail'", Mode::Mst);
    assert!((mst.value - (2.5 / 600.0 - 1.0) * 100.0).abs() < 1e-9, "{mst:?}");
}

#[test]
fn requests_that_did_not_end_count_in_the_percentiles_of_all_requests() {
    let size = ByteCount::new(2000);
    let workload = "requests:3,10ms".parse().unwrap();
    let run = Parameters { workload, size, ..Parameters::default() };
    let mut record = run::run(&run, &TraceStore::default()).unwrap().record;
    record.completed = false;
    let last = record.flows.last_mut().unwrap();
    (last.completed, last.fct_s, last.start_s) = (false, None, 1.5);
    let panel = only_panel("x = 'time'\nchart = 'flows'");
    let points = panel.series(1, &[record])[0].points.clone();
    let p99 = points.iter().find(|point| point.x_text == "p99").unwrap();
    assert_eq!((p99.value, p99.runs, p99.completed), (598.5, 3, 2));
}
