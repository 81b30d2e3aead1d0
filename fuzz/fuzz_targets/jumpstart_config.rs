//! Configurations of the jumpstart daemon with arbitrary content.

#![no_main]

#[path = "../../crates/jumpstart-daemon/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::config(data));
