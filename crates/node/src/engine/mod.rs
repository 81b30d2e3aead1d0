//! One worker's state: sessions, overlay paths, conversations. It reads no sockets itself: the
//! worker passes datagrams in.
//!
//! The [`Engine`] routes inputs between objects of which each knows its own state alone. An
//! object's method takes the input, and borrows for the call what it needs besides: the
//! [`Context`] with rules, counters and the way out to neighbours; [`Paths`](paths::Paths) with
//! the way out to remote endpoints; or another object by name. Messages leave through these at
//! once, without a copy or an allocation. Whatever concerns other objects is returned as a value,
//! and the engine passes it on. So an object never reaches the rest of the engine.
//!
//! | object | its state |
//! |---|---|
//! | [`Forwarding`] | overlay paths through here and to here, by label |
//! | [`Neighbours`] | sessions that this node begins: legs, their addresses, members |
//! | [`Remotes`] | remote endpoints, and whether and how fast the paths to them answer |
//! | [`Routes`] | local ports and flows of programs, where they lead, and groups |
//! | [`Conversations`] | applications' conversations that begin or end here |
//! | [`Services`] | flows that begin or end here, numbered, in their order |
//! | [`Serving`] | flows that this node serves as a relay |
//! | [`Rendezvous`] | packets that wait at a relay |
//! | [`Refusals`], [`Fragments`] | what others refuse; datagrams longer than their paths take |
//!
//! [`Reporter`], [`Rules`] and [`Gates`] are views that borrow several objects to look at them.

mod access;
mod accounting;
#[cfg(test)]
mod allocations;
mod applications;
mod arrivals;
mod context;
mod conversations;
mod endpoints;
mod flows;
mod forwarding;
mod gates;
mod groups;
mod intercepted;
mod leading;
mod local;
mod long;
mod loops;
mod marks;
mod mtu;
mod neighbours;
mod paths;
mod records;
mod refusals;
mod remotes;
mod rendezvous;
mod reports;
mod routes;
mod rules;
mod services;
mod serving;
mod setup;
mod sockets;
#[cfg(test)]
mod test_harness;
mod tunnel;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use tradewind_grant::PublicIdentity;
use tradewind_net::clock;
use tradewind_net::udp::{Train, UdpPort};
use tradewind_packet::event::Arrival;
use tradewind_packet::id::Peer;
use tradewind_packet::message::{Message, Refusal, path_packet};
use tradewind_packet::session::{
    AddressPair, DropReason, Event, Link, Now, OVERHEAD, Opened, PASSED_BYTES, PeerId, Run,
};
use tradewind_units::{Duration, SharedRate, Timestamp};

use crate::NodeError;
use crate::config::NodeConfig;
use crate::counts::{Counts, add};
use crate::handover::Handover;
use crate::interceptor::Gate;
use crate::mailbox::{CommandQueue, Outgoing};
use crate::record::Outcome;
use crate::shared::Shared;
use crate::status::{EndpointStatus, FlowStatus, RefusalStatus, RelayStatus};

use access::Access;
use context::Context;
use conversations::Conversations;
use flows::Listeners;
use forwarding::{Forwarding, Passed};
use gates::Gates;
use long::Fragments;
use neighbours::Neighbours;
use refusals::{Refusals, Refused};
use remotes::Remotes;
use rendezvous::Rendezvous;
use reports::Reporter;
use routes::Routes;
use rules::Rules;
use services::Services;
use serving::{AskedFor, Serving};
use setup::{identities, sealer, sessions, sockets, trust, verifier};
pub(crate) use tunnel::MAX_PACKET;
use tunnel::TunnelEnd;

/// Interval of pings to a neighbour. Chosen: three are lost within the second in which a dead relay
/// must be detected.
const PING_INTERVAL: Duration = Duration::from_millis(200);
/// Bytes of headers around a datagram when it is billed: UDP and IPv4; around a message, the
/// session's seal as well.
const AROUND_DATAGRAM: usize = 28;
const AROUND_MESSAGE: usize = OVERHEAD + AROUND_DATAGRAM;
/// ICMP errors a second to senders of packets; each gets its share. Chosen: Linux's own limit.
const ERRORS_A_SECOND: usize = 1000;

