//! A server that hears PEP-ACKs, from PEPs and from others. The model and its promises are in
//! `tandem_node::quic::pep`, where a property test runs them too.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_node::quic::run_pep_listener_model;

fuzz_target!(|input: &[u8]| run_pep_listener_model(input));
