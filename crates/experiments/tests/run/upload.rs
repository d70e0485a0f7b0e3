//! Tests of uploads.

use tandem_experiments::run::{Mode, Parameters, Workload, check};
use tandem_units::{ByteCount, Rate, Ratio};

use super::run;

fn parameters(mode: Mode) -> Parameters {
    Parameters {
        mode,
        workload: Workload::Upload,
        size: ByteCount::new(1_000_000),
        rate: Rate::from_mbps(50),
        uplink_rate: Some(Rate::from_mbps(10)),
        loss: Ratio::of(5, 100).into(),
        ..Parameters::default()
    }
}

#[test]
fn the_record_of_an_upload_describes_its_sender() {
    // `get` makes an upload in mode auto one of mode tecc, since its sender is the client.
    for mode in Mode::ALL.into_iter().filter(|mode| *mode != Mode::Auto) {
        let record = run(&parameters(mode)).record;
        assert!(record.completed && record.violations == 0, "{record:?}");
        assert_eq!(record.body_bytes, 1_000_000);
        assert_eq!(record.uplink.payload_bytes, 1_000_000);
        assert_eq!(record.downlink.payload_bytes, 0);
        // The ideal of the uplink is 2 * 140 ms, and 1.06 MB / 0.95 at 10 Mbit/s.
        assert_eq!(record.ideal_s, Some(1.172_632), "{mode}");
        let over_ideal = record.fct_over_ideal.expect("it completed");
        assert!((0.9..4.0).contains(&over_ideal), "{mode}: {over_ideal}");
        let (end_to_end, tunnel) = (record.e2e_retransmit_ratio, record.tunnel_retransmit_ratio);
        let repairs = mode.repairs_datagrams() || matches!(mode, Mode::Mst | Mode::Msgt);
        assert!(if repairs { tunnel } else { end_to_end } > 0.02, "{mode}: {record:?}");
        // Packets that arrive out of order over several streams are retransmitted end to end.
        let other = if repairs { end_to_end } else { tunnel };
        assert!(other < 0.02 || mode == Mode::Msgt, "{mode}: {record:?}");
        // TECC keeps a queue there.
        assert!(mode != Mode::Tecc || record.tunnel_queue_max_bytes > 0, "{record:?}");
        assert!(record.e2e_srtt_mean_ms > 130.0, "{mode}: {record:?}");
        let is_told = matches!(mode, Mode::Tecc | Mode::TeccPaper);
        assert_eq!(record.feedback_followed > 10, is_told, "{mode}: {record:?}");
        assert_eq!(record.feedback_followed, record.feedback_sent, "{mode}");
    }
}

#[test]
fn an_upload_has_one_stream_and_no_local_program() {
    let streams = Parameters { streams: 2, ..parameters(Mode::Mdt) };
    let local = Parameters { local_program: true, ..parameters(Mode::Mdt) };
    for (refused, name) in [(streams, "streams"), (local, "local_program")] {
        let error = check(&refused).expect_err(name).to_string();
        assert!(error.starts_with(name), "{error}");
    }
}
