//! Requests on the jumpstart daemon's control socket.

#![no_main]

#[path = "../../crates/jumpstart-daemon/tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::control(data));
