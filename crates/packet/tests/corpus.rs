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

/// What happens in some script of a session, so that it does not hold for nothing.
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
