//! Threads, each with a runtime and listeners of its own, among which the kernel spreads
//! connections. A session stays on the thread that accepted it.

use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tradewind_grant::{GrantError, Sighting};
use tradewind_net::handover::tell_systemd;
use tradewind_net::jumpstart::OwnSockets;
use tradewind_net::tcp::SocketOptions;
use tradewind_net::{NetError, clock, sandbox};
use tradewind_telemetry::{Health, Heart, LogLimit, Registry, TelemetryError, limited};

use crate::RelayError;
use crate::access_log::{AccessLog, AccessLogConfig, recorded};
use crate::capacity::{Capacity, Listening};
use crate::config::Limits;
use crate::counts::{CountsCollector, Outcome};
use crate::failure::{out_of_descriptors, plain};
use crate::handle::Handle;
use crate::live_limits::LiveLimits;
use crate::process_resources::{ProcessResources, sessions_time_out};
use crate::session::{Session, SessionSettings};
use crate::shutdown::{Phase, Shutdown};
use crate::timeouts::LiveTimeouts;
use crate::upgrade::{Handover, Name, Purpose, open_listeners, send_bytes, succeed};
use crate::worker::{Permit, SharedLimits, Worker};

/// Pause after an accept that failed for want of descriptors when not even the reserve helped.
/// Chosen: short against a handshake, long against a loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Between two signs of life of a worker.
const BEAT: Duration = Duration::from_secs(1);
/// After so long without one the process counts as dead. Chosen: no turn of a worker takes a tenth
/// of it, even on a machine with ten times as many workers as it has CPUs.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// What a server does with a connection.
pub(crate) trait Service: Send + Sync + 'static {
    /// How its sessions are kept.
    fn session_settings(&self) -> &SessionSettings;

    /// Opens the path for `stream`, which came in at the listener with number `entrance`; else
    /// tells what became of it.
    fn open(
        &self,
        stream: TcpStream,
        entrance: usize,
        permit: &mut Permit,
    ) -> impl Future<Output = Result<Session, Outcome>> + Send;

    /// Hands over what the next process must know of what this one has seen, and asks it from now
    /// on.
    fn hand_over(&self, successor: &UnixStream) -> io::Result<()> {
        send_bytes(successor, &[])
    }

    /// Goes on with what the process before this one has handed over.
    fn take_over(&self, _seen: &[u8]) -> io::Result<()> {
        Ok(())
    }

    /// Whether a header that the process before this one reads may be used.
    ///
    /// # Errors
    /// Why not.
    fn judge(&self, sighting: &Sighting) -> Result<(), GrantError> {
        Err(GrantError::Replayed(sighting.nonce))
    }
}

/// How a server is set up.
pub(crate) struct Setup<'a> {
    pub(crate) program: &'static str,
    pub(crate) addresses: &'a [SocketAddr],
    pub(crate) workers: Option<usize>,
    pub(crate) limits: &'a Limits,
    pub(crate) accept: &'a SocketOptions,
    pub(crate) timeouts: &'a LiveTimeouts,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) access_log: Option<&'a AccessLogConfig>,
    pub(crate) metrics_hosts: &'a [String],
    /// Adds metrics and pages of its own to the metrics port.
    pub(crate) register: &'a dyn Fn(&Registry),
}

/// What a program adds to a relay or gateway that it runs.
#[derive(Clone, Copy)]
pub struct Additions<'a> {
    /// Adds metrics and pages of its own to the metrics port.
    pub register: &'a dyn Fn(&Registry),
    /// What knows how connections to the other ends of legs are to start.
    pub learned: Option<&'a OwnSockets>,
}

impl Default for Additions<'_> {
    fn default() -> Self {
        Self { register: &|_| {}, learned: None }
    }
}

/// A server whose listeners are open and whose threads have not started.
pub(crate) struct Server {
    benches: Vec<WorkerContext>,
    most_sessions: usize,
    limits: LiveLimits,
    handle: Handle,
    process_resources: ProcessResources,
    timeouts: LiveTimeouts,
    predecessor: Option<UnixStream>,
    access_log: Option<Arc<AccessLog>>,
}

