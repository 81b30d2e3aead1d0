//! A relay between gateways, and the packets that it handles per CPU time of its workers.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tradewind_net::udp::{UdpOptions, UdpPort};
use tradewind_node::counts::Snapshot;
use tradewind_node::{LegSeal, Node, NodeConfig};
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;

use crate::loops::Apart;
use crate::nodes::{RELAY, REMOTE, hop, near, plain};
use crate::straight::{self, HEAD, Sources};
use crate::traffic::{self, LoadPath, Traffic, application, port};
use crate::{Outcome, cpu};

/// The service that the relay provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carried {
    Forwarding,
    Caching,
    Coding,
}

impl Carried {
    /// Returns a gateway's settings for it.
    pub(crate) fn carriage(self) -> Carriage {
        let (service, paths) = match self {
            Self::Forwarding => (Service::Forwarding, Paths::Overlay),
            Self::Caching => (Service::Caching, Paths::Both),
            Self::Coding => (Service::Coding, Paths::Both),
        };
        Carriage { service, paths, budget_ms: 3000, in_order: false, fragment: false }
    }
}

/// The source and grouping of the packets that reach the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feed {
    /// In trains, made by one gateway.
    Gateway,
    /// The same, with whole packets sealed on each leg, not their headers alone.
    SealedWhole,
    /// From a load that sends to the relay directly.
    Straight,
    /// One by one, from one gateway.
    Apart,
    /// From two gateways, each served by a worker of its own.
    TwoGateways,
}

impl Feed {
    /// Returns the part of passed packets that gateway and relay seal on their legs.
    fn leg_seal(self) -> LegSeal {
        if self == Self::SealedWhole { LegSeal::Whole } else { LegSeal::Headers }
    }
}

/// Longest time until a path is open.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Most gateways that are tried until each worker has one: the kernel hashes addresses.
const MAX_TRIES: usize = 32;

/// A local gateway, and the loops between it and the relay, if any.
struct Gateway {
    /// Dropped before the loops that it sends through.
    node: Node,
    _apart: Option<Apart>,
}

/// The measured relay.
struct Relay {
    node: Node,
}

impl Relay {
    fn start(feed: Feed) -> anyhow::Result<Self> {
        let (workers, leg_seal) = (if feed == Feed::TwoGateways { 2 } else { 1 }, feed.leg_seal());
        let node = Node::start(NodeConfig { workers, leg_seal, ..plain(RELAY, &[]) })?;
        Ok(Self { node })
    }

    /// Returns the CPU time of each worker.
    fn times(&self) -> anyhow::Result<Vec<Duration>> {
        let (process, workers) = (std::process::id(), self.node.workers());
        workers.iter().map(|worker| cpu::of_thread(process, worker.thread)).collect()
    }

    /// Returns the worker that handles most of a gateway's packets.
    fn worker_of(&self, gateway: &Gateway) -> anyhow::Result<usize> {
        let before = self.node.workers();
        open(&gateway.node, &self.node)?;
        let after = self.node.workers();
        let carried_by_each = after.iter().zip(before);
        let carried_by_each =
            carried_by_each.map(|(after, before)| carried(after.counts) - carried(before.counts));
        let most = carried_by_each.enumerate().max_by_key(|(_, count)| *count);
        most.map(|(worker, _)| worker).context("a relay has workers")
    }

    /// Starts gateways until each worker has one.
    fn gateways(&self, carried: Carried, feed: Feed, ends: Ends) -> anyhow::Result<Vec<Gateway>> {
        let mut gateways: Vec<Option<Gateway>> = self.node.workers().iter().map(|_| None).collect();
        for number in (REMOTE + 1..).take(MAX_TRIES) {
            let gateway = start_gateway(number, carried, feed, (self.node.address(), ends))?;
            let worker = self.worker_of(&gateway)?;
            gateways[worker].get_or_insert(gateway);
            if gateways.iter().all(Option::is_some) {
                return Ok(gateways.into_iter().flatten().collect());
            }
        }
        bail!("{MAX_TRIES} gateways came to one worker");
    }
}

/// The addresses of the remote gateway, and of the application to which it delivers.
#[derive(Clone, Copy)]
struct Ends {
    remote: SocketAddr,
    end: SocketAddr,
}

