//! Replays the fuzzer's small corpus, which a stable compiler can do.
#![expect(clippy::disallowed_methods, reason = "the corpus is in files")]

mod fuzzed;

#[test]
fn the_corpus_of_problem_files_holds() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/plan_problem");
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{directory}: {error}"))
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    files.sort();
    assert!(files.len() > 20, "{} files in {directory}", files.len());
    for file in files {
        println!("{}", file.display());
        fuzzed::plan_problem(&std::fs::read(&file).expect("a readable file"));
    }
}
