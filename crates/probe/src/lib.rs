//! Measures round-trip times and rates between two hosts, as the planner needs them.
//!
//! | module | holds |
//! |---|---|
//! | [`rtt`] | round-trip times by TCP handshake, many targets at once [CDD V] |
//! | [`rate`] | the rate of one or more TCP connections, either direction [CP IV-C] |
//! | [`transfer`] | the completion time of one transfer over a new connection [RT IV-A] |
//! | [`responder`] | the answering side of rate tests and transfers, with its limits |
//! | [`steady`] | detection of a settled test, and of the part of it that counts (pure) |
//! | [`window`] | the limit of a test: the window, the path, or nothing yet (pure) |
//! | [`statistics`] | order statistics (pure) |
//! | [`protocol`] | the messages between the two sides (pure) |
//! | [`secret`] | the shared secret that a responder may ask for |
//!
//! A round-trip time needs only an open TCP port. A rate test or transfer needs a responder on the
//! other side.
//! Reports are plain serialisable structures with a `schema_version`; names end in their unit. All
//! sockets are created on the calling thread's runtime: with a current-thread runtime, a caller
//! inside a network namespace measures from there.

mod connect;
pub mod error;
mod meter;
mod pending;
pub mod protocol;
pub mod rate;
mod report;
pub mod responder;
pub mod rtt;
pub mod secret;
pub mod statistics;
pub mod steady;
mod stream;
pub mod transfer;
pub mod window;

pub use error::ProbeError;
pub use rate::{Direction, RateOptions, RateReport};
pub use responder::{Responder, ResponderConfig};
pub use rtt::{RttOptions, RttReport};
pub use secret::Secret;

/// The schema version of all reports: raised when a field changes its meaning or is removed.
pub const SCHEMA_VERSION: u32 = 1;
