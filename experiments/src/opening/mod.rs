//! How sessions open: `stream-first-byte` and `stream-failover`.
//!
//! What the stream plane promises before a session carries anything, on real kernel TCP: [`first_byte`] measures when the
//! first byte of an answer comes over a chain whose connections are kept warm, [`failover`] how soon new sessions leave a path that
//! dies or slows down. Both run gateways and relays as any user would.

pub(crate) mod failover;
pub(crate) mod first_byte;
