//! Records of conversations that are over, and of overlay paths that relays admit.
//!
//! A node writes no files of its own for that: a [`Journal`] receives the records, and must never
//! block.

use std::fmt;
use std::net::SocketAddr;

use serde::Serialize;
use tradewind_grant::OpenHeader;

use crate::status::FlowStatistics;

/// The receiver of a node's records. Workers call it, so it returns at once, even if a record is
/// lost.
pub trait Journal: fmt::Debug + Send + Sync {
    /// Handles the record of a conversation that is over. Returns whether it is kept.
    fn conversation_ended(&self, record: &ConversationRecord) -> bool;

    /// Handles the header of an overlay path that others open and that is admitted.
    fn path_opened(&self, header: &OpenHeader);

    /// Waits until all accepted records are written, for a bounded time. No worker runs any more.
    fn flush(&self);
}

/// A conversation that is over: datagrams from one address of an application to one destination,
/// and the replies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConversationRecord {
    /// Name of its grant.
    pub grant: Option<String>,
    /// Identity that holds the grant.
    pub gateway: Option<String>,
    /// Identity of the other endpoint.
    pub remote: Option<String>,
    /// The application's address, as far as it is known here.
    pub source: Option<SocketAddr>,
    /// The address from which it came: the application's, or that of the gateway of the other side.
    pub peer: Option<SocketAddr>,
    /// Its destination; an address alone for packets of any protocol.
    pub destination: String,
    /// The packet service that carried it last.
    pub service: &'static str,
    /// Identities of the relays, as far as they are known here, or `direct`.
    pub path: String,
    /// Packets away from the side that began it, and towards it.
    pub packets_up: u64,
    /// See `packets_up`.
    pub packets_down: u64,
    /// The application's bytes in them.
    pub bytes_up: u64,
    /// See `bytes_up`.
    pub bytes_down: u64,
    /// Statistics of its flow's packets during the conversation, away from the side that began it;
    /// `None` where packets are not numbered.
    pub flow_up: Option<FlowStatistics>,
    /// The same towards that side.
    pub flow_down: Option<FlowStatistics>,
    /// The time from the first packet to the last.
    pub duration_ms: f64,
    /// The time until the first packet went towards the side that began it.
    pub first_byte_ms: Option<f64>,
    /// The reason why it is over.
    pub outcome: Outcome,
    /// The side that ended it.
    pub ended_by: EndedBy,
    /// The time-out that ended it, if one did.
    pub timeout: Option<&'static str>,
    /// The reason why the other endpoint refused it.
    pub cause: Option<String>,
    /// Conversations that ended before this one and have no record, since gateways had used up
    /// their shares.
    #[serde(skip_serializing_if = "is_none_left_out")]
    pub left_out: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
const fn is_none_left_out(count: &u64) -> bool {
    *count == 0
}

/// The reason why a conversation is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was silent for long.
    Idle,
    /// The program that began it, or accepted it, closed it.
    Closed,
    /// The other endpoint refused it.
    Refused,
    /// It was evicted to make room for another.
    Evicted,
    /// The session with the other endpoint has ended.
    Gone,
    /// Its client came again, by another gateway or in another conversation.
    Replaced,
    /// Changed rules no longer allow it.
    Revoked,
    /// This node has ended.
    Cut,
}

impl Outcome {
    /// Returns whether it ended in order, in which case a log may leave it out.
    #[must_use]
    pub const fn is_in_order(self) -> bool {
        matches!(self, Self::Idle | Self::Closed)
    }
}

/// The side that ended a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// The one that began it.
    Upstream,
    /// The other.
    Downstream,
    /// This node.
    #[serde(rename = "self")]
    Here,
}
