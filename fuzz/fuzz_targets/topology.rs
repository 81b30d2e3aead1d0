//! Topology files with arbitrary content, and traffic through the networks that they describe.

#![no_main]

#[path = "../../crates/wan/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::topology(data));
