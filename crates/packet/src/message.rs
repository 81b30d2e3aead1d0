//! The messages that endpoints and relays exchange inside of sessions, described byte by byte in
//! `docs/reference/wire-packets.md`.
//!
//! | family | between | messages |
//! |---|---|---|
//! | paths | neighbours on an overlay path | a datagram on the path, opening the path, the flows that are served along it |
//! | conversations | the two endpoints of a flow, sealed end to end | an application's datagrams, numbered where a service may recover them |
//! | services | endpoints and relays | copies, repair packets, requests, recovered packets |
//! | members | an endpoint and the relay that keeps the registry | the addresses of endpoints, and the relays near them |
//! | rendezvous | an endpoint and the relay that stores its packets | packets to store, stored packets |
//!
//! A *sealed payload* of a service's message is the datagram that one endpoint sealed for the
//! other, as it travels over the Internet: relays and helpers see nothing else of it. All numbers
//! are big-endian. The parser is strict: a parsed message is written back byte for byte, and
//! anything else is refused as a whole. It borrows and does not allocate. The version is that of
//! the sessions.

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
pub use near::{MAX_NEAR, NearList, NearRelay};
pub use ranges::{Ranges, write_ranges};
pub use refusal::Refusal;
pub use rendezvous::{Collect, Deposit, Deposited, Remaining, StoredMessage};
pub(crate) use write::put_address;

use std::net::SocketAddr;

use tradewind_grant::PublicIdentity;

use crate::fragment::Piece;
use crate::group::Secret;
use crate::id::{FlowNumber, PacketId};

/// The longest payload of a source packet, in bytes. Chosen: the jumbo frames of clouds.
pub const MAX_PAYLOAD_BYTES: usize = 9_000;
/// Bytes of a source packet before its payload.
pub const SOURCE_HEADER_BYTES: usize = 19;
/// Bytes of a copy before its payload.
pub const COPY_HEADER_BYTES: usize = 27;
/// Bytes before the datagram that travels on an overlay path.
pub const PATH_HEADER_BYTES: usize = 5;
/// The most ranges of a NACK. Chosen: the losses that are known at one time are few bursts.
pub const MAX_NACK_RANGES: usize = 16;
/// The largest sequence that is accepted: at a million packets a second it lasts 290,000 years.
pub(crate) const MAX_SEQUENCE: u64 = (1 << 63) - 1;
/// The most packets that one NACK may request. Chosen: 0.6 s of outage at 100 packets a second;
/// more take more messages, and budgets.
pub const MAX_NACK_ITEMS: u64 = 64;

/// Words of an acknowledgement. Chosen: 256 copies are 25 ms of 10,000 packets a second, more than
/// the round trip of most access legs.
pub const ACKNOWLEDGED_WORDS: usize = 4;

/// The service by which a packet is carried, as the sender demands it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Service {
    /// Over the Internet alone.
    Direct = 0,
    /// Over the relays.
    Forwarding = 1,
    /// Cached at the egress relay.
    Caching = 2,
    /// Coded with other flows' packets at the ingress relay.
    Coding = 3,
}

impl Service {
    /// All services, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Forwarding, Self::Caching, Self::Coding];
}

/// The importance of a packet to its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Class {
    /// Normal priority.
    #[default]
    Normal = 0,
    /// High priority: a key frame, a SYN, or marked by the application. Its copies go first when
    /// the uplink is short.
    High = 1,
}

/// The origin of a block's packets.
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
    /// The packet's flow and sequence.
    pub packet: PacketId,
    /// The service that carries it.
    pub service: Service,
    /// Its importance.
    pub class: Class,
    /// The sealed payload, 1 to [`MAX_PAYLOAD_BYTES`] bytes.
    pub payload: &'a [u8],
}

/// A repair packet with the list of the packets that it is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repair<'a> {
    /// The scope of the block.
    pub scope: Scope,
    /// The number among the block's repair packets, from 0.
    pub row: u8,
    /// The number of repair packets of the block.
    pub rows: u8,
    /// The block; unique at its ingress relay.
    pub block: u64,
    /// The block's packets by column.
    pub members: MemberList<'a>,
    /// The linear combination, as `tradewind_fec` computes it.
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
    /// The recovery, which the answer names again.
    pub recovery: u64,
    /// The packet.
    pub packet: PacketId,
}

/// The source of a packet that an egress relay returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RecoverySource {
    /// The relay's cache.
    Cache = 0,
    /// A block solved with helpers' packets.
    CrossStream = 1,
}

/// The copies that have come to the ingress relay over a sender's access leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Every copy with a lower number has come, or is not waited for.
    pub next: u64,
    /// Bit `i` of word `w`, from the least: copy `next + 1 + 64 w + i` has come.
    pub beyond: [u64; ACKNOWLEDGED_WORDS],
}

impl Acknowledgement {
    /// The acknowledgement when nothing has come.
    pub const NOTHING: Self = Self { next: 0, beyond: [0; ACKNOWLEDGED_WORDS] };

