//! Tables of round-trip times with arbitrary content.

#![no_main]
#![allow(dead_code, reason = "each target feeds one of the two")]

#[path = "../../crates/plan/tests/fuzzed/tables.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::rtt_table(data));
