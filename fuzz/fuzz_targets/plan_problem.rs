//! Problem files as anybody may write them, with a table, and plans of the problems that they make.

#![no_main]

#[path = "../../plan/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::plan_problem(data));
