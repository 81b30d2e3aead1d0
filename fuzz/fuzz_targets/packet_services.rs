//! The state machines of the packet services under faulty networks and hostile peers.

#![no_main]

#[path = "../../crates/packet/tests/flows/mod.rs"]
mod flows;
#[path = "../../crates/packet/tests/fuzzed_services/mod.rs"]
mod fuzzed_services;
#[path = "../../crates/packet/tests/script/mod.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzzed_services::services(data);
});
