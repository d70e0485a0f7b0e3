//! Prints the shares of flows of an access link by their controllers: the tables of
//! `benchmarks/notes/tunnels-controller.md`. With `-- sealed` it prints those of a tunnel by what carries its
//! datagrams: the table of `docs/design/adr/0090-a-transport-for-datagrams.md`.

#![expect(clippy::print_stdout, reason = "that is what it is for")]

#[path = "../tests/fairness/bed.rs"]
mod bed;

use bed::{Contest, Flow, Shares};
use tandem_congestion::ControllerName;
use tandem_node::quic::DatagramTransport;
use tandem_units::{ByteCount, Rate, Ratio};

fn tunnels(count: usize, name: ControllerName) -> Vec<Flow> {
    vec![Flow::Tunnel(name); count]
}

fn main() {
    if std::env::args().any(|argument| argument == "sealed") {
        by_transport();
    } else {
        by_controller();
    }
}

fn by_controller() {
    use ControllerName::{Bbr1, Bbr1Tunnel, Cubic};
    let against = |first: Flow, second: Flow| vec![first, second];
    let contests = [
        ("4 x bbr1", tunnels(4, Bbr1)),
        ("4 x bbr1-tunnel", tunnels(4, Bbr1Tunnel)),
        ("bbr1 | tunnel bbr1", against(Flow::Tunnel(Bbr1), Flow::Tunnel(Bbr1))),
        ("bbr1-tunnel | tunnel bbr1", against(Flow::Tunnel(Bbr1Tunnel), Flow::Tunnel(Bbr1))),
        ("bbr1-tunnel | bbr1-tunnel", against(Flow::Tunnel(Bbr1Tunnel), Flow::Tunnel(Bbr1Tunnel))),
        ("bbr1 | direct bbr1", against(Flow::Tunnel(Bbr1), Flow::Direct(Bbr1))),
        ("bbr1-tunnel | direct bbr1", against(Flow::Tunnel(Bbr1Tunnel), Flow::Direct(Bbr1))),
        ("bbr1 | direct cubic", against(Flow::Tunnel(Bbr1), Flow::Direct(Cubic))),
        ("bbr1-tunnel | direct cubic", against(Flow::Tunnel(Bbr1Tunnel), Flow::Direct(Cubic))),
        ("cubic | direct cubic", against(Flow::Tunnel(Cubic), Flow::Direct(Cubic))),
    ];
    println!(
        "| flows | loss | queue | Jain | shares % | queue drops % | sojourn ms | sum Mbit/s |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for (label, flows) in contests {
        for (loss, queue) in [(0, 100_000), (0, 300_000), (1, 300_000)] {
            let all: Vec<Shares> = (1..=5)
                .map(|seed| {
                    let mut contest = Contest::new(flows.clone(), seed);
                    contest.loss = Ratio::of(loss, 100);
                    contest.queue = ByteCount::new(queue);
                    contest.run()
                })
                .collect();
            row(label, loss, queue, &all);
        }
    }
}

/// A tunnel beside another flow, with DATAGRAM frames and with the sealed transport.
fn by_transport() {
    use ControllerName::{Bbr1, Bbr1Tunnel, Cubic};
    println!("| beside | link | shares % with quic | with sealed | queue drops % | |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (other, name) in [(Cubic, "CUBIC"), (Bbr1, "BBRv1")] {
        for (mbps, delay, queue) in [(20, 20, 100), (20, 20, 300), (50, 10, 150), (50, 40, 1000)] {
            let of = |datagrams| {
                let runs = (1..=3).map(|seed| {
                    let flows = [Flow::Tunnel(Bbr1Tunnel), Flow::Direct(other)];
                    let mut contest = Contest::new(flows, seed);
                    contest.rate = Rate::from_mbps(mbps);
                    contest.delay = std::time::Duration::from_millis(delay);
                    contest.queue = ByteCount::new(queue * 1000);
                    contest.datagrams = datagrams;
                    contest.run()
                });
                let runs: Vec<_> = runs.collect();
                let each = runs.iter().map(|it| format!("{:.0}", 100.0 * it.share(0)));
                let dropped = runs.iter().map(|it| 100.0 * it.dropped).sum::<f64>() / 3.0;
                (each.collect::<Vec<_>>().join(", "), dropped)
            };
            let [(quic, quic_drops), (sealed, sealed_drops)] =
                [DatagramTransport::Quic, DatagramTransport::Sealed].map(of);
            println!(
                "| {name} | {mbps} Mbit/s, {delay} ms, {queue} kB | {quic} | {sealed} | \
                 {quic_drops:.2} | {sealed_drops:.2} |"
            );
        }
    }
}

fn row(label: &str, loss: u64, queue: u64, all: &[Shares]) {
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let count = all.len() as f64;
    let mean = |what: &dyn Fn(&Shares) -> f64| all.iter().map(what).sum::<f64>() / count;
    let flows = 0..all.first().map_or(0, |shares| shares.goodput_mbps.len());
    let shares: Vec<_> =
        flows.map(|flow| format!("{:.0}", 100.0 * mean(&|it| it.share(flow)))).collect();
    println!(
        "| {label} | {loss} % | {} kB | {:.3} | {} | {:.2} | {:.1} | {:.2} |",
        queue / 1000,
        mean(&|it| it.jain()),
        shares.join(" / "),
        100.0 * mean(&|it| it.dropped),
        1e3 * mean(&|it| it.sojourn.as_secs_f64()),
        mean(&|it| it.goodput_mbps.iter().sum()),
    );
}
