//! Tests that every text of every figure is readable: no text covers another or leaves the picture.

use std::{fs, path::Path};

use super::{DARK, Figure, Mode, Plan, RGBColor, text};
use crate::{
    figure::FIGURES,
    plan::Variant,
    run::{FlowRecord, Parameters, RunRecord, TraceStore, run},
};

/// The extent of letters above and below their line, as a share of the font size.
const ASCENT: f64 = 0.93;
const DESCENT: f64 = 0.24;

/// The bounding box of a text.
#[derive(Debug)]
struct TextBox {
    text: String,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl TextBox {
    /// Reads a `<text>` element of an SVG: the attributes and the text.
    fn read(tag: &str) -> Self {
        let (attributes, rest) = tag.split_once('>').unwrap();
        let text = rest.split_once('<').unwrap().0.trim();
        let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&apos;", "'");
        let text = text.replace("&quot;", "\"").replace("&amp;", "&");
        assert!(
            !attributes.contains("transform="),
            "{text}: this test does not support rotated texts"
        );
        let size = number(attributes, "font-size");
        let width = f64::from(text::width(&text, size));
        let x = number(attributes, "x");
        let left = match attribute(attributes, "text-anchor") {
            "start" => x,
            "middle" => x - width / 2.0,
            "end" => x - width,
            other => panic!("{text}: text-anchor {other}"),
        };
        let shift = match attribute(attributes, "dy") {
            "0.76em" => 0.76,
            "0.5ex" => 0.27,
            "-0.5ex" => -0.27,
            other => panic!("{text}: dy {other}"),
        };
        let line = number(attributes, "y") + shift * size;
        let (top, bottom) = (line - ASCENT * size, line + DESCENT * size);
        Self { text, left, right: left + width, top, bottom }
    }

    fn covers(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }
}

fn attribute<'a>(attributes: &'a str, name: &str) -> &'a str {
    let start = format!(" {name}=\"");
    let (_, rest) = attributes.split_once(&start).unwrap_or_else(|| panic!("no {name}"));
    rest.split_once('"').unwrap().0
}

fn number(attributes: &str, name: &str) -> f64 {
    attribute(attributes, name).parse().unwrap()
}

/// The faults of the texts of a picture.
fn faults(svg: &str) -> Vec<String> {
    let (head, _) = svg.split_once('>').unwrap();
    let (width, height) = (number(head, "width"), number(head, "height"));
    assert_eq!(attribute(head, "viewBox"), format!("0 0 {width} {height}"));
    let boxes: Vec<_> = svg.split("<text").skip(1).map(TextBox::read).collect();
    assert!(boxes.len() > 5, "a figure has a title, a legend, axes and notes");
    let mut faults = Vec::new();
    for (number, one) in boxes.iter().enumerate() {
        if one.left < 0.0 || one.top < 0.0 || one.right > width || one.bottom > height {
            faults.push(format!("{:?} leaves the picture: {one:?}", one.text));
        }
        let covered = boxes[..number].iter().filter(|other| one.covers(other));
        faults.extend(covered.map(|other| format!("{:?} covers {:?}", one.text, other.text)));
    }
    faults
}

/// The plans of a figure's variants, with few seeds. The full variant is included a second time
/// with recordings, if it has any.
fn plans(figure: &Figure) -> Vec<Plan> {
    let mut full: toml::Table = figure.plan.replace("$TANDEM_TRACES", "links").parse().unwrap();
    let recordings = full.remove("recordings");
    full.insert("seeds".to_owned(), "1".into());
    full["short"].as_table_mut().unwrap().insert("seeds".to_owned(), "1..2".into());
    let recorded = recordings.map(|recordings| {
        let mut recorded = full.clone();
        recorded.extend(recordings.as_table().unwrap().clone());
        recorded
    });
    let plan = |text: &toml::Table, variant| {
        let text = toml::to_string(text).unwrap();
        Plan::parse(Path::new("figure.toml"), &text, variant).unwrap()
    };
    let recorded = recorded.map(|recorded| plan(&recorded, Variant::Full));
    [plan(&full, Variant::Short), plan(&full, Variant::Full)].into_iter().chain(recorded).collect()
}

