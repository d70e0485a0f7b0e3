//! Tests how many instructions a node executes for each UDP payload that it carries.
//!
//! ```text
//! export CARGO_INCREMENTAL=0
//! cargo test --workspace --test instructions               # compares with bounds.csv
//! cargo test --workspace --test instructions -- --write    # writes new bounds
//! ```
//!
//! An incremental build has other code: up to 10 % fewer instructions. So the bounds are those of a build that is not.
//!
//! The program runs itself under valgrind's callgrind, once for each mode, direction and node. Only the measured
//! payloads are counted, and only in Rust functions: see `callgrind`. The same program gives nearly the same counts
//! again. `crates/cli/tests/release_instructions` counts the release program on sockets.

#[path = "../copies/bed.rs"]
mod bed;
mod bounds;
mod callgrind;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use bed::{Bed, Case, Cost};
use bounds::{Bounds, Count, clean};

/// The number of payloads before the measured ones, after which the controllers know the path.
const WARM_UP: u64 = 500;

/// The number of measured payloads.
const MEASURED: u64 = 500;

/// The length of a UDP payload in bytes.
const PAYLOAD_LEN: usize = 1200;

/// By how many hundredths a count may exceed its bound.
const GROWTH: u64 = 2;

/// Whether the payloads are measured now.
static MEASURES: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [name, direction] = &arguments[..] {
        carry(name, direction);
        return ExitCode::SUCCESS;
    }
    if arguments.first().is_some_and(|first| first == "--list") {
        return ExitCode::SUCCESS; // test runners ask for names of tests
    }
    if option_env!("CARGO_INCREMENTAL") != Some("0") {
        eprintln!(
            "the bounds hold for builds with CARGO_INCREMENTAL=0, as CI makes them: set it and try again"
        );
        return ExitCode::FAILURE;
    }
    let counts = count_all();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/instructions/bounds.csv");
    let bounds = Bounds { file: &file, fields: "mode,direction,node", growth: GROWTH };
    if arguments.iter().any(|argument| argument == "--write") {
        bounds.write(&counts);
        return ExitCode::SUCCESS;
    }
    if bounds.hold(&counts) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Carries payloads through one tunnel. Callgrind counts what the functions below execute.
fn carry(name: &str, direction: &str) {
    let is_meant = |case: &Case| case.name == name && case.direction() == direction;
    let case = Case::all().find(is_meant).expect("a case");
    let mut bed = Bed::new(&case, PAYLOAD_LEN, [client, proxy]);
    bed.carry(WARM_UP);
    MEASURES.store(true, Ordering::Relaxed);
    bed.carry(MEASURED);
}

fn client(act: &mut dyn FnMut()) -> Cost {
    if MEASURES.load(Ordering::Relaxed) {
        at_client(act)
    } else {
        act()
    }
    Cost::default()
}

fn proxy(act: &mut dyn FnMut()) -> Cost {
    if MEASURES.load(Ordering::Relaxed) {
        at_proxy(act)
    } else {
        act()
    }
    Cost::default()
}

#[inline(never)]
fn at_client(act: &mut dyn FnMut()) {
    act();
}

#[inline(never)]
fn at_proxy(act: &mut dyn FnMut()) {
    act();
}

fn count_all() -> Vec<Count> {
    let cases = Case::all().filter(|case| case.proxies == 1);
    let wanted: Vec<_> =
        cases.flat_map(|case| ["client", "proxy"].map(|node| (case, node))).collect();
    let half = wanted.len().div_ceil(2);
    thread::scope(|scope| {
        let halves =
            wanted.chunks(half).map(|half| scope.spawn(|| half.iter().map(count).collect()));
        let halves: Vec<_> = halves.collect();
        halves.into_iter().flat_map(|half| -> Vec<Count> { half.join().expect("counts") }).collect()
    })
}

fn count((case, node): &(Case, &str)) -> Count {
    let name = format!("{},{},{node}", case.name, case.direction());
    let output = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name.replace(',', "-"));
    let status = clean("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--toggle-collect=instructions::at_{node}"))
        .arg(format!("--callgrind-out-file={}", output.display()))
        .arg(std::env::current_exe().expect("a program"))
        .args([case.name, case.direction()])
        .status()
        .expect("valgrind is installed");
    assert!(status.success(), "{name}: {status}");
    let profile = fs::read_to_string(output).expect("callgrind has written a profile");
    Count { name, instructions: callgrind::instructions(&profile) / MEASURED }
}