/// All that one thread takes with it.
struct WorkerContext {
    runtime: Runtime,
    /// By the number of the address.
    listeners: Vec<(usize, std::net::TcpListener)>,
    worker: Arc<Worker>,
}

impl Server {
    /// Opens the listeners that are not inherited.
    pub(crate) fn bind(setup: &Setup<'_>, handover: Handover) -> Result<Self, RelayError> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let count = setup.workers.unwrap_or_else(cores);
        let access_log = AccessLog::open(setup.program, setup.access_log)?.map(Arc::new);
        let Handover { mut inherited, mut passed } = handover;
        let mut local_addrs = Vec::with_capacity(setup.addresses.len());
        let mut open = Vec::new();
        for (entrance, address) in setup.addresses.iter().enumerate() {
            let name = Name { purpose: Purpose::Listener(entrance), address: *address };
            let listeners = open_listeners(name, count, setup, inherited.listeners(name))?;
            let local = listeners[0].local_addr().map_err(RelayError::Runtime)?;
            tracing::info!("listening on {local}");
            local_addrs.push(local);
            for (index, listener) in listeners.into_iter().enumerate() {
                passed.add(name, &listener).map_err(RelayError::Runtime)?;
                open.push((index % count, (entrance, listener)));
            }
        }
        let listening = Listening { addresses: setup.addresses.len(), workers: count };
        let capacity = Capacity::find(listening);
        let most_sessions = capacity.sessions(setup.limits)?;
        let limits = Arc::new(SharedLimits::new(setup.limits, most_sessions, access_log.clone()));
        let mut benches = (0..count)
            .map(|_| WorkerContext::new(Arc::clone(&limits)))
            .collect::<Result<Vec<_>, _>>()?;
        for (worker, listener) in open {
            benches[worker].listeners.push(listener);
        }
        let workers: Vec<_> = benches.iter().map(|bench| Arc::clone(&bench.worker)).collect();
        let health = Health::new();
        let telemetry = setup
            .metrics
            .map(|address| {
                let name = Name { purpose: Purpose::Metrics, address };
                let listener = match inherited.listeners(name).pop() {
                    Some(listener) => listener,
                    None => std::net::TcpListener::bind(address)
                        .map_err(|cause| TelemetryError::Listen { address, cause })?,
                };
                passed.add(name, &listener).map_err(RelayError::Runtime)?;
                serve_telemetry(setup, listener, workers.clone(), &health)
            })
            .transpose()?;
        let runtimes = benches.iter().map(|bench| bench.runtime.handle().clone()).collect();
        let metrics = telemetry.as_ref().map(tradewind_telemetry::Server::local_addr);
        let handle = Handle::new(local_addrs, metrics, workers, runtimes, health.clone());
        let timeouts = setup.timeouts.clone();
        let limits = LiveLimits::new(limits, capacity, timeouts.clone());
        let predecessor = inherited.predecessor();
        let process_resources = ProcessResources::new(health, telemetry, passed);
        Ok(Self {
            benches,
            most_sessions,
            limits,
            handle,
            process_resources,
            timeouts,
            predecessor,
            access_log,
        })
    }

    /// Returns how many sessions there may be.
    pub(crate) const fn most_sessions(&self) -> usize {
        self.most_sessions
    }

    /// Returns what changes the limits while it runs.
    pub(crate) fn limits(&self) -> LiveLimits {
        self.limits.clone()
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn health(&self) -> &Health {
        self.handle.health()
    }

    pub(crate) const fn access_log(&self) -> Option<&Arc<AccessLog>> {
        self.access_log.as_ref()
    }

    /// Its listeners, with the numbers of their addresses.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = &(usize, std::net::TcpListener)> {
        self.benches.iter().flat_map(|bench| &bench.listeners)
    }

