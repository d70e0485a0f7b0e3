//! Tests of the reports of a tunnel to origins.

use tandem_experiments::run::{Mode, Parameters, RunRecord, Workload};
use tandem_netem::LossModel;
use tandem_units::{ByteCount, Ratio};

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
        assert_eq!((without.feedback_sent, without.feedback_used), (0, 0), "{workload}");
        // Most reports reach the origin. The last reports of a flow come after it has ended.
        assert!(with.feedback_used > 10 * 10, "{workload}: {with:?}");
        assert!(with.feedback_used * 2 > with.feedback_sent, "{workload}: {with:?}");
        assert!(with.flows.iter().all(|flow| flow.fct_s.is_some()), "{workload}: {with:?}");
    }
}
