//! A client whose proxies keep no rule, and neither does the origin behind them: downloads and uploads, local
//! programs that send UDP or speak SOCKS5 and HTTP/1.1, and flows of an embedding program, in each mode.
//!
//! The client stays within its bounds, uses its sockets only while they are open, gives each byte of a file
//! once, ends with words when it is told to, and does the same for the same input.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_fuzz::client_steps::{Malicious, run};

fuzz_target!(|input: &[u8]| {
    let digest = run(input, Malicious::Proxy);
    // Twice takes twice as long, so only some inputs are repeated.
    if input.len().is_multiple_of(8) {
        assert_eq!(run(input, Malicious::Proxy), digest, "the client did something else");
    }
});
