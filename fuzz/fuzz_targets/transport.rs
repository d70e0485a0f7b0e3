//! A sealed transport and a peer that has the keys. The model and its promises are in `tandem_transport::model`, where
//! a property test runs them too.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| tandem_transport::model::run(input));
