//! Revocation lists as bytes and as text, and the effect of an operator's own list.

#![no_main]

#[path = "../../crates/grant/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::revocation_list(data));
