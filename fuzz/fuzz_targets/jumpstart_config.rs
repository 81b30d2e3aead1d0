//! Configurations of the jump-start daemon as anybody may write them.

#![no_main]

#[path = "../../tuner/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::config(data));
