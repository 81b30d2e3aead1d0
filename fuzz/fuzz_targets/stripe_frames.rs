//! The frames of a striped leg received by either end, and a hostile peer.

#![no_main]

#[path = "../../crates/stripe/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::stripe_frames(data));