pub(crate) struct Engine {
    pub(crate) context: Context,
    forwarding: Forwarding,
    neighbours: Neighbours,
    remotes: Remotes,
    pub(crate) rendezvous: Rendezvous,
    pub(crate) routes: Routes,
    pub(crate) commands: Arc<CommandQueue>,
    /// Routes of applications' flows.
    flows: BTreeMap<u64, u32>,
    /// Programs that accept conversations, by the destination; below: the accepted ones.
    listeners: Listeners,
    accepted: BTreeMap<u64, u32>,
    /// A flow's outgoing packets, while they are sealed.
    collected: Vec<Outgoing>,
    pub(crate) conversations: Conversations,
    /// The device to which others' whole packets are delivered.
    pub(crate) tunnel: Option<TunnelEnd>,
    /// A datagram of a remote endpoint before it was opened; empty where no end needs it.
    original: Vec<u8>,
    services: Services,
    serving: Serving,
    /// Set when ends may have lost their last conversation.
    ends_are_due: bool,
    next_ping: Timestamp,
    /// Rate limit of ICMP errors, by receiver.
    errors: SharedRate<IpAddr>,
    refusals: Refusals,
    fragments: Fragments,
    /// Datagrams dropped by sessions that are counted already.
    drops_counted: u64,
}

/// This node itself, where one relay is both relays of a flow. No session has this number.
const SELF: Peer = Peer(u32::MAX);

/// Returns the target of a route while its remote endpoint is not known. No session has this
/// number.
fn nobody() -> PeerId {
    SELF.into()
}

