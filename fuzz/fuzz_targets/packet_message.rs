//! Messages of the packet services as endpoints and relays meet them in a session.

#![no_main]

#[path = "../../packet/tests/fuzzed_message/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::message(data));
