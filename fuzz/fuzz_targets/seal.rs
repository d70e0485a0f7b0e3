//! The sealed packets of two flows on a network that loses, copies, reorders, changes and forges
//! packets. The model and its promises are in `tandem_node::seal`, where a property test runs them
//! too.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| tandem_node::seal::model::run(input));
