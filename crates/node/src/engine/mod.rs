//! One worker's state: sessions, overlay paths, conversations. It reads no sockets itself: the
//! worker passes datagrams in.

mod access;
mod accounting;
#[cfg(test)]
mod allocations;
mod arrivals;
mod context;
mod conversations;
mod ends;
mod flows;
mod forwarding;
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

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use tradewind_grant::PublicIdentity;
use tradewind_net::clock;
use tradewind_net::udp::{Train, UdpPort};
use tradewind_packet::event::Arrival;
use tradewind_packet::id::{FlowNumber, Peer};
use tradewind_packet::message::{Carriage, Class, Message, Refusal, path_packet};
use tradewind_packet::sender::Copies;
use tradewind_packet::session::{
    AddressPair, DropReason, Event, Link, Now, OVERHEAD, Opened, PASSED_BYTES, PeerId, Run, Table,
};
use tradewind_telemetry::LogLimit;
use tradewind_units::{Duration, SharedRate, Timestamp};

use crate::NodeError;
use crate::config::NodeConfig;
use crate::counts::{Counts, add};
use crate::handover::Handover;
use crate::listener::QueueGuard;
use crate::mailbox::{CommandQueue, Outgoing};
use crate::membership::Members;
use crate::record::Outcome;
use crate::shared::Shared;
use crate::status::{EndpointStatus, FlowStatus, RefusalStatus, RelayStatus};

