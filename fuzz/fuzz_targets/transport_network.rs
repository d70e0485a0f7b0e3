//! Two ends of a sealed transport, and a network that does what the input says. The model and its promises are in
//! `tandem_transport::model::two_ends`, where a property test runs them too.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    tandem_transport::model::two_ends::run(input);
});
