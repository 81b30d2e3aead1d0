//! Replays the corpus of scripts of the packet services on the stable compiler, and checks that it
//! still reaches all outcomes.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "corpora are files")]

mod flows;
mod fuzzed_services;
mod script;

#[path = "../../../fuzz/replay.rs"]
mod replay;

use std::collections::BTreeSet;

use replay::replay;

/// Outcomes that some script must reach, so that the test is not vacuous.
const REACHED: [&str; 48] = [
    "Alive",
    "Answered",
    "Answered Cache",
    "Answered CrossStream",
    "Answered InStream",
    "Asked",
    "Cached",
    "Contradiction",
    "CopySent 0",
    "CopySent 1",
    "CopySent 2",
    "CrossStream Displaced",
    "CrossStream Full",
    "CrossStream Timer",
    "Delivered Cache false",
    "Delivered Cache true",
    "Delivered CrossStream false",
    "Delivered CrossStream true",
    "Delivered InStream false",
    "Delivered InStream true",
    "Delivered Internet false",
    "Delivered Internet true",
    "Delivered Overlay false",
    "Delivered Overlay true",
    "Duplicate",
    "Failed Contradiction",
    "Failed TooFewHelpers",
    "Failed TooFewRepairs",
    "Failed Unknown",
    "Feedback",
    "Forwarded",
    "HelpAsked",
    "Helped",
    "InStream Full",
    "InStream Timer",
    "Lost",
    "Malformed",
    "NackSent",
    "NotAsked",
    "NotGenuine",
    "NotServed",
    "OverBudget",
    "Presence",
    "TooOld",
    "Uncoded",
    "Unexpected",
    "UnknownFlow",
    "WrongPeer",
];

#[test]
fn services_corpus_is_complete() {
    let mut seen = BTreeSet::new();
    replay("packet_services", |script| seen.extend(fuzzed_services::services(script)));
    let missing: Vec<_> = REACHED.iter().filter(|name| !seen.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?} of {seen:?}");
}
