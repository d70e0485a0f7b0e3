//! Tests the allocations of a node for each UDP payload that it carries.
//!
//! A copy of a payload in our code goes into a buffer of `tandem_node::buffers`, which counts, or into an
//! allocation of the payload's size, except for the copy into the buffer of `Node::poll`, which is there
//! already. So the number of copies is the number of additional bytes that a node copies into buffers or
//! allocates for each additional byte of payload.

mod bed;

use bed::{Bed, Case, Cost};
use tandem_node::buffers;

/// Number of payloads after which all bounded buffers have reached their bound.
const WARM_UP: u64 = 5000;

/// Number of payloads that are measured.
const MEASURED: u64 = 5000;

/// Two lengths of payloads. The difference of their costs gives the number of copies of each byte.
/// Two of the shorter ones do not fit one packet.
const LENGTHS: [usize; 2] = [1000, 1200];

fn count(act: &mut dyn FnMut()) -> Cost {
    let copied = buffers::copied();
    let info = allocation_counter::measure(act);
    let bytes = info.bytes_total + buffers::copied() - copied;
    Cost { allocations: info.count_total, bytes, nanos: 0 }
}

/// The cost of a payload at one node, in hundredths.
#[derive(Debug)]
struct PerPayload {
    allocations: u64,
    bytes: u64,
    copies: u64,
}

fn measure(case: &Case) -> Vec<PerPayload> {
    let [shorter, longer] = LENGTHS.map(|payload_len| {
        let mut bed = Bed::new(case, payload_len, [count; 2]);
        bed.carry(WARM_UP);
        bed.carry(MEASURED)
    });
    let added = MEASURED * (LENGTHS[1] - LENGTHS[0]) as u64;
    let per_payload = |(shorter, longer): (&Cost, &Cost)| PerPayload {
        allocations: longer.allocations * 100 / MEASURED,
        bytes: longer.bytes / MEASURED,
        copies: longer.bytes.saturating_sub(shorter.bytes) * 100 / added,
    };
    shorter.iter().zip(&longer).map(per_payload).collect()
}

/// What each node spends at most: the client first, then the proxies in the order of the chain.
/// Hundredths of allocations, and hundredths of copies. They are 2 % more than what was measured.
///
/// A node that puts payloads into a tunnel copies each once, with its header before it, and so does
/// a client for each of its hops. A node that takes payloads out of a tunnel copies none, but a client of two
/// hops copies what the outer hop brings for the connection inside.
///
/// Of the allocations, the engine makes two for each packet with acknowledgements, which it sends for every
/// second packet here: a list of the paths to acknowledge, and a table of what was acknowledged on each path.
/// With repair, one for each datagram is for the report of its delivery.
fn most(case: &Case) -> &'static [(u64, u64)] {
    match (case.name, case.is_upward) {
        ("mdt", true) => &[(24, 102), (102, 0)],
        ("mdt", false) => &[(102, 0), (24, 102)],
        // The second copy is the engine's, which joins the short pieces that are written to a stream.
        ("mst", true) => &[(278, 202), (103, 1)],
        ("mst", false) => &[(103, 1), (278, 202)],
        ("rmdt" | "tecc", true) => &[(126, 102), (102, 0)],
        ("rmdt", false) => &[(102, 0), (126, 102)],
        ("tecc", false) => &[(102, 0), (130, 102)],
        ("mdt, two hops", true) => &[(89, 202), (110, 1), (102, 0)],
        ("mdt, two hops", false) => &[(13, 101), (17, 101), (17, 102)],
        ("mdt sealed" | "rmdt sealed" | "tecc sealed", _) => &[(0, 102), (0, 102)],
        ("mdt sealed, two hops", _) => &[(0, 202), (0, 102), (0, 102)],
        _ => panic!("{case:?} has no bounds"),
    }
}

#[test]
fn copies_and_allocations_of_a_payload_stay_within_their_bounds() {
    let mut exceeded = Vec::new();
    for case in Case::all() {
        let measured = measure(&case);
        assert_eq!(measured.len(), most(&case).len(), "{case:?}");
        for (node, (cost, &most)) in measured.iter().zip(most(&case)).enumerate() {
            let name = if node == 0 { "client".to_owned() } else { format!("proxy {node}") };
            let PerPayload { allocations, bytes, copies } = cost;
            let way = case.direction();
            let line = format!(
                "{:20} {way:5} {name:8} {allocations:4} allocations and {copies:4} copies for 100 \
                 payloads, {bytes:5} bytes for each",
                case.name
            );
            println!("{line}");
            if *allocations > most.0 || *copies > most.1 {
                exceeded.push(format!("{line}; at most {most:?}"));
            }
        }
    }
    assert!(exceeded.is_empty(), "{}", exceeded.join("\n"));
}
