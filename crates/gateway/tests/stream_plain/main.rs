//! The tests of `stream`, over legs that are not encrypted.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

#[path = "../support/mod.rs"]
mod support;

#[path = "../stream/chain.rs"]
mod chain;
#[path = "../stream/client_address.rs"]
mod client_address;
#[path = "../stream/drain.rs"]
mod drain;
#[path = "../stream/early_answer.rs"]
mod early_answer;
#[path = "../stream/ends.rs"]
mod ends;
#[path = "../stream/failover.rs"]
mod failover;
#[path = "../stream/legs.rs"]
mod legs;
#[path = "../stream/limits.rs"]
mod limits;
#[path = "../stream/proxies.rs"]
mod proxies;
#[path = "../stream/refusal.rs"]
mod refusal;
#[path = "../stream/stripe.rs"]
mod stripe;
#[path = "../stream/urgent.rs"]
mod urgent;
#[path = "../stream/warm.rs"]
mod warm;
