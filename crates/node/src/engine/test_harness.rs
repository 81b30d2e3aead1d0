//! Engines on loopback whose clock a test advances, and which receive datagrams when it says so.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tradewind_config::packet::{Assumed, DeliveryPolicy};
use tradewind_grant::{
    Destination, Grant, Hop, IdentityKey, Nonce, OperatorKey, Policy, Relays, Request, Route,
    Sealer, SignedGrant,
};
use tradewind_net::entropy;
use tradewind_net::udp::{ReceiveBatch, UdpOptions, UdpPort};
use tradewind_packet::message::{Carriage, Message, Service};
use tradewind_packet::sender::Paths;
use tradewind_packet::session::{Now, PeerId};
use tradewind_units::{Duration, FlowId, Timestamp};

use super::{Engine, now};
use crate::config::NodeConfig;
use crate::counts::Counts;
use crate::flow::Flow;
use crate::handover::Handover;
use crate::mailbox::{Command, CommandQueue, Mailbox, MailboxGuard};
use crate::shared::Shared;
use crate::ticks::TICK;

pub(super) fn identity(number: u8) -> IdentityKey {
    IdentityKey::from_entropy([number; 32])
}

pub(super) fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// Returns an address for applications that packets are delivered to: apart from engines, which are
/// no destinations.
pub(super) fn application() -> SocketAddr {
    ([127, 0, 0, 2], 0).into()
}

fn operator() -> OperatorKey {
    OperatorKey::from_entropy([99; 32])
}

/// Returns a grant for a day, for all of loopback.
fn grant(gateway: &IdentityKey) -> SignedGrant {
    grant_for(gateway, Duration::from_secs(86_400))
}

/// Returns the same for another span.
fn grant_for(gateway: &IdentityKey, span: Duration) -> SignedGrant {
    let now = now().unix;
    let grant = Grant {
        gateway: gateway.public(),
        not_before: Timestamp::ZERO,
        expires: now + span,
        sessions: None,
        extensions: tradewind_grant::Extensions::default(),
        relays: Relays::Any,
        destinations: vec!["127.0.0.0/8:*".parse().unwrap()],
    };
    grant.sign(&operator()).unwrap()
}

/// Returns a relay or endpoint that accepts everyone with a grant and the relays 2 and 3, and
/// delivers on loopback.
pub(super) fn anybody(number: u8) -> NodeConfig {
    let policy = Policy {
        destinations: vec!["127.0.0.0/8:*".parse().unwrap()],
        next_hops: ["127.0.0.1/32:*", "127.9.9.9/32:*"].map(|rule| rule.parse().unwrap()).into(),
        allow_loopback: true,
        ..Policy::default()
    };
    let relays = [2, 3].map(|number| identity(number).public());
    let operators = vec![operator().public()];
    NodeConfig {
        policy,
        ..NodeConfig::of_listener(loopback(), identity(number), operators, relays)
    }
}

/// Returns the same with a grant of its own.
pub(super) fn gateway(number: u8) -> NodeConfig {
    NodeConfig { grant: Some(grant(&identity(number))), ..anybody(number) }
}

/// Returns a policy that forwards to `remote` over the overlay alone.
pub(super) fn forwarded(remote: Hop, relays: Vec<Hop>) -> DeliveryPolicy {
    let carriage = Carriage {
        service: Service::Forwarding,
        paths: Paths::Overlay,
        budget_ms: 0,
        in_order: false,
        fragment: false,
    };
    let (remote, relays) = (remote.into(), relays.into());
    DeliveryPolicy {
        remote,
        relays,
        carriage,
        max_loss: None,
        copies: None,
        assumed: Assumed::default(),
    }
}

/// Some engines, by number, with one clock.
pub(super) struct Hosts {
    pub(super) now: Now,
    engines: Vec<(u8, Engine)>,
    batch: ReceiveBatch,
    lossy: Option<Lossy>,
    /// Bytes received from each engine, with the headers of UDP and IPv4.
    received: BTreeMap<SocketAddr, u64>,
}

/// A link that loses packets of applications: one of `each`, and all that are too long.
struct Lossy {
    from: SocketAddr,
    to: u8,
    each: u64,
    passed: u64,
    longest: usize,
}

/// Least bytes of a datagram that can be lost: no control message of engines is so long, except
/// size probes.
const LOST_FROM_BYTES: usize = 500;

impl Lossy {
    fn loses(&mut self, bytes: usize) -> bool {
        if bytes > self.longest {
            return true;
        }
        if bytes < LOST_FROM_BYTES {
            return false;
        }
        self.passed += 1;
        self.passed.is_multiple_of(self.each)
    }
}

impl Hosts {
    pub(super) fn new(configs: impl IntoIterator<Item = (u8, NodeConfig)>) -> Self {
        let (engines, batch) = (Vec::new(), ReceiveBatch::new(32));
        let received = BTreeMap::new();
        let mut hosts = Self { now: now(), engines, batch, lossy: None, received };
        configs.into_iter().for_each(|(number, config)| hosts.add(number, config));
        // No engine accepts messages from before it existed.
        hosts.now = now();
        hosts.pass(TICK);
        hosts
    }

    fn add(&mut self, number: u8, config: NodeConfig) {
        let port = UdpPort::bind(config.listen, &UdpOptions::default()).unwrap();
        let commands = Arc::new(CommandQueue::new().unwrap());
        let counts = Arc::new(Counts::default());
        let (config, around) = (Arc::new(config), (commands, Shared::default()));
        let mut engine =
            Engine::new(config, port, counts, around, &mut Handover::default()).unwrap();
        engine.begin(now());
        self.engines.push((number, engine));
    }

