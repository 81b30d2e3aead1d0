//! One run: senders, relays and receivers as the machines of `packet`, joined by the paths of
//! `wan`, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tradewind_packet::egress::{Egress, EgressConfig, EgressFlow};
use tradewind_packet::event::{Arrival, Closed, Event};
use tradewind_packet::id::{FlowNumber, Peer, Tenant};
use tradewind_packet::ingress::{Ingress, IngressFlow, Sharing};
use tradewind_packet::message::{Class, Message, Scope, Service};
use tradewind_units::{Duration, HostId, Timestamp};
use tradewind_wan::{Bundle, Ecn, HostIndex, Topology, Wan};

use super::machines::{Marked, Node, ingress_config, new_receiver, new_sender};
use super::paths::{self, Path};
use super::stragglers::Stragglers;
use super::{Case, Scenario};
use crate::harness::{NumericError, Random};

/// IP and UDP header, and a session's overhead on a message: its name, a counter, a tag.
const HEADER_BYTES: u32 = 28 + 29;

/// Fate of a packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fate {
    /// Time at which it was sent.
    pub(crate) sent: Timestamp,
    /// True if it arrived over the Internet.
    pub(crate) came: bool,
    /// True if its copy arrived at the ingress relay the first time it was sent.
    pub(crate) copied: bool,
    /// Time of its recovery, if it was recovered.
    pub(crate) back: Option<Timestamp>,
    /// Means of its recovery, where known.
    pub(crate) arrival: Option<Arrival>,
}

impl Fate {
    /// Creates the fate of a packet that was just sent.
    pub(crate) fn in_flight(sent: Timestamp) -> Self {
        Self { sent, came: false, copied: false, back: None, arrival: None }
    }
}

/// Result of a run.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) paths: Vec<Path>,
    pub(super) blocks: Blocks,
    pub(super) traffic: Traffic,
}

/// Blocks by how they were closed: those that were full, and the others.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Blocks {
    pub(super) full: [Coded; 2],
    pub(super) early: [Coded; 2],
    pub(super) uncoded: u64,
}

/// Packets coded and repair packets made; cross-stream and in-stream apart.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Coded {
    pub(super) packets: u64,
    pub(super) repairs: u64,
    pub(super) bytes: u64,
}

/// Costs of recovery besides repair packets.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Traffic {
    pub(super) packets: u64,
    pub(super) asked: u64,
    pub(super) helps: u64,
    pub(super) lent: u64,
    pub(super) resent: u64,
    /// Packets forwarded between the relays as they are.
    pub(super) forwarded: u64,
    pub(super) acknowledgements: u64,
}

struct World<'a> {
    scenario: &'a Scenario,
    wan: Wan<Vec<u8>>,
    nodes: Vec<Node>,
    /// Path of each sender and receiver.
    path_of: Vec<usize>,
    hosts: Vec<[usize; 2]>,
    timers: BinaryHeap<Reverse<(Timestamp, usize)>>,
    armed: Vec<Option<Timestamp>>,
    stragglers: Stragglers,
    /// Every path, and the fates of this span's packets.
    paths: Vec<(Path, Vec<Fate>)>,
    /// Number of packets of the spans before, by path.
    before: Vec<u64>,
    blocks: Blocks,
    traffic: Traffic,
}

/// Every path, and the fates of the packets that it sent in a span.
pub(super) type Span = [(Path, Vec<Fate>)];

/// Runs the scenario once. The paths and all losses are drawn from `seed`, so that they are the
/// same whatever the case and the coding. The fates of each path's packets are passed to
/// `each_span` whenever the senders have sent for a while, and then dropped.
pub(super) fn run(
    scenario: &Scenario,
    case: Case,
    seed: u64,
    each_span: &mut dyn FnMut(&Span),
) -> Result<Outcome, NumericError> {
    let mut random = Random::new(seed);
    let (paths, topology) = paths::network(scenario, case.access, &mut random)?;
    let mut world = World::new(scenario, &topology, paths, case, seed);
    let mut begin = Timestamp::ZERO;
    for _ in 0..scenario.cycles {
        world.on_interval(begin);
        each_span(&world.paths);
        world.forget();
        let off = Duration::from_secs_f64(random.exponential(scenario.off_mean_s));
        begin = begin + scenario.on() + off.max(Duration::from_secs(5));
    }
    Ok(world.outcome())
}

