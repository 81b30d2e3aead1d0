//! Grants as bytes and as text, keys, rules and specifications.

#![no_main]

#[path = "../../crates/grant/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::grant_token(data));
