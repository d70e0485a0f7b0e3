//! HTTPS records in the answer of a name server. The model and its promises are in
//! `tandem_net::resolver::service`, where a test runs them too.
//!
//! The input is a byte of flags and a DNS message.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_net::resolver::run_https_model;

fuzz_target!(|input: &[u8]| run_https_model(input));
