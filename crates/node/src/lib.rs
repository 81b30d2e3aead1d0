//! The packet layer: sockets and threads around the sessions and state machines of
//! `tradewind-packet` `[JQ 3, 4]`.
//!
//! A node is a relay, an endpoint, or both. Each of its workers is a thread with a socket of its
//! own on the shared address and with all its state: a flow's packets stay on the worker to which
//! the kernel hashed their sender, and nothing is shared but counters and, at a relay that keeps
//! them, the registry and stored packets. An endpoint has one worker, so that copies over the
//! Internet and over relays meet.
//!
//! A packet's path: an application writes to a local UDP port; as a datagram of the *conversation*
//! that its address belongs to it is sealed for the remote endpoint (`session`, end to end), and
//! the sealed datagram goes over the Internet as it is, to the first relay as the payload of an
//! *overlay path*, or both. Relays forward it by label, from session to session; the remote
//! endpoint accepts the first copy and writes it to the application's address. A program that links
//! this crate has [`Flow`]s instead of ports.
//!
//! | module | holds |
//! |---|---|
//! | [`config`] | a node's configuration |
//! | `engine` | one worker's state: paths through a relay, conversations of an endpoint |
//! | [`flow`] | datagrams of programs that link this crate |
//! | [`handover`] | sockets and devices handed to the next process |
//! | `interceptor` | kernel rules that intercept applications' packets |
//! | `ip` | the two ends of a whole packet |
//! | `listener` | flows that others begin, accepted by programs that link this crate |
//! | `mailbox` | queues between those flows and a worker |
//! | `worker`, `ticks` | the loop of a thread, and its liveness |
//! | `batching` | short delays in which datagrams gather into batches |
//! | `behind` | the age of packets that have waited in devices |
//! | [`counts`] | counters for metrics |
//! | [`membership`] | the known relays and endpoints |
//! | `registry` | the endpoints' addresses, kept by a relay |
//! | [`record`] | records of conversations that are over |
//! | `reload` | rules and grants that change while a node runs |
//! | `shared` | state that a relay's workers share |
//! | [`status`] | the status of each flow |

mod batching;
mod behind;
pub mod config;
pub mod counts;
mod engine;
pub mod flow;
pub mod handover;
mod interceptor;
mod ip;
mod listener;
mod mailbox;
pub mod membership;
mod membership_watch;
pub mod record;
mod registry;
mod reload;
mod shared;
pub mod status;
mod ticks;
mod worker;

use std::io::PipeWriter;
use std::mem::take;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use tradewind_config::ConfigError;
pub use tradewind_config::packet::{
    Assumed, Chosen, Copying, DeliveryPolicy, Deposits, Group, GroupMember, Intercepted, LegSeal,
    Path, Recipient, RelayServices, Remote, Rendezvous, ServiceCosts, TrafficSource, Tunnel, Via,
};
use tradewind_net::interception;
use tradewind_net::udp::{UdpOptions, UdpPort, shortfall_without_rights};
use tradewind_net::{NetError, clock, sandbox};
use tradewind_telemetry::{Health, Registry};

pub use config::NodeConfig;
pub use counts::{Counts, Snapshot};
pub use flow::{Congestion, Flow, FlowError, FlowOpener, FlowOptions, Judge};
use handover::{Handover, Named, Predecessor};
use interceptor::{Gate, Interceptor, Rules};
pub use listener::{Accepted, Listener};
use membership_watch::MembershipWatch;
pub use record::{ConversationRecord, Journal};
pub use reload::{GATEWAY_LIVE_KEYS, NodeReloader, RELAY_LIVE_KEYS};
use shared::Shared;
use status::Board;
pub use status::PacketReport;
use ticks::{AllTicks, Ticks};
use worker::{Outside, Worker};

/// The reason why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A socket cannot be opened.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A setting of a path is missing or contradicts another.
    #[error("{key}: {problem}")]
    Config {
        /// The key of the setting.
        key: String,
        /// The problem, and the expected value.
        problem: String,
    },
    /// The system has no entropy, or cannot start a thread.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl From<ConfigError> for NodeError {
    fn from(error: ConfigError) -> Self {
        Self::Config { key: error.key, problem: error.problem }
    }
}

impl NodeError {
    /// Returns the error with the key of its section, if it is one of a key and that is known.
    fn of_section(self, section: Option<&String>) -> Self {
        match self {
            Self::Config { key, problem } => {
                ConfigError::new(key, problem).of_section(section).into()
            }
            other => other,
        }
    }

    /// Returns whether the configuration is at fault, and not the host.
    #[must_use]
    pub const fn is_of_configuration(&self) -> bool {
        matches!(self, Self::Config { .. })
    }
}

/// One worker of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerStatus {
    /// The kernel's number of its thread.
    pub thread: u32,
    /// Its counters.
    pub counts: Snapshot,
}

