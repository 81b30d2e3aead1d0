//! Replays the fuzz targets' corpora on the stable compiler.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod fuzzed;

/// Feeds every file of one target's corpus, in the order of their names.
fn replay(target: &str, check: fn(&[u8])) {
    let directory = format!("{}/../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let listed = std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{directory}: {e}"));
    let mut files: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{directory} holds only {} files", files.len());
    for file in files {
        check(&std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display())));
    }
}

#[test]
fn the_corpus_of_questions_holds() {
    replay("jumpstart_control", fuzzed::control);
}

#[test]
fn the_corpus_of_configurations_holds() {
    replay("jumpstart_config", fuzzed::config);
}
