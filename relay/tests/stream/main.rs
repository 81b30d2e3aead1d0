//! Sessions over gateways and relays on loopback, with real kernel TCP.

#[path = "../support/mod.rs"]
mod support;

mod chain;
