//! Measures the time that each node of a tunnel spends on a UDP payload of 1200 bytes, in
//! nanoseconds of `Node::handle` and `Node::poll`. The results are medians of interleaved
//! repetitions.
//!
//! ```text
//! cargo run --release -p tandem-lab --example packet_cost [payloads] [repetitions] [case]
//! ```
//! If other programs disturb the clock, counts of instructions are more reliable. The difference of
//! two runs with different numbers of payloads excludes the cost of building the tunnel:
//!
//! ```text
//! valgrind --tool=callgrind --callgrind-out-file=a.out target/release/examples/packet_cost 1000 1 mdt
//! callgrind_annotate --inclusive=yes a.out | grep "as tandem_node::node::Node"
//! ```

#[path = "../tests/copies/bed.rs"]
mod bed;

use std::time::Instant;

use bed::{Bed, Case, Cost};

/// Number of payloads after which the controllers know the path.
const WARM_UP: u64 = 1000;

/// Length of a UDP payload in bytes.
const PAYLOAD_LEN: usize = 1200;

#[expect(clippy::disallowed_methods, reason = "the example measures time")]
fn time(act: &mut dyn FnMut()) -> Cost {
    let start = Instant::now();
    act();
    let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Cost { nanos, ..Cost::default() }
}

fn median(mut of: Vec<u64>) -> u64 {
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or(0)
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| {
        arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (payloads, repetitions) = (number(0, 20_000).max(1), number(1, 5));
    let is_wanted = |case: &Case| arguments.get(2).is_none_or(|name| case.name == name);
    let cases: Vec<_> = Case::all().filter(is_wanted).collect();
    let mut beds: Vec<_> =
        cases.iter().map(|case| Bed::new(case, PAYLOAD_LEN, [time; 2])).collect();
    for bed in &mut beds {
        bed.carry(WARM_UP);
    }
    // The costs are ordered by case, then by repetition, then by node.
    let mut costs: Vec<Vec<Vec<Cost>>> = vec![Vec::new(); beds.len()];
    for _ in 0..repetitions {
        for (bed, costs) in beds.iter_mut().zip(&mut costs) {
            costs.push(bed.carry(payloads));
        }
    }
    for (case, costs) in cases.iter().zip(&costs) {
        for node in 0..=case.proxies {
            let nanos = costs.iter().filter_map(|nodes| nodes.get(node)).map(|cost| cost.nanos);
            let nanos = median(nanos.collect()) / payloads;
            let name = if node == 0 { "client".to_owned() } else { format!("proxy {node}") };
            println!("{:14} {:5} {name:8} {nanos:6} ns", case.name, case.direction());
        }
    }
}
