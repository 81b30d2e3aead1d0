//! An established session of the packet plane under attack.

#![no_main]

#[path = "../../packet/tests/cast/mod.rs"]
mod cast;
#[path = "../../packet/tests/fuzzed/mod.rs"]
mod fuzzed;
#[path = "../../packet/tests/script/mod.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzzed::session(data);
});
