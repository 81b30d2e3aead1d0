//! Topology files as anybody may write them, and traffic through the networks they make.

#![no_main]

#[path = "../../wan/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::topology(data));
