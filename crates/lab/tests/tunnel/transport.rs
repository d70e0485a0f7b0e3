//! What carries the datagrams: the sealed transport where both ends agree, and DATAGRAM frames otherwise.

use tandem_congestion::ControllerName;
use tandem_node::{
    client::TunnelMode,
    quic::DatagramTransport::{self, Quic, Sealed},
};
use tandem_units::Ratio;

use crate::{SECOND, rmdt, scenario::Scenario, tecc};

/// The transport of each hop of a download.
fn transports(scenario: &Scenario) -> Vec<DatagramTransport> {
    let outcome = scenario.download();
    assert_eq!(outcome.report().bytes, scenario.file.get());
    let connections = &outcome.report().connections;
    connections.iter().take(scenario.proxies).map(|it| it.datagrams).collect()
}

#[test]
fn datagrams_travel_sealed_where_both_ends_agree() {
    let uack = TunnelMode::Uack { both_ways: true };
    let usual = ControllerName::default();
    for (mode, controller, ends, expected) in [
        (TunnelMode::Mdt, usual, [Sealed, Sealed], Sealed),
        (rmdt(), usual, [Sealed, Sealed], Sealed),
        (tecc(), usual, [Sealed, Sealed], Sealed),
        (rmdt(), ControllerName::NewReno, [Sealed, Sealed], Sealed),
        (rmdt(), ControllerName::Off, [Sealed, Sealed], Sealed),
        (rmdt(), usual, [Quic, Sealed], Quic),
        (rmdt(), usual, [Sealed, Quic], Quic),
        (rmdt(), ControllerName::Cubic, [Sealed, Sealed], Quic),
        (TunnelMode::Mst, usual, [Sealed, Sealed], Quic),
        (TunnelMode::Msgt(4), usual, [Sealed, Sealed], Quic),
        (TunnelMode::Forward, usual, [Sealed, Sealed], Quic),
        (uack, usual, [Sealed, Sealed], Quic),
    ] {
        for proxies in [1, 2] {
            let mut scenario = Scenario::new(1, proxies);
            (scenario.mode, scenario.controller, scenario.datagrams) = (mode, controller, ends);
            scenario.access.loss = Ratio::of(1, 100).into();
            let case = format!("{mode:?}, {controller}, {ends:?}, {proxies} proxies");
            assert_eq!(transports(&scenario), vec![expected; proxies], "{case}");
        }
    }
}

#[test]
fn a_download_takes_no_longer_than_with_datagram_frames() {
    for mode in [TunnelMode::Mdt, rmdt(), tecc()] {
        for loss_percent in [0, 1, 5] {
            let [sealed, quic] = [Sealed, Quic].map(|datagrams| {
                let took = (1..=4).map(|seed| {
                    let mut scenario = Scenario::new(seed, 1);
                    (scenario.mode, scenario.datagrams) = (mode, [datagrams; 2]);
                    scenario.access.loss = Ratio::of(loss_percent, 100).into();
                    scenario.download().report().completion
                });
                took.sum::<std::time::Duration>() / 4
            });
            println!("{mode:?}, {loss_percent} % loss: {sealed:?} instead of {quic:?}");
            let most = quic.mul_f64(1.1) + SECOND / 10;
            assert!(sealed <= most, "{mode:?}, {loss_percent} %: {sealed:?} of {quic:?}");
        }
    }
}
