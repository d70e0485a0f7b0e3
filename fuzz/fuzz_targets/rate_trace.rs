//! A Mahimahi trace of a link: what is read has times that never fall, carries its bytes at those times,
//! and is the same trace when its lines are written again. An error names the line.

#![no_main]

use std::{path::Path, time::Duration};

use libfuzzer_sys::fuzz_target;
use tandem_netem::RateTrace;

fuzz_target!(|input: &[u8]| {
    let text = String::from_utf8_lossy(input);
    let file = Path::new("trace");
    let trace = match RateTrace::parse(file, &text) {
        Ok(trace) => trace,
        Err(error) => {
            let message = error.to_string();
            assert!(message.starts_with("trace:") && message.len() < 400, "{message}");
            return;
        }
    };
    let lines = trace.lines_ms();
    assert!(lines.is_sorted() && lines.last().is_some_and(|last| *last > 0), "{lines:?}");
    let again: String = lines.iter().map(|line| format!("{line}\n")).collect();
    assert!(RateTrace::parse(file, &again).is_ok_and(|again| again == trace));
    assert!(RateTrace::from_millis(lines.to_vec()).is_some_and(|again| again == trace));

    let length = trace.duration();
    assert_eq!(length, Duration::from_millis(u64::from(*lines.last().expect("there is one"))));
    let whole = trace.bytes_between(Duration::ZERO, length);
    let halves = [(Duration::ZERO, length / 2), (length / 2, length)];
    let sum: u64 = halves.map(|(from, to)| trace.bytes_between(from, to).get()).iter().sum();
    assert_eq!(sum, whole.get(), "no opportunity is lost or counted twice");
    let time = trace.time_to_carry(whole, Duration::ZERO);
    assert!(time <= length, "{whole:?} take {time:?} of {length:?}");
    let _ = trace.summary();
});
