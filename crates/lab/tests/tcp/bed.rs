//! Targets of TCP connections, and the programs that connect to them through a client.
//!
//! ```text
//! programs --- client --- access link --- proxy 1 --- 10 ms --- proxy 2 --- 50 ms --- targets
//! ```

use std::{net::SocketAddr, time::Duration};

use tandem_lab::{
    Handle, LinkConfig, World,
    endpoints::{Behaviour, TcpProgram, TcpReport, TcpServer, TcpTask},
};
use tandem_node::{
    Client, Event,
    client::{FlowConfig, ForwardConfig, Task, TcpService, Urgency},
    stats::TcpStats,
};

use crate::scenario::{Scenario, Testbed};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The RTT between the client and the only proxy.
pub(crate) const TUNNEL_RTT: Duration = Duration::from_millis(40);

/// The RTT between the last proxy and each target.
pub(crate) const TARGET_RTT: Duration = Duration::from_millis(100);

/// The port at which every target listens.
pub(crate) const PORT: u16 = 7;

/// A target of TCP connections.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) behaviour: Behaviour,
    pub(crate) urgency: Urgency,
    pub(crate) weight: u8,
}

impl From<Behaviour> for Target {
    fn from(behaviour: Behaviour) -> Self {
        Self { behaviour, urgency: Urgency::default(), weight: 1 }
    }
}

/// The address of a target, which are numbered from 0.
pub(crate) fn target_ip(number: usize) -> String {
    format!("10.0.0.{}", 20 + number)
}

/// The address at which the client listens for the programs of a target.
pub(crate) fn listener(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 6000 + u16::try_from(number).unwrap()))
}

/// Adds targets, and makes the client carry connections to them through a tunnel that is up.
pub(crate) fn serve(
    scenario: &Scenario,
    testbed: &mut Testbed,
    targets: &[Target],
) -> Vec<Handle<TcpServer>> {
    serve_beside(scenario, testbed, targets, Vec::new())
}

/// The same, with UDP flows beside the connections.
pub(crate) fn serve_beside(
    scenario: &Scenario,
    testbed: &mut Testbed,
    targets: &[Target],
    udp: Vec<ForwardConfig>,
) -> Vec<Handle<TcpServer>> {
    let flows = targets.iter().zip(0..).map(|(target, number)| FlowConfig {
        urgency: target.urgency,
        weight: target.weight,
        ..FlowConfig::new(target_ip(number), PORT)
    });
    forward(scenario, testbed, flows.collect(), udp);
    let behaviours = targets.iter().zip(0..);
    behaviours.map(|(target, number)| add_target(testbed, number, target.behaviour)).collect()
}

/// Adds the target with this number.
pub(crate) fn add_target(
    testbed: &mut Testbed,
    number: usize,
    behaviour: Behaviour,
) -> Handle<TcpServer> {
    let (name, ip) = (format!("target {number}"), target_ip(number));
    let server = testbed.world.add_host(&name, [&*ip], TcpServer::new(PORT, behaviour));
    let far = LinkConfig { delay: TARGET_RTT / 2, ..LinkConfig::default() };
    testbed.world.connect(*testbed.proxies.last().unwrap(), server, far);
    server
}

/// Makes the client carry TCP connections to these targets, and UDP flows beside them.
pub(crate) fn forward(
    scenario: &Scenario,
    testbed: &mut Testbed,
    targets: Vec<FlowConfig>,
    udp: Vec<ForwardConfig>,
) {
    let (client, sockets) = (testbed.client, targets.len() + udp.len());
    let mut node = scenario.client(Task::Forward(udp));
    for (target, number) in targets.into_iter().zip(0..) {
        node.add_tcp_service(TcpService::Forward { listen: listener(number), target });
    }
    testbed.world.replace(client, node);
    let proxies = testbed.proxies.len();
    let count = |world: &World, is: fn(&Event) -> bool| {
        world.events(client).iter().filter(|(_, event)| is(event)).count()
    };
    let is_up = |world: &World| {
        count(world, |event| matches!(event, Event::Listening(_))) == sockets
            && count(world, |event| matches!(event, Event::HopUp { .. })) == proxies
    };
    assert!(testbed.world.run_until(5 * SECOND, is_up), "the tunnel does not come up");
}

/// Starts a program beside the client.
pub(crate) fn program(
    testbed: &mut Testbed,
    number: u8,
    tasks: Vec<TcpTask>,
) -> Handle<TcpProgram> {
    let ip = format!("10.0.1.{number}");
    testbed.world.add_host(&format!("program {number}"), [&*ip], TcpProgram::new(tasks))
}

/// A connection to the target with this number, on which a program sends this many bytes and then
/// FIN.
pub(crate) fn task(target: usize, send: u64) -> TcpTask {
    TcpTask::new(listener(target), send)
}

/// Runs until all connections of a program have ended.
pub(crate) fn finish(testbed: &mut Testbed, program: Handle<TcpProgram>, limit: Duration) {
    let is_done = |world: &World| world.node(program).is_done();
    let ended = testbed.world.run_until(limit, is_done);
    assert!(ended, "{:?}", testbed.world.node(program).reports().collect::<Vec<_>>());
}

/// The report of the only connection of a program.
pub(crate) fn report(testbed: &Testbed, program: Handle<TcpProgram>) -> TcpReport {
    *testbed.world.node(program).report(0)
}

/// The report of the only connection of a target.
pub(crate) fn server_report(testbed: &Testbed, server: Handle<TcpServer>) -> TcpReport {
    let mut reports = testbed.world.node(server).reports();
    assert_eq!(reports.len(), 1);
    *reports.next().unwrap()
}

/// The counters of TCP connections of the client and of the last proxy.
pub(crate) fn counters(testbed: &mut Testbed) -> (TcpStats, TcpStats) {
    let client: Handle<Client> = testbed.client;
    let proxy = *testbed.proxies.last().unwrap();
    let client = testbed.world.inspect(client).stats().tcp;
    (client, testbed.world.inspect(proxy).stats().tcp)
}

/// The errors of flows of which the client told its embedding program.
pub(crate) fn failures(testbed: &Testbed) -> Vec<String> {
    let events = testbed.world.events(testbed.client).iter();
    let errors = events.filter_map(|(_, event)| match event {
        Event::FlowFailed { error, .. } => Some(error.to_string()),
        _ => None,
    });
    errors.collect()
}
