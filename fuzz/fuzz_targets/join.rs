//! Joins of striped legs as a relay meets them, and the welcomes that it answers.

#![no_main]

#[path = "../../grant/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::join(data));
