//! Tests of the reports of a tunnel to origins.

use tandem_experiments::run::{Mode, Parameters, RunRecord, Workload};
use tandem_netem::LossModel;
use tandem_node::quic::DatagramTransport;
use tandem_units::{ByteCount, Rate, Ratio};

use super::run;

fn record(mode: Mode, workload: Workload) -> RunRecord {
    let loss = LossModel::Bernoulli(Ratio::of(5, 100));
    let size = ByteCount::new(1_000_000);
    let parameters = Parameters { mode, workload, loss, size, ..Parameters::default() };
    let record = run(&parameters).record;
    assert!(record.completed, "{record:?}");
    record
}

#[test]
fn local_programs_in_one_tunnel_pass_its_reports_on_each_to_its_own_connection() {
    for workload in ["parallel:10", "requests:10,200ms"] {
        let workload = workload.parse().expect("a workload");
        let of = |mode| record(mode, workload);
        let (with, without) = (of(Mode::Tecc), of(Mode::Rmdt));
        assert_eq!((without.feedback_sent, without.feedback_followed), (0, 0), "{workload}");
        // Most reports reach the origin. The last reports of a flow come after it has ended.
        assert!(with.feedback_followed > 10 * 5, "{workload}: {with:?}");
        assert!(with.feedback_followed * 2 > with.feedback_sent, "{workload}: {with:?}");
        assert!(with.flows.iter().all(|flow| flow.fct_s.is_some()), "{workload}: {with:?}");
    }
}

#[test]
fn origins_follow_reports_through_any_chain_whoever_opens_the_connections() {
    let tunnels = [Mode::Forward, Mode::Tecc, Mode::Mdt, Mode::Uack];
    let chains = (2..=4).flat_map(|proxies| tunnels.map(|mode| (proxies, Some(mode))));
    let mut missing = Vec::new();
    for (proxies, beyond) in chains.chain([(1, None)]) {
        for workload in ["download", "parallel:3"] {
            let parameters = Parameters {
                mode: Mode::Tecc,
                beyond,
                proxies,
                workload: workload.parse().expect("a workload"),
                size: ByteCount::new(500_000),
                ..Parameters::default()
            };
            let record = run(&parameters).record;
            assert!(record.completed, "{record:?}");
            // A flow of half a megabyte needs 0.4 s of the link, which is ten round trips of the tunnel.
            if record.feedback_followed < 5 {
                missing.push((proxies, beyond, workload, record.feedback_followed));
            }
        }
    }
    assert_eq!(missing, [], "chains whose origins used fewer than five reports");
}

/// A download of 3 MB at 2 Mbit/s over an uplink of a twentieth, whose ACKs alone nearly fill it. The
/// origin is far and the proxy near.
fn over_a_thin_uplink(mode: Mode, tunnel_datagrams: DatagramTransport) -> RunRecord {
    let parameters = Parameters {
        mode,
        tunnel_datagrams,
        size: ByteCount::new(3_000_000),
        rate: Rate::from_mbps(2),
        uplink_rate: Rate::from_bps(100_000),
        client_rtt: "6ms".parse().expect("a time"),
        origin_rtt: "53ms".parse().expect("a time"),
        seed: 301,
        ..Parameters::default()
    };
    let record = run(&parameters).record;
    assert!(record.completed, "{record:?}");
    record
}

#[test]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some seconds")]
fn reports_do_not_fill_an_uplink_of_a_twentieth() {
    // Bytes in the sealed transport count twice for the reports.
    for (datagrams, percent) in [(DatagramTransport::Quic, 1), (DatagramTransport::Sealed, 2)] {
        let of = |mode| over_a_thin_uplink(mode, datagrams);
        let (with, without) = (of(Mode::Tecc), of(Mode::RmdtPlus));
        // With a report in each least RTT of the tunnel, of 6 ms, the download took 55.6 s.
        let time = |record: &RunRecord| record.fct_s.expect("it is complete");
        assert!(time(&with) < time(&without) * 1.02, "{} and {} s", time(&with), time(&without));
        // Sixteen reports may go at once. All others cost at most this share of the uplink: half an ACK
        // answers the packet in which a report came, and 31 bytes pass it on, in a packet with an ACK.
        let cost = 35 * with.feedback_sent + 31 * with.feedback_followed;
        let per_second = 100_000 / 8 * percent / 100;
        let passed = with.elapsed_s.ceil() as u64;
        assert!(cost <= per_second * passed + 16 * (35 + 31), "{with:?}");
        assert!(with.feedback_followed > 20, "{with:?}");
    }
}

#[test]
fn reports_do_not_wait_for_payloads_that_the_exit_holds_back() {
    let loss = LossModel::Bernoulli(Ratio::of(5, 100));
    let size = ByteCount::new(3_000_000);
    let mut sum = 0.0;
    for seed in 1..=6 {
        let rate = Rate::from_mbps(50);
        let parameters =
            Parameters { mode: Mode::Tecc, loss, size, rate, seed, ..Parameters::default() };
        sum += run(&parameters).record.fct_s.expect("it completes");
    }
    // It was 7.5 s while each report waited for an acknowledgement.
    assert!(sum < 7.2, "{sum} s");
}
