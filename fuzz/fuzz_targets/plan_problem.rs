//! Problem files with arbitrary content, with a table, and plans of the problems that they hold.

#![no_main]

#[path = "../../crates/plan/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::plan_problem(data));
