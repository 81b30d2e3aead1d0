//! Messages to and from the relay that stores packets for a receiver that is offline `[JQ 3.5]`.

use tradewind_grant::PublicIdentity;

use super::Acknowledgement;

/// A stored message to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deposit<'a> {
    /// The number of the stream among the sender's streams of deposits.
    pub stream: u64,
    /// Set while nothing of the stream is acknowledged, so that the relay may not know it.
    pub begins: bool,
    /// The place in the stream, from 0, without gaps.
    pub number: u64,
    /// The seconds for which it is worth keeping; 0 when only the number is needed.
    pub keep_s: u32,
    /// The receiver.
    pub to: PublicIdentity,
    /// The sealed message, which the receiver alone can open, 1 to
    /// [`MAX_PAYLOAD_BYTES`](super::MAX_PAYLOAD_BYTES) bytes.
    pub stored_message: &'a [u8],
}

/// The deposits of a stream that have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deposited {
    /// The epoch of the relay, new with each start: another epoch has nothing of what was
    /// acknowledged.
    pub epoch: u64,
    /// The stream.
    pub stream: u64,
    /// Set when the relay knows the stream; otherwise the sender must begin it anew.
    pub is_known: bool,
    /// The deposits that have come.
    pub seen: Acknowledgement,
}

/// A receiver's request for the stored messages that wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collect {
    /// The relay's epoch in which the positions hold; any number before it is known.
    pub epoch: u64,
    /// The number of the request, repeated at the end of its answer.
    pub ask: u64,
    /// The most stored messages in the answer.
    pub credit: u16,
    /// The positions that have come: the relay can delete those below `next`.
    pub seen: Acknowledgement,
}

/// A stored message for its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredMessage<'a> {
    /// The relay's epoch.
    pub epoch: u64,
    /// The lowest position from which on nothing waits before this one; at most its own.
    pub since: u64,
    /// Its position among those for this receiver.
    pub position: u64,
    /// The sealed message, as it was deposited.
    pub stored_message: &'a [u8],
}

/// The end of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    /// The relay's epoch.
    pub epoch: u64,
    /// The request that is answered.
    pub ask: u64,
    /// The number of stored messages that wait beside those that were sent.
    pub left: u32,
}
