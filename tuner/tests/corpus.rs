//! Replays the fuzz targets' corpora on the stable compiler.

mod fuzzed;

#[path = "../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn the_corpus_of_questions_holds() {
    replay("jumpstart_control", fuzzed::control);
}

#[test]
fn the_corpus_of_configurations_holds() {
    replay("jumpstart_config", fuzzed::config);
}
