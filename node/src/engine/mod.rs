//! One worker's state: sessions, overlay paths, flows. It does no input by itself: the worker hands datagrams in.

mod flows;
mod paths;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tradewind_grant::{PublicIdentity, Sealer, Verifier};
use tradewind_net::udp::{SendBatch, UdpOptions, UdpPort};
use tradewind_net::{clock, entropy};
use tradewind_packet::session::{
    DropReason, Event, HEADER_BYTES, Limits, Link, Now, OVERHEAD, Opened, PeerId, Sessions,
    SessionsConfig, TAG_BYTES, Table,
};
use tradewind_units::{Duration, Timestamp};

use crate::NodeError;
use crate::config::NodeConfig;
use crate::counts::{Counts, add};
use crate::message::{Message, PACKET, PACKET_HEADER, packet};

use flows::{Far, Inbound, Outbound, Route};
use paths::Label;

/// Time between two looks at what is due.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// Time between two questions to a neighbour, whether it is there. Chosen: three are lost within the second in which a dead relay
/// must be told.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// Silence after which a way counts as dead. Chosen: three questions.
const DEAD_AFTER: Duration = Duration::from_millis(600);
/// Labels of one worker. Chosen: two for each path through it.
const LABELS: usize = 1 << 15;
/// Trains that are gathered before they leave.
const GROUPS: usize = 64;

pub(crate) struct Engine {
    config: Arc<NodeConfig>,
    counts: Arc<Counts>,
    sockets: Sockets,
    sessions: Sessions,
    verifier: Verifier,
    sealer: Option<Sealer>,
    labels: Table<Label>,
    /// My label of what a neighbour opened under its own.
    opened: BTreeMap<(PeerId, u32), u32>,
    legs: BTreeMap<(PublicIdentity, SocketAddr), PeerId>,
    fars: BTreeMap<PeerId, Far>,
    pub(crate) routes: Vec<Route>,
    outbound: Table<Outbound>,
    pub(crate) inbound: Table<Inbound>,
    inbound_ids: BTreeMap<(PeerId, u32), u32>,
    /// Local ports that are to be watched.
    pub(crate) fresh: Vec<u32>,
    scratch: Vec<u8>,
    next_ask: Timestamp,
    /// Datagrams that sessions dropped and that are counted already.
    drops_counted: u64,
    salt: u16,
}

/// A socket towards neighbours and what waits to leave through it.
pub(crate) struct Outlet {
    pub(crate) port: UdpPort,
    out: SendBatch,
}

/// Who connects to this worker comes through the shared address, where the kernel chose the worker; who this worker
/// connects to must answer to it alone, so with several workers that takes a socket of its own.
struct Sockets {
    shared: Outlet,
    own: Option<Outlet>,
    counts: Arc<Counts>,
}

impl Sockets {
    /// Room for a datagram of `length` bytes.
    fn room(&mut self, is_ours: bool, to: SocketAddr, length: usize) -> Option<&mut [u8]> {
        let outlet = match &mut self.own {
            Some(own) if is_ours => own,
            _ => &mut self.shared,
        };
        if outlet.out.is_full_for(to, length) {
            outlet.send(&self.counts);
        }
        outlet.out.push(to, length)
    }

    fn flush(&mut self) {
        self.shared.send(&self.counts);
        if let Some(own) = &mut self.own {
            own.send(&self.counts);
        }
    }
}

impl Outlet {
    fn new(port: UdpPort) -> Self {
        Self { port, out: SendBatch::new(GROUPS) }
    }

    fn send(&mut self, counts: &Counts) {
        if self.out.is_empty() {
            return;
        }
        let outcome = self.out.flush(&self.port);
        add(&counts.sent, outcome.sent);
        add(&counts.unsent, outcome.full + outcome.too_long + outcome.refused);
    }
}

/// The time by both clocks.
pub(crate) fn now() -> Now {
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let unix = Timestamp::ZERO + unix.unwrap_or_default();
    Now { steady: clock::monotonic(), unix }
}

