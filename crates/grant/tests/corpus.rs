//! Replays the fuzz targets' corpora on the stable compiler.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "corpora are files")]

mod fuzzed;

#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn corpus_of_hop_headers_holds() {
    replay("hop_header", fuzzed::hop_header);
}

#[test]
fn corpus_of_grants_holds() {
    replay("grant_token", fuzzed::grant_token);
}

#[test]
fn corpus_of_revocation_lists_holds() {
    replay("revocation_list", fuzzed::revocation_list);
}

#[test]
fn corpus_of_replies_holds() {
    replay("hop_reply", fuzzed::hop_reply);
}

#[test]
fn corpus_of_joins_holds() {
    replay("join", fuzzed::join);
}
