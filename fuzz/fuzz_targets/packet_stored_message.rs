//! Stored messages of the rendezvous as receivers open them, and the control messages about them.

#![no_main]

#[path = "../../crates/packet/tests/fuzzed_stored_message/mod.rs"]
mod fuzzed_stored_message;
#[path = "../../crates/packet/tests/meeting/mod.rs"]
mod meeting;
#[path = "../../crates/packet/tests/script/mod.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed_stored_message::stored_messages(data));
