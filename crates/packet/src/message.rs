//! What endpoints and relays say to each other inside of sessions, byte by byte in
//! `docs/packet-wire.md`.
//!
//! | family | between | messages |
//! |---|---|---|
//! | paths | neighbours on an overlay path | a datagram on its way, opening the path, which flows are served along it |
//! | conversations | the two endpoints of a flow, sealed end to end | an application's datagrams, numbered where a service may bring them back |
//! | services | endpoints and relays | copies, repair packets, requests, what comes back |
//! | members | an endpoint and the relay that keeps the registry | where endpoints are, which relays are near them |
//! | rendezvous | an endpoint and the relay where packets wait | packets to keep, packets that were kept |
//!
//! A *sealed payload* of a service's message is the datagram that one endpoint sealed for the
//! other, as it travels over the Internet: relays and helpers see that and nothing else. All
//! numbers are big-endian. The parser is strict: what it takes is written back byte for byte, and
//! whatever differs is refused whole. It borrows and allocates nothing. The version is that of the
//! sessions.

mod conversation;
mod error;
mod members;
mod near;
mod parse;
mod ranges;
mod refusal;
mod rendezvous;
mod write;

pub use conversation::{Carriage, path_packet, write_numbered, write_on_path};
pub use error::MessageError;
pub use members::MemberList;
pub use near::{MOST_NEAR, NearList, NearRelay};
pub use ranges::{Ranges, write_ranges};
pub use refusal::Refusal;
pub use rendezvous::{Collect, Deposit, Deposited, Remaining, StoredMessage};
pub(crate) use write::put_address;

use std::net::SocketAddr;

use tradewind_grant::PublicIdentity;

use crate::fragment::Piece;
use crate::group::Secret;
use crate::id::{FlowNumber, PacketId};

/// Longest payload of a source packet, in bytes. Chosen: the jumbo frames of clouds.
pub const MOST_PAYLOAD_BYTES: usize = 9_000;
/// Bytes of a source packet before its payload.
pub const SOURCE_HEADER_BYTES: usize = 19;
/// Bytes of a copy before its payload.
pub const COPY_HEADER_BYTES: usize = 27;
/// Bytes before the datagram that travels on an overlay path.
pub const PATH_HEADER_BYTES: usize = 5;
/// Most ranges of a NACK. Chosen: losses that are known at one time are few bursts.
pub const MOST_NACK_RANGES: usize = 16;
/// Largest sequence that is taken: at a million packets a second it lasts 290,000 years.
pub(crate) const MOST_SEQUENCE: u64 = (1 << 63) - 1;
/// Most packets that one NACK may ask for. Chosen: 0.6 s of outage at 100 packets a second; more
/// take more messages, and budgets.
pub const MOST_NACK_ITEMS: u64 = 64;

/// Words of an acknowledgement. Chosen: 256 copies are 25 ms of 10,000 packets a second, more than
/// the round trip of most access legs.
pub const ACKNOWLEDGED_WORDS: usize = 4;

/// How a packet is carried, as the sender orders it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Service {
    /// Over the Internet alone.
    Direct = 0,
    /// Over the relays.
    Forwarding = 1,
    /// Kept at the egress relay.
    Caching = 2,
    /// Coded with other flows' packets at the ingress relay.
    Coding = 3,
}

impl Service {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Forwarding, Self::Caching, Self::Coding];
}

/// How much a packet matters to its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Class {
    /// As much as any.
    #[default]
    Usual = 0,
    /// More: a key frame, a SYN, what the application marked. Its copies go first when the uplink
    /// is short.
    Vital = 1,
}

/// Whose packets a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Scope {
    /// At most one packet of each of several flows.
    CrossStream = 0,
    /// Packets of one flow.
    InStream = 1,
}

/// A packet as its sender made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source<'a> {
    /// Which.
    pub packet: PacketId,
    /// How it is carried.
    pub service: Service,
    /// How much it matters.
    pub class: Class,
    /// The sealed payload, 1 to [`MOST_PAYLOAD_BYTES`] bytes.
    pub payload: &'a [u8],
}

/// A repair packet with the names of what it is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repair<'a> {
    /// Whose packets.
    pub scope: Scope,
    /// Which of the block's repair packets, from 0.
    pub row: u8,
    /// How many the block has.
    pub rows: u8,
    /// The block; unique at its ingress relay.
    pub block: u64,
    /// The block's packets by column.
    pub members: MemberList<'a>,
    /// The sum, as `tradewind_fec` makes it.
    pub symbol: &'a [u8],
}

/// A request for lost packets of one flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nack<'a> {
    /// The flow.
    pub flow: FlowNumber,
    /// The sequences asked for.
    pub ranges: Ranges<'a>,
}

