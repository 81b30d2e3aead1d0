//! Replays the fuzz target's corpus on the stable compiler.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "corpora are files")]

mod fuzzed;
#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn corpus_of_problem_files_holds() {
    replay("plan_problem", fuzzed::plan_problem);
}
