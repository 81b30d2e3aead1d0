//! Replays the fuzz targets' corpora on the stable compiler.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "corpora are files")]

mod cast;
mod fuzzed;

#[path = "../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn the_corpus_of_sessions_holds() {
    replay("packet_session", fuzzed::session);
}
