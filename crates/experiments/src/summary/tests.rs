use super::*;
use crate::run::Mode;

fn is_near(seen: f64, expected: f64) -> bool {
    (seen - expected).abs() < 1e-4
}

#[test]
fn the_interval_is_students() {
    // t(0.975, 4) = 2.776445; the standard deviation of 1..5 is sqrt(2.5).
    let Statistics { mean, half_width, median, tail, .. } =
        statistics(&[3.0, 1.0, 5.0, 2.0, 4.0]).unwrap();
    assert_eq!((mean, median, tail), (3.0, 3.0, Tail::Max(5.0)));
    let expected = 2.776_445 * (2.5_f64 / 5.0).sqrt();
    assert!(is_near(half_width.unwrap(), expected), "{half_width:?}, not {expected}");
}

#[test]
fn one_value_has_no_interval_and_no_values_have_no_statistics() {
    let one = statistics(&[7.0]).unwrap();
    assert_eq!((one.mean, one.median, one.half_width), (7.0, 7.0, None));
    assert_eq!(statistics(&[]), None);
}

#[test]
fn a_p99_needs_a_hundred_values() {
    let values: Vec<_> = (1..=99).map(f64::from).collect();
    assert_eq!(statistics(&values).unwrap().tail, Tail::Max(99.0));
    let values: Vec<_> = (1..=100).rev().map(f64::from).collect();
    assert_eq!(statistics(&values).unwrap().tail, Tail::P99(99.0));
    let values: Vec<_> = (1..=1000).map(f64::from).collect();
    assert_eq!(statistics(&values).unwrap().tail, Tail::P99(990.0));
}

#[test]
fn pairs_are_compared_seed_by_seed() {
    // The two differ by 10 % throughout, the seeds by a factor of 100.
    let pairs: Vec<_> = (1..=10).map(|n| f64::from(n * n)).map(|n| (0.9 * n, n)).collect();
    let ratio = paired_ratio(&pairs).unwrap();
    assert!(is_near(ratio.mean, 0.9) && is_near(ratio.low, 0.9) && is_near(ratio.high, 0.9));
    assert_eq!(ratio.pairs, 10);
    assert_eq!(paired_ratio(&[]), None);
}

#[test]
fn a_ratio_of_means_is_not_biased_upwards() {
    // The means are 2 and 2; the mean of the ratios would be 5/3.
    let ratio = paired_ratio(&[(1.0, 3.0), (3.0, 1.0)]).unwrap();
    assert!(is_near(ratio.mean, 1.0), "{ratio:?}");
    assert!(is_near(ratio.high - ratio.mean, 12.7062), "{ratio:?}"); // t(0.975, 1) * 2 / 2
}

fn record(mode: Mode, size: u64, fct_s: Option<f64>) -> RunRecord {
    let parameters = Parameters { mode, size: ByteCount::new(size), ..Parameters::default() };
    let mut record =
        crate::run::run(&parameters, &crate::run::TraceStore::default()).unwrap().record;
    (record.completed, record.fct_s, record.fct_over_ideal) = (fct_s.is_some(), fct_s, fct_s);
    record
}

#[test]
fn runs_that_did_not_complete_are_counted_and_shown() {
    let records = [
        record(Mode::Mdt, 20_000, Some(2.0)),
        record(Mode::Mdt, 20_000, None),
        record(Mode::Mdt, 20_000, Some(4.0)),
        record(Mode::Mdt, 3_000, None),
    ];
    let summaries = Summaries::of(&records);
    let [small, large] = &summaries.summaries()[..] else { panic!("{summaries:?}") };
    assert_eq!((small.runs, small.completed, small.fct_mean_s), (1, 0, Some(600.0)));
    assert_eq!((large.runs, large.completed, large.fct_mean_s), (3, 2, Some(202.0)));
    assert_eq!((large.fct_median_s, large.fct_max_s), (Some(4.0), Some(600.0)));
    let ideal_s = records[1].ideal_s.unwrap();
    let over_ideal = large.fct_over_ideal_mean.unwrap();
    assert!(is_near(over_ideal, (2.0 + 4.0 + 600.0 / ideal_s) / 3.0), "{over_ideal}");
    let SummaryTable { header, rows } = summaries.table();
    assert_eq!(header[..4], ["size", "runs", "completed", "mean"]);
    assert_eq!(rows[0][..4], ["3 kB", "1", "0", "≥ 600.00 s"]);
    assert_eq!(rows[1][..4], ["20 kB", "3", "2", "≥ 202.00 s"]);
    assert_eq!(rows[1][5..7], ["≥ 4.000 s", "≥ 600.00 s"]);
    assert!(rows[1][7].starts_with("≥ "), "{rows:?}");
    let note = summaries.note().unwrap();
    assert!(note.starts_with("Of 4 runs, 2 did not complete."), "{note}");
    assert_eq!(Summaries::of(&records[..1]).note(), None);
}

#[test]
fn the_worst_of_few_runs_is_not_called_a_percentile() {
    let records = [record(Mode::Mdt, 3_000, Some(2.0))];
    let few = Summaries::of(&records).table();
    assert!(few.header.contains(&"max".to_owned()), "{few:?}");
    let many = Summaries::of(&vec![records[0].clone(); 100]).table();
    assert!(many.header.contains(&"p99".to_owned()), "{many:?}");
}

#[test]
fn values_have_the_order_of_their_size() {
    let sorted = |texts: &[&str]| {
        let mut values: Vec<_> = texts.iter().map(|text| magnitude(&Value::from(*text))).collect();
        values.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        values.into_iter().map(|(_, text)| text).collect::<Vec<_>>()
    };
    assert_eq!(sorted(&["1 MB", "300 kB", "100 kB"]), ["100 kB", "300 kB", "1 MB"]);
    assert_eq!(sorted(&["1s", "40ms"]), ["40ms", "1s"]);
    assert_eq!(sorted(&["10%", "5%"]), ["5%", "10%"]);
    assert_eq!(sorted(&["mst", "mdt"]), ["mdt", "mst"]);
}
