//! A client that downloads from an origin, or uploads to it, directly or through a polite proxy. The origin
//! keeps no rule.
//!
//! What must hold is that of `malicious_proxy`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_fuzz::client_steps::{Malicious, run};

fuzz_target!(|input: &[u8]| {
    let digest = run(input, Malicious::Origin);
    if input.len().is_multiple_of(8) {
        assert_eq!(run(input, Malicious::Origin), digest, "the client did something else");
    }
});