impl Engine {
    pub(crate) fn new(
        config: Arc<NodeConfig>,
        port: UdpPort,
        counts: Arc<Counts>,
    ) -> Result<Self, NodeError> {
        let now = now();
        let own = match config.workers {
            1 => None,
            _ => {
                let any = SocketAddr::new(config.listen.ip(), 0);
                Some(Outlet::new(UdpPort::bind(any, &UdpOptions::default())?))
            }
        };
        let sockets = Sockets { shared: Outlet::new(port), own, counts: Arc::clone(&counts) };
        let sessions = Sessions::new(
            SessionsConfig {
                identity: config.identity.clone(),
                operators: config.operators.clone(),
                neighbours: config.neighbours.clone(),
                limits: Limits::default(),
            },
            now,
            entropy::bytes::<32>()?,
        );
        let mut verifier = Verifier::new(config.identity.clone(), config.operators.clone());
        verifier.refuse_issued_before(now.unix);
        let sealer = match &config.grant {
            None => None,
            Some(grant) => {
                let refused =
                    |error| NodeError::Config { key: "grant", problem: format!("{error}") };
                Some(Sealer::new(config.identity.clone(), grant.clone()).map_err(refused)?)
            }
        };
        let mut engine = Self {
            counts,
            sockets,
            sessions,
            verifier,
            sealer,
            labels: Table::new(LABELS),
            opened: BTreeMap::new(),
            legs: BTreeMap::new(),
            fars: BTreeMap::new(),
            routes: Vec::new(),
            outbound: Table::new(flows::FLOWS),
            inbound: Table::new(flows::FLOWS),
            inbound_ids: BTreeMap::new(),
            fresh: Vec::new(),
            scratch: vec![0; 1 << 16],
            next_ask: Timestamp::ZERO,
            drops_counted: 0,
            salt: 0,
            config: Arc::clone(&config),
        };
        for path in &config.paths {
            engine.add_route(now, path)?;
        }
        engine.dispatch(now);
        engine.flush();
        Ok(engine)
    }

    /// Takes a datagram of a neighbour.
    pub(crate) fn take(&mut self, now: Now, from: SocketAddr, datagram: &mut [u8]) {
        add(&self.counts.received, 1);
        let link = Link::Internet(from);
        let Some(Opened { peer, payload }) = self.sessions.handle_datagram(now, link, datagram)
        else {
            return;
        };
        let payload = &mut datagram[payload];
        match packet(payload) {
            Some((label, body)) => self.take_packet(now, peer, label, body),
            None => self.obey(now, peer, payload),
        }
    }

    /// Takes a message of a neighbour or far endpoint.
    fn obey(&mut self, now: Now, peer: PeerId, payload: &[u8]) {
        match Message::parse(payload) {
            Some(Message::Open { theirs, header }) => self.open_path(now, peer, theirs, header),
            Some(Message::Opened { mine, theirs }) => self.path_opened(now, peer, mine, theirs),
            Some(Message::Datagram { flow, payload }) => self.deliver(now, peer, flow, payload),
            Some(Message::First { flow, ways, to, payload }) => {
                self.deliver_first(now, peer, (flow, ways, to), payload);
            }
            Some(Message::Known { flow }) => self.flow_known(peer, flow),
            None => add(&self.counts.dropped, 1),
        }
    }

