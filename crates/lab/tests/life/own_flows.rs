//! Flows that the embedding program opens, uses and closes while the client runs.

use std::time::Duration;

use bytes::Bytes;
use tandem_lab::{World, endpoints::EchoHost};
use tandem_node::{
    Client, Event,
    client::{FlowConfig, FlowEvent, FlowId, Oversize, Repair, Task, TunnelMode},
    error::{ClientError, FlowError},
    limits::Limits,
};

use crate::{
    MS, SECOND, cut,
    programs::{TARGET_PORT, lost_hops},
    scenario::{Scenario, Testbed},
};

const ECHO: &str = "10.0.0.8";

/// Acts on a client without listeners whose tunnel is up, and a target that echoes. It happens twice,
/// packet by packet the same.
fn run(scenario: &Scenario, act: impl Fn(&mut Testbed)) {
    scenario.run(|testbed| {
        start(scenario, testbed);
        act(testbed);
        testbed.world.trace().digest()
    });
}

fn start(scenario: &Scenario, testbed: &mut Testbed) {
    testbed.world.add_host("echo", [ECHO], EchoHost::new(TARGET_PORT));
    let client = testbed.client;
    testbed.world.replace(client, scenario.client(Task::Forward(Vec::new())));
    let is_up = |world: &World| {
        world.events(client).iter().any(|(_, event)| matches!(event, Event::HopUp { .. }))
    };
    assert!(testbed.world.run_until(2 * SECOND, is_up));
}

fn node(testbed: &mut Testbed) -> &mut Client {
    testbed.world.node_mut(testbed.client)
}

fn open(testbed: &mut Testbed, id: u64) {
    node(testbed).open_flow(FlowId(id), FlowConfig::new(ECHO, TARGET_PORT)).unwrap();
}

/// Sends a payload that begins with a number.
fn send(testbed: &mut Testbed, id: u64, number: u8, len: usize) -> Result<(), FlowError> {
    let now = testbed.world.now();
    let mut payload = vec![0; len];
    payload[0] = number;
    node(testbed).send_on_flow(now, FlowId(id), &Bytes::from(payload))
}

fn close(testbed: &mut Testbed, id: u64) {
    let now = testbed.world.now();
    node(testbed).close_flow(now, FlowId(id));
}

/// Runs for a while and returns the events of flows: the flow, and what happened in words.
fn events(testbed: &mut Testbed, duration: Duration) -> Vec<(u64, String)> {
    testbed.world.run_for(duration);
    let node = testbed.world.inspect(testbed.client);
    let mut events = Vec::new();
    while let Some((FlowId(id), event)) = node.poll_flow_event() {
        events.push((
            id,
            match event {
                FlowEvent::Opened => "opened".to_owned(),
                FlowEvent::Payload(payload) => format!("{}: {} bytes", payload[0], payload.len()),
                FlowEvent::Report(_) => "report".to_owned(),
                FlowEvent::Capsule(_) => "capsule".to_owned(),
                FlowEvent::Ended(error) => error.to_string(),
            },
        ));
    }
    events
}

fn opened(id: u64) -> (u64, String) {
    (id, "opened".to_owned())
}

fn echo(id: u64, number: u8, len: usize) -> (u64, String) {
    (id, format!("{number}: {len} bytes"))
}

/// The numbers of flows that are open at the client and at the proxy.
fn open_flows(testbed: &mut Testbed) -> (u64, u64) {
    let (client, proxy) = (testbed.client, testbed.proxies[0]);
    let client = testbed.world.inspect(client).stats().flows_open;
    (client, testbed.world.inspect(proxy).stats().flows_open)
}

#[test]
fn flows_are_opened_used_and_closed_while_the_client_runs() {
    for mode in [TunnelMode::Mdt, TunnelMode::Mst, TunnelMode::Rmdt(Repair::default())] {
        let scenario = Scenario { mode, ..Scenario::new(1, 1) };
        run(&scenario, |testbed| {
            open(testbed, 1);
            open(testbed, 2);
            assert_eq!(events(testbed, SECOND), [opened(1), opened(2)], "{mode:?}");
            assert_eq!(node(testbed).max_payload(FlowId(1)), node(testbed).max_payload(FlowId(2)));
            for (number, len) in [(1, 1), (2, 1200), (3, 1400)] {
                send(testbed, 1, number, len).unwrap();
            }
            send(testbed, 2, 9, 100).unwrap();
            let mut came = events(testbed, SECOND);
            came.sort();
            let expected = [echo(1, 1, 1), echo(1, 2, 1200), echo(1, 3, 1400), echo(2, 9, 100)];
            assert_eq!(came, expected, "{mode:?}");
            // The last payload of a closed flow still leaves, and its echo goes nowhere.
            send(testbed, 1, 4, 10).unwrap();
            close(testbed, 1);
            assert_eq!(send(testbed, 1, 5, 10), Err(FlowError::NotOpen));
            assert_eq!(events(testbed, SECOND), [], "{mode:?}");
            let proxy = testbed.world.inspect(testbed.proxies[0]).stats();
            assert_eq!(proxy.to_target_datagrams, 5, "{mode:?}");
            assert_eq!(open_flows(testbed), (1, 1), "{mode:?}");
            open(testbed, 3);
            send(testbed, 3, 6, 10).unwrap();
            assert_eq!(events(testbed, SECOND), [opened(3), echo(3, 6, 10)], "{mode:?}");
            assert_eq!(open_flows(testbed), (2, 2), "{mode:?}");
            assert_eq!(lost_hops(testbed), [] as [&str; 0]);
        });
    }
}

