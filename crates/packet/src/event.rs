//! What machines tell about themselves. Metrics come from here and nowhere else.

use tradewind_units::Duration;

use crate::id::{FlowNumber, PacketId, Peer};
use crate::message::{Feedback, Scope};

/// Why something was dropped, or not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// The bytes are no message.
    Malformed,
    /// This role takes no such message.
    Unexpected,
    /// No such flow here.
    UnknownFlow,
    /// The message came from a peer that has no say in that flow.
    WrongPeer,
    /// The flow may not use that service.
    NotServed,
    /// It had come before.
    Duplicate,
    /// It is older than what is remembered.
    TooOld,
    /// The payload is not what its sender sealed.
    NotGenuine,
    /// A packet that came back, or was lent, without being asked for.
    NotAsked,
    /// It contradicts what else is known of its block.
    Contradiction,
    /// As often as is allowed it was answered already.
    Answered,
    /// A budget is spent.
    OverBudget,
    /// Too much waits to be sent.
    QueueFull,
    /// A table is full.
    TableFull,
}

/// Why a block was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Closed {
    /// It had all its packets.
    Full,
    /// Its timer ran out.
    Timer,
    /// It was the oldest, and a packet had no other place.
    Displaced,
}

/// By which way a packet came to its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arrival {
    /// The Internet path.
    Internet,
    /// Forwarded by the relays.
    Overlay,
    /// Kept by the egress relay.
    Cache,
    /// Solved by the receiver with a repair packet of its own flow.
    InStream,
    /// Solved by the egress relay with helpers' packets.
    CrossStream,
}

/// Why a packet that was asked for did not come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// Nothing that holds it came before the deadline.
    Unknown,
    /// More packets of its block were missing than repair packets were there.
    TooFewRepairs,
    /// Too few helpers answered.
    TooFewHelpers,
    /// What they lent contradicts the repair packets.
    Contradiction,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Something was dropped or not done.
    Dropped(DropReason),
    /// Sender: a copy was sent to the ingress relay, the first time or again.
    CopySent {
        /// Its packet.
        packet: PacketId,
        /// How often it was sent before.
        resent: u8,
    },
    /// Sender: what the receiver tells.
    Feedback(Feedback),
    /// Ingress or egress relay: a packet went on.
    Forwarded(PacketId),
    /// Ingress relay: repair packets of a block were sent.
    BlockClosed {
        /// Whose packets.
        scope: Scope,
        /// Why.
        closed: Closed,
        /// Packets in it.
        members: u8,
        /// Repair packets sent.
        repairs: u8,
        /// Bytes of them, headers included.
        bytes: u32,
    },
    /// Ingress relay: a packet left its block without protection, since it was alone in it `[JQ A,
    /// lines 17 and 18]`.
    Uncoded(PacketId),
    /// Egress relay: a packet is kept.
    Kept(PacketId),
    /// Egress relay: packets were asked for.
    Asked {
        /// The flow.
        flow: FlowNumber,
        /// How many.
        items: u8,
    },
    /// Egress relay: a packet, or a repair packet that can bring it back, was sent to its receiver.
    Answered {
        /// Which.
        packet: PacketId,
        /// How.
        way: Arrival,
    },
    /// Egress relay: helpers were asked.
    HelpAsked {
        /// For which packet first.
        packet: PacketId,
        /// How many helpers.
        helpers: u8,
    },
    /// Egress relay: a packet that was asked for will not come back.
    Failed {
        /// Which.
        packet: PacketId,
        /// Why.
        failure: Failure,
    },
    /// Egress or ingress relay: whether a flow's receiver answers has changed.
    Presence {
        /// The flow.
        flow: FlowNumber,
        /// Whether it does.
        is_online: bool,
    },
    /// Receiver: a packet was delivered.
    Delivered {
        /// Which.
        packet: PacketId,
        /// How it came.
        way: Arrival,
        /// How much later than expected; zero for what was never missed.
        after: Duration,
        /// Whether that was too late.
        is_late: bool,
    },
    /// Receiver: packets were asked for.
    NackSent {
        /// The flow.
        flow: FlowNumber,
        /// How many.
        items: u8,
    },
    /// Receiver: a packet did not come in time.
    Lost(PacketId),
    /// Receiver: a packet was lent.
    Helped(PacketId),
    /// A peer answered a keepalive.
    Alive {
        /// Which.
        peer: Peer,
        /// The round trip.
        round_trip: Duration,
    },
    /// So many events were not kept, since nobody took them.
    EventsLost(u64),
}

/// What a machine waits for.
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
    /// Lost packets are to be asked for, again or given up.
    Missing,
    /// A recovery ends.
    Recovery,
    /// What is kept gets too old.
    Expiry,
    /// The sender is to be told how its flow fares.
    Feedback,
    /// A keepalive is due.
    Keepalive,
}
