//! One worker's state: sessions, overlay paths, conversations. It reads no sockets itself: the
//! worker passes datagrams in.

mod access;
mod accounting;
#[cfg(test)]
mod allocations;
mod conversations;
mod ends;
mod flows;
mod groups;
mod intercepted;
mod legs;
mod local;
mod long;
mod loops;
mod marks;
mod members;
mod mtu;
mod ordered;
mod paths;
mod records;
mod refusals;
mod registration;
mod rendezvous;
mod routes;
mod rules;
mod services;
mod serving;
mod setup;
mod several;
mod sockets;
#[cfg(test)]
mod test_harness;
mod tunnel;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use tradewind_config::packet::LegSeal;
use tradewind_grant::{PublicIdentity, Sealer, Trust, Verifier};
use tradewind_net::clock;
use tradewind_net::udp::{Train, UdpPort};
use tradewind_packet::event::Arrival;
use tradewind_packet::fragment::{JoinLimits, Joiner};
use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::{Message, PATH_HEADER_BYTES, path_packet, write_on_path};
use tradewind_packet::order::Order;
use tradewind_packet::session::{
    AddressPair, DropReason, Event, HEADER_BYTES, Link, Now, OVERHEAD, Opened, PASSED_BYTES,
    PeerId, Run, Sessions, Table,
};
use tradewind_telemetry::LogLimit;
use tradewind_units::{Duration, SharedRate, Timestamp};

use crate::NodeError;
use crate::config::NodeConfig;
use crate::counts::{Counts, add};
use crate::handover::Handover;
use crate::listener::QueueGuard;
use crate::mailbox::{CommandQueue, Outgoing};
use crate::record::{Journal, Outcome};
use crate::shared::Shared;

use access::Access;
use conversations::{Inbound, Outbound, Released};
use legs::Legs;
use marks::Marks;
use members::MemberTable;
use paths::Label;
use refusals::Refusals;
use rendezvous::RendezvousClient;
use routes::{RemoteEndpoint, Route};
use services::Services;
use setup::{identities, sealer, sessions, sockets, trust, verifier};
use several::Several;
use sockets::Sockets;
pub(crate) use tunnel::MOST_PACKET;
use tunnel::TunnelEnd;

/// Interval of periodic work.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// Interval of pings to a neighbour. Chosen: three are lost within the second in which a dead relay
/// must be detected.
const PING_INTERVAL: Duration = Duration::from_millis(200);
/// Silence after which a path counts as down. Chosen: three pings.
const DEAD_AFTER: Duration = Duration::from_millis(600);
/// Signatures and Diffie-Hellman steps a second that gateways may cause over paths; each gets its
/// share. Chosen: at some 150 us each a sixth of a core, as for handshakes with a cookie.
const DEAR_A_SECOND: usize = 1000;
/// ICMP errors a second to senders of packets; each gets its share. Chosen: Linux's own limit.
const ERRORS_A_SECOND: usize = 1000;
/// Most labels of one worker. Chosen: two for each path through it.
const LABELS: usize = 1 << 15;
/// Most routes of one worker. Chosen: those of any configuration, and as many flows as there may be
/// conversations.
const ROUTES: usize = 1 << 14;