/// Runs one round.
///
/// # Errors
/// When a node does not start, or no packets arrive.
pub(crate) fn run(
    (carried, feed): (Carried, Feed),
    traffic: Traffic,
    bytes: usize,
    span: Duration,
) -> anyhow::Result<Outcome> {
    let relay = Relay::start(feed)?;
    if feed == Feed::Straight {
        let end = port(UdpOptions::default());
        return run_straight(&relay, &end, traffic, bytes, span);
    }
    let end = application();
    let remote = Node::start(plain(REMOTE, &[RELAY]))?;
    let ends = Ends { remote: remote.address(), end: end.address() };
    let gateways = relay.gateways(carried, feed, ends)?;
    let listeners: Vec<SocketAddr> =
        gateways.iter().map(|gateway| gateway.node.local_addresses()[0]).collect();
    let now = |_| (relay.node.snapshot().received, relay.times());
    let path = LoadPath::straight(&listeners, &end);
    let (counted, arrived_a_second) = traffic::load(traffic, bytes, path, span, now);
    let [(before, cpu_before), (after, cpu_after)] = counted;
    let all = |times: Vec<Duration>| times.iter().sum::<Duration>();
    let cpu = (all(cpu_after?) - all(cpu_before?)).as_secs_f64();
    Ok(Outcome { arrived_a_second, handled_a_cpu_second: (after - before) as f64 / cpu })
}

/// Stops another thread when dropped, even by a panic.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs one round without gateways.
fn run_straight(
    relay: &Relay,
    end: &UdpPort,
    traffic: Traffic,
    bytes: usize,
    span: Duration,
) -> anyhow::Result<Outcome> {
    let (first_hop, nobody) = ([relay.node.address()], port(UdpOptions::default()));
    let hops = [hop(first_hop[0], RELAY), hop(end.address(), REMOTE)];
    let sources = Sources::default();
    let introduce = |port: &_| sources.open(port, hops).expect("the relay opens paths");
    let head = |port: &_, train: &mut [u8], segment| sources.head(port, train, segment);
    let path =
        LoadPath::straight(&first_hop, &nobody).introduced(&HEAD, &introduce).with_heads(&head);
    let (stop, arrived, begun) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    let now = |_| {
        let arrived = arrived.load(Ordering::Relaxed);
        (begun.elapsed(), relay.node.snapshot().forwarded, relay.times(), arrived)
    };
    let (counted, _) = std::thread::scope(|scope| {
        scope.spawn(|| straight::end(end, &arrived, &stop));
        let _stop = StopAtEnd(&stop);
        traffic::load(traffic, bytes, path, span, now)
    });
    let [(first, before, cpu_before, arrived_before), (last, after, cpu_after, arrived_after)] =
        counted;
    let all = |times: Vec<Duration>| times.iter().sum::<Duration>();
    let cpu = (all(cpu_after?) - all(cpu_before?)).as_secs_f64();
    Ok(Outcome {
        arrived_a_second: (arrived_after - arrived_before) as f64 / (last - first).as_secs_f64(),
        handled_a_cpu_second: (after - before) as f64 / cpu,
    })
}

fn start_gateway(
    number: u8,
    carried: Carried,
    feed: Feed,
    (relay, Ends { remote, end }): (SocketAddr, Ends),
) -> anyhow::Result<Gateway> {
    let mut apart = (feed == Feed::Apart).then(|| Apart::to(relay));
    let first_hop = apart.as_ref().map_or(relay, |apart| apart.address);
    let near = near(number, carried.carriage(), (first_hop, remote), &[end])?;
    let node = Node::start(NodeConfig { leg_seal: feed.leg_seal(), ..near })?;
    if let Some(apart) = &mut apart {
        apart.carry_for(node.address());
    }
    Ok(Gateway { node, _apart: apart })
}

/// Returns the number of packets that a relay has carried: forwarded, kept, or coded.
fn carried(counts: Snapshot) -> u64 {
    counts.forwarded + counts.cached + counts.repairs
}

/// Sends until the relay carries the packets.
fn open(gateway: &Node, relay: &Node) -> anyhow::Result<()> {
    let application = UdpSocket::bind("127.0.0.1:0")?;
    let (begun, before) = (Instant::now(), carried(relay.snapshot()));
    while carried(relay.snapshot()) < before + 20 {
        if begun.elapsed() > TIMEOUT {
            let (relay, refusals) = (relay.snapshot(), gateway.report().refusals);
            bail!("the relay carries nothing within {TIMEOUT:?}: {relay:?}, {refusals:?}");
        }
        application.send_to(&[0; 64], gateway.local_addresses()[0])?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
