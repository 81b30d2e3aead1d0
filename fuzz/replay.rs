//! Feeds a fuzz target's corpus to its check on the stable compiler: shared by the `corpus` tests
//! of the fuzzed crates.

/// Feeds every file of one target's corpus, in the order of their names.
pub(crate) fn replay(target: &str, mut check: impl FnMut(&[u8])) {
    let directory = format!("{}/../../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let listed = std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{directory}: {e}"));
    let mut files: Vec<_> = listed.map(|entry| entry.expect("a readable folder").path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{directory} holds only {} files", files.len());
    for file in files {
        // Shown only when a check fails.
        println!("{}", file.display());
        check(&std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display())));
    }
}
