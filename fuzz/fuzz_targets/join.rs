//! Joins of striped legs received by a relay, and the welcomes sent in response.

#![no_main]

#[path = "../../crates/grant/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::join(data));
