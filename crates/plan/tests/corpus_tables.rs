//! Replays the fuzzer's small corpora of logs and tables on the stable compiler.
#![expect(clippy::disallowed_methods, reason = "the corpora are in files")]
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

#[path = "fuzzed/tables.rs"]
mod fuzzed;

/// Runs `feed` on every file of one target's corpus.
fn replay(target: &str, feed: fn(&[u8])) {
    let directory = format!("{}/../../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut fed = 0;
    for entry in std::fs::read_dir(&directory).unwrap() {
        feed(&std::fs::read(entry.unwrap().path()).unwrap());
        fed += 1;
    }
    assert!(fed > 0, "{directory} is empty");
}

#[test]
fn corpus_of_flow_logs_holds() {
    replay("flow_log", fuzzed::flow_log);
}

#[test]
fn corpus_of_rtt_tables_holds() {
    replay("rtt_table", fuzzed::rtt_table);
}