/// A node; it ends when this is dropped.
pub struct Node {
    address: SocketAddr,
    local: Vec<SocketAddr>,
    /// The shared state of each worker.
    outsides: Vec<Outside>,
    config: Arc<NodeConfig>,
    reloader: NodeReloader,
    /// Reads the members' file again when it changes.
    _members: Option<MembershipWatch>,
    /// Rules of the interceptions, until they are in the interceptor.
    rules: Vec<Rules>,
    interceptor: Option<Interceptor>,
    stop: Arc<AtomicBool>,
    /// Workers that do not run yet.
    waiting: Vec<Worker>,
    holds: Vec<Named>,
    before: Option<Predecessor>,
    threads: Vec<JoinHandle<()>>,
    /// The kernel's numbers of the threads, by worker.
    thread_numbers: Vec<u32>,
    journal: Option<Arc<dyn Journal>>,
    /// Dropped last: the next process waits for it.
    _life: PipeWriter,
}

impl Node {
    /// Opens the sockets and starts the workers.
    ///
    /// # Errors
    /// When an address is in use, or the configuration contradicts itself.
    pub fn start(config: NodeConfig) -> Result<Self, NodeError> {
        let mut node = Self::open(config, Vec::new())?;
        node.run(None)?;
        // There is no next process.
        drop(node.hand_on());
        Ok(node)
    }

    /// Opens the sockets and devices that are not `inherited` from the previous process
    /// ([`Node::hand_on`]). Nothing is read before [`Node::run`].
    ///
    /// # Errors
    /// As [`Node::start`]; also when an inherited descriptor cannot be used.
    pub fn open(config: NodeConfig, inherited: Vec<Named>) -> Result<Self, NodeError> {
        let config = Arc::new(config);
        config.check()?;
        config.warn();
        let mut handover = Handover::of(inherited);
        let ports = open_ports(&config, &mut handover)?;
        let address = ports.last().map_or(config.listen, UdpPort::address);
        let outsides = ports.iter().map(|_| Outside::new()).collect::<Result<Vec<_>, _>>()?;
        let shared = Shared::of(&config.services)?;
        let worker = |(port, outside): (_, &Outside)| {
            let config = Arc::clone(&config);
            Worker::new(config, port, outside.clone(), (shared.clone(), &mut handover))
        };
        let waiting =
            ports.into_iter().zip(&outsides).map(worker).collect::<Result<Vec<_>, _>>()?;
        let (holds, life, before) = handover.finish()?;
        let command_queues = outsides.iter().map(|outside| Arc::clone(&outside.commands)).collect();
        let reloader = NodeReloader::new(command_queues, Arc::clone(&config));
        let commands = outsides.first().map(|outside| &outside.commands);
        Ok(Self {
            address,
            local: waiting.iter().flat_map(Worker::local_addresses).collect(),
            rules: rules(&config, &waiting)?,
            _members: MembershipWatch::of(config.members.as_deref(), commands)?,
            outsides,
            config,
            reloader,
            interceptor: None,
            stop: Arc::new(AtomicBool::new(false)),
            waiting,
            holds,
            before,
            threads: Vec::new(),
            thread_numbers: Vec::new(),
            journal: None,
            _life: life,
        })
    }

