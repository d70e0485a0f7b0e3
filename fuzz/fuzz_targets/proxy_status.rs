//! Parsed statuses encode to values that parse to the same status.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_wire::{ProxyStatus, parse_boolean_item};

fuzz_target!(|value: &str| {
    let is_boolean = parse_boolean_item(value).is_some();
    let Ok(statuses) = ProxyStatus::parse(value) else { return };
    assert!(!is_boolean, "a boolean names no proxy");
    for mut status in statuses {
        // Some implementations send the error type as a string. If it is not a token, it is left
        // out.
        let encoded = status.encode();
        let read = ProxyStatus::parse(encoded.to_str().expect("ASCII")).expect("a list");
        if read.iter().all(|read| read.error.is_none()) {
            status.error = None;
        }
        assert_eq!(read, [status]);
    }
});