impl<'a> World<'a> {
    fn new(
        scenario: &'a Scenario,
        topology: &Topology,
        paths: Vec<Path>,
        Case { arq, helpers, .. }: Case,
        seed: u64,
    ) -> Self {
        let host = |name: String| {
            let id = HostId::new(name).expect("a short name");
            usize::from(topology.host(&id).expect("the topology has it").0)
        };
        let peer = |place: usize| Peer(u32::try_from(place).expect("few hosts"));
        let mut nodes: Vec<Option<Node>> = (0..topology.hosts.len()).map(|_| None).collect();
        let mut path_of = vec![usize::MAX; nodes.len()];
        let mut hosts = Vec::new();
        for group in 0..scenario.groups.len() {
            let [ingress, egress] = [format!("in-{group}"), format!("out-{group}")].map(host);
            let mut at_ingress = Ingress::new(ingress_config(scenario, arq));
            let mut at_egress = Egress::new(EgressConfig::default());
            let members = paths.iter().enumerate().filter(|(_, path)| path.group == group);
            for (index, path) in members {
                let [sender, receiver] = [format!("s{index}"), format!("r{index}")].map(host);
                (path_of[sender], path_of[receiver]) = (index, index);
                let number = FlowNumber(index as u64);
                let tenant = Tenant(0);
                let flow = IngressFlow {
                    sender: peer(sender),
                    egress: peer(egress),
                    tenant,
                    sharing: Sharing::Own,
                    most: Service::Coding,
                    in_stream: scenario.in_stream(),
                };
                at_ingress.set_flow(number, flow).expect("few flows");
                let flow = EgressFlow { ingress: peer(ingress), receiver: peer(receiver), tenant };
                at_egress.set_flow(number, flow).expect("few flows");
                nodes[sender] = Some(new_sender(number, peer(receiver), peer(ingress), arq));
                nodes[receiver] = Some(new_receiver(number, peer(sender), peer(egress), path));
                hosts.push((index, [sender, receiver]));
            }
            nodes[ingress] = Some(Node::Ingress(Box::new(at_ingress)));
            nodes[egress] = Some(Node::Egress(Box::new(at_egress)));
        }
        hosts.sort_unstable();
        let nodes: Vec<Node> =
            nodes.into_iter().map(|node| node.expect("each host has a machine")).collect();
        Self {
            scenario,
            wan: Wan::new(topology, seed),
            armed: vec![None; nodes.len()],
            nodes,
            path_of,
            hosts: hosts.into_iter().map(|(_, ends)| ends).collect(),
            timers: BinaryHeap::new(),
            stragglers: Stragglers::new(helpers, seed),
            before: vec![0; paths.len()],
            paths: paths.into_iter().map(|path| (path, Vec::new())).collect(),
            blocks: Blocks::default(),
            traffic: Traffic::default(),
        }
    }

    /// Sends from all senders from `begin` on, then runs until nothing is in flight.
    fn on_interval(&mut self, begin: Timestamp) {
        let interval = self.scenario.interval();
        let count = self.scenario.on().as_nanos() / interval.as_nanos();
        let mut ticks: BinaryHeap<Reverse<(Timestamp, usize)>> = self
            .paths
            .iter()
            .enumerate()
            .map(|(index, (path, _))| Reverse((begin + path.phase, index)))
            .collect();
        let mut left = vec![count; self.paths.len()];
        while let Some(Reverse((at, index))) = ticks.pop() {
            self.run_until(at);
            self.send(at, index);
            left[index] -= 1;
            if left[index] > 0 {
                ticks.push(Reverse((at + interval, index)));
            }
        }
        self.run_until(begin + self.scenario.on() + Duration::from_secs(4));
    }