use access::Access;
use context::Context;
use conversations::{Inbound, Outbound, Released};
use ends::{Carrier, Choice};
use forwarding::{Forwarding, Passed};
use long::Fragments;
use marks::Marks;
use neighbours::{Former, Neighbours};
use paths::Paths;
use refusals::{Refusals, Refused};
use remotes::Remotes;
use rendezvous::Rendezvous;
use reports::Reporter;
use routes::{Part, Route, Routes};
use services::Services;
use serving::{AskedFor, Serving};
use setup::{identities, sealer, sessions, sockets, trust, verifier};
pub(crate) use tunnel::MOST_PACKET;
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
    /// A datagram of a remote endpoint before it was opened; empty where no end needs it.
    original: Vec<u8>,
    services: Services,
    serving: Serving,
    /// Set when ends may have lost their last conversation.
    ends_are_due: bool,
    next_ping: Timestamp,
    /// Limit of records of conversations, by gateway.
    records: LogLimit<Option<PublicIdentity>>,
    /// Rate limit of ICMP errors, by receiver.
    errors: SharedRate<IpAddr>,
    refusals: Refusals,
    fragments: Fragments,
    /// Congestion marks that conversations are owed.
    marks: Marks,
    /// Datagrams dropped by sessions that are counted already.
    drops_counted: u64,
    salt: u16,
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
            outbound: Table::new(conversations::MOST),
            inbound: Table::new(conversations::MOST),
            inbound_ids: BTreeMap::new(),
            unflushed: Vec::new(),
            released: Released::default(),
            by_preserved_source: BTreeMap::new(),
            tunnel: tunnel.transpose()?,
            fresh: Vec::new(),
            original: Vec::new(),
            services,
            serving,
            ends_are_due: false,
            next_ping: Timestamp::ZERO,
            records: records::limit(),
            errors: SharedRate::new(ERRORS_A_SECOND, Duration::from_secs(1)),
            refusals: Refusals::default(),
            fragments: Fragments::default(),
            marks: Marks::default(),
            drops_counted: 0,
            salt: 0,
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
            Ok(message @ Message::Feedback(report)) => match self.routes.group_of(report.flow) {
                Some(group) => group.note_report(peer, &report),
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
                    self.introduce_again(peer);
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
        self.update_gates(now);
        self.maintain_ends(now);
        self.maintain_groups(now);
        self.maintain_conversations(now);
        self.fragments.maintain(&self.context, now);
        self.marks.expire(now.steady);
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
        let tunnelled_fars = self.tunnelled_fars();
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

    /// Returns the neighbours that need not be pinged now.
    fn idle_neighbours(&self) -> Vec<PeerId> {
        let carries = |peer| self.routes.go_over(peer);
        let is_idle = |peer: &PeerId| {
            let is_of_rendezvous = self.rendezvous.is_with(*peer);
            self.neighbours.is_idle(*peer, is_of_rendezvous, carries)
        };
        self.neighbours.legs.peers().filter(is_idle).collect()
    }

    /// Moves sessions to better addresses.
    fn maintain_several(&mut self, now: Now) {
        let idle = self.idle_neighbours();
        let moved = self.neighbours.several.note_pings(&mut self.context, now, &idle);
        for (peer, round_trip) in moved {
            if let Some(remote) = self.remotes.get_mut(&peer) {
                remote.is_elsewhere(now, round_trip);
            }
            self.neighbours.legs.set_round_trip(peer, round_trip);
        }
    }

    /// Replaces the members.
    fn set_members(&mut self, now: Now, members: Members) {
        let Former { registry, relays } =
            self.neighbours.set_members(&mut self.context, now, members);
        registry.into_iter().for_each(|gone| self.leave_leg(now, gone));
        self.update_all_routes(now);
        relays.into_iter().for_each(|gone| self.leave_leg(now, gone));
    }

    /// Measures relays, has routes follow the results, and looks up the endpoints that they lead
    /// to.
    fn maintain_members(&mut self, now: Now) {
        let Self { context, neighbours, routes, remotes, .. } = self;
        let is_there = |route: &Route| {
            remotes.get(&route.remote).is_some_and(|remote| remote.is_there(now))
                || matches!(route.part, Part::Head(_))
        };
        let lead = routes.values().map(|route| (&route.delivery, is_there(route)));
        neighbours.members.maintain_registration(context, now, lead);
        if neighbours.members.maintain(now, |peer| routes.go_over(peer)) {
            self.update_all_routes(now);
        }
    }

    /// Handles a message between endpoints and the registry.
    fn take_membership(&mut self, now: Now, from: PeerId, message: Message<'_>) {
        let Self { context, neighbours, routes, .. } = self;
        let asked = routes.values().map(|route| &route.delivery);
        if neighbours.members.handle_message(context, now, (from, message), asked) {
            self.update_all_routes(now);
        }
    }

    /// Ends a leg now, if nothing needs it any more.
    fn leave_leg(&mut self, now: Now, peer: PeerId) {
        let is_needed = self.is_retained_near(peer) || self.needed().any(|needed| needed == peer);
        if !is_needed && self.neighbours.legs.has(peer) {
            self.end_leg(now, peer);
        }
    }

    /// Ends legs that nothing has needed for a while.
    fn maintain_legs(&mut self, now: Now) {
        if !self.neighbours.legs.is_check_due(now) {
            return;
        }
        let mut needed: BTreeSet<PeerId> = self.needed().collect();
        needed.extend(self.neighbours.legs.peers().filter(|peer| self.is_retained_near(*peer)));
        let gone = self.neighbours.legs.check(&self.context, now, &needed);
        gone.into_iter().for_each(|peer| self.end_leg(now, peer));
    }

    /// Returns whether this node keeps a session with a relay for its own measurements, registry or
    /// rendezvous.
    fn is_retained_near(&self, peer: PeerId) -> bool {
        self.neighbours.has(peer) || self.rendezvous.is_with(peer)
    }

    /// Returns the neighbours of routes, paths, flows and conversations.
    fn needed(&self) -> impl Iterator<Item = PeerId> {
        let of_routes = self.routes.neighbours();
        let of_paths = self.forwarding.labels.neighbours();
        let of_flows = self.serving.neighbours();
        let of_conversations = self.inbound_ids.keys().map(|(remote, _)| *remote);
        of_routes.chain(of_paths).chain(of_flows).chain(of_conversations)
    }

    fn end_leg(&mut self, now: Now, peer: PeerId) {
        // The path to it that this node has opened needs a leg, too.
        if let Some(label) = self.remotes.get(&peer).and_then(|remote| remote.label) {
            self.forwarding.labels.drop_label(label);
        }
        self.neighbours.legs.end(&mut self.context, peer);
        self.forget(now, peer);
    }

    /// Returns the earliest deadline before the next tick.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        [self.services.due(), self.serving.due()].into_iter().flatten().min()
    }

    fn maintain_ends(&mut self, now: Now) {
        let Self { context, forwarding, remotes, services, neighbours, .. } = self;
        let paths = &mut Paths { context, forwarding, remotes };
        services.maintain_ends(paths, &neighbours.legs, now);
    }

    /// Begins an end and returns its outgoing flow.
    fn new_end(
        &mut self,
        now: Now,
        carried: (PeerId, Carriage, Copies, Carrier),
        choice: Choice,
    ) -> Option<FlowNumber> {
        let Self { context, forwarding, remotes, services, neighbours, .. } = self;
        let around = (&mut Paths { context, forwarding, remotes }, &neighbours.legs);
        services.new_end(around, now, carried, choice)
    }

    /// Sends a message of a conversation over the paths that this wants. Returns its bytes, `None`
    /// when it could not be sealed.
    fn send_remote(
        &mut self,
        now: Now,
        peer: PeerId,
        carriage: Carriage,
        message: &Message<'_>,
    ) -> Option<usize> {
        let Self { context, forwarding, remotes, services, .. } = self;
        let mut paths = Paths { context, forwarding, remotes };
        paths.send_remote((now, &mut services.sender), peer, carriage, message)
    }

    /// Sends a message that is no application's to a remote endpoint over both paths.
    fn send_to_remote(&mut self, now: Now, remote: PeerId, message: &Message<'_>) {
        let Self { context, forwarding, remotes, services, .. } = self;
        let mut paths = Paths { context, forwarding, remotes };
        paths.send_to_both((now, &mut services.sender), remote, message);
    }

    /// Numbers a message of a conversation, and sends it with the service of its flow.
    fn send_numbered(&mut self, now: Now, flow: (FlowNumber, Class), message: &Message<'_>) {
        let Self { context, forwarding, remotes, services, .. } = self;
        services.send_numbered(&mut Paths { context, forwarding, remotes }, now, flow, message);
    }

    /// Sends a datagram in fragments, if it has to be fragmented and may be; `false` when it is to
    /// go whole.
    fn send_cut(
        &mut self,
        now: Now,
        conversation: (PeerId, u32, Carriage),
        flow: (Option<FlowNumber>, Class),
        payload: &[u8],
    ) -> bool {
        let Self { context, forwarding, remotes, services, fragments, .. } = self;
        let paths = &mut Paths { context, forwarding, remotes };
        fragments.send((paths, services), now, conversation, flow, payload)
    }

    /// Sends a datagram of an application to the members of a head's group.
    fn send_group(&mut self, now: Now, head: u32, conversation: (u32, Class), payload: &[u8]) {
        let Some(mut group) = self.routes.take_group(head) else { return };
        let Self { context, forwarding, remotes, services, fragments, routes, .. } = self;
        let paths = &mut Paths { context, forwarding, remotes };
        group.send((paths, services, fragments), routes, now, conversation, payload);
        self.routes.put_group(head, group);
    }

    /// Has groups follow their members and paths.
    fn maintain_groups(&mut self, now: Now) {
        let Self { context, forwarding, remotes, services, routes, .. } = self;
        let paths = &mut Paths { context, forwarding, remotes };
        for head in routes.head_ids().collect::<Vec<_>>() {
            let Some(mut group) = routes.take_group(head) else { continue };
            group.maintain((paths, services), routes, now);
            routes.put_group(head, group);
        }
    }

    /// Returns the status of the flows that begin or end here.
    pub(crate) fn report(&self, now: Now) -> Vec<FlowStatus> {
        let Self { context, forwarding, remotes, routes, services, .. } = self;
        let reporter = Reporter { context, forwarding, remotes, routes, ends: &services.ends };
        let accepted = self.accepted.values().filter_map(|id| self.inbound.get(*id));
        let mut flows = reporter.flows(now, accepted);
        flows.extend(self.rendezvous.report());
        flows
    }

    /// Drops the paths and flows of a neighbour that is gone.
    fn forget(&mut self, now: Now, peer: PeerId) {
        self.refusals.forget(peer);
        let gone: Vec<u32> =
            self.inbound_ids.range((peer, 0)..=(peer, u32::MAX)).map(|(_, id)| *id).collect();
        gone.into_iter().for_each(|id| self.drop_inbound(now, id, Outcome::Gone));
        self.remotes.remove(&peer);
        self.forwarding.labels.drop_all_of(peer);
    }

    fn next_salt(&mut self) -> u16 {
        self.salt = self.salt.wrapping_add(1);
        self.salt
    }
}