/// Returns the mean of round trips with another one.
fn smooth(before: Option<Duration>, round_trip: Duration) -> Duration {
    match before {
        Some(before) => (before * 7 + round_trip) / 8,
        None => round_trip,
    }
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
        let out = (sockets(&config, port, &counts)?, sessions(&config, &trust, now)?);
        let (verifier, sealer) = (verifier(&config, &trust), sealer(&config)?);
        let rendezvous = Rendezvous::new(&config);
        let (services, serving) = (Services::new(now, &config), Serving::new(&config)?);
        let mut engine = Self {
            context: Context::new(config, counts, (access, trust), out, shared),
            forwarding: Forwarding::new(verifier),
            neighbours: Neighbours::default(),
            remotes: Remotes::default(),
            rendezvous,
            routes: Routes::new(sealer),
            commands,
            flows: BTreeMap::new(),
            listeners: BTreeMap::new(),
            accepted: BTreeMap::new(),
            collected: Vec::new(),
            conversations: Conversations::new(),
            tunnel: tunnel.transpose()?,
            original: Vec::new(),
            services,
            serving,
            ends_are_due: false,
            next_ping: Timestamp::ZERO,
            errors: SharedRate::new(ERRORS_A_SECOND, Duration::from_secs(1)),
            refusals: Refusals::default(),
            fragments: Fragments::default(),
            drops_counted: 0,
        };
        engine.add_configured(now, handover)?;
        Ok(engine)
    }

    /// Adds the paths, groups and deposits of the configuration.
    fn add_configured(&mut self, now: Now, handover: &mut Handover) -> Result<(), NodeError> {
        let config = Arc::clone(&self.context.config);
        for (at, path) in config.paths.iter().enumerate() {
            let added = self.add_path(now, handover, path);
            added.map_err(|error| error.of_section(config.sections.paths.get(at)))?;
        }
        for (at, group) in config.groups.iter().enumerate() {
            let added = self.add_group(now, handover, group);
            added.map_err(|error| error.of_section(config.sections.groups.get(at)))?;
        }
        self.rendezvous.add_configured(&mut self.context, &mut self.neighbours, now, handover)
    }

    /// Starts it as the only reader from now on. Another process may have seen what was issued
    /// before.
    pub(crate) fn begin(&mut self, now: Now) {
        self.forwarding.verifier().refuse_issued_before(now.unix);
        self.context.sessions.refuse_issued_before(now.unix);
        self.dispatch(now);
        self.flush();
    }

    /// Sets the time for which the next input had waited to be fetched: longer than usual when this
    /// process had stood still.
    pub(crate) fn note_age(&mut self, age: Option<Duration>) {
        self.context.age = age.unwrap_or(Duration::ZERO);
    }

    /// Handles datagrams of a neighbour.
    pub(crate) fn take_train(&mut self, now: Now, from: AddressPair, train: &mut Train<'_>) {
        let (length, segment, mut at) = (train.bytes().len(), train.segment(), 0);
        if length == 0 {
            return self.take(now, from, &mut []);
        }
        while at < length {
            let rest = &mut train.bytes()[at..];
            let run = self.context.sessions.handle_passed(now, Link::Internet(from), rest, segment);
            let Some(Run { bytes, datagrams, from: sender }) = run else {
                let first = segment.min(rest.len());
                self.take(now, from, &mut rest[..first]);
                at += first;
                continue;
            };
            add(&self.context.counts.received, datagrams as u64);
            if let Some((peer, label)) = sender {
                self.take_passed(now, (peer, label), (train, at..at + bytes));
            }
            at += bytes;
        }
    }

    /// Handles a datagram of a neighbour.
    fn take(&mut self, now: Now, from: AddressPair, datagram: &mut [u8]) {
        add(&self.context.counts.received, 1);
        let link = Link::Internet(from);
        self.store_original(datagram);
        let Some(Opened { peer, payload }) =
            self.context.sessions.handle_datagram(now, link, datagram)
        else {
            if let Some(Opened { peer, payload }) = self.context.sessions.take_duplicate() {
                self.note_duplicate(now, peer, &datagram[payload]);
            }
            return;
        };
        let payload = &mut datagram[payload];
        match path_packet(payload) {
            Some((label, body)) => {
                let along = (peer, label);
                match self.forwarding.take_packet(&mut self.context, now, along, body) {
                    Passed::Done => {}
                    Passed::AtEnd => self.take_at_end(now, label, body),
                }
            }
            None => self.handle_message(now, peer, payload, Arrival::Internet),
        }
    }

    /// Handles the forwarded datagrams in a part of a train.
    fn take_passed(
        &mut self,
        now: Now,
        (from, label): (PeerId, u32),
        (train, part): (&mut Train<'_>, Range<usize>),
    ) {
        let (context, passed) = (&mut self.context, (&mut *train, part.clone()));
        match self.forwarding.take_train(context, now, (from, label), passed) {
            Passed::Done => {}
            Passed::AtEnd => {
                let segment = train.segment();
                for datagram in train.bytes()[part].chunks_mut(segment) {
                    self.take_at_end(now, label, &mut datagram[PASSED_BYTES..]);
                }
            }
        }
    }

    /// Opens a datagram of the session between the ends of a path, of which one is here.
    fn take_at_end(&mut self, now: Now, label: u32, datagram: &mut [u8]) {
        if !self.forwarding.admits(now, label, datagram) {
            return add(&self.context.counts.dropped, 1);
        }
        self.store_original(datagram);
        let opened = self.context.sessions.handle_datagram(now, Link::Overlay(label), datagram);
        if let Some(opened) = opened {
            let peer = opened.peer;
            self.handle_message(now, peer, &datagram[opened.payload], Arrival::Overlay);
            // A gateway that sends over a path of its own is answered over it. A leg does not prove
            // whose datagrams it carries.
            let place = self.forwarding.labels.place(label);
            let is_theirs = place.is_some_and(|place| {
                self.context.sessions.identity_of(peer) == Some(place.gateway)
            });
            if is_theirs && let Some(remote) = self.remotes.get_mut(&peer) {
                remote.label = Some(label);
            }
        }
    }

    /// Handles the reply of the other side to the opening of a path.
    fn path_opened(&mut self, now: Now, from: PeerId, mine: u32, theirs: u32) {
        let (forwarding, context) = (&mut self.forwarding, &mut self.context);
        if forwarding.opened(context, now, (from, theirs), mine)
            && let Some(remote) = self.remotes.over(mine)
        {
            self.context.sessions.ping(now, remote, Link::Overlay(mine));
        }
    }

    /// Handles the refusal of a path by the next hop or one behind it.
    fn path_refused(
        &mut self,
        now: Now,
        from: PeerId,
        mine: u32,
        refusal: (PublicIdentity, Refusal),
    ) {
        let (forwarding, context) = (&mut self.forwarding, &mut self.context);
        if forwarding.refused(context, now, (from, mine), refusal)
            && let Some(remote) = self.remotes.over(mine)
        {
            self.refusals.note(&self.context, now, (remote, Refused::Path), refusal);
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
    fn handle_message(&mut self, now: Now, peer: PeerId, payload: &[u8], arrival: Arrival) {
        match Message::parse(payload) {
            Ok(Message::Open { label, header }) => {
                let legs = &mut self.neighbours.legs;
                self.forwarding.open(&mut self.context, legs, now, ((peer, label), header));
            }
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
                self.take_numbered(now, peer, (packet, message), arrival);
            }
            Ok(Message::Serve { label, flow, service }) => {
                self.take_order(now, peer, AskedFor { label, flow, service, is_join: false });
            }
            Ok(Message::Join { label, flow, service }) => {
                self.take_order(now, peer, AskedFor { label, flow, service, is_join: true });
            }
            Ok(message @ (Message::GroupKey { .. } | Message::GroupKnown { .. })) => {
                self.take_group_message(now, peer, &message);
            }
            Ok(message @ Message::Feedback(report)) => match self.routes.group_of(report.sums.flow)
            {
                Some(group) => group.note_report(peer, report),
                None => self.take_service(now, peer, message),
            },
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
            ) => self.rendezvous.handle_message(&mut self.context, now, peer, message),
            Ok(message) => self.take_service(now, peer, message),
            Err(_) => add(&self.context.counts.dropped, 1),
        }
    }

    /// Sends the output of state machines and sessions, and handles their events.
    pub(crate) fn dispatch(&mut self, now: Now) {
        self.drive(now);
        self.rendezvous.drive(&mut self.context, now);
        while let Some(transmit) = self.context.sessions.poll_transmit() {
            match transmit.link {
                Link::Internet(to) => {
                    self.context.send_sealed(transmit.is_ours, to, &transmit.bytes);
                }
                Link::Overlay(label) => {
                    self.forwarding.send_over(&mut self.context, label, &transmit.bytes);
                }
            }
        }
        while let Some(event) = self.context.sessions.poll_event() {
            match event {
                Event::Answered { peer, link, round_trip, bytes } => {
                    self.answered(now, peer, link, (round_trip, bytes));
                }
                Event::Closed { peer, .. } => self.forget(now, peer),
                Event::Established { peer, identity, link } => {
                    tracing::debug!(?peer, %identity, ?link, "session established");
                    self.conversations.introduce_again(&mut self.routes, peer);
                    self.routes.open_again(&mut self.remotes, now, peer);
                    self.rendezvous.relay_is_back(peer);
                }
                Event::Moved { peer, link } => tracing::debug!(?peer, ?link, "neighbour moved"),
            }
        }
    }

    /// Seals and deposits a datagram that an application wrote to socket `at`.
    pub(crate) fn take_deposit(&mut self, now: Now, at: usize, payload: &[u8]) {
        self.rendezvous.take_deposit(&self.context, now, at, payload);
    }

    /// Returns the current refusals by others.
    pub(crate) fn report_refusals(&self, now: Now) -> Vec<RefusalStatus> {
        self.refusals.report(&self.context, now)
    }

    /// Returns the status of the relays and endpoints that this node knows.
    pub(crate) fn report_members(&self) -> (Vec<RelayStatus>, Vec<EndpointStatus>) {
        self.neighbours.members.report()
    }

    /// Flushes all send queues.
    pub(crate) fn flush(&mut self) {
        self.context.sockets.flush();
        self.flush_local();
    }

    /// Does the periodic work.
    pub(crate) fn tick(&mut self, now: Now) {
        self.context.sessions.handle_timeout(now);
        self.forwarding.maintain(&mut self.context, now);
        self.maintain_legs(now);
        if now.steady >= self.next_ping {
            self.next_ping = now.steady + PING_INTERVAL;
            self.maintain_members(now);
            self.maintain_several(now);
            self.ping_all(now);
            self.serving.maintain(&self.context, now);
        }
        self.time_out(now);
        self.remotes.maintain_mtus(&mut self.context, now);
        let paths = (&mut self.forwarding, &mut self.remotes);
        self.routes.maintain(&mut self.context, paths, now);
        self.report_open();
        self.gates().update(now);
        self.maintain_ends(now);
        self.maintain_groups(now);
        self.maintain_conversations(now);
        self.fragments.maintain(&self.context, now);
        self.conversations.marks.expire(now.steady);
        self.rendezvous.maintain(&mut self.context, &self.neighbours.members, now);
        let drops = self.context.sessions.drops();
        let duplicates = drops[DropReason::Replayed as usize];
        let twice = duplicates + self.rendezvous.replayed;
        self.context.counts.duplicates.store(twice, std::sync::atomic::Ordering::Relaxed);
        let others: u64 = drops.iter().sum::<u64>() - duplicates;
        add(&self.context.counts.dropped, others - self.drops_counted);
        self.drops_counted = others;
    }

    /// Pings every neighbour, over each path that leads to it.
    fn ping_all(&mut self, now: Now) {
        let idle = self.idle_neighbours();
        for peer in self.neighbours.legs.peers().filter(|peer| !idle.contains(peer)) {
            self.context.ping(now, peer);
        }
        let tunnelled_fars = self.conversations.tunnelled_fars();
        for (peer, remote) in self.remotes.all() {
            if let Some(label) = remote.label {
                self.context.sessions.ping(now, *peer, Link::Overlay(label));
            }
            // Those that this node connects to are among the legs.
            if !self.context.sessions.is_ours(*peer)
                && (self.services.ends.has(*peer) || tunnelled_fars.contains(peer))
            {
                self.context.ping(now, *peer);
            }
        }
    }

    /// Returns the earliest deadline before the next tick.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        [self.services.due(), self.serving.due()].into_iter().flatten().min()
    }

    fn reporter(&self) -> Reporter<'_> {
        let Self { context, forwarding, remotes, routes, services, .. } = self;
        Reporter { context, forwarding, remotes, routes, ends: &services.ends }
    }

    /// Returns the gates of all interceptions.
    pub(crate) fn all_gates(&self) -> Vec<Arc<Gate>> {
        self.gates().all().cloned().collect()
    }

    fn gates(&self) -> Gates<'_> {
        let Self { routes, remotes, services, conversations, tunnel, .. } = self;
        Gates { routes, remotes, ends: &services.ends, conversations, tunnel: tunnel.as_ref() }
    }

    fn rules(&self) -> Rules<'_> {
        let Self { context, tunnel, listeners, .. } = self;
        Rules { context, tunnel: tunnel.as_ref(), listeners }
    }

    /// Returns the status of the flows that begin or end here.
    pub(crate) fn report(&self, now: Now) -> Vec<FlowStatus> {
        let reporter = self.reporter();
        let accepted = self.accepted.values().filter_map(|id| self.conversations.inbound.get(*id));
        let mut flows = reporter.flows(now, accepted);
        flows.extend(self.rendezvous.report());
        flows
    }

    /// Drops the paths and flows of a neighbour that is gone.
    fn forget(&mut self, now: Now, peer: PeerId) {
        self.refusals.forget(peer);
        let gone = self.conversations.inbound_of(peer);
        gone.into_iter().for_each(|id| self.drop_inbound(now, id, Outcome::Gone));
        self.remotes.remove(&peer);
        self.forwarding.labels.drop_all_of(peer);
    }
}