    /// Returns an acknowledgement of all copies below `next`, and of those in `come` above it.
    /// Numbers too far above `next` are left out.
    pub fn of(next: u64, come: impl IntoIterator<Item = u64>) -> Self {
        let mut beyond = [0; ACKNOWLEDGED_WORDS];
        for place in come.into_iter().filter_map(|number| number.checked_sub(next + 1)) {
            if let Some(word) = usize::try_from(place / 64).ok().and_then(|at| beyond.get_mut(at)) {
                *word |= 1 << (place % 64);
            }
        }
        Self { next, beyond }
    }

    /// Returns whether the copy has come, or is not waited for.
    #[must_use]
    pub fn has(&self, number: u64) -> bool {
        let Some(place) = number.checked_sub(self.next + 1) else { return number < self.next };
        let word = usize::try_from(place / 64).ok().and_then(|word| self.beyond.get(word));
        word.is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    /// Returns one beyond the highest copy that has come.
    #[must_use]
    pub fn end(&self) -> u64 {
        let last = self.beyond.iter().rposition(|word| *word != 0);
        last.map_or(self.next, |word| {
            let bits = 64 - self.beyond[word].leading_zeros();
            self.next + 1 + 64 * word as u64 + u64::from(bits)
        })
    }
}

/// A receiver's counts of a flow's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feedback {
    /// The flow.
    pub flow: FlowNumber,
    /// Packets that should have come.
    pub expected: u64,
    /// Those that came in time, on any path.
    pub in_time: u64,
    /// Those that came too late.
    pub late: u64,
    /// Those that the Internet path lost, recovered or not.
    pub lost_by_internet: u64,
    /// Those that were recovered: from the cache, in-stream, cross-stream.
    pub recovered: [u64; 3],
}

impl Feedback {
    /// Returns the sums of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.combined(other, u64::saturating_add)
    }

    /// Returns what has become of packets since earlier counts; `None` if these are not earlier.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        let since = self.combined(earlier, u64::saturating_sub);
        let is_earlier = since.plus(earlier) == *self && since.expected > 0;
        (is_earlier && since.exceeding().is_none()).then_some(since)
    }

    fn combined(&self, other: &Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            flow: self.flow,
            expected: combine(self.expected, other.expected),
            in_time: combine(self.in_time, other.in_time),
            late: combine(self.late, other.late),
            lost_by_internet: combine(self.lost_by_internet, other.lost_by_internet),
            recovered: std::array::from_fn(|i| combine(self.recovered[i], other.recovered[i])),
        }
    }

    /// Returns a count that is above that of the packets that should have come.
    pub(crate) fn exceeding(&self) -> Option<u64> {
        let sum = |counts: &[u64]| counts.iter().fold(0, |sum: u64, one| sum.saturating_add(*one));
        let counts = [sum(&[self.in_time, self.late]), sum(&self.recovered), self.lost_by_internet];
        counts.into_iter().max().filter(|most| *most > self.expected)
    }
}

