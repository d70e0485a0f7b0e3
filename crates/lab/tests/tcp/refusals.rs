//! Targets that cannot be reached.

use std::{io::ErrorKind, time::Duration};

use tandem_lab::{
    NameAnswer,
    endpoints::{Behaviour, TcpServer},
};
use tandem_node::{client::FlowConfig, limits::Limits};

use crate::{
    bed::{
        MS, PORT, SECOND, TARGET_RTT, TUNNEL_RTT, add_target, counters, failures, finish, forward,
        program, report, serve, server_report, target_ip, task,
    },
    scenario::{Scenario, Testbed},
};

/// Lets a program connect to a target, by its number and its name, that cannot be reached. The program
/// is reset after about this time, both ends count the failure, and the client says why.
fn fails(testbed: &mut Testbed, (number, name): (usize, &str), after: Duration, words: &str) {
    let (client_before, proxy_before) = counters(testbed);
    let program = program(testbed, u8::try_from(number).unwrap(), vec![task(number, 1000)]);
    finish(testbed, program, 60 * SECOND);
    let report = report(testbed, program);
    assert_eq!(report.result, Some(Err(ErrorKind::ConnectionReset)), "{name}");
    let duration = report.duration().unwrap();
    assert!((after..after + 10 * MS).contains(&duration), "{name}: {duration:?}");
    let said = failures(testbed);
    let said = said.last().map_or("", String::as_str);
    assert!(said.contains(words) && said.contains(name), "{name}: {said}");
    let (client, proxy) = counters(testbed);
    assert_eq!((client.failed, client.open), (client_before.failed + 1, 0), "{name}");
    assert_eq!((proxy.failed, proxy.open), (proxy_before.failed + 1, 0), "{name}");
}

#[test]
fn a_target_that_refuses_or_is_prohibited_resets_the_program_and_the_client_says_why() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        let refusing = target_ip(0);
        let cases = [
            (&*refusing, TUNNEL_RTT + TARGET_RTT, "connection_refused"),
            ("10.9.9.9", TUNNEL_RTT, "destination_ip_unroutable"),
            ("192.168.1.1", TUNNEL_RTT, "destination_ip_prohibited"),
            ("nowhere.test", TUNNEL_RTT, "dns_error"),
        ];
        let targets = cases.map(|(target, ..)| FlowConfig::new(target, PORT));
        forward(&scenario, testbed, targets.to_vec(), Vec::new());
        add_target(testbed, 0, Behaviour::Refuse);
        for (number, (target, after, words)) in cases.into_iter().enumerate() {
            fails(testbed, (number, target), after, words);
        }
        testbed.world.trace().digest()
    });
}

#[test]
fn a_target_that_never_answers_is_given_up_in_time() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        let servers = serve(&scenario, testbed, &[Behaviour::Echo.into()]);
        testbed.world.block(testbed.proxies[0], servers[0], 1000 * SECOND);
        let after = Limits::default().connect_timeout + TUNNEL_RTT;
        fails(testbed, (0, &target_ip(0)), after, "connection_timeout");
        assert_eq!(testbed.world.tcp_connections(testbed.proxies[0]), 0);
        testbed.world.trace().digest()
    });
}

#[test]
fn an_address_that_never_answers_costs_a_quarter_of_a_second_if_another_one_does() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        let servers = [0, 1].map(|number| add_target(testbed, number, Behaviour::Echo));
        let addresses = [0, 1].map(|number| target_ip(number).parse().unwrap());
        let answer = NameAnswer::After(Duration::ZERO, Ok(addresses.to_vec()));
        testbed.world.set_name("two.test", answer);
        testbed.world.block(testbed.proxies[0], servers[0], 1000 * SECOND);
        forward(&scenario, testbed, vec![FlowConfig::new("two.test", PORT)], Vec::new());
        let program = program(testbed, 1, vec![task(0, 100)]);
        finish(testbed, program, 10 * SECOND);
        let report = report(testbed, program);
        assert_eq!(report.result, Some(Ok(())));
        assert_eq!(server_report(testbed, servers[1]).received, 100);
        let took = report.first_byte.unwrap() - report.began;
        let expected = TUNNEL_RTT + 2 * TARGET_RTT + 250 * MS;
        assert!((expected..expected + 5 * MS).contains(&took), "{took:?}");
        testbed.world.run_for(SECOND);
        assert_eq!(testbed.world.tcp_connections(testbed.proxies[0]), 0, "both are closed");
        testbed.world.trace().digest()
    });
}

#[test]
fn an_address_that_comes_late_is_tried_whatever_became_of_the_others() {
    let scenario = Scenario::new(1, 1);
    // The host of the proxy has no IPv6. The first target never answers.
    for (first, late, expected) in [
        ("2001:db8::1", 50 * MS, 50 * MS),
        ("2001:db8::1", 300 * MS, 300 * MS),
        ("2001:db8::1", 9 * SECOND, 9 * SECOND),
        (&*target_ip(0), 20 * MS, 250 * MS),
        (&*target_ip(0), 2 * SECOND, 2 * SECOND),
    ] {
        scenario.run(|testbed| {
            let servers = [0, 1].map(|number| add_target(testbed, number, Behaviour::Echo));
            testbed.world.block(testbed.proxies[0], servers[0], 1000 * SECOND);
            let address = |text: &str| text.parse().unwrap();
            let parts =
                vec![(Duration::ZERO, vec![address(first)]), (late, vec![address(&target_ip(1))])];
            testbed.world.set_name("two.test", NameAnswer::Parts(parts));
            forward(&scenario, testbed, vec![FlowConfig::new("two.test", PORT)], Vec::new());
            let program = program(testbed, 1, vec![task(0, 100)]);
            finish(testbed, program, 30 * SECOND);
            let report = report(testbed, program);
            assert_eq!(report.result, Some(Ok(())), "{first}, {late:?}");
            let took = report.first_byte.unwrap() - report.began;
            let expected = TUNNEL_RTT + 2 * TARGET_RTT + expected;
            assert!((expected..expected + 5 * MS).contains(&took), "{first}, {late:?}: {took:?}");
            testbed.world.trace().digest()
        });
    }
}

#[test]
fn a_name_whose_only_address_has_no_route_is_refused_when_nothing_more_comes() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        let parts =
            vec![(Duration::ZERO, vec!["2001:db8::1".parse().unwrap()]), (4 * SECOND, Vec::new())];
        testbed.world.set_name("six.test", NameAnswer::Parts(parts));
        let targets = vec![FlowConfig::new("six.test", PORT)];
        forward(&scenario, testbed, targets, Vec::new());
        let unroutable = "destination_ip_unroutable";
        fails(testbed, (0, "six.test"), TUNNEL_RTT + 4 * SECOND, unroutable);
        testbed.world.trace().digest()
    });
}

#[test]
fn a_target_that_comes_back_is_reached() {
    let scenario = Scenario::new(1, 1);
    scenario.run(|testbed| {
        let servers = serve(&scenario, testbed, &[Behaviour::Refuse.into()]);
        let refused = TUNNEL_RTT + TARGET_RTT;
        fails(testbed, (0, &target_ip(0)), refused, "connection_refused");
        testbed.world.replace(servers[0], TcpServer::new(PORT, Behaviour::Echo));
        let program = program(testbed, 250, vec![task(0, 1000)]);
        finish(testbed, program, 10 * SECOND);
        assert_eq!(report(testbed, program).result, Some(Ok(())));
        testbed.world.trace().digest()
    });
}
