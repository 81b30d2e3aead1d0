//! The loop of one thread: wait, read batches, pass them to the engine, send its output.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tradewind_net::clock;
use tradewind_net::epoll::Epoll;
use tradewind_net::tun::Tun;
use tradewind_net::udp::{ReceiveBatch, UdpPort};
use tradewind_net::virtio::HEADER_BYTES;
use tradewind_packet::session::AddressPair;
use tradewind_telemetry::limited;
use tradewind_units::{Duration, Timestamp};

use crate::NodeError;
use crate::batching::{BatchingDelay, Fetched, REST};
use crate::behind::Backlog;
use crate::config::NodeConfig;
use crate::counts::{Counts, add};
use crate::engine::{Engine, MAX_PACKET, now};
use crate::handover::Handover;
use crate::interceptor::Gate;
use crate::mailbox::CommandQueue;
use crate::record::Journal;
use crate::shared::Shared;
use crate::status::{Board, PacketReport};
use crate::ticks::{TICK, Ticks};

/// Interval of the reports on flows.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Messages read at once from neighbours, and from applications.
const BATCH: usize = 32;
/// The tokens of the neighbours' sockets, and of the flows' commands.
const NEIGHBOURS: u64 = 0;
const COMMANDS: u64 = 2;
/// The token of the TUN device to which others' packets are delivered.
const TUNNEL: u64 = 3;
/// Tokens of routes' sockets, and of those where conversations end: their ids above these.
const ROUTES: u64 = 1 << 32;
const ENDS: u64 = 1 << 33;
/// Tokens of sockets whose datagrams are deposited at a relay: their numbers above this.
const DEPOSITS: u64 = 1 << 34;
/// Batches in a row from one socket before it is the turn of the others.
const MAX_ROUNDS: usize = 8;

impl Drop for Worker {
    fn drop(&mut self) {
        self.outside.ticks.end();
    }
}

/// The part of a worker that other threads use: counters, status, commands.
#[derive(Debug, Clone)]
pub(crate) struct Outside {
    pub(crate) counts: Arc<Counts>,
    pub(crate) board: Board,
    pub(crate) commands: Arc<CommandQueue>,
    pub(crate) ticks: Ticks,
}

impl Outside {
    pub(crate) fn new() -> Result<Self, NodeError> {
        let (counts, board, ticks) = (Arc::default(), Board::default(), Ticks::default());
        Ok(Self { counts, board, commands: Arc::new(CommandQueue::new()?), ticks })
    }
}

pub(crate) struct Worker {
    engine: Engine,
    epoll: Epoll,
    incoming: ReceiveBatch,
    tokens: Vec<u64>,
    /// Buffer for a whole packet of a TUN device; empty without one.
    packet: Vec<u8>,
    outside: Outside,
    /// The kernel's counts of dropped datagrams, by socket towards neighbours.
    overruns: [u32; 2],
    behind: Backlog,
}

impl Worker {
    pub(crate) fn new(
        config: Arc<NodeConfig>,
        port: UdpPort,
        outside: Outside,
        (shared, handover): (Shared, &mut Handover),
    ) -> Result<Self, NodeError> {
        let (counts, commands) = (Arc::clone(&outside.counts), Arc::clone(&outside.commands));
        let engine = Engine::new(config, port, counts, (commands, shared), handover)?;
        let epoll = Epoll::new()?;
        for (number, port) in engine.context.ports().enumerate() {
            epoll.watch(port, NEIGHBOURS + number as u64)?;
        }
        epoll.watch(&*engine.commands, COMMANDS)?;
        let mut packet = Vec::new();
        for id in engine.routes.ids() {
            let (token, local) = (ROUTES + u64::from(id), engine.routes.get(id));
            if let Some(port) = local.and_then(|route| route.local.port()) {
                epoll.watch(port, token)?;
            }
            if let Some(device) = local.and_then(|route| route.local.tunnel()) {
                epoll.watch(device, token)?;
                packet.resize(MAX_PACKET, 0);
            }
        }
        for (number, port) in engine.rendezvous.deposit_ports().enumerate() {
            epoll.watch(port, DEPOSITS + number as u64)?;
        }
        if let Some(tunnel) = &engine.tunnel {
            epoll.watch(&tunnel.device, TUNNEL)?;
            packet.resize(MAX_PACKET, 0);
        }
        let incoming = ReceiveBatch::new(BATCH);
        let (tokens, overruns, behind) = (Vec::new(), [0; 2], Backlog::default());
        Ok(Self { engine, epoll, incoming, tokens, packet, outside, overruns, behind })
    }