    /// Starts the workers, once those of the previous process have ended: waits for that, 2 s at
    /// most. From then on `health` reports each worker that hangs, or has ended, until this is
    /// dropped.
    ///
    /// # Errors
    /// When the system cannot start a thread.
    pub fn run(&mut self, health: Option<&Health>) -> Result<(), NodeError> {
        if let Some(before) = self.before.take() {
            before.wait();
            // The previous process may have been killed, and its devices may still exist.
            if !self.rules.is_empty()
                && let Err(error) = interception::sweep()
            {
                tracing::warn!(%error, "the process before this one may have left routes");
            }
        }
        for (number, outside) in self.outsides.iter().enumerate() {
            health.into_iter().for_each(|health| outside.ticks.register_heartbeats(health, number));
        }
        for (number, worker) in self.waiting.drain(..).enumerate() {
            let stopped = Arc::clone(&self.stop);
            let name = format!("packets-{number}");
            let (number_sender, number_receiver) = mpsc::channel();
            // A worker holds pointers for the kernel, which stay on its thread once it runs.
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                let _sent = number_sender.send(clock::thread_number());
                if let Err(error) = tradewind_net::sandbox::bind_worker() {
                    tracing::warn!(%error, "a worker keeps all rights of its process");
                }
                worker.run(&stopped)
            });
            self.threads.push(thread?);
            self.thread_numbers.extend(number_receiver.recv());
        }
        if !self.rules.is_empty() {
            let ticks = self.outsides.iter().map(|outside| Ticks::clone(&outside.ticks));
            let workers = AllTicks::of(ticks);
            self.interceptor = Some(Interceptor::start(take(&mut self.rules), workers)?);
        }
        Ok(())
    }

    /// Sends records of conversations and paths to `journal`. Call it before [`Node::run`].
    pub fn set_journal(&mut self, journal: Arc<dyn Journal>) {
        for worker in &mut self.waiting {
            worker.set_journal(Arc::clone(&journal));
        }
        self.journal = Some(journal);
    }

    /// Returns a handle that replaces its rules and its grant while it runs.
    #[must_use]
    pub fn reloader(&self) -> NodeReloader {
        self.reloader.clone()
    }

    /// Returns the descriptors for the next process, once: duplicates of each socket that
    /// neighbours and applications know and of the TUN devices, and the pipe that closes when this
    /// process has ended.
    pub fn hand_on(&mut self) -> Vec<Named> {
        take(&mut self.holds)
    }

    /// Returns the address at which neighbours reach it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the addresses at which applications reach it: in the order of the paths, then those
    /// of deposits.
    #[must_use]
    pub fn local_addresses(&self) -> &[SocketAddr] {
        &self.local
    }

    /// Exports the counters at a metrics port, and the flows at `/packets` beside them.
    pub fn show_at(&self, registry: &Registry) {
        let counts = self.outsides.iter().map(|outside| Arc::clone(&outside.counts)).collect();
        let collector = Box::new(counts::CountsCollector(counts));
        registry.register(|inner| inner.register_collector(collector));
        let boards: Vec<Board> = self.boards().cloned().collect();
        registry.add_page("/packets", move |_| {
            serde_json::to_string(&status::report(&boards)).map_err(|error| error.to_string())
        });
    }

    /// Returns the status of the flows that begin or end here, as of the last second.
    #[must_use]
    pub fn report(&self) -> PacketReport {
        status::report(self.boards())
    }

    /// Returns the sum of all workers' counters.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let all = self.outsides.iter().map(|outside| outside.counts.snapshot());
        all.fold(Snapshot::default(), Snapshot::plus)
    }

    /// Returns each worker's counters, once they run.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerStatus> {
        let counts = self.outsides.iter().map(|outside| outside.counts.snapshot());
        let numbered = self.thread_numbers.iter().zip(counts);
        numbered.map(|(thread, counts)| WorkerStatus { thread: *thread, counts }).collect()
    }

    fn boards(&self) -> impl Iterator<Item = &Board> {
        self.outsides.iter().map(|outside| &outside.board)
    }
}

/// Returns a line on the buffers that this host refuses to sockets of nodes without rights, with
/// the remedy.
#[must_use]
pub fn host_shortfall() -> Option<String> {
    shortfall_without_rights(&UdpOptions::default())
}

/// Opens the sockets of the workers, which share an address.
fn open_ports(config: &NodeConfig, handover: &mut Handover) -> Result<Vec<UdpPort>, NodeError> {
    let options = UdpOptions { reuse_port: config.workers > 1, ..neighbours_options(config) };
    let (mut address, mut ports) = (config.listen, Vec::new());
    for _ in 0..config.workers {
        let port = handover.neighbours(config.listen, address, &options)?;
        address = port.address();
        ports.push(port);
    }
    // Buffers of applications' sockets are as large, except where sandboxed workers open them.
    let of_workers = || sandbox::is_bound().then(|| shortfall_without_rights(&options)).flatten();
    let shortfall = ports.first().and_then(|port| port.shortfall(&options)).or_else(of_workers);
    if let Some(shortfall) = shortfall {
        tracing::warn!("packets: {shortfall}");
    }
    Ok(ports)
}

/// Returns the options of sockets towards neighbours.
fn neighbours_options(config: &NodeConfig) -> UdpOptions {
    let mark = config.neighbours_mark();
    UdpOptions { both_families: true, tells_age: true, mark, ..UdpOptions::default() }
}

/// Returns the rules of the workers' interceptions; those for replies are in force from now on.
fn rules(config: &NodeConfig, workers: &[Worker]) -> Result<Vec<Rules>, NodeError> {
    let gates: Vec<Arc<Gate>> = workers.iter().flat_map(Worker::gates).collect();
    gates.iter().try_for_each(|gate| gate.check())?;
    let mut rules: Vec<Rules> = gates.into_iter().map(Rules::new).collect();
    if !config.preserve_source.is_empty() {
        rules.push(Rules::of_answers(&config.preserve_source)?);
    }
    Ok(rules)
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Applications' datagrams return to their original path before the workers stop reading.
        drop(self.interceptor.take());
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A worker that panicked has logged it already.
            let _ = thread.join();
        }
        self.journal.iter().for_each(|journal| journal.flush());
    }
}
