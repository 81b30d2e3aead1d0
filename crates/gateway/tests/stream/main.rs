//! Sessions over gateways and relays on loopback, with real kernel TCP.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

#[path = "../support/mod.rs"]
mod support;

mod access_log;
mod admission;
mod cancel;
mod chain;
mod client_address;
mod dead_names;
mod drain;
mod early_answer;
mod encryption;
mod ends;
mod failover;
mod http_proxy;
mod legs;
mod limits;
mod local_host;
mod local_ports;
mod names;
mod passwords;
mod proxies;
mod refusal;
mod region;
mod reload;
mod rotation;
mod scans;
mod stripe;
mod traces;
mod udp_associate;
mod urgent;
mod warm;