    pub(crate) fn local_addresses(&self) -> Vec<SocketAddr> {
        let of_routes = self.engine.routes.values().filter_map(|route| route.local.address());
        of_routes.chain(self.engine.rendezvous.deposit_ports().map(UdpPort::address)).collect()
    }

    /// Sends records to `journal` from now on.
    pub(crate) fn set_journal(&mut self, journal: Arc<dyn Journal>) {
        self.engine.set_journal(journal);
    }

    pub(crate) fn gates(&self) -> Vec<Arc<Gate>> {
        self.engine.all_gates()
    }

    pub(crate) fn run(mut self, stop: &AtomicBool) {
        clock::sharpen_timers();
        let begun = clock::monotonic();
        let mut batching = BatchingDelay::new(begun);
        let (mut next_tick, mut next_report) = (begun, begun);
        self.engine.begin(now());
        while !stop.load(Ordering::Relaxed) {
            let due = self.engine.due().map_or(next_tick, |due| due.min(next_tick));
            self.tokens.clear();
            match self.epoll.wait(Some(due.since(clock::monotonic()))) {
                Ok(ready) => self.tokens.extend(ready),
                Err(error) => return tracing::error!(%error, "a packet worker ends"),
            }
            let Self { engine, tokens, behind, .. } = &mut self;
            let devices = tokens.iter().filter(|token| device_of(engine, **token).is_some());
            behind.note((clock::monotonic(), due), devices.copied());
            let mut fetched = Fetched::default();
            for at in 0..self.tokens.len() {
                fetched += self.serve(self.tokens[at]);
            }
            let steady = clock::monotonic();
            if steady >= next_tick {
                next_tick = steady + TICK;
                self.tick(&mut next_report);
            } else if self.engine.due().is_some_and(|due| due <= steady) {
                let now = now();
                self.engine.time_out(now);
                self.engine.dispatch(now);
                self.engine.flush();
            }
            self.watch_fresh();
            if batching.is_due(steady, fetched) {
                let due = self.engine.due().map_or(next_tick, |due| due.min(next_tick));
                std::thread::sleep(REST.min(due.since(steady)));
            }
        }
        self.engine.end(now());
    }

    fn tick(&mut self, next_report: &mut Timestamp) {
        self.outside.ticks.tick();
        let now = now();
        self.engine.tick(now);
        self.engine.dispatch(now);
        self.engine.flush();
        if now.steady >= *next_report {
            *next_report = now.steady + REPORT_EVERY;
            let (relays, endpoints) = self.engine.report_members();
            let flows = self.engine.report(now);
            let refusals = self.engine.report_refusals(now);
            let report = PacketReport {
                schema_version: 1,
                flows,
                relays,
                endpoints,
                refusals,
                foreign_sources: self.outside.counts.snapshot().foreign_sources,
                ..PacketReport::default()
            };
            self.outside.board.write(report);
        }
    }

    /// Reads a socket, batch by batch.
    fn serve(&mut self, token: u64) -> Fetched {
        let mut all = Fetched::default();
        if token == COMMANDS {
            let now = now();
            self.engine.handle_orders(now);
            self.engine.dispatch(now);
            self.engine.flush();
            return all;
        }
        if let Some((route, device)) = device_of(&self.engine, token) {
            return self.serve_tunnel(token, route, &device);
        }
        for _ in 0..MAX_ROUNDS {
            let port = match token {
                DEPOSITS.. => {
                    self.engine.rendezvous.deposit_ports().nth((token - DEPOSITS) as usize)
                }
                ENDS.. => {
                    let inbound = self.engine.conversations.inbound.get((token - ENDS) as u32);
                    inbound.and_then(|inbound| inbound.local.port())
                }
                ROUTES.. => {
                    let route = self.engine.routes.get((token - ROUTES) as u32);
                    route.and_then(|route| route.local.port())
                }
                _ => self.engine.context.ports().nth(token as usize),
            };
            let Some(port) = port else { break };
            match self.incoming.receive(port) {
                Ok(0) => break,
                Ok(fetched) => {
                    all += Fetched { messages: fetched, is_behind: fetched == BATCH };
                    self.hand_over(token);
                    // Later datagrams wake this worker again.
                    if fetched < BATCH {
                        break;
                    }
                }
                Err(error) => {
                    let lines = &self.engine.context.refusal_lines;
                    limited!(warn, lines, None, %error, "a socket cannot be read");
                    break;
                }
            }
        }
        all
    }

