//! How sessions open: `stream-first-byte` and `stream-failover`.
//!
//! What the stream plane promises before a session carries anything, on real kernel TCP: [`first_byte`] measures when the
//! first byte of an answer comes over a chain whose connections are kept warm, [`failover`] how soon new sessions leave a path that
//! dies or slows down. Both run gateways and relays as any user would.

pub(crate) mod failover;
pub(crate) mod first_byte;

use tradewind_units::HostId;
use tradewind_wan::Topology;

/// What of `hosts` is not in a topology.
fn missing<'a>(topology: &Topology, hosts: impl IntoIterator<Item = &'a HostId>) -> Option<String> {
    let missing = hosts.into_iter().find(|host| topology.host(host).is_none());
    missing.map(|host| format!("no host `{host}`"))
}
