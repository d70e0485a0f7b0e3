//! The results of runs in whole numbers, so that they can be compared exactly on every machine.

use crate::{
    plan::{Plan, canonical},
    run::RunRecord,
    summary::{fields, plain},
};

/// A table with one line for each run, in the order of the plan: the varied parameters, then
/// results in microseconds and bytes. A missing run has empty cells.
#[expect(clippy::missing_panics_doc, reason = "a write to memory does not fail")]
pub fn golden(plan: &Plan, records: &[RunRecord]) -> String {
    let varied: Vec<_> = plan.varied().map(str::to_owned).collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let measured = [
        "seed",
        "completed",
        "fct_us",
        "tunnel_setup_us",
        "downlink_bytes",
        "uplink_bytes",
        "lost_packets",
        "median_delay_us",
    ];
    let header = varied.iter().map(String::as_str).chain(measured);
    writer.write_record(header).expect("memory can be written");
    for run in plan.runs() {
        let fields = fields(&run);
        let text = canonical(&run);
        let record = records.iter().find(|record| canonical(&record.parameters) == text);
        let cell = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
        let micros = |seconds: Option<f64>| cell(seconds.map(micros));
        let cells = [
            run.seed.to_string(),
            cell(record.map(|record| record.completed.into())),
            micros(record.and_then(|record| record.fct_s)),
            micros(record.and_then(|record| record.tunnel_setup_s)),
            cell(record.map(|record| record.downlink.bytes)),
            cell(record.map(|record| record.uplink.bytes)),
            cell(record.map(|record| record.downlink.lost_packets + record.uplink.lost_packets)),
            cell(record.and_then(|record| record.packet_delay_percentiles_us.get(50).copied())),
        ];
        let keys = varied.iter().map(|key| fields.get(key).map(plain).unwrap_or_default());
        writer.write_record(keys.chain(cells)).expect("memory can be written");
    }
    text(writer)
}

/// Converts seconds of a record, which are whole microseconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 10^13")]
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

pub(super) fn text(writer: csv::Writer<Vec<u8>>) -> String {
    let bytes = writer.into_inner().expect("memory can be written");
    String::from_utf8(bytes).expect("only texts were written")
}
