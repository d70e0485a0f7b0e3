//! A message of a name server, as the answer to a question. The model and its promises are in
//! `tandem_net::resolver::message`, where a test runs them too.
//!
//! The input is a byte that says which type was asked for, and a DNS message.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_net::resolver::run_message_model;

fuzz_target!(|input: &[u8]| run_message_model(input));