    /// Has the process before this one, if there is one, leave what is new to this one.
    pub(crate) fn take_over<S: Service>(&mut self, service: &Arc<S>) -> Result<(), RelayError> {
        match self.predecessor.take() {
            Some(stream) => succeed(stream, service).map_err(RelayError::InheritedSockets),
            None => Ok(()),
        }
    }

    /// Serves until told to end.
    pub(crate) fn run<S: Service>(
        mut self,
        service: &Arc<S>,
        shutdown: &Shutdown,
    ) -> Result<(), RelayError> {
        self.take_over(service)?;
        let mut threads = Vec::with_capacity(self.benches.len());
        let mut result = self.process_resources.watch(service, shutdown);
        for (index, bench) in self.benches.into_iter().enumerate() {
            let (service, shutdown) = (Arc::clone(service), shutdown.clone());
            let timeouts = self.timeouts.clone();
            let thread = std::thread::Builder::new().name(format!("worker {index}"));
            let heart = self
                .process_resources
                .health
                .expect_heartbeats(format!("worker {index}"), LONGEST_SILENCE);
            let body = move || {
                let _guard = StopOnPanic(&shutdown);
                clock::sharpen_timers();
                bind_worker();
                bench.work(&service, shutdown.watch(), &timeouts, heart);
            };
            match thread.spawn(body) {
                Ok(thread) => threads.push(thread),
                Err(error) => result = Err(RelayError::Runtime(error)),
            }
        }
        match result {
            Ok(()) => {
                self.process_resources.health.set_ready();
                let _nobody_asks = tell_systemd("READY=1");
            }
            Err(_) => shutdown.stop(),
        }
        for (index, thread) in threads.into_iter().enumerate() {
            if thread.join().is_err() {
                self.process_resources.health.set_fault(format!("worker {index} ended by a bug"));
                result = Err(RelayError::Worker(index));
            }
        }
        self.process_resources.give_up();
        self.access_log.iter().for_each(|log| log.flush());
        result
    }
}

/// Ends the other workers at once when one of them ends by a bug: half a process would accept what
/// it does not serve.
struct StopOnPanic<'a>(&'a Shutdown);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

fn serve_telemetry(
    setup: &Setup<'_>,
    listener: std::net::TcpListener,
    workers: Vec<Arc<Worker>>,
    health: &Health,
) -> Result<tradewind_telemetry::Server, RelayError> {
    let program = setup.program;
    let registry = Registry::new(program, env!("CARGO_PKG_VERSION"));
    let collector = Box::new(CountsCollector { program, workers });
    registry.register(|inner| inner.register_collector(collector));
    (setup.register)(&registry);
    let (hosts, health) = (setup.metrics_hosts, health.clone());
    let serve = || tradewind_telemetry::serve_on(listener, hosts, registry, health);
    Ok(sandbox::as_reader(serve)??)
}

/// Has this thread, and those that it starts, keep no rights but what workers' sockets take.
pub(crate) fn bind_worker() {
    warn_of_rights(sandbox::bind_worker());
}

/// Has this thread, and those that it starts, keep no rights.
pub(crate) fn bind_reader() {
    warn_of_rights(sandbox::bind_reader());
}

fn warn_of_rights(bound: Result<(), NetError>) {
    if let Err(error) = bound {
        tracing::warn!(%error, "a worker keeps all rights of its process");
    }
}

impl WorkerContext {
    fn new(limits: Arc<SharedLimits>) -> Result<Self, RelayError> {
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(RelayError::Runtime)?;
        Ok(Self { runtime, listeners: Vec::new(), worker: Arc::new(Worker::new(limits)) })
    }

