//! The state machines of the packet services under faulty networks and hostile peers.

#![no_main]

#[path = "../../packet/tests/flows/mod.rs"]
mod flows;
#[path = "../../packet/tests/fuzzed_services/mod.rs"]
mod fuzzed_services;
#[path = "../../packet/tests/script/mod.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzzed_services::services(data);
});