pub(crate) struct Engine {
    config: Arc<NodeConfig>,
    access: Access,
    counts: Arc<Counts>,
    sockets: Sockets,
    sessions: Sessions,
    verifier: Verifier,
    sealer: Option<Sealer>,
    /// The operators whose grants it trusts, and their revocations.
    trust: Arc<Trust>,
    labels: Table<Label>,
    /// This node's label of a path that a neighbour opened under its own label.
    opened: BTreeMap<(PeerId, u32), u32>,
    legs: Legs,
    several: Several,
    remotes: BTreeMap<PeerId, RemoteEndpoint>,
    /// Round trips to the neighbours that this node connects to, smoothed.
    leg_round_trips: BTreeMap<PeerId, Duration>,
    members: MemberTable,
    /// State that a relay's workers share.
    shared: Shared,
    rendezvous_client: RendezvousClient,
    pub(crate) routes: Table<Route>,
    pub(crate) commands: Arc<CommandQueue>,
    /// Heads of groups, by their flows.
    groups: BTreeMap<FlowNumber, u32>,
    /// Routes of applications' flows.
    flows: BTreeMap<u64, u32>,
    /// Programs that accept conversations, by the destination; below: the accepted ones.
    listeners: BTreeMap<SocketAddr, (u64, QueueGuard)>,
    accepted: BTreeMap<u64, u32>,
    /// A flow's outgoing packets, while they are sealed.
    collected: Vec<Outgoing>,
    outbound: Table<Outbound>,
    pub(crate) inbound: Table<Inbound>,
    inbound_ids: BTreeMap<(PeerId, u32), u32>,
    /// Conversations that end here and have datagrams in their send queues.
    unflushed: Vec<u32>,
    released: Released,
    /// Conversations whose datagrams are delivered under a preserved source, by source and
    /// destination.
    by_preserved_source: BTreeMap<(SocketAddr, SocketAddr), u32>,
    /// The device to which others' whole packets are delivered.
    pub(crate) tunnel: Option<TunnelEnd>,
    /// Local ports that the worker has to poll from now on.
    pub(crate) fresh: Vec<u32>,
    /// Buffer for a message.
    scratch: Vec<u8>,
    /// Buffer for a datagram that is sealed end to end.
    sealed: Vec<u8>,
    /// A datagram of a remote endpoint before it was opened; empty where no end needs it.
    original: Vec<u8>,
    services: Services,
    /// Set when ends may have lost their last conversation.
    ends_are_due: bool,
    next_ping: Timestamp,
    /// Log limit of refused paths, by the neighbours that asked for them; `None` is this node
    /// itself.
    pub(crate) refusal_lines: LogLimit<Option<PublicIdentity>>,
    /// Limit of records of conversations, by gateway.
    records: LogLimit<Option<PublicIdentity>>,
    /// Rate limit of signatures and Diffie-Hellman steps that a gateway or its neighbour causes.
    dear: SharedRate<PublicIdentity>,
    /// Rate limit of ICMP errors, by receiver.
    errors: SharedRate<IpAddr>,
    refusals: Refusals,
    /// Fragments of datagrams that wait for others.
    joiner: Joiner<PeerId>,
    /// Packets that wait for others before them.
    order: Order<PeerId, FlowNumber>,
    /// Congestion marks that conversations are owed.
    marks: Marks,
    /// The number of the next fragmented datagram.
    next_cut: u32,
    /// The time before which no further datagram is logged as too long.
    next_too_long: Timestamp,
    /// The receiver of records of conversations and paths, if there is one.
    journal: Option<Arc<dyn Journal>>,
    /// The time for which the current input had waited to be fetched.
    age: Duration,
    /// Datagrams dropped by sessions that are counted already.
    drops_counted: u64,
    salt: u16,
}

/// Returns the time by both clocks.
pub(crate) fn now() -> Now {
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let unix = Timestamp::ZERO + unix.unwrap_or_default();
    Now { steady: clock::monotonic(), unix }
}

impl Engine {
    /// Returns an engine. It sends nothing before [`Engine::begin`], when somebody reads the
    /// replies.
    pub(crate) fn new(
        config: Arc<NodeConfig>,
        port: UdpPort,
        counts: Arc<Counts>,
        (commands, shared): (Arc<CommandQueue>, Shared),
        handover: &mut Handover,
    ) -> Result<Self, NodeError> {
        let now = now();
        let access = Access::new(config.known_policy(), port.address())?;
        let trust = Arc::new(trust(&config));
        let tunnel = config.tunnel.as_ref().map(|tunnel| TunnelEnd::new(handover, tunnel));
        let mut engine = Self {
            access,
            sockets: sockets(&config, port, &counts)?,
            counts,
            sessions: sessions(&config, &trust, now)?,
            verifier: verifier(&config, &trust),
            sealer: sealer(&config)?,
            trust,
            labels: Table::new(LABELS),
            opened: BTreeMap::new(),
            legs: Legs::default(),
            several: Several::default(),
            remotes: BTreeMap::new(),
            leg_round_trips: BTreeMap::new(),
            members: MemberTable::default(),
            shared,
            rendezvous_client: RendezvousClient::new(&config),
            routes: Table::new(ROUTES),
            commands,
            groups: BTreeMap::new(),
            flows: BTreeMap::new(),
            listeners: BTreeMap::new(),
            accepted: BTreeMap::new(),
            collected: Vec::new(),
            outbound: Table::new(conversations::MOST),
            inbound: Table::new(conversations::MOST),
            inbound_ids: BTreeMap::new(),
            unflushed: Vec::new(),
            released: Released::default(),
            by_preserved_source: BTreeMap::new(),
            tunnel: tunnel.transpose()?,
            fresh: Vec::new(),
            scratch: Vec::new(),
            sealed: Vec::new(),
            original: Vec::new(),
            services: Services::new(now, &config)?,
            ends_are_due: false,
            next_ping: Timestamp::ZERO,
            refusal_lines: LogLimit::new(),
            records: records::limit(),
            dear: SharedRate::new(DEAR_A_SECOND, Duration::from_secs(1)),
            errors: SharedRate::new(ERRORS_A_SECOND, Duration::from_secs(1)),
            refusals: Refusals::default(),
            joiner: Joiner::new(JoinLimits::default()),
            order: Order::default(),
            marks: Marks::default(),
            next_cut: 0,
            next_too_long: Timestamp::ZERO,
            journal: None,
            age: Duration::ZERO,
            drops_counted: 0,
            salt: 0,
            config,
        };
        engine.add_configured(now, handover)?;
        Ok(engine)
    }

