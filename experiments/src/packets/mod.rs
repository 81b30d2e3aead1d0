//! Packet services on the lab: relays and gateways as processes, datagrams of plain UDP sockets and connections through them.
//!
//! | module | holds |
//! |---|---|
//! | [`recovery`] | `jq-recovery-lab`: what coding brings back, in the lab and in simulation |
//! | [`video`] | `jq-video`: a video and a voice call through an outage of their paths, by each packet service |
//! | [`tcp`] | `jq-tcp`: short transfers of kernel TCP inside gateways' TUN devices, beside plain TCP and kcptun |
//! | [`failover`] | `packet-failover`: relays that die and come back, gateways that are killed |
//! | [`mobile`] | `jq-mobile`: a call between phones, and a file beside it |
//! | `requests` | files asked for one after the other, and how long each took |
//! | `traffic` | datagrams sent at a steady pace and seen to come |

pub(crate) mod failover;
pub(crate) mod mobile;
pub(crate) mod recovery;
mod requests;
pub(crate) mod tcp;
mod traffic;
pub(crate) mod video;
