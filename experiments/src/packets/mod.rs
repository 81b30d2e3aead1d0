//! Packet services on the lab: relays and gateways as processes, datagrams of plain UDP sockets through them.
//!
//! | module | holds |
//! |---|---|
//! | [`recovery`] | `jq-recovery-lab`: what coding brings back, in the lab and in simulation |
//! | `traffic` | datagrams sent at a steady pace and seen to come |

pub(crate) mod recovery;
mod traffic;