    /// The sockets towards neighbours: the shared one, and perhaps one of this worker's own.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &UdpPort> {
        [Some(&self.sockets.shared), self.sockets.own.as_ref()]
            .into_iter()
            .flatten()
            .map(|o| &o.port)
    }

    /// Seals a message for a neighbour.
    fn say(&mut self, peer: PeerId, message: &Message<'_>) {
        if let Some(room) = Self::room(&mut self.sockets, &self.sessions, peer, message.len()) {
            message.put(&mut room[HEADER_BYTES..]);
            // The session was open a moment ago.
            let _ = self.sessions.seal(peer, room);
        }
    }

    /// Seals a datagram for the neighbour that passes it on under `label`.
    fn pass(&mut self, peer: PeerId, label: u32, body: &[u8]) -> bool {
        let length = PACKET_HEADER + body.len();
        let room = Self::room(&mut self.sockets, &self.sessions, peer, length);
        let Some(room) = room else { return false };
        let payload = &mut room[HEADER_BYTES..];
        payload[0] = PACKET;
        payload[1..PACKET_HEADER].copy_from_slice(&label.to_be_bytes());
        payload[PACKET_HEADER..length].copy_from_slice(body);
        self.sessions.seal(peer, room).is_ok()
    }

    /// Room for a sealed payload of `length` bytes, if a session is open.
    fn room<'a>(
        sockets: &'a mut Sockets,
        sessions: &Sessions,
        peer: PeerId,
        length: usize,
    ) -> Option<&'a mut [u8]> {
        let Some(Link::Internet(to)) = sessions.link_of(peer) else { return None };
        if !sessions.is_open(peer) {
            return None;
        }
        sockets.room(sessions.is_ours(peer), to, length + OVERHEAD)
    }

    /// Hands over what the sessions want to be sent, and takes note of what happened to them.
    pub(crate) fn dispatch(&mut self, now: Now) {
        while let Some(transmit) = self.sessions.poll_transmit() {
            match transmit.link {
                Link::Internet(to) => {
                    let length = transmit.bytes.len();
                    if let Some(room) = self.sockets.room(transmit.is_ours, to, length) {
                        room.copy_from_slice(&transmit.bytes);
                    }
                }
                Link::Overlay(label) => {
                    self.send_over(label, &transmit.bytes);
                }
            }
        }
        while let Some(event) = self.sessions.poll_event() {
            match event {
                Event::Answered { peer, link, .. } => self.answered(now, peer, link),
                Event::Closed { peer, .. } => self.forget(peer),
                Event::Established { peer, identity, link } => {
                    tracing::debug!(?peer, %identity, ?link, "session established");
                }
                Event::Moved { peer, link } => tracing::debug!(?peer, ?link, "neighbour moved"),
            }
        }
    }

    /// Sends all that waits.
    pub(crate) fn flush(&mut self) {
        self.sockets.flush();
        self.flush_local();
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Now) {
        self.sessions.handle_timeout(now);
        self.tend_labels(now);
        if now.steady >= self.next_ask {
            self.next_ask = now.steady + ASK_EVERY;
            self.ask_all(now);
        }
        self.tend_routes(now);
        self.tend_flows(now);
        let drops = self.sessions.drops();
        let duplicates = drops[DropReason::Replayed as usize];
        self.counts.duplicates.store(duplicates, std::sync::atomic::Ordering::Relaxed);
        let others: u64 = drops.iter().sum::<u64>() - duplicates;
        add(&self.counts.dropped, others - self.drops_counted);
        self.drops_counted = others;
    }

    /// Asks every neighbour whether it is there, over each way that leads to it.
    fn ask_all(&mut self, now: Now) {
        for peer in self.legs.values() {
            if let Some(link) = self.sessions.link_of(*peer) {
                self.sessions.ask(now, *peer, link);
            }
        }
        for (peer, far) in &self.fars {
            if let Some(label) = far.label {
                self.sessions.ask(now, *peer, Link::Overlay(label));
            }
        }
    }

    /// A neighbour that is gone takes its paths and flows along.
    fn forget(&mut self, peer: PeerId) {
        self.fars.remove(&peer);
        let gone: Vec<u32> =
            self.inbound_ids.range((peer, 0)..=(peer, u32::MAX)).map(|(_, id)| *id).collect();
        gone.into_iter().for_each(|id| self.drop_inbound(id));
        self.drop_labels_of(peer);
    }

    fn next_salt(&mut self) -> u16 {
        self.salt = self.salt.wrapping_add(1);
        self.salt
    }
}

/// What sealing a payload of `length` bytes end to end makes of it.
const fn sealed_length(length: usize) -> usize {
    HEADER_BYTES + length + TAG_BYTES
}
