//! What is said at the relay where packets wait for a receiver that is not online `[JQ 3.5]`.

use tradewind_grant::PublicIdentity;

use super::Acknowledgement;

/// A stored message that is to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deposit<'a> {
    /// Which of the sender's streams of deposits it is in.
    pub stream: u64,
    /// Whether nothing of the stream was acknowledged yet: then the relay need not know it.
    pub begins: bool,
    /// Its place in the stream, from 0, without gaps.
    pub number: u64,
    /// For how many seconds it is worth keeping; 0 for what only its number is sent for.
    pub keep_s: u32,
    /// For whom.
    pub to: PublicIdentity,
    /// What the receiver alone can open, 1 to [`MOST_PAYLOAD_BYTES`](super::MOST_PAYLOAD_BYTES)
    /// bytes.
    pub stored_message: &'a [u8],
}

/// Which deposits of a stream have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deposited {
    /// The relay's life that tells: another one has nothing of what was acknowledged.
    pub epoch: u64,
    /// The stream.
    pub stream: u64,
    /// Whether the relay knows it; one that does not must be told from the beginning.
    pub is_known: bool,
    /// What has come.
    pub seen: Acknowledgement,
}

/// A receiver asks for what waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collect {
    /// The relay's life that the positions are of; any number before it is known.
    pub epoch: u64,
    /// The question's number; its answer ends with it.
    pub ask: u64,
    /// Most stored messages of an answer.
    pub credit: u16,
    /// Positions that have come: those below `next` need wait no longer.
    pub seen: Acknowledgement,
}

/// What has waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredMessage<'a> {
    /// The relay's life.
    pub epoch: u64,
    /// Nothing waits from here on before it; at most its position.
    pub since: u64,
    /// Its place among those for this receiver.
    pub position: u64,
    /// As it was deposited.
    pub stored_message: &'a [u8],
}

/// What still waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    /// The relay's life.
    pub epoch: u64,
    /// The question that is answered.
    pub ask: u64,
    /// Stored messages that wait beside those that were sent.
    pub left: u32,
}
