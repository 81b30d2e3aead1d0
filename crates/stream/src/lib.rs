//! The stream plane: what relays, which split TCP sessions, and gateways beside applications share.
//!
//! A gateway accepts an application's connection, asks its route table for the path and sends a
//! hop header to the first relay. Each relay checks the header, dials the next one, and the last
//! dials the destination [CP IV-A, CDD 3]. From then on each moves bytes both ways until
//! both directions have ended.
//!
//! | module | holds |
//! |---|---|
//! | [`connection`] | a leg's connection, encrypted or not, and the heads that are read from it |
//! | [`keys`] | the keys and grants that a configuration points to; identities, revocations |
//! | [`dial`] | dials: profiles of legs, warm connections, probes, local ports |
//! | [`resolver`] | the resolution of names |
//! | [`session`] | an open session, and its bytes |
//! | [`stripe`] | legs over several connections |
//! | [`limits`] | quotas, capacity, timeouts, and admission within them |
//! | [`process`] | threads and listeners, shutdown, upgrade, reload |
//! | [`access_log`] | a line for each session, at its end and at its admission |
//! | [`traces`] | spans of sessions, for a collector of OpenTelemetry |
//! | [`counts`] | the counters, and their metrics |
//! | [`error`], [`failure`] | the errors at the start, and the failures of flows |
//! | [`clock`] | the clock of headers, grants and log lines |

pub mod access_log;
pub mod clock;
pub mod connection;
pub mod counts;
pub mod dial;
pub mod error;
pub mod failure;
pub mod keys;
pub mod limits;
pub mod process;
pub mod resolver;
pub mod session;
pub mod stripe;
pub mod traces;

pub use error::StreamError;
pub use keys::{HeldKeys, OwnKeys};
pub use process::additions::Additions;
pub use process::handle::{Handle, Snapshot};
pub use process::reload::{Prepared, Reload, Reloads};
pub use process::rights::{Rights, check_readers};
pub use process::shutdown::Shutdown;
pub use process::upgrade::Handover;
pub use resolver::Resolver;
