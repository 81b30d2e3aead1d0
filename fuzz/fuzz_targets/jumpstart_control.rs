//! Requests on the jumpstart daemon's control socket.

#![no_main]

#[path = "../../tuner/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::control(data));
