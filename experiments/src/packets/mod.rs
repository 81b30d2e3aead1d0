//! Packet services on the lab: relays and gateways as processes, datagrams of plain UDP sockets through them.
//!
//! | module | holds |
//! |---|---|
//! | [`recovery`] | `jq-recovery-lab`: what coding brings back, in the lab and in simulation |
//! | [`video`] | `jq-video`: a video and a voice call through an outage of their paths, by each packet service |
//! | `traffic` | datagrams sent at a steady pace and seen to come |

pub(crate) mod recovery;
mod traffic;
pub(crate) mod video;
