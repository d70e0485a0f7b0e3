//! The queue of a tunnel and its repairs as a state machine, over a model of the connection below.
//! The model and its promises are in `tandem_node::tunnel`, where a property test runs them too.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_node::tunnel::run_queue_model;

fuzz_target!(|input: &[u8]| run_queue_model(input));