    /// Adds the paths, groups and deposits of the configuration.
    fn add_configured(&mut self, now: Now, handover: &mut Handover) -> Result<(), NodeError> {
        let config = Arc::clone(&self.config);
        for (at, path) in config.paths.iter().enumerate() {
            let added = self.add_path(now, handover, path);
            added.map_err(|error| error.of_section(config.sections.paths.get(at)))?;
        }
        for (at, group) in config.groups.iter().enumerate() {
            let added = self.add_group(now, handover, group);
            added.map_err(|error| error.of_section(config.sections.groups.get(at)))?;
        }
        self.add_rendezvous(now, handover)
    }

    /// Starts it as the only reader from now on. Another process may have seen what was issued
    /// before.
    pub(crate) fn begin(&mut self, now: Now) {
        self.verifier.refuse_issued_before(now.unix);
        self.sessions.refuse_issued_before(now.unix);
        self.dispatch(now);
        self.flush();
    }

    /// Sets the time for which the next input had waited to be fetched: longer than usual when this
    /// process had stood still.
    pub(crate) fn note_age(&mut self, age: Option<Duration>) {
        self.age = age.unwrap_or(Duration::ZERO);
    }

    /// Handles datagrams of a neighbour.
    pub(crate) fn take_train(&mut self, now: Now, from: AddressPair, train: &mut Train<'_>) {
        let (length, segment, mut at) = (train.bytes().len(), train.segment(), 0);
        if length == 0 {
            return self.take(now, from, &mut []);
        }
        while at < length {
            let rest = &mut train.bytes()[at..];
            let run = self.sessions.handle_passed(now, Link::Internet(from), rest, segment);
            let Some(Run { bytes, datagrams, from: sender }) = run else {
                let first = segment.min(rest.len());
                self.take(now, from, &mut rest[..first]);
                at += first;
                continue;
            };
            add(&self.counts.received, datagrams as u64);
            if let Some((peer, label)) = sender {
                self.take_passed(now, peer, label, (train, at..at + bytes));
            }
            at += bytes;
        }
    }

    /// Handles a datagram of a neighbour.
    fn take(&mut self, now: Now, from: AddressPair, datagram: &mut [u8]) {
        add(&self.counts.received, 1);
        let link = Link::Internet(from);
        self.store_original(datagram);
        let Some(Opened { peer, payload }) = self.sessions.handle_datagram(now, link, datagram)
        else {
            if let Some(Opened { peer, payload }) = self.sessions.take_duplicate() {
                self.note_duplicate(now, peer, &datagram[payload]);
            }
            return;
        };
        let payload = &mut datagram[payload];
        match path_packet(payload) {
            Some((label, body)) => self.take_packet(now, peer, label, body),
            None => self.handle_message(now, peer, payload, Arrival::Internet),
        }
    }

    /// Keeps a datagram as it was sealed: in this form receivers lend packets, and decode blocks
    /// with them.
    fn store_original(&mut self, datagram: &[u8]) {
        self.original.clear();
        if !self.services.ends.is_empty() {
            self.original.extend_from_slice(datagram);
        }
    }

