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
fn sessions_corpus_is_complete() {
    let mut seen = BTreeSet::new();
    replay("packet_session", |script| seen.extend(fuzzed::session(script)));
    let missing: Vec<_> = REACHED.iter().filter(|name| !seen.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?} of {seen:?}");
}

#[test]
fn stored_messages_corpus_holds() {
    replay("packet_stored_message", fuzzed_stored_message::stored_messages);
}
