//! The state that every part of an engine uses while it handles an input: the rules, the counters,
//! and the sending to neighbours, by which nothing leaves unsealed.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use tradewind_config::packet::LegSeal;
use tradewind_grant::{PublicIdentity, Trust};
use tradewind_net::udp::{Train, UdpPort};
use tradewind_packet::message::{Carriage, Message, PATH_HEADER_BYTES, write_on_path};
use tradewind_packet::session::{
    AddressPair, HEADER_BYTES, Link, Now, OVERHEAD, PASSED_BYTES, PAYLOAD_LIMIT, PeerId, Sessions,
    TAG_BYTES,
};
use tradewind_telemetry::LogLimit;
use tradewind_units::Duration;

use super::access::Access;
use super::sockets::Sockets;
use crate::config::NodeConfig;
use crate::counts::Counts;
use crate::record::Journal;
use crate::shared::Shared;

/// Longest message that is sealed end to end: a sealed datagram must fit into another one, behind a
/// label.
const MAX_MESSAGE: usize = PAYLOAD_LIMIT - 64;
/// Age above which a relay forwards packets no more, because it has stood still. Chosen: as long as
/// relays cache packets for receivers that miss them; relays do not know the packets' budgets.
pub(super) const HELD_FOR: Duration = Duration::from_secs(1);

/// Most records of a worker in a window. Chosen: more than a resolver's clients begin, and 100 kB a
/// second at most; a gateway needs only one datagram for each conversation.
const RECORDS: usize = 2000;
const RECORDS_WINDOW: Duration = Duration::from_secs(10);

/// The state that the parts of one engine share. A call borrows it together with one part.
pub(crate) struct Context {
    pub(super) config: Arc<NodeConfig>,
    pub(super) counts: Arc<Counts>,
    pub(super) access: Access,
    /// The operators whose grants it trusts, and their revocations.
    pub(super) trust: Arc<Trust>,
    pub(super) sockets: Sockets,
    pub(super) sessions: Sessions,
    /// Log limit of refused paths, by the neighbours that asked for them; `None` is this node
    /// itself.
    pub(crate) refusal_lines: LogLimit<Option<PublicIdentity>>,
    /// State that a relay's workers share.
    pub(super) shared: Shared,
    /// The receiver of records of conversations and paths, if there is one.
    pub(super) journal: Option<Arc<dyn Journal>>,
    /// Limit of records of conversations, by gateway.
    pub(super) records: LogLimit<Option<PublicIdentity>>,
    /// The time for which the current input had waited to be fetched.
    pub(super) age: Duration,
    /// Buffer for a message.
    pub(super) scratch: Vec<u8>,
    /// Buffer for a datagram that is sealed end to end.
    pub(super) sealed: Vec<u8>,
}

impl Context {
    pub(super) fn new(
        config: Arc<NodeConfig>,
        counts: Arc<Counts>,
        (access, trust): (Access, Arc<Trust>),
        (sockets, sessions): (Sockets, Sessions),
        shared: Shared,
    ) -> Self {
        let (scratch, sealed) = (Vec::new(), Vec::new());
        let (refusal_lines, age) = (LogLimit::new(), Duration::ZERO);
        Self {
            config,
            counts,
            access,
            trust,
            sockets,
            sessions,
            refusal_lines,
            shared,
            journal: None,
            records: LogLimit::of(RECORDS, RECORDS_WINDOW),
            age,
            scratch,
            sealed,
        }
    }

