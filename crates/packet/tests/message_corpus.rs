//! Replays the fuzz targets' corpora on the stable compiler.

#![allow(clippy::disallowed_methods, reason = "corpora are files")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod fuzzed_message;

use tradewind_packet::message::Message;

#[test]
fn messages_corpus_has_each_kind() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/packet_message");
    let listed = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{directory}: {e}"));
    let mut files: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut kinds = std::collections::BTreeSet::new();
    for file in files {
        let bytes = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        fuzzed_message::message(&bytes);
        let name = file.file_name().unwrap().to_str().unwrap();
        match Message::parse(&bytes) {
            Ok(_) => kinds.insert(bytes[0]),
            Err(error) => {
                assert!(name.starts_with("bad-"), "{name}: {error}");
                continue;
            }
        };
        assert!(!name.starts_with("bad-"), "{name} was taken");
    }
    let families = [0x21..=0x27, 0x31..=0x3d, 0x41..=0x4b, 0x51..=0x54, 0x61..=0x65];
    assert_eq!(kinds, families.into_iter().flatten().collect());
}
