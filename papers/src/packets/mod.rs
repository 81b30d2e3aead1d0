//! Packet services on the lab: relays and gateways as processes, with datagrams of plain UDP
//! sockets and connections through them.
//!
//! | module | holds |
//! |---|---|
//! | [`recovery`] | `jq-recovery-lab`: losses recovered by coding, in the lab and in simulation |
//! | [`video`] | `jq-video`: a video and a voice call through an outage, by each packet service |
//! | [`tcp`] | `jq-tcp`: short transfers of kernel TCP in TUN devices, plain TCP and kcptun |
//! | [`failover`] | `packet-failover`: relays that die and come back, gateways that are killed |
//! | [`mobile`] | `jq-mobile`: a call between phones, and a file beside it |
//! | [`uplink`] | `packet-uplink`: copies on a short uplink that they share with what they protect |
//! | `requests` | files requested one after the other, and their completion times |
//! | `traffic` | datagrams sent at a steady pace, and their arrivals |

pub(crate) mod failover;
pub(crate) mod mobile;
pub(crate) mod recovery;
mod requests;
pub(crate) mod tcp;
mod traffic;
pub(crate) mod uplink;
pub(crate) mod video;
