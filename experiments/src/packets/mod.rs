//! Packet services on the lab: relays and gateways as processes, datagrams of plain UDP sockets and connections through them.
//!
//! | module | holds |
//! |---|---|
//! | [`recovery`] | `jq-recovery-lab`: what coding brings back, in the lab and in simulation |
//! | [`tcp`] | `jq-tcp`: short transfers of kernel TCP inside gateways' TUN devices, beside plain TCP |
//! | `requests` | files asked for one after the other, and how long each took |
//! | `traffic` | datagrams sent at a steady pace and seen to come |

pub(crate) mod recovery;
mod requests;
pub(crate) mod tcp;
mod traffic;