/// A run with all values that figures can show.
fn base() -> RunRecord {
    let workload = "flows:2,10ms".parse().unwrap();
    let size = "20kB".parse().unwrap();
    let tiny =
        Parameters { mode: Mode::Tecc, workload, size, samples: 50, ..Parameters::default() };
    let record = run(&tiny, &TraceStore::default()).unwrap().record;
    assert!(record.completed && !record.series.is_empty() && record.flows.len() == 2);
    record
}

/// Invented results of all runs of a plan. Their values are about as large as `size` and differ
/// between runs.
fn invented(plan: &Plan, base: &RunRecord, size: f64) -> Vec<RunRecord> {
    let of = |(number, parameters): (u32, Parameters)| {
        let value = size * f64::from(1 + number * 7 % 10);
        let mut record = RunRecord { parameters, ..base.clone() };
        record.completed = number % 5 != 4;
        (record.fct_s, record.fct_over_ideal) = (Some(value), Some(1.0 + value));
        (record.tunnel_setup_s, record.jain_index) = (Some(value * value), Some(value.min(1.0)));
        (record.others_mbps, record.goodput_mbps) = (Some(value), size);
        record.e2e_srtt_mean_ms = value * 100.0;
        record.e2e_retransmit_ratio = value.min(1.0);
        record.duplicate_ratio = value.min(1.0);
        record.tunnel_retransmit_ratio = value.min(1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "invented")]
        let bytes = (value * 1e6) as u64;
        record.downlink.bytes = bytes;
        record.packet_delay_percentiles_us = (0..=100).map(|percent| bytes * percent / 9).collect();
        let flow = |times: f64| FlowRecord { fct_s: Some(value * times), ..record.flows[0] };
        record.flows = [1.0, 2.0, 5.0, 90.0].map(flow).to_vec();
        for sample in &mut record.series {
            (sample.e2e_pacing_mbps, sample.tunnel_pacing_mbps) = (Some(value), Some(size));
            (sample.e2e_srtt_ms, sample.tunnel_srtt_ms) = (Some(value), Some(size));
            (sample.tunnel_queue_bytes, sample.link_queue_bytes) = (bytes, bytes / 2);
        }
        record
    };
    (0..).zip(plan.runs()).map(of).collect()
}

#[test]
fn no_text_of_a_figure_covers_another_or_leaves_the_picture() {
    let base = base();
    let mut all = Vec::new();
    for figure in &FIGURES {
        for plan in plans(figure) {
            for size in [0.0, 0.02, 20_000.0] {
                let svg = figure.draw(&plan, &invented(&plan, &base, size)).svg;
                let name = format!("{}, {} runs of {size}", figure.id, plan.len());
                all.extend(faults(&svg).into_iter().map(|fault| format!("{name}: {fault}")));
            }
        }
    }
    assert!(all.is_empty(), "{} faults:\n{}", all.len(), all.join("\n"));
}

#[test]
fn no_text_of_a_figure_that_is_kept_covers_another_or_leaves_the_picture() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/tecc");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let pictures: Vec<_> = files.filter(|file| file.extension() == Some("svg".as_ref())).collect();
    assert!(pictures.len() > 20, "{pictures:?}");
    let mut all = Vec::new();
    for file in pictures {
        let name = file.file_name().unwrap().display().to_string();
        let faults = faults(&fs::read_to_string(&file).unwrap());
        all.extend(faults.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    assert!(all.is_empty(), "{} faults:\n{}", all.len(), all.join("\n"));
}

#[test]
fn the_paper_and_every_text_change_their_colour_on_dark_screens() {
    let figure = Figure::find("tecc/t12").unwrap();
    let plan = plans(&figure).remove(0);
    let svg = figure.draw(&plan, &invented(&plan, &base(), 1.0)).svg;
    let style = svg.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
    assert!(style.starts_with("@media (prefers-color-scheme:dark)"), "{style}");
    let drawn: Vec<_> = ["<rect", "<text"].iter().flat_map(|tag| svg.split(tag).skip(1)).collect();
    for tag in drawn {
        let light = attribute(tag.split_once('>').unwrap().0, "fill");
        let is_light = |&(RGBColor(red, green, blue), _): &(RGBColor, &str)| {
            format!("#{red:02X}{green:02X}{blue:02X}") == light
        };
        let (_, dark) = DARK.iter().find(|pair| is_light(pair)).unwrap();
        assert!(style.contains(&format!("[fill=\"{light}\"]{{fill:{dark}}}")), "{light}: {style}");
    }
}
