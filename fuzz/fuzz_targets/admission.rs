//! Connections from many prefixes that come, prove themselves and go. The model and its promises are in
//! `tandem_node::quic::places`, where a property test runs them too.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_node::quic::run_admission_model;

fuzz_target!(|input: &[u8]| run_admission_model(input));