    /// Handles a message of a neighbour or remote endpoint.
    fn handle_message(&mut self, now: Now, peer: PeerId, payload: &[u8], way: Arrival) {
        match Message::parse(payload) {
            Ok(Message::Open { label, header }) => self.open_path(now, peer, label, header),
            Ok(Message::Opened { label, next }) => self.path_opened(now, peer, label, next),
            Ok(Message::Refused { label, by, reason }) => {
                self.path_refused(now, peer, label, (by, reason));
            }
            Ok(Message::Datagram { conversation, payload }) => {
                self.deliver(now, peer, conversation, payload);
            }
            Ok(Message::Fragment { conversation, piece }) => {
                self.take_piece(now, peer, conversation, piece);
            }
            Ok(Message::First { conversation, carriage, to, from, payload }) => {
                self.deliver_first(now, peer, (conversation, carriage, to), from, payload);
            }
            Ok(Message::Begin { conversation, carriage, to, from }) => {
                self.begin_inbound(now, peer, (conversation, carriage, to), from);
            }
            Ok(
                message @ (Message::Known { .. }
                | Message::Unknown { .. }
                | Message::Over { .. }
                | Message::Denied { .. }),
            ) => self.note_state(now, peer, message),
            Ok(Message::Numbered { packet, message }) => {
                self.take_numbered(now, peer, (packet, message), way);
            }
            Ok(Message::Serve { label, flow, service }) => {
                self.serve(now, peer, (label, flow, service), false);
            }
            Ok(Message::Join { label, flow, service }) => {
                self.serve(now, peer, (label, flow, service), true);
            }
            Ok(message @ (Message::GroupKey { .. } | Message::GroupKnown { .. })) => {
                self.take_group_message(now, peer, &message);
            }
            Ok(Message::Feedback(report)) if self.note_group_report(peer, &report) => {}
            Ok(Message::Bill { label, flow, is_egress, bytes, nano_usd }) => {
                self.bill(now, peer, label, (flow, is_egress, bytes, nano_usd));
            }
            Ok(
                message @ (Message::Register { .. }
                | Message::Registered { .. }
                | Message::LookUp { .. }
                | Message::Member { .. }),
            ) => self.take_membership(now, peer, message),
            Ok(
                message @ (Message::Deposit(_)
                | Message::Deposited(_)
                | Message::Collect(_)
                | Message::StoredMessage(_)
                | Message::Remaining(_)),
            ) => self.take_rendezvous(now, peer, message),
            Ok(message) => self.take_service(now, peer, message),
            Err(_) => add(&self.counts.dropped, 1),
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

    /// Seals and sends a message to a neighbour.
    fn send_message(&mut self, peer: PeerId, message: &Message<'_>) {
        self.scratch.clear();
        message.write(&mut self.scratch);
        Self::post(&mut self.sockets, &mut self.sessions, peer, &self.scratch);
    }

    /// Seals and sends a payload to a neighbour; `false` when no session is open.
    fn post(sockets: &mut Sockets, sessions: &mut Sessions, peer: PeerId, payload: &[u8]) -> bool {
        let length = payload.len() + OVERHEAD;
        Self::put(sockets, sessions, peer, length, |sessions, buffer| {
            buffer[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(payload);
            sessions.seal(peer, buffer).is_ok()
        })
    }

    /// Sends a sealed datagram to a remote endpoint over the Internet.
    fn send_internet(sockets: &mut Sockets, sessions: &Sessions, peer: PeerId, sealed: &[u8]) {
        if let Some(Link::Internet(to)) = sessions.link_of(peer)
            && let Some(buffer) = sockets.reserve(sessions.is_ours(peer), to, sealed.len())
        {
            buffer.copy_from_slice(sealed);
        }
    }

    /// Sends a datagram to the neighbour that forwards it under `label`.
    fn pass(&mut self, peer: PeerId, label: u32, body: &[u8]) -> bool {
        let (sockets, sessions) = (&mut self.sockets, &mut self.sessions);
        if self.config.leg_seal == LegSeal::Whole {
            let inner = PATH_HEADER_BYTES + body.len();
            return Self::put(sockets, sessions, peer, inner + OVERHEAD, |sessions, buffer| {
                write_on_path(label, body, &mut buffer[HEADER_BYTES..HEADER_BYTES + inner]);
                sessions.seal(peer, buffer).is_ok()
            });
        }
        let length = PASSED_BYTES + body.len();
        Self::put(sockets, sessions, peer, length, |sessions, buffer| {
            buffer[PASSED_BYTES..].copy_from_slice(body);
            sessions.pass(peer, label, buffer, length).is_ok()
        })
    }

    /// Sends the forwarded datagrams in a part of a train to the neighbour that forwards them under
    /// `label`.
    fn pass_train(
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
        sockets: &mut Sockets,
        sessions: &mut Sessions,
        peer: PeerId,
        length: usize,
        seal: impl FnOnce(&mut Sessions, &mut [u8]) -> bool,
    ) -> bool {
        let Some(Link::Internet(to)) = sessions.link_of(peer) else { return false };
        let is_ours = sessions.is_ours(peer);
        sessions.is_open(peer) && sockets.put(is_ours, to, length, |buffer| seal(sessions, buffer))
    }

    /// Sends the output of state machines and sessions, and handles their events.
    pub(crate) fn dispatch(&mut self, now: Now) {
        self.drive(now);
        self.drive_rendezvous(now);
        while let Some(transmit) = self.sessions.poll_transmit() {
            match transmit.link {
                Link::Internet(to) => {
                    let length = transmit.bytes.len();
                    if let Some(buffer) = self.sockets.reserve(transmit.is_ours, to, length) {
                        buffer.copy_from_slice(&transmit.bytes);
                    }
                }
                Link::Overlay(label) => {
                    self.send_over(label, &transmit.bytes);
                }
            }
        }
        while let Some(event) = self.sessions.poll_event() {
            match event {
                Event::Answered { peer, link, round_trip, bytes } => {
                    self.answered(now, peer, link, (round_trip, bytes));
                }
                Event::Closed { peer, .. } => self.forget(now, peer),
                Event::Established { peer, identity, link } => {
                    tracing::debug!(?peer, %identity, ?link, "session established");
                    self.introduce_again(peer);
                    self.open_again(now, peer);
                    self.rendezvous_client.relay_is_back(peer);
                }
                Event::Moved { peer, link } => tracing::debug!(?peer, ?link, "neighbour moved"),
            }
        }
    }

    /// Flushes all send queues.
    pub(crate) fn flush(&mut self) {
        self.sockets.flush();
        self.flush_local();
    }

    /// Does the periodic work.
    pub(crate) fn tick(&mut self, now: Now) {
        self.sessions.handle_timeout(now);
        self.maintain_labels(now);
        self.maintain_legs(now);
        if now.steady >= self.next_ping {
            self.next_ping = now.steady + PING_INTERVAL;
            self.maintain_members(now);
            self.maintain_several(now);
            self.ping_all(now);
            self.maintain_served(now);
        }
        self.time_out(now);
        self.maintain_mtus(now);
        self.maintain_routes(now);
        self.report_open();
        self.update_gates(now);
        self.maintain_ends(now);
        self.maintain_groups(now);
        self.maintain_conversations(now);
        self.maintain_pieces(now);
        self.marks.expire(now.steady);
        self.maintain_rendezvous(now);
        let drops = self.sessions.drops();
        let duplicates = drops[DropReason::Replayed as usize];
        let twice = duplicates + self.rendezvous_client.replayed;
        self.counts.duplicates.store(twice, std::sync::atomic::Ordering::Relaxed);
        let others: u64 = drops.iter().sum::<u64>() - duplicates;
        add(&self.counts.dropped, others - self.drops_counted);
        self.drops_counted = others;
    }

    /// Pings every neighbour, over each path that leads to it.
    fn ping_all(&mut self, now: Now) {
        let idle: Vec<PeerId> =
            self.legs.peers().filter(|peer| self.is_idle_candidate(*peer)).collect();
        for peer in self.legs.peers().filter(|peer| !idle.contains(peer)) {
            if let Some(link) = self.sessions.link_of(peer) {
                self.sessions.ping(now, peer, link);
            }
        }
        let tunnelled_fars = self.tunnelled_fars();
        for (peer, remote) in &self.remotes {
            if let Some(label) = remote.label {
                self.sessions.ping(now, *peer, Link::Overlay(label));
            }
            // Those that this node connects to are among the legs.
            if !self.sessions.is_ours(*peer)
                && (self.services.ends.has(*peer) || tunnelled_fars.contains(peer))
                && let Some(link) = self.sessions.link_of(*peer)
            {
                self.sessions.ping(now, *peer, link);
            }
        }
    }

    /// Drops the paths and flows of a neighbour that is gone.
    fn forget(&mut self, now: Now, peer: PeerId) {
        self.refusals.forget(peer);
        let gone: Vec<u32> =
            self.inbound_ids.range((peer, 0)..=(peer, u32::MAX)).map(|(_, id)| *id).collect();
        gone.into_iter().for_each(|id| self.drop_inbound(now, id, Outcome::Gone));
        self.remotes.remove(&peer);
        self.drop_labels_of(peer);
    }

    fn next_salt(&mut self) -> u16 {
        self.salt = self.salt.wrapping_add(1);
        self.salt
    }
}
