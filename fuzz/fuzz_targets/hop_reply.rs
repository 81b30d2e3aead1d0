//! Replies received by a gateway or relay.

#![no_main]

#[path = "../../crates/grant/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::hop_reply(data));