/// A request to a receiver to lend one of its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelpRequest {
    /// The recovery; the answer names it again.
    pub recovery: u64,
    /// Which packet.
    pub packet: PacketId,
}

/// How an egress relay got a packet that it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RecoverySource {
    /// It had kept it.
    Cache = 0,
    /// It solved a block with helpers' packets.
    CrossStream = 1,
}

/// Which copies have come to the ingress relay over a sender's access leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Every copy with a lower number has come, or is not waited for.
    pub next: u64,
    /// Bit `i` of word `w`, from the least: copy `next + 1 + 64 w + i` has come.
    pub beyond: [u64; ACKNOWLEDGED_WORDS],
}

impl Acknowledgement {
    /// Nothing has come.
    pub const NOTHING: Self = Self { next: 0, beyond: [0; ACKNOWLEDGED_WORDS] };

    /// All below `next` have come, and of those above it these; what is too far above to be told is
    /// left out.
    pub fn of(next: u64, come: impl IntoIterator<Item = u64>) -> Self {
        let mut beyond = [0; ACKNOWLEDGED_WORDS];
        for place in come.into_iter().filter_map(|number| number.checked_sub(next + 1)) {
            if let Some(word) = usize::try_from(place / 64).ok().and_then(|at| beyond.get_mut(at)) {
                *word |= 1 << (place % 64);
            }
        }
        Self { next, beyond }
    }

