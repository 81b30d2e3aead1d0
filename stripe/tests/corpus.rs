//! Replays the fuzz target's corpus on the stable compiler.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "corpora are files")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod fuzzed;

#[test]
fn the_corpus_of_frames_holds() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/stripe_frames");
    let listed = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{directory}: {e}"));
    let mut files: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{directory} holds only {} files", files.len());
    for file in files {
        fuzzed::stripe_frames(&std::fs::read(&file).unwrap());
    }
}
