//! Replays the fuzz targets' corpora on the stable compiler.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "corpora are files")]

mod cast;
mod fuzzed;
mod fuzzed_stored_message;
mod meeting;
mod script;

#[path = "../../../fuzz/replay.rs"]
mod replay;

use std::collections::BTreeSet;

use replay::replay;

/// Outcomes that some script of a session must reach, so that the test is not vacuous.
const REACHED: [&str; 6] =
    ["Admitted", "AuthenticationFailed", "Malformed", "Opened", "Replayed", "UnknownSession"];

#[test]
fn the_corpus_of_sessions_holds_and_reaches_every_refusal() {
    let mut seen = BTreeSet::new();
    replay("packet_session", |script| seen.extend(fuzzed::session(script)));
    let missing: Vec<_> = REACHED.iter().filter(|name| !seen.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?} of {seen:?}");
}

#[test]
fn the_corpus_of_stored_messages_holds() {
    replay("packet_stored_message", fuzzed_stored_message::stored_messages);
}