    /// Whether the copy has come, or is not waited for.
    #[must_use]
    pub fn has(&self, number: u64) -> bool {
        let Some(place) = number.checked_sub(self.next + 1) else { return number < self.next };
        let word = usize::try_from(place / 64).ok().and_then(|word| self.beyond.get(word));
        word.is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    /// One beyond the highest copy that has come.
    #[must_use]
    pub fn end(&self) -> u64 {
        let last = self.beyond.iter().rposition(|word| *word != 0);
        last.map_or(self.next, |word| {
            let bits = 64 - self.beyond[word].leading_zeros();
            self.next + 1 + 64 * word as u64 + u64::from(bits)
        })
    }
}

/// What a receiver tells its sender about an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feedback {
    /// The flow.
    pub flow: FlowNumber,
    /// Packets that should have come.
    pub expected: u64,
    /// Those that came in time, by whatever way.
    pub in_time: u64,
    /// Those that came too late.
    pub late: u64,
    /// Those that the Internet lost, recovered or not.
    pub lost_by_internet: u64,
    /// Those that came back: kept, solved in-stream, solved cross-stream.
    pub recovered: [u64; 3],
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A datagram on an overlay path: passed on, or opened where the path ends.
    OnPath {
        /// The receiving end's name for the path.
        label: u32,
        /// A datagram of the session between the endpoints.
        datagram: &'a [u8],
    },
    /// Opens an overlay path.
    Open {
        /// The label under which the sender wants to hear of it.
        label: u32,
        /// Who may do that, over which hops (`tradewind_grant`).
        header: &'a [u8],
    },
    /// A path is open to its end.
    Opened {
        /// The label of the [`Message::Open`] that this answers.
        label: u32,
        /// The label to send to.
        next: u32,
    },
    /// A path is not opened; goes back as [`Message::Opened`] does.
    Refused {
        /// The label of the [`Message::Open`] that this answers.
        label: u32,
        /// Who refuses it.
        by: PublicIdentity,
        /// Why.
        reason: Refusal,
    },
    /// A flow that comes along a path is to be served; said again each second.
    Serve {
        /// The receiving end's name for the path.
        label: u32,
        /// The flow.
        flow: FlowNumber,
        /// How.
        service: Service,
    },
    /// The end of a path is one of those that a group's flow goes to; else as [`Message::Serve`].
    Join {
        /// The receiving end's name for the path.
        label: u32,
        /// The flow, which has other paths, too.
        flow: FlowNumber,
        /// How.
        service: Service,
    },
    /// What a relay that serves a flow has sent for it since it began to; goes back along the path.
    Bill {
        /// The receiving end's name for the path.
        label: u32,
        /// The flow.
        flow: FlowNumber,
        /// Whether its egress relay tells, not its ingress relay.
        is_egress: bool,
        /// What left the relay for the flow, with all headers.
        bytes: u64,
        /// What its cloud charges for that.
        nano_usd: u64,
    },
    /// A datagram of a conversation that the other endpoint knows.
    Datagram {
        /// The conversation.
        conversation: u32,
        /// The application's.
        payload: &'a [u8],
    },
    /// A piece of a datagram that is too long for every way ([`crate::fragment`]).
    Fragment {
        /// The conversation.
        conversation: u32,
        /// The piece.
        piece: Piece<'a>,
    },
    /// A datagram of one that it perhaps does not know.
    First {
        /// The conversation.
        conversation: u32,
        /// How it is carried, so that replies are carried likewise.
        carriage: Carriage,
        /// Where it is delivered.
        to: SocketAddr,
        /// Whose it is, where the far endpoint is to deliver it under that address if it may.
        from: Option<SocketAddr>,
        /// The application's.
        payload: &'a [u8],
    },
    /// Begins a conversation whose first datagram is too long to do so itself; nothing is
    /// delivered.
    Begin {
        /// The conversation.
        conversation: u32,
        /// How it is carried.
        carriage: Carriage,
        /// Where its datagrams are delivered.
        to: SocketAddr,
        /// Whose they are, as of [`Message::First`].
        from: Option<SocketAddr>,
    },
    /// The conversation is known.
    Known {
        /// The conversation.
        conversation: u32,
    },
    /// The conversation is not known any more: the next datagram must come with what begins it.
    Unknown {
        /// The conversation.
        conversation: u32,
    },
    /// The side that began the conversation has ended it.
    Over {
        /// The conversation.
        conversation: u32,
    },
    /// A conversation is not taken: a [`Message::First`] of it was dropped.
    Denied {
        /// The conversation.
        conversation: u32,
        /// Why.
        reason: Refusal,
    },
    /// A datagram of a conversation that can be brought back when it is lost.
    Numbered {
        /// Its name for those who bring it back.
        packet: PacketId,
        /// A [`Message::Datagram`], [`Message::Fragment`] or [`Message::First`].
        message: &'a [u8],
    },
    /// The key of what is sealed once for all members of a group ([`crate::group`]).
    GroupKey {
        /// The group's flow.
        flow: FlowNumber,
        /// Which of its keys.
        epoch: u8,
        /// The key.
        key: Secret<'a>,
    },
    /// A member has a key.
    GroupKnown {
        /// The group's flow.
        flow: FlowNumber,
        /// Which of its keys.
        epoch: u8,
        /// Whether a relay serves the flow to this member.
        is_served: bool,
    },
    /// A source packet, on the Internet path or between relays.
    Source(Source<'a>),
    /// A source packet on its sender's access leg.
    Copy {
        /// Counts the copies on this leg, so that what is missing there can be told.
        number: u64,
        /// The packet.
        source: Source<'a>,
    },
    /// A repair packet.
    Repair(Repair<'a>),
    /// Lost packets are asked for.
    Nack(Nack<'a>),
    /// A helper's packet is asked for.
    HelpRequest(HelpRequest),
    /// A helper's packet.
    HelpAnswer {
        /// What it answers.
        request: HelpRequest,
        /// The sealed payload.
        payload: &'a [u8],
    },
    /// A lost packet comes back.
    Recovered {
        /// Which.
        packet: PacketId,
        /// How.
        means: RecoverySource,
        /// The sealed payload.
        payload: &'a [u8],
    },
    /// Copies have come.
    Acknowledgement(Acknowledgement),
    /// How a flow fares.
    Feedback(Feedback),
    /// Whether a flow's receiver answers.
    Presence {
        /// The flow.
        flow: FlowNumber,
        /// Whether it does.
        is_online: bool,
    },
    /// The endpoint of this session is there, where the session leads, and these relays are near
    /// it; said again while it is.
    Register {
        /// The nearest first.
        near: NearList<'a>,
    },
    /// That is known.
    Registered {
        /// For how long, unless it is said again.
        seconds: u16,
    },
    /// Where an endpoint is, is asked; one that is not known is not answered for.
    LookUp {
        /// Which.
        identity: PublicIdentity,
    },
    /// Where an endpoint is.
    Member {
        /// Which.
        identity: PublicIdentity,
        /// Its address, as the registry sees it.
        address: SocketAddr,
        /// The relays near it, as it says.
        near: NearList<'a>,
    },
    /// A stored message that is to wait for its receiver.
    Deposit(Deposit<'a>),
    /// Which deposits have come.
    Deposited(Deposited),
    /// A receiver asks for what waits for it.
    Collect(Collect),
    /// What has waited.
    StoredMessage(StoredMessage<'a>),
    /// What still waits, after all that a [`Message::Collect`] was answered with.
    Remaining(Remaining),
    /// Keeps a session's path open, and measures its round trip.
    Keepalive {
        /// Whether this is the answer.
        is_answer: bool,
        /// Returned as it came.
        nonce: u64,
    },
}

#[cfg(test)]
mod tests;