    /// Reads the packets that the kernel has routed into a device, batch by batch.
    fn serve_tunnel(&mut self, token: u64, route: Option<u32>, device: &Tun) -> Fetched {
        let mut all = Fetched::default();
        for _ in 0..MAX_ROUNDS {
            let (now, mut is_more) = (now(), true);
            self.engine.note_age(self.behind.age(token));
            for _ in 0..BATCH {
                match device.receive(&mut self.packet) {
                    Ok(Some(length)) => {
                        all += Fetched { messages: 1, is_behind: false };
                        let packet = self.packet.get(HEADER_BYTES..length).unwrap_or_default();
                        self.engine.take_packet_of_tunnel(now, route, packet);
                    }
                    Ok(None) => is_more = false,
                    Err(error) => {
                        tracing::warn!(%error, "a TUN device is read no more");
                        self.epoll.forget(&device);
                        is_more = false;
                    }
                }
                if !is_more {
                    break;
                }
            }
            self.engine.note_age(None);
            self.engine.dispatch(now);
            self.engine.flush();
            if !is_more {
                self.behind.is_drained(token);
                break;
            }
        }
        all
    }

    fn hand_over(&mut self, token: u64) {
        let now = now();
        let engine = &mut self.engine;
        match token {
            ..ROUTES => self.incoming.for_each_train(|arrival, train| {
                let pair = AddressPair { remote: arrival.from, local: arrival.at };
                engine.note_age(arrival.age);
                engine.take_train(now, pair, train);
            }),
            _ => self.incoming.for_each(|arrival, datagram| {
                engine.note_age(arrival.age);
                match token {
                    DEPOSITS.. => engine.take_deposit(now, (token - DEPOSITS) as usize, datagram),
                    ENDS.. => {
                        engine.take_reply(now, (token - ENDS) as u32, arrival.into(), datagram)
                    }
                    _ => engine.take_application(
                        now,
                        (token - ROUTES) as u32,
                        arrival.into(),
                        datagram,
                    ),
                }
            }),
        }
        // Recovered packets, and those of programs, have not waited.
        engine.note_age(None);
        if let Some(before) = self.overruns.get_mut(token as usize) {
            let drops = self.incoming.drops();
            add(&self.outside.counts.overrun, u64::from(drops.wrapping_sub(*before)));
            *before = drops;
        }
        engine.dispatch(now);
        engine.flush();
    }

    fn watch_fresh(&mut self) {
        while let Some(id) = self.engine.conversations.fresh.pop() {
            let inbound = self.engine.conversations.inbound.get(id);
            if let Some(port) = inbound.and_then(|inbound| inbound.local.port())
                && let Err(error) = self.epoll.watch(port, ENDS + u64::from(id))
            {
                limited!(
                    warn,
                    self.engine.context.refusal_lines,
                    None,
                    %error,
                    "a flow's replies are not seen"
                );
            }
        }
    }
}

/// Returns the TUN device of a token, and the route of its packets; no route for a device to which
/// others' packets are delivered.
fn device_of(engine: &Engine, token: u64) -> Option<(Option<u32>, Arc<Tun>)> {
    let device = match token {
        TUNNEL => return Some((None, Arc::clone(&engine.tunnel.as_ref()?.device))),
        ROUTES..ENDS => engine.routes.get((token - ROUTES) as u32)?.local.tunnel()?,
        _ => return None,
    };
    Some((Some((token - ROUTES) as u32), Arc::clone(device)))
}
