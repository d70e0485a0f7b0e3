//! Tests of mode `auto`: the client chooses the order at its end of the tunnel by what it learns of the origin.

use std::time::Duration;

use tandem_congestion::ControllerName;
use tandem_node::{
    client::{Choice, Order, Repair, TunnelMode},
    mode::{Agreement, Mode},
    node::Event,
    stats::Orders,
};
use tandem_units::ByteCount;

use crate::{Scenario, Testbed, certificate, lossy, rmdt, tecc};

fn auto() -> TunnelMode {
    TunnelMode::default()
}

/// A lossy download, and a mode of which somebody who knows the origin would choose the best.
fn scenario(seed: u64, controller: ControllerName, mode: TunnelMode) -> Scenario {
    let mut scenario = lossy(seed, 1);
    scenario.file = ByteCount::new(3_000_000);
    scenario.origin_controller = controller;
    scenario.mode = mode;
    scenario
}

#[test]
fn the_order_is_that_which_suits_the_origin() {
    for (controller, choice) in [
        (ControllerName::Cubic, Choice::Ordered),
        (ControllerName::NewReno, Choice::Ordered),
        (ControllerName::Bbr1, Choice::Ordered),
        (ControllerName::Tecc, Choice::Window),
    ] {
        let mut completion = [Duration::ZERO; 3];
        for seed in 5..8 {
            let download = |mode| scenario(seed, controller, mode).download();
            let outcome = download(auto());
            let report = outcome.result.as_ref().unwrap();
            assert_eq!(report.choice, Some(choice), "{controller}");
            let agreement = Agreement { asked: Mode::Auto, granted: Mode::Tecc, lesser: None };
            assert_eq!(report.agreements, [agreement]);
            let others = [rmdt(), tecc()].map(|mode| download(mode).report().completion);
            let [of_auto, of_rmdt, of_tecc] = &mut completion;
            *of_auto += report.completion;
            *of_rmdt += others[0];
            *of_tecc += others[1];
        }
        let [of_auto, of_rmdt, of_tecc] = completion;
        let percent = of_auto.as_nanos() * 100 / of_rmdt.min(of_tecc).as_nanos();
        assert!(percent <= 105, "{controller}: {percent} % of the better of rmdt and tecc");
    }
}

/// The choices of which the client spoke.
fn choices(testbed: &Testbed) -> Vec<Choice> {
    let events = testbed.world.events(testbed.client).iter();
    let choices = events.filter_map(|(_, event)| match event {
        Event::Chosen { hop: 0, choice } => Some(*choice),
        _ => None,
    });
    choices.collect()
}

#[test]
fn a_change_of_order_is_said_once() {
    for (controller, said) in
        [(ControllerName::Cubic, &[][..]), (ControllerName::Tecc, &[Choice::Window])]
    {
        let scenario = scenario(6, controller, auto());
        let (chosen, at_proxy) = scenario.run(|testbed| {
            testbed.finish();
            (choices(testbed), testbed.world.node_mut(testbed.proxies[0]).stats().orders)
        });
        assert_eq!(chosen, said, "{controller}");
        let window = u64::from(said.contains(&Choice::Window));
        assert_eq!(at_proxy, Orders { ordered: 1, window, off: 0 }, "{controller}");
    }
}

#[test]
fn the_choice_holds_in_the_tunnel_that_follows_a_restarted_proxy() {
    let scenario = scenario(8, ControllerName::Tecc, auto());
    let chosen = scenario.run(|testbed| {
        testbed.run_until_fetched(ByteCount::new(500_000));
        let proxy = testbed.proxies[0];
        testbed.world.replace(proxy, scenario.proxy(&certificate(), 1));
        assert!(testbed.finish().result.is_ok());
        choices(testbed)
    });
    // The flow of the new tunnel begins in order too.
    assert_eq!(chosen, [Choice::Window; 2]);
}

#[test]
fn a_mode_with_an_order_that_was_chosen_keeps_it() {
    let mode = TunnelMode::Tecc(Repair { order: Order::Ordered, ..Repair::default() });
    let outcome = scenario(7, ControllerName::Tecc, mode).download();
    assert_eq!(outcome.report().choice, None);
}