    /// Accepts and serves until told to end. Sessions that are open when it returns are dropped
    /// with the runtime, and their sockets are reset.
    fn work<S: Service>(
        self,
        service: &Arc<S>,
        mut phase: watch::Receiver<Phase>,
        timeouts: &LiveTimeouts,
        heart: Heart,
    ) {
        self.runtime.block_on(async {
            tokio::spawn(async move {
                loop {
                    heart.heartbeat();
                    tokio::time::sleep(BEAT).await;
                }
            });
            let mut accepting = Vec::with_capacity(self.listeners.len());
            for (entrance, listener) in self.listeners {
                let listener = TcpListener::from_std(listener).expect("a fresh listener");
                let worker = Arc::clone(&self.worker);
                let accept = accept(listener, entrance, Arc::clone(service), worker, phase.clone());
                accepting.push(tokio::spawn(accept));
            }
            for accept in accepting {
                accept.await.expect("accepting does not panic");
            }
            // Who carries packets alone has no listener, and runs until it is told to end as well.
            let mut over = phase.clone();
            // What this returns holds the phase in place, so that nobody could turn it on: it must
            // go at once.
            drop(over.wait_for(|phase| *phase > Phase::Running).await);
            self.worker.leave();
            tokio::select! {
                () = self.worker.emptied() => {}
                () = sessions_time_out(timeouts, &mut phase) => {}
            }
        });
        self.runtime.shutdown_background();
    }
}

/// Accepts connections until the process drains, and then those that wait already: closing a
/// listener resets them.
async fn accept<S: Service>(
    listener: TcpListener,
    entrance: usize,
    service: Arc<S>,
    worker: Arc<Worker>,
    mut phase: watch::Receiver<Phase>,
) {
    let mut reserve = Reserve::new();
    let shortage = LogLimit::new();
    // Made once, for waiting takes a lock that all workers share.
    let mut over = pin!(phase.wait_for(|phase| *phase > Phase::Running));
    let mut draining = false;
    loop {
        let accepted = if draining {
            match accept_waiting(&listener).await {
                Some(accepted) => accepted,
                None => return,
            }
        } else {
            tokio::select! {
                accepted = listener.accept() => accepted,
                _ = &mut over => {
                    draining = true;
                    continue;
                }
            }
        };
        match accepted {
            Ok((stream, peer)) => {
                let mut permit = worker.permit(peer);
                let (service, arrival) = (Arc::clone(&service), permit.arrival());
                let record = permit.record().cloned();
                let serve = async move {
                    // Opening takes more memory than carrying: it is given back in between. A task
                    // would hold a session twice, where it was and where it was moved to.
                    let opening = Box::pin(service.open(stream, entrance, &mut permit));
                    let outcome = match opening.await.map(Box::new) {
                        Ok(mut session) => {
                            permit.bind(&mut session);
                            session.carry(permit.worker(), service.session_settings()).await
                        }
                        Err(outcome) => outcome,
                    };
                    permit.leave(outcome);
                };
                let task = tokio::spawn(recorded(record, serve));
                worker.serve(arrival, task.abort_handle());
            }
            Err(error) if out_of_descriptors(&error) => {
                if reserve.shed(&listener).await {
                    worker.counts.shed();
                } else {
                    limited!(warn, shortage, (), "accept: {}", plain(&error));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
            // What befell a connection between the handshake and the accept is its own affair.
            Err(error) => tracing::debug!("accept: {}", plain(&error)),
        }
    }
}

/// A connection that waits to be accepted, if there is one.
async fn accept_waiting(listener: &TcpListener) -> Option<io::Result<(TcpStream, SocketAddr)>> {
    poll_fn(|cx| match listener.poll_accept(cx) {
        Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A descriptor held back for the time when there is no other: with it a waiting connection can be
/// accepted and reset, so that its client learns at once instead of waiting in the kernel.
struct Reserve(Option<File>);

impl Reserve {
    fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Turns one waiting connection away. False when there was no descriptor even for that.
    async fn shed(&mut self, listener: &TcpListener) -> bool {
        if self.0.take().is_none() {
            *self = Self::new();
            return false;
        }
        let accepted = accept_waiting(listener).await;
        let shed = matches!(&accepted, Some(Ok(_)));
        drop(accepted);
        *self = Self::new();
        shed
    }
}