    /// Returns the sockets towards neighbours: the shared one, and perhaps one of this worker's
    /// own.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &UdpPort> {
        [Some(&self.sockets.shared), self.sockets.own.as_ref()]
            .into_iter()
            .flatten()
            .map(|o| &o.port)
    }

    /// Returns whether the current input had waited here for longer than relays hold packets.
    pub(super) fn has_waited_long(&self) -> bool {
        self.age > HELD_FOR
    }

    /// Returns whether the packet at hand has waited here for longer than it is worth having,
    /// because this process had stood still.
    pub(super) fn is_stale(&self, carriage: Carriage) -> bool {
        carriage.worth().is_some_and(|worth| self.age > worth)
    }

    /// Returns the name of a neighbour or remote endpoint in logs and reports.
    pub(super) fn name_of(&self, peer: PeerId) -> String {
        self.sessions.identity_of(peer).map_or_else(String::new, |peer| peer.to_string())
    }

    /// Seals and sends a message to a neighbour.
    pub(super) fn send_message(&mut self, peer: PeerId, message: &Message<'_>) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        message.write(&mut scratch);
        self.post(peer, &scratch);
        self.scratch = scratch;
    }

    /// Seals and sends a payload to a neighbour; `false` when no session is open.
    pub(super) fn post(&mut self, peer: PeerId, payload: &[u8]) -> bool {
        self.put(peer, payload.len() + OVERHEAD, |sessions, buffer| {
            buffer[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(payload);
            sessions.seal(peer, buffer).is_ok()
        })
    }

    /// Sends a sealed datagram to a remote endpoint over the Internet.
    pub(super) fn send_internet(&mut self, peer: PeerId, sealed: &[u8]) {
        if let Some(Link::Internet(to)) = self.sessions.link_of(peer) {
            self.send_sealed(self.sessions.is_ours(peer), to, sealed);
        }
    }

    /// Sends a sealed datagram to an address, from the socket for neighbours of its kind.
    pub(super) fn send_sealed(&mut self, is_ours: bool, to: AddressPair, sealed: &[u8]) {
        if let Some(buffer) = self.sockets.reserve(is_ours, to, sealed.len()) {
            buffer.copy_from_slice(sealed);
        }
    }

    /// Sends a datagram to the neighbour that forwards it under `label`.
    pub(super) fn pass(&mut self, peer: PeerId, label: u32, body: &[u8]) -> bool {
        if self.config.leg_seal == LegSeal::Whole {
            let inner = PATH_HEADER_BYTES + body.len();
            return self.put(peer, inner + OVERHEAD, |sessions, buffer| {
                write_on_path(label, body, &mut buffer[HEADER_BYTES..HEADER_BYTES + inner]);
                sessions.seal(peer, buffer).is_ok()
            });
        }
        let length = PASSED_BYTES + body.len();
        self.put(peer, length, |sessions, buffer| {
            buffer[PASSED_BYTES..].copy_from_slice(body);
            sessions.pass(peer, label, buffer, length).is_ok()
        })
    }

    /// Sends the forwarded datagrams in a part of a train to the neighbour that forwards them under
    /// `label`.
    pub(super) fn pass_train(
        &mut self,
        peer: PeerId,
        label: u32,
        (train, part): (&mut Train<'_>, Range<usize>),
    ) -> bool {
        let segment = train.segment();
        let datagrams = &mut train.bytes()[part.clone()];
        let Ok(Link::Internet(to)) = self.sessions.pass(peer, label, datagrams, segment) else {
            return false;
        };
        self.sockets.send_train(self.sessions.is_ours(peer), to, (train, part));
        true
    }

    /// Sends a neighbour a datagram of `length` bytes, if a session is open and `seal` writes and
    /// seals one: nothing unsealed ever leaves.
    fn put(
        &mut self,
        peer: PeerId,
        length: usize,
        seal: impl FnOnce(&mut Sessions, &mut [u8]) -> bool,
    ) -> bool {
        let Self { sockets, sessions, .. } = self;
        let Some(Link::Internet(to)) = sessions.link_of(peer) else { return false };
        let is_ours = sessions.is_ours(peer);
        sessions.is_open(peer) && sockets.put(is_ours, to, length, |buffer| seal(sessions, buffer))
    }

    /// Seals the bytes that `write` appends for a remote endpoint; `false` when they are too long,
    /// or no session is open.
    pub(super) fn seal_remote(
        &mut self,
        peer: PeerId,
        sealed: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        sealed.clear();
        sealed.resize(HEADER_BYTES, 0);
        write(sealed);
        if sealed.len() > MAX_MESSAGE {
            return false;
        }
        sealed.resize(sealed.len() + TAG_BYTES, 0);
        self.sessions.seal(peer, sealed).is_ok()
    }

    /// Pings a neighbour or remote endpoint over its own link.
    pub(super) fn ping(&mut self, now: Now, peer: PeerId) {
        if let Some(link) = self.sessions.link_of(peer) {
            self.sessions.ping(now, peer, link);
        }
    }

    /// Returns the address of a peer that is reached over the Internet.
    pub(super) fn address_of(&self, peer: PeerId) -> Option<SocketAddr> {
        match self.sessions.link_of(peer)? {
            Link::Internet(pair) => Some(pair.remote),
            Link::Overlay(_) => None,
        }
    }
}
