//! Events of the state machines: the only source of metrics.

use tradewind_units::Duration;

use crate::id::{FlowNumber, PacketId, Peer};
use crate::message::{Feedback, Scope};

/// The reason why something was dropped, or not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// The bytes are no message.
    Malformed,
    /// This role takes no such message.
    Unexpected,
    /// No flow of that number is known here.
    UnknownFlow,
    /// The message came from a peer that has no part in the flow.
    WrongPeer,
    /// The flow may not use that service.
    NotServed,
    /// It came before.
    Duplicate,
    /// It is older than what is remembered.
    TooOld,
    /// The payload is not what its sender sealed.
    NotGenuine,
    /// A packet was returned or lent that was not requested.
    NotAsked,
    /// It contradicts other data of its block.
    Contradiction,
    /// It was answered already as often as is allowed.
    Answered,
    /// A budget is spent.
    OverBudget,
    /// Too much waits to be sent.
    QueueFull,
    /// A table is full.
    TableFull,
}

/// The reason why a block was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Closed {
    /// It had all its packets.
    Full,
    /// Its timer ran out.
    Timer,
    /// It was the oldest, and a packet fitted into no block.
    Displaced,
}

/// The path on which a packet came to its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arrival {
    /// The Internet path.
    Internet,
    /// Forwarded by the relays.
    Overlay,
    /// From the cache of the egress relay.
    Cache,
    /// Solved by the receiver with a repair packet of its own flow.
    InStream,
    /// Solved by the egress relay with helpers' packets.
    CrossStream,
}

/// The reason why a requested packet was not recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// Nothing that holds it came before the deadline.
    Unknown,
    /// More packets of its block were missing than repair packets were there.
    TooFewRepairs,
    /// Too few helpers answered.
    TooFewHelpers,
    /// The lent packets contradict the repair packets.
    Contradiction,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Something was dropped or not done.
    Dropped(DropReason),
    /// Sender: a copy was sent to the ingress relay, the first time or again.
    CopySent {
        /// The packet of the copy.
        packet: PacketId,
        /// The number of times it was sent before.
        resent: u8,
    },
    /// Sender and receiver: what has become of packets since the report before.
    Feedback(Feedback),
    /// Ingress or egress relay: a packet was forwarded.
    Forwarded(PacketId),
    /// Ingress relay: repair packets of a block were sent.
    BlockClosed {
        /// The scope of the block.
        scope: Scope,
        /// The reason why it was closed.
        closed: Closed,
        /// The number of packets in the block.
        members: u8,
        /// The number of repair packets sent.
        repairs: u8,
        /// The bytes of the repair packets, headers included.
        bytes: u32,
    },
    /// Ingress relay: a packet left its block without protection, since it was alone in it
    /// `[JQ A, lines 17 and 18]`.
    Uncoded(PacketId),
    /// Egress relay: a packet is kept.
    Cached(PacketId),
    /// Egress relay: packets were requested.
    Asked {
        /// The flow.
        flow: FlowNumber,
        /// The number of packets.
        items: u8,
    },
    /// Egress relay: a packet, or a repair packet that can recover it, was sent to its receiver.
    Answered {
        /// The packet.
        packet: PacketId,
        /// The source of the answer.
        arrival: Arrival,
    },
    /// Egress relay: helpers were asked.
    HelpAsked {
        /// The packet requested first.
        packet: PacketId,
        /// The number of helpers.
        helpers: u8,
    },
    /// Egress relay: a requested packet will not be recovered.
    Failed {
        /// The packet.
        packet: PacketId,
        /// The reason.
        failure: Failure,
    },
    /// Egress or ingress relay: a flow's receiver went online or offline.
    Presence {
        /// The flow.
        flow: FlowNumber,
        /// Set when it is online.
        is_online: bool,
    },
    /// Receiver: a packet was delivered.
    Delivered {
        /// The packet.
        packet: PacketId,
        /// The path on which it came.
        arrival: Arrival,
        /// The delay after the expected time; zero for a packet that was never missed.
        after: Duration,
        /// Set when it came too late.
        is_late: bool,
    },
    /// Receiver: packets were requested.
    NackSent {
        /// The flow.
        flow: FlowNumber,
        /// The number of packets.
        items: u8,
    },
    /// Receiver: a packet did not come in time.
    Lost(PacketId),
    /// Receiver: a packet was lent.
    Helped(PacketId),
    /// A peer answered a keepalive.
    Alive {
        /// The peer.
        peer: Peer,
        /// The round trip.
        round_trip: Duration,
    },
    /// The number of events that were not kept, since nobody took them.
    EventsLost(u64),
}

/// The reason for a machine's next timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimerReason {
    /// An acknowledgement of a copy is overdue.
    Resend,
    /// The last packet of a window is to be copied.
    LastOfWindow,
    /// Copies are to be acknowledged.
    Acknowledge,
    /// A block is to be closed.
    CloseBlock,
    /// A packet should have come.
    Silence,
    /// Missing packets are to be requested, requested again or given up.
    Missing,
    /// A recovery ends.
    Recovery,
    /// Cached data expires.
    Expiry,
    /// The sender is due for a report on its flow.
    Feedback,
    /// A keepalive is due.
    Keepalive,
}
