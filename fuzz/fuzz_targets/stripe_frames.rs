//! The frames of a striped leg as either end meets them, and a neighbour that sends whatever it likes.

#![no_main]

#[path = "../../stripe/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::stripe_frames(data));
