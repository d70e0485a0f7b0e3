use super::*;
use tandem_units::ByteCount;

use crate::run::{self, Mode, Parameters, TraceStore};

#[test]
fn every_figure_has_a_plan_panels_and_the_papers_words() {
    for figure in FIGURES {
        let (short, full) = (figure.plan(Variant::Short), figure.plan(Variant::Full));
        assert!(short.len() < full.len(), "{}", figure.id);
        assert!(full.title().is_some() && full.description().is_some(), "{}", figure.id);
        let panels = panel::panels(figure.plan);
        assert!(!panels.is_empty(), "{}", figure.id);
        let paper = paper::parse(figure.paper);
        assert!(!paper.statements.is_empty(), "{}", figure.id);
        for number in paper.numbers {
            assert!(number.panel <= panels.len(), "{}: {number:?}", figure.id);
        }
    }
}

#[test]
fn an_unknown_figure_is_told_the_known_ones() {
    let error = Figure::find("tecc/t99").expect_err("there is none").to_string();
    assert!(error.contains("tecc/t99") && error.contains("tecc/t2a"), "{error}");
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
    assert_eq!(panel("queue").len(), 4);
    for line in srtt {
        assert!((20..=50).contains(&line.points.len()), "{line:?}");
        assert!(line.points.is_sorted_by_key(|point| point.x), "{line:?}");
    }
}
