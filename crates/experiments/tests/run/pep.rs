//! Tests of runs with a PEP.

use tandem_congestion::ControllerName;
use tandem_experiments::run::{Mode, Parameters, PepKind, RunRecord, check};
use tandem_units::{ByteCount, HumanDuration, Rate, Ratio};

use super::run;

fn record(mode: Mode, origin_controller: ControllerName) -> RunRecord {
    let run = run(&Parameters {
        mode,
        origin_controller,
        tunnel_controller: ControllerName::Bbr1,
        pep: Some(PepKind::Authentic),
        rate: Rate::from_mbps(20),
        loss: Ratio::of(2, 100).into(),
        size: ByteCount::new(2_000_000),
        ..Parameters::default()
    });
    run.record
}

#[test]
fn a_proxy_is_a_pep_for_what_it_relays() {
    for mode in [Mode::Mdt, Mode::Forward] {
        let record = record(mode, ControllerName::Mdcc);
        let domains = record.domains.as_ref().expect("there is a PEP");
        assert!(domains.pep_acks > 300 && domains.refused == 0, "{record:?}");
        assert_eq!((domains.wired_lost, domains.unknown_lost), (0, 0), "{record:?}");
        assert!(domains.access_lost > 30, "{record:?}");
        // It does not take these losses for congestion.
        let cubic = self::record(mode, ControllerName::Cubic).goodput_mbps;
        let goodput = record.goodput_mbps;
        assert!(goodput > 3.0 * cubic, "{mode}: {goodput}, {cubic}");
    }
}

#[test]
fn the_pep_of_a_tunnel_lives_as_long_as_its_proxy() {
    let tunnel =
        Parameters { mode: Mode::Mdt, pep: Some(PepKind::Keyless), ..Parameters::default() };
    assert!(check(&tunnel).is_ok());
    let until = Some(HumanDuration(std::time::Duration::from_secs(1)));
    for (refused, name) in [
        (Parameters { pep_loss: Ratio::of(1, 10), ..tunnel.clone() }, "pep_loss"),
        (Parameters { pep_until: until, ..tunnel.clone() }, "pep_until"),
    ] {
        let error = check(&refused).expect_err(name).to_string();
        assert!(error.starts_with(name), "{error}");
    }
}
