//! Measures round-trip times and rates between two hosts, as the planner needs them.
//!
//! | module | holds |
//! |---|---|
//! | [`rtt`] | round-trip times by TCP handshake, many targets at once [CDD V] |
//! | [`rate`] | the rate of one or more TCP connections, either direction [CP IV-C] |
//! | [`responder`] | the answering side of a rate test, with its limits |
//! | [`steady`] | when a test has settled, and which part of it counts (pure) |
//! | [`window`] | what held a test back: the window, the path, or nothing yet (pure) |
//! | [`protocol`] | what the two sides say to each other (pure) |
//! | [`secret`] | the shared secret that a responder may ask for |
//!
//! A round-trip time needs only an open TCP port. A rate test needs a responder on the other side.
//! Reports are plain serialisable structures with a `schema_version`; units stand last in names.
//! All sockets are made on the calling thread's runtime: with a current-thread runtime, a caller
//! inside a network namespace measures from there.

mod connect;
pub mod error;
mod meter;
pub mod protocol;
pub mod rate;
mod report;
pub mod responder;
pub mod rtt;
pub mod secret;
mod statistics;
pub mod steady;
mod stream;
pub mod window;

pub use error::ProbeError;
pub use rate::{Direction, RateOptions, RateReport};
pub use responder::{Responder, ResponderConfig};
pub use rtt::{RttOptions, RttReport};
pub use secret::Secret;

/// The version of all reports' shape: raised when a field changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;
