//! Replays the fuzz targets' corpora on the stable compiler.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "corpora are files")]

mod cast;
mod fuzzed;
mod fuzzed_parcel;
mod meeting;
mod script;

#[path = "../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn the_corpus_of_sessions_holds() {
    replay("packet_session", fuzzed::session);
}

#[test]
fn the_corpus_of_parcels_holds() {
    replay("packet_parcel", fuzzed_parcel::parcels);
}