#[test]
fn flows_survive_a_rebuilt_tunnel() {
    run(&Scenario::new(1, 1), |testbed| {
        open(testbed, 1);
        assert_eq!(events(testbed, SECOND), [opened(1)]);
        cut(testbed, 20 * SECOND);
        testbed.world.run_for(15 * SECOND);
        assert_eq!(lost_hops(testbed).len(), 1);
        // These payloads wait for the tunnel, and so does a flow that is opened now.
        let most = Limits::default().early_datagrams_per_flow;
        for number in 0..u8::try_from(most).unwrap() {
            send(testbed, 1, number, 10).unwrap();
        }
        assert_eq!(send(testbed, 1, 99, 10), Err(FlowError::QueueFull));
        open(testbed, 2);
        close(testbed, 2);
        open(testbed, 3);
        let mut came = events(testbed, 30 * SECOND);
        came.sort_by_key(|(_, what)| what != "opened");
        assert_eq!(came[..2], [opened(1), opened(3)]);
        assert_eq!(came.len(), 2 + most, "{came:?}");
        assert_eq!(open_flows(testbed).0, 2);
    });
}

#[test]
fn a_refused_flow_ends_with_the_reason_and_others_go_on() {
    run(&Scenario::new(1, 1), |testbed| {
        open(testbed, 1);
        let elsewhere = FlowConfig::new("192.0.2.1", 53);
        node(testbed).open_flow(FlowId(2), elsewhere).unwrap();
        let came = events(testbed, SECOND);
        assert_eq!(came.len(), 2, "{came:?}");
        assert!(came.contains(&opened(1)), "{came:?}");
        let (_, reason) = came.iter().find(|(id, _)| *id == 2).unwrap();
        assert!(reason.contains("refused a tunnel to 192.0.2.1:53: status 403"), "{reason}");
        assert_eq!(send(testbed, 2, 1, 1), Err(FlowError::NotOpen));
        send(testbed, 1, 1, 1).unwrap();
        assert_eq!(events(testbed, SECOND), [echo(1, 1, 1)]);
    });
}

#[test]
fn an_idle_flow_is_requested_again_for_its_next_payload() {
    run(&Scenario::new(1, 1), |testbed| {
        open(testbed, 1);
        assert_eq!(events(testbed, SECOND), [opened(1)]);
        let idle = events(testbed, Limits::default().flow_idle + SECOND);
        assert_eq!((idle, open_flows(testbed)), (Vec::new(), (1, 0)));
        send(testbed, 1, 7, 70).unwrap();
        assert_eq!(events(testbed, SECOND), [opened(1), echo(1, 7, 70)]);
    });
}

#[test]
fn flows_have_bounds_and_say_them() {
    let limits = Limits { local_flows: 2, flow_queue: 3, ..Limits::default() };
    let scenario = Scenario { limits, ..Scenario::new(1, 1) };
    run(&scenario, |testbed| {
        let drop = FlowConfig { oversize: Oversize::Drop, ..FlowConfig::new(ECHO, TARGET_PORT) };
        node(testbed).open_flow(FlowId(1), drop.clone()).unwrap();
        assert_eq!(node(testbed).open_flow(FlowId(1), drop.clone()), Err(FlowError::NotOpen));
        open(testbed, 2);
        let third = node(testbed).open_flow(FlowId(3), drop);
        assert_eq!(third, Err(FlowError::TooMany { most: 2 }));
        assert_eq!(node(testbed).max_payload(FlowId(1)), None);
        events(testbed, 5 * SECOND);
        let fits = node(testbed).max_payload(FlowId(1)).unwrap();
        assert!((1400..1472).contains(&fits), "{fits}");
        let too_large = FlowError::TooLarge { len: fits + 1, fits };
        assert_eq!(send(testbed, 1, 1, fits + 1), Err(too_large));
        for number in 0..5 {
            send(testbed, 1, number, fits).unwrap();
        }
        let came = events(testbed, SECOND);
        assert_eq!(came, [0, 1, 2].map(|number| echo(1, number, fits)));
        assert_eq!(node(testbed).stats().dropped.queue_full, 2);
    });
}

#[test]
fn a_client_that_ends_opens_no_flow() {
    run(&Scenario::new(1, 1), |testbed| {
        open(testbed, 1);
        testbed.world.run_for(100 * MS);
        testbed.world.input(testbed.client, tandem_node::Input::Shutdown);
        testbed.world.run_for(MS);
        let late = node(testbed).open_flow(FlowId(2), FlowConfig::new(ECHO, TARGET_PORT));
        assert_eq!(late, Err(FlowError::NotOpen));
        testbed.world.run_for(SECOND);
        let closed = testbed.world.events(testbed.client).last().cloned();
        assert!(
            matches!(closed, Some((_, Event::Closed(Ok::<(), ClientError>(()))))),
            "{closed:?}"
        );
        assert_eq!(testbed.world.inspect(testbed.proxies[0]).stats().flows_open, 0);
    });
}
