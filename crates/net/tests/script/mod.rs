//! Nodes whose behaviour is a closure.

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use tandem_net::{DriverOptions, DriverStats, Finished};
use tandem_node::node::{Event, Input, Node, Output};

pub(crate) const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A node whose behaviour is a closure.
pub(crate) struct Script<F> {
    pub(crate) on_input: F,
    /// Whether the closure hears how busy its thread is. On a slow machine any driver may say that
    /// it is busy at any time.
    pub(crate) hears_load: bool,
    pub(crate) wants: Wants,
}

/// The outputs that the node emits next.
#[derive(Default)]
pub(crate) struct Wants {
    pub(crate) outputs: VecDeque<(Output, Vec<u8>)>,
    pub(crate) deadline: Option<Instant>,
}

impl Wants {
    pub(crate) fn push(&mut self, output: Output) {
        self.outputs.push_back((output, Vec::new()));
    }

    pub(crate) fn close(&mut self) {
        self.push(Output::Event(Event::Closed(Ok(()))));
    }
}

impl<F: FnMut(Instant, Input, &mut Wants)> Node for Script<F> {
    fn handle(&mut self, now: Instant, input: Input) {
        if matches!(input, Input::Load(_)) && !self.hears_load {
            return;
        }
        (self.on_input)(now, input, &mut self.wants);
    }

    fn poll(&mut self, _now: Instant, buf: &mut Vec<u8>) -> Output {
        match self.wants.outputs.pop_front() {
            Some((output, bytes)) => {
                buf.clear();
                buf.extend_from_slice(&bytes);
                output
            }
            None => Output::Wait(self.wants.deadline),
        }
    }
}

/// Creates a node whose first outputs are these.
pub(crate) fn script<F: FnMut(Instant, Input, &mut Wants)>(
    start: impl FnOnce(&mut Wants),
    on_input: F,
) -> Script<F> {
    let mut wants = Wants::default();
    start(&mut wants);
    Script { on_input, hears_load: false, wants }
}

/// Runs a node that ends by itself.
#[allow(dead_code, reason = "some tests have other options")]
pub(crate) async fn run<N: Node>(node: N) -> DriverStats {
    let Finished { stats, result, .. } =
        tandem_net::run(node, &mut (), DriverOptions::default(), std::future::pending()).await;
    result.unwrap();
    stats
}

/// Runs a future on one thread. A test that hangs fails.
#[allow(dead_code, reason = "the benchmark does not use it")]
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(30), future).await.expect("the test hangs")
    })
}
