//! Replays the fuzz targets' corpora on the stable compiler.

mod fuzzed;

#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn corpus_of_requests() {
    replay("jumpstart_control", fuzzed::control);
}

#[test]
fn corpus_of_configurations() {
    replay("jumpstart_config", fuzzed::config);
}