    pub(super) fn at(&mut self, number: u8) -> &mut Engine {
        let found = self.engines.iter_mut().find(|(known, _)| *known == number);
        found.map(|(_, engine)| engine).unwrap()
    }

    pub(super) fn hop(&mut self, number: u8) -> Hop {
        let address = self.at(number).context.sockets.shared.port.address();
        Hop { address, identity: identity(number).public() }
    }

    /// Returns the bytes that an engine has sent to others, with all headers.
    pub(super) fn bytes_sent_by(&mut self, number: u8) -> u64 {
        let address = self.hop(number).address;
        self.received.get(&address).copied().unwrap_or(0)
    }

    /// Advances the clock, tick by tick.
    pub(super) fn pass(&mut self, span: Duration) {
        let end = self.now.steady + span;
        while self.now.steady < end {
            (self.now.steady, self.now.unix) = (self.now.steady + TICK, self.now.unix + TICK);
            for (_, engine) in &mut self.engines {
                engine.tick(self.now);
                engine.dispatch(self.now);
                engine.flush();
            }
            self.exchange();
        }
    }

    /// Loses one of `each` packets of applications that go directly from one engine to another.
    pub(super) fn lose_each(&mut self, from: u8, to: u8, each: u64) {
        let from = self.hop(from).address;
        self.lossy = Some(Lossy { from, to, each, passed: 0, longest: usize::MAX });
    }

    /// Loses longer packets that go directly from one engine to another.
    pub(super) fn take_no_longer(&mut self, from: u8, to: u8, longest: usize) {
        let from = self.hop(from).address;
        self.lossy = Some(Lossy { from, to, each: u64::MAX, passed: 0, longest });
    }

    /// Has all engines receive until nothing is in flight.
    pub(super) fn exchange(&mut self) {
        let mut is_quiet = false;
        while !std::mem::replace(&mut is_quiet, true) {
            for (number, engine) in &mut self.engines {
                engine.dispatch(self.now);
                engine.flush();
                while self.batch.receive(&engine.context.sockets.shared.port).unwrap() > 0 {
                    is_quiet = false;
                    let (now, number, lossy) = (self.now, *number, &mut self.lossy);
                    let received = &mut self.received;
                    self.batch.for_each_train(|arrival, train| {
                        let from = arrival.from;
                        let bytes = train.bytes().len() + 28 * train.count();
                        *received.entry(from).or_default() += bytes as u64;
                        let way = lossy.as_mut().filter(|way| (way.from, way.to) == (from, number));
                        let Some(way) = way else {
                            return engine.take_train(now, from.into(), train);
                        };
                        let segment = train.segment();
                        for datagram in train.bytes().chunks_mut(segment) {
                            if !way.loses(datagram.len()) {
                                engine.take(now, from.into(), datagram);
                            }
                        }
                    });
                    engine.dispatch(now);
                    engine.flush();
                }
            }
        }
    }

    /// Has an engine begin a leg and open a session over it.
    pub(super) fn connect(&mut self, from: u8, to: u8) -> PeerId {
        let (hop, now) = (self.hop(to), self.now);
        let engine = self.at(from);
        let peer = engine.neighbours.leg_to(&mut engine.context, now, hop).unwrap();
        self.exchange();
        assert!(self.at(from).context.sessions.is_open(peer));
        peer
    }

    /// Has a gateway open a path over a neighbour, ignoring the limits that gateways keep.
    pub(super) fn open(&mut self, from: u8, first: PeerId, hops: Vec<Hop>) {
        let mut sealer = self.at(from).routes.sealer.take().unwrap();
        self.open_by(&mut sealer, from, first, hops);
        self.at(from).routes.sealer = Some(sealer);
    }

    /// Does the same under a new grant, another one for each `number`.
    pub(super) fn open_by_new_grant(&mut self, from: u8, first: PeerId, hop: Hop, number: u32) {
        let key = identity(from);
        let grant = grant_for(&key, Duration::from_secs(90_000 + u64::from(number)));
        let mut sealer = Sealer::new(key, grant).unwrap();
        self.open_by(&mut sealer, from, first, vec![hop]);
    }

    fn open_by(&mut self, sealer: &mut Sealer, from: u8, first: PeerId, hops: Vec<Hop>) {
        let now = self.now;
        let engine = self.at(from);
        let (flow, route) = (FlowId::new("any").unwrap(), Route::new(hops).unwrap());
        let destination = Destination::Address(([127, 0, 0, 2], 9).into());
        let request = Request { flow: &flow, destination: &destination, route: &route };
        let nonce = Nonce::from_entropy(entropy::bytes().unwrap());
        let sealed = sealer.seal(now.unix, nonce, &request).unwrap();
        let label = engine.forwarding.labels.open(now.steady, first).unwrap();
        engine.context.send_message(first, &Message::Open { label, header: &sealed.bytes });
    }

    /// Registers a program's flow at an engine and returns its number.
    pub(super) fn register(&mut self, number: u8, delivery: DeliveryPolicy) -> u64 {
        let (flow, to) = (Flow::next_number(), ([127, 0, 0, 2], 9).into());
        let mailbox = MailboxGuard(Arc::new(Mailbox::new().unwrap()));
        let delivery = Box::new(delivery);
        self.send_command(number, Command::Register { flow, client: None, to, delivery, mailbox });
        flow
    }

    pub(super) fn send_command(&mut self, number: u8, command: Command) {
        let now = self.now;
        let engine = self.at(number);
        engine.commands.send(command);
        engine.handle_orders(now);
        self.exchange();
    }
}
