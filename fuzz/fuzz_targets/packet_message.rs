//! Messages of the packet services received by endpoints and relays in a session.

#![no_main]

#[path = "../../crates/packet/tests/fuzzed_message/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::message(data));
