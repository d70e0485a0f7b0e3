//! A local program that speaks HTTP/1.1 to the client's proxy port, and the targets that answer. The
//! model and its promises are in `tandem_node::client::local`, where a property test runs them too.
//!
//! The input is a byte of flags, the bytes of the program, and the responses, separated by 0x1e.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_node::client::local::run_model;

fuzz_target!(|input: &[u8]| run_model(input));
