//! Revocation lists as bytes and as text, and what the operator's own revoke.

#![no_main]

#[path = "../../grant/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::revocation_list(data));