/// A receiver's report to its sender, in sums, so that one that is lost takes nothing with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The receiver's time of the flow's first packet, in nanoseconds: another where the receiver
    /// has begun anew.
    pub begun: u64,
    /// Its counts since then.
    pub sums: Feedback,
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A datagram on an overlay path: forwarded, or opened where the path ends.
    OnPath {
        /// The receiving end's label for the path.
        label: u32,
        /// A datagram of the session between the endpoints.
        datagram: &'a [u8],
    },
    /// Opens an overlay path.
    Open {
        /// The label under which the sender is to be answered.
        label: u32,
        /// The hop header: the grant, and the path's hops (`tradewind_grant`).
        header: &'a [u8],
    },
    /// A path is open to its end.
    Opened {
        /// The label of the [`Message::Open`] that is answered.
        label: u32,
        /// The label to send to.
        next: u32,
    },
    /// A path is refused; sent back along it as [`Message::Opened`] is.
    Refused {
        /// The label of the [`Message::Open`] that is answered.
        label: u32,
        /// The node that refuses it.
        by: PublicIdentity,
        /// The reason.
        reason: Refusal,
    },
    /// A flow on a path is to be served; repeated each second.
    Serve {
        /// The receiving end's label for the path.
        label: u32,
        /// The flow.
        flow: FlowNumber,
        /// The service.
        service: Service,
    },
    /// The end of the path is one of the members that a group's flow goes to; otherwise as
    /// [`Message::Serve`].
    Join {
        /// The receiving end's label for the path.
        label: u32,
        /// The flow, which has other paths as well.
        flow: FlowNumber,
        /// The service.
        service: Service,
    },
    /// The traffic that a relay has sent for a flow since it began to serve it; sent back along the
    /// path.
    Bill {
        /// The receiving end's label for the path.
        label: u32,
        /// The flow.
        flow: FlowNumber,
        /// Set when the egress relay reports, not the ingress relay.
        is_egress: bool,
        /// The bytes that left the relay for the flow, with all headers.
        bytes: u64,
        /// The cloud's charge for them.
        nano_usd: u64,
    },
    /// A datagram of a conversation that the other endpoint knows.
    Datagram {
        /// The conversation.
        conversation: u32,
        /// The application's payload.
        payload: &'a [u8],
    },
    /// A piece of a datagram that is too long for every path ([`crate::fragment`]).
    Fragment {
        /// The conversation.
        conversation: u32,
        /// The piece.
        piece: Piece<'a>,
    },
    /// A datagram of a conversation that the other endpoint may not know.
    First {
        /// The conversation.
        conversation: u32,
        /// The carriage of the conversation, which replies take as well.
        carriage: Carriage,
        /// The destination.
        to: SocketAddr,
        /// The application's own address, where the remote endpoint is to send from it if it may.
        from: Option<SocketAddr>,
        /// The application's payload.
        payload: &'a [u8],
    },
    /// Begins a conversation whose first datagram is too long for [`Message::First`]; nothing is
    /// delivered.
    Begin {
        /// The conversation.
        conversation: u32,
        /// The carriage of the conversation.
        carriage: Carriage,
        /// The destination of its datagrams.
        to: SocketAddr,
        /// The application's own address, as in [`Message::First`].
        from: Option<SocketAddr>,
    },
    /// The conversation is known.
    Known {
        /// The conversation.
        conversation: u32,
    },
    /// The conversation is not known any more: the next datagram must come with [`Message::First`]
    /// or [`Message::Begin`].
    Unknown {
        /// The conversation.
        conversation: u32,
    },
    /// The side that began the conversation has ended it.
    Over {
        /// The conversation.
        conversation: u32,
    },
    /// A conversation is refused: a [`Message::First`] of it was dropped.
    Denied {
        /// The conversation.
        conversation: u32,
        /// The reason.
        reason: Refusal,
    },
    /// A datagram of a conversation that can be recovered when it is lost.
    Numbered {
        /// Its flow and sequence, by which it is recovered.
        packet: PacketId,
        /// A [`Message::Datagram`], [`Message::Fragment`] or [`Message::First`].
        message: &'a [u8],
    },
    /// A key for packets that are sealed once for all members of a group ([`crate::group`]).
    GroupKey {
        /// The group's flow.
        flow: FlowNumber,
        /// The number of the key.
        epoch: u8,
        /// The key.
        key: Secret<'a>,
    },
    /// A member has a key.
    GroupKnown {
        /// The group's flow.
        flow: FlowNumber,
        /// The number of the key.
        epoch: u8,
        /// Set when a relay serves the flow to this member.
        is_served: bool,
    },
    /// A source packet, on the Internet path or between relays.
    Source(Source<'a>),
    /// A source packet on its sender's access leg.
    Copy {
        /// The number among the copies on this leg, by which losses there are reported.
        number: u64,
        /// The packet.
        source: Source<'a>,
    },
    /// A repair packet.
    Repair(Repair<'a>),
    /// A request for lost packets.
    Nack(Nack<'a>),
    /// A request for a helper's packet.
    HelpRequest(HelpRequest),
    /// A helper's packet.
    HelpAnswer {
        /// The request that is answered.
        request: HelpRequest,
        /// The sealed payload.
        payload: &'a [u8],
    },
    /// A recovered packet.
    Recovered {
        /// The packet.
        packet: PacketId,
        /// Its source.
        means: RecoverySource,
        /// The sealed payload.
        payload: &'a [u8],
    },
    /// An acknowledgement of copies.
    Acknowledgement(Acknowledgement),
    /// A report on a flow.
    Feedback(Report),
    /// A flow's receiver went online or offline.
    Presence {
        /// The flow.
        flow: FlowNumber,
        /// Set when it is online.
        is_online: bool,
    },
    /// The registration of the endpoint of this session at the registry, with the relays near it;
    /// repeated while the endpoint is online.
    Register {
        /// The relays, the nearest first.
        near: NearList<'a>,
    },
    /// The registration is accepted.
    Registered {
        /// The time for which it holds, unless it is repeated.
        seconds: u16,
    },
    /// A lookup of an endpoint's address; not answered for an unknown endpoint.
    LookUp {
        /// The endpoint.
        identity: PublicIdentity,
    },
    /// The address of an endpoint.
    Member {
        /// The endpoint.
        identity: PublicIdentity,
        /// Its address, as the registry sees it.
        address: SocketAddr,
        /// The relays near it, as it has registered them.
        near: NearList<'a>,
    },
    /// A stored message for the relay to keep for its receiver.
    Deposit(Deposit<'a>),
    /// An acknowledgement of deposits.
    Deposited(Deposited),
    /// A receiver's request for the stored messages that wait for it.
    Collect(Collect),
    /// A stored message for its receiver.
    StoredMessage(StoredMessage<'a>),
    /// The number of stored messages left, after the answer to a [`Message::Collect`].
    Remaining(Remaining),
    /// Keeps a session's path open, and measures its round trip.
    Keepalive {
        /// Set in the answer.
        is_answer: bool,
        /// A number that the answer repeats.
        nonce: u64,
    },
}

#[cfg(test)]
mod tests;
