//! Opening of sessions: `stream-first-byte` and `stream-failover`.
//!
//! Properties of the stream plane before a session carries anything, on real kernel TCP:
//! [`first_byte`] measures the time of a response's first byte over a chain of warm connections,
//! [`failover`] the time until new sessions leave a path that dies or slows down. Both run gateways
//! and relays as any user would.

pub(crate) mod failover;
pub(crate) mod first_byte;
