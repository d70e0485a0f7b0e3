//! A local program that speaks SOCKS5 to the client's proxy port, as in `local_http`. The input lacks
//! the version in the program's first byte.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_node::client::local::run_model;

fuzz_target!(|input: &[u8]| {
    if let Some((&flags, program)) = input.split_first() {
        run_model(&[&[flags, 5], program].concat());
    }
});
