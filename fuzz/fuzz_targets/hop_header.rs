//! Hop headers received by a relay, and the requests that gateways seal.

#![no_main]

#[path = "../../crates/grant/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::hop_header(data));
