//! An established session of the packet plane under attack.

#![no_main]

#[path = "../../crates/packet/tests/cast/mod.rs"]
mod cast;
#[path = "../../crates/packet/tests/fuzzed/mod.rs"]
mod fuzzed;
#[path = "../../crates/packet/tests/script/mod.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzzed::session(data);
});