    /// Drops the fates of a span, which have been passed on.
    fn forget(&mut self) {
        for ((_, fates), before) in self.paths.iter_mut().zip(&mut self.before) {
            *before += fates.len() as u64;
            fates.clear();
        }
    }

    /// Returns the path of one of this span's packets, and its fate.
    fn fate(&mut self, index: usize, sequence: u64) -> Option<(&Path, &mut Fate)> {
        let place = sequence.checked_sub(self.before[index])?;
        let (path, fates) = &mut self.paths[index];
        Some((path, fates.get_mut(usize::try_from(place).ok()?)?))
    }

    fn send(&mut self, now: Timestamp, index: usize) {
        let host = self.hosts[index][0];
        let marked = Marked { bytes: self.scenario.payload_bytes };
        let Node::Sender(sender) = &mut self.nodes[host] else { return };
        let flow = FlowNumber(index as u64);
        let mut payload = Vec::new();
        let packet = sender.next_packet(flow).expect("the sender has this flow");
        marked.payload(packet, &mut payload);
        sender.send(now, flow, Class::Normal, &payload).expect("a payload of usual length");
        self.paths[index].1.push(Fate::in_flight(now));
        self.traffic.packets += 1;
        self.settle(now, host);
    }

    /// Processes all events up to `limit`.
    fn run_until(&mut self, limit: Timestamp) {
        let marked = Marked { bytes: self.scenario.payload_bytes };
        loop {
            let timer = self.timers.peek().map(|Reverse((at, _))| *at);
            let others = self.wan.next_deadline().into_iter().chain(self.stragglers.due());
            let next = timer.into_iter().chain(others).min();
            let Some(now) = next.filter(|at| *at <= limit) else { return };
            while let Some((from, to, bytes)) = self.stragglers.pop(now) {
                self.wan.push(now, bundle(from, to, &bytes));
            }
            while let Some(delivery) = self.wan.pop_due(now) {
                let (from, to) = (delivery.source, usize::from(delivery.destination.0));
                self.note_arrival(now, to, &delivery.content);
                let from = Peer(u32::from(from.0));
                match &mut self.nodes[to] {
                    Node::Sender(node) => node.handle_datagram(now, from, &delivery.content),
                    Node::Receiver(node) => {
                        node.handle_datagram(now, from, &delivery.content, &marked);
                    }
                    Node::Ingress(node) => node.handle_datagram(now, from, &delivery.content),
                    Node::Egress(node) => node.handle_datagram(now, from, &delivery.content),
                }
                self.settle(now, to);
            }
            while let Some(Reverse((at, host))) =
                self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now)
            {
                self.timers.pop();
                if self.armed[host] != Some(at) {
                    continue;
                }
                self.armed[host] = None;
                match &mut self.nodes[host] {
                    Node::Sender(node) => node.handle_timeout(now),
                    Node::Receiver(node) => node.handle_timeout(now),
                    Node::Ingress(node) => node.handle_timeout(now),
                    Node::Egress(node) => node.handle_timeout(now),
                }
                self.settle(now, host);
            }
        }
    }

    /// Records arrivals: the network's effects are observed at the hosts, not taken from the
    /// machines.
    fn note_arrival(&mut self, now: Timestamp, to: usize, bytes: &[u8]) {
        let packet = match Message::parse(bytes) {
            Ok(Message::Source(source) | Message::Copy { source, .. }) => source.packet,
            _ => return,
        };
        let index = usize::try_from(packet.flow.0).expect("few flows");
        let [at_receiver, at_ingress] = match self.nodes[to] {
            Node::Receiver(_) => [true, false],
            Node::Ingress(_) => [false, true],
            Node::Sender(_) | Node::Egress(_) => return,
        };
        let Some((path, fate)) = self.fate(index, packet.sequence) else { return };
        fate.came |= at_receiver;
        // A copy that was sent again arrives a round trip later at least.
        let is_first = now.since(fate.sent) < path.source_access.mul_f64(1.5);
        fate.copied |= at_ingress && is_first;
    }

    /// Collects a machine's output after it was called.
    fn settle(&mut self, now: Timestamp, host: usize) {
        let wan = &mut self.wan;
        let mut push = |to: Peer, bytes: &[u8]| {
            wan.push(now, bundle(host, to, bytes));
        };
        let mut events = Vec::new();
        let due = match &mut self.nodes[host] {
            Node::Sender(node) => {
                while let Some(sent) = node.poll_transmit() {
                    push(sent.to, sent.bytes);
                }
                events.extend(std::iter::from_fn(|| node.poll_event()));
                node.poll_timeout()
            }
            Node::Receiver(node) => {
                while let Some(sent) = node.poll_transmit() {
                    if !self.stragglers.hold_back(now, host, sent.to, sent.bytes) {
                        push(sent.to, sent.bytes);
                    }
                }
                while node.poll_delivery().is_some() {}
                events.extend(std::iter::from_fn(|| node.poll_event()));
                node.poll_timeout()
            }
            Node::Ingress(node) => {
                while let Some(sent) = node.poll_transmit() {
                    let is_acknowledgement =
                        matches!(Message::parse(sent.bytes), Ok(Message::Acknowledgement(_)));
                    self.traffic.acknowledgements += u64::from(is_acknowledgement);
                    push(sent.to, sent.bytes);
                }
                events.extend(std::iter::from_fn(|| node.poll_event()));
                node.poll_timeout()
            }
            Node::Egress(node) => {
                while let Some(sent) = node.poll_transmit() {
                    push(sent.to, sent.bytes);
                }
                events.extend(std::iter::from_fn(|| node.poll_event()));
                node.poll_timeout()
            }
        };
        if let Some((at, _)) = due
            && self.armed[host].is_none_or(|armed| at < armed)
        {
            let at = at.max(now);
            self.armed[host] = Some(at);
            self.timers.push(Reverse((at, host)));
        }
        for event in events {
            self.count(now, host, event);
        }
    }

    fn count(&mut self, now: Timestamp, host: usize, event: Event) {
        match event {
            Event::Delivered { packet, arrival, .. } if arrival != Arrival::Internet => {
                if let Some((_, fate)) = self.fate(self.path_of[host], packet.sequence) {
                    (fate.back, fate.arrival) = (Some(now), Some(arrival));
                }
            }
            Event::BlockClosed { scope, closed, members, repairs, bytes } => {
                let side = usize::from(scope == Scope::InStream);
                let coded = match closed {
                    Closed::Full => &mut self.blocks.full[side],
                    Closed::Timer | Closed::Displaced => &mut self.blocks.early[side],
                };
                coded.packets += u64::from(members);
                coded.repairs += u64::from(repairs);
                coded.bytes += u64::from(bytes);
            }
            Event::Forwarded(_) => self.traffic.forwarded += 1,
            Event::Uncoded(_) => self.blocks.uncoded += 1,
            Event::Asked { items, .. } => self.traffic.asked += u64::from(items),
            Event::HelpAsked { helpers, .. } => self.traffic.helps += u64::from(helpers),
            Event::Helped(_) => self.traffic.lent += 1,
            Event::CopySent { resent, .. } => self.traffic.resent += u64::from(resent > 0),
            _ => {}
        }
    }

    fn outcome(self) -> Outcome {
        let paths = self.paths.into_iter().map(|(path, _)| path).collect();
        Outcome { paths, blocks: self.blocks, traffic: self.traffic }
    }
}

fn bundle(from: usize, to: Peer, bytes: &[u8]) -> Bundle<Vec<u8>> {
    let host = |place: u32| HostIndex(u16::try_from(place).expect("few hosts"));
    Bundle {
        source: host(u32::try_from(from).expect("few hosts")),
        destination: host(to.0),
        connection: 0,
        header_bytes: HEADER_BYTES,
        payload_bytes: u32::try_from(bytes.len()).expect("a datagram"),
        segment_bytes: 0,
        ecn: Ecn::NotCapable,
        content: bytes.to_vec(),
    }
}
