//! Threads, each with a runtime and listeners of its own, among which the kernel spreads
//! connections. A session stays on the thread that accepted it.

use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tradewind_config::{AccessLogConfig, Limits, TracesConfig};
use tradewind_grant::{GrantError, PublicIdentity, Sighting};
use tradewind_net::systemd;
use tradewind_net::tcp::SocketOptions;
use tradewind_net::{NetError, clock, sandbox};
use tradewind_telemetry::{Health, Heart, LogLimit, Registry, TelemetryError, limited};

use crate::StreamError;
use crate::access_log::record::{SessionSink, Sinks};
use crate::access_log::{AccessLog, recorded};
use crate::counts::Outcome;
use crate::failure::{out_of_descriptors, plain};
use crate::limits::capacity::{Capacity, Listening};
use crate::limits::live::LiveLimits;
use crate::limits::timeouts::LiveTimeouts;
use crate::process::handle::Handle;
use crate::process::metrics::CountsCollector;
use crate::process::resources::{ProcessResources, sessions_time_out};
use crate::process::shutdown::{Phase, Shutdown};
use crate::process::upgrade::{Handover, Name, Purpose, open_listeners, send_bytes, succeed};
use crate::process::worker::{Permit, SharedLimits, Worker};
use crate::session::{Session, SessionSettings};
use crate::traces::Traces;

/// Pause after an accept that failed for want of descriptors, even with the reserve. Chosen: short
/// against a handshake, long against a loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Interval between two heartbeats of a worker.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Time without one after which the process counts as dead. Chosen: no turn of a worker takes a
/// tenth of it, even on a machine with ten times as many workers as it has CPUs.
const MAX_SILENCE: Duration = Duration::from_secs(10);

/// The service that a server runs for each connection.
pub trait Service: Send + Sync + 'static {
    /// Returns the settings of its sessions.
    fn session_settings(&self) -> &SessionSettings;

    /// Opens the path for `stream`, which the listener with number `listener_index` accepted;
    /// otherwise returns the outcome.
    fn open(
        &self,
        stream: TcpStream,
        listener_index: usize,
        permit: &mut Permit,
    ) -> impl Future<Output = Result<Session, Outcome>> + Send;

    /// Sends the state that the next process needs, and asks that process from now on.
    fn hand_over(&self, successor: &UnixStream) -> io::Result<()> {
        send_bytes(successor, &[])
    }

    /// Takes the state that the previous process has sent.
    fn take_over(&self, _seen: &[u8]) -> io::Result<()> {
        Ok(())
    }

    /// Checks that a header that the previous process reads may be used.
    ///
    /// # Errors
    /// The reason that it may not.
    fn judge(&self, sighting: &Sighting) -> Result<(), GrantError> {
        Err(GrantError::Replayed(sighting.nonce))
    }
}

/// The setup of a server.
pub struct Setup<'a> {
    /// The program, which prefixes the names of metrics.
    pub program: &'static str,
    /// The addresses to listen on.
    pub addresses: &'a [SocketAddr],
    /// The number of workers; absent for one for each core.
    pub workers: Option<usize>,
    /// The limits of sessions.
    pub limits: &'a Limits,
    /// The options of accepted connections.
    pub accept: &'a SocketOptions,
    /// The timeouts in force.
    pub timeouts: &'a LiveTimeouts,
    /// The address of the metrics port.
    pub metrics: Option<SocketAddr>,
    /// The output of the access log.
    pub access_log: Option<&'a AccessLogConfig>,
    /// The collector of traces.
    pub traces: Option<&'a TracesConfig>,
    /// The public identity of this process, which its traces name.
    pub identity: Option<PublicIdentity>,
    /// Further host names that the metrics port answers to.
    pub metrics_hosts: &'a [String],
    /// Adds metrics and pages of its own to the metrics port.
    pub register: &'a dyn Fn(&Registry),
}

/// A server whose listeners are open and whose threads have not started.
pub struct Server {
    benches: Vec<WorkerContext>,
    most_sessions: usize,
    limits: LiveLimits,
    handle: Handle,
    process_resources: ProcessResources,
    timeouts: LiveTimeouts,
    predecessor: Option<UnixStream>,
    access_log: Option<Arc<AccessLog>>,
    traces: Option<Arc<Traces>>,
}

/// The state that one thread takes with it.
struct WorkerContext {
    runtime: Runtime,
    /// The listeners, by the number of the address.
    listeners: Vec<(usize, std::net::TcpListener)>,
    worker: Arc<Worker>,
}

impl Server {
    /// Opens the listeners that are not inherited.
    pub fn bind(setup: &Setup<'_>, handover: Handover) -> Result<Self, StreamError> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let count = setup.workers.unwrap_or_else(cores);
        let access_log = AccessLog::open(setup.program, setup.access_log)?.map(Arc::new);
        let identity = setup.identity.map(|identity| identity.to_string());
        let traces = Traces::start(setup.program, identity, setup.traces)?.map(Arc::new);
        let Handover { mut inherited, mut passed } = handover;
        let mut local_addrs = Vec::with_capacity(setup.addresses.len());
        let mut open = Vec::new();
        for (listener_index, address) in setup.addresses.iter().enumerate() {
            let name = Name { purpose: Purpose::Listener(listener_index), address: *address };
            let listeners = open_listeners(name, count, setup, inherited.listeners(name))?;
            let local = listeners[0].local_addr().map_err(StreamError::Runtime)?;
            tracing::info!("listening on {local}");
            local_addrs.push(local);
            for (index, listener) in listeners.into_iter().enumerate() {
                passed.add(name, &listener).map_err(StreamError::Runtime)?;
                open.push((index % count, (listener_index, listener)));
            }
        }
        let listening = Listening { addresses: setup.addresses.len(), workers: count };
        let capacity = Capacity::find(listening);
        let most_sessions = capacity.sessions(setup.limits)?;
        let sinks = sinks(setup, access_log.as_ref(), traces.as_ref());
        let limits = Arc::new(SharedLimits::new(setup.limits, most_sessions, sinks));
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
                passed.add(name, &listener).map_err(StreamError::Runtime)?;
                let also = |registry: &Registry| {
                    traces.iter().for_each(|traces| traces.register(registry));
                    (setup.register)(registry);
                };
                serve_telemetry(setup, (listener, &also), workers.clone(), &health)
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
            traces,
        })
    }

    /// Returns the number of sessions allowed.
    pub const fn most_sessions(&self) -> usize {
        self.most_sessions
    }

    /// Returns the limits, which can be changed while it runs.
    pub fn limits(&self) -> LiveLimits {
        self.limits.clone()
    }

    /// Returns a view of it while it runs.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the health that its metrics port reports.
    pub fn health(&self) -> &Health {
        self.handle.health()
    }

    /// Returns its access log, if it has one.
    pub const fn access_log(&self) -> Option<&Arc<AccessLog>> {
        self.access_log.as_ref()
    }

    /// Returns its listeners, with the numbers of their addresses.
    pub fn listeners(&self) -> impl Iterator<Item = &(usize, std::net::TcpListener)> {
        self.benches.iter().flat_map(|bench| &bench.listeners)
    }

    /// Takes over from the previous process, if there is one.
    pub fn take_over<S: Service>(&mut self, service: &Arc<S>) -> Result<(), StreamError> {
        match self.predecessor.take() {
            Some(stream) => succeed(stream, service).map_err(StreamError::InheritedSockets),
            None => Ok(()),
        }
    }

    /// Serves until the shutdown.
    pub fn run<S: Service>(
        mut self,
        service: &Arc<S>,
        shutdown: &Shutdown,
    ) -> Result<(), StreamError> {
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
                .expect_heartbeats(format!("worker {index}"), MAX_SILENCE);
            let body = move || {
                let _guard = StopOnPanic(&shutdown);
                clock::sharpen_timers();
                bind_worker();
                bench.work(&service, shutdown.watch(), &timeouts, heart);
            };
            match thread.spawn(body) {
                Ok(thread) => threads.push(thread),
                Err(error) => result = Err(StreamError::Runtime(error)),
            }
        }
        match result {
            Ok(()) => {
                self.process_resources.health.set_ready();
                let _nobody_asks = systemd::notify("READY=1");
            }
            Err(_) => shutdown.stop(),
        }
        for (index, thread) in threads.into_iter().enumerate() {
            if thread.join().is_err() {
                self.process_resources.health.set_fault(format!("worker {index} ended by a bug"));
                result = Err(StreamError::Worker(index));
            }
        }
        self.process_resources.give_up();
        self.access_log.iter().for_each(|log| log.flush());
        self.traces.iter().for_each(|traces| traces.flush());
        result
    }
}

/// Returns the outputs of sessions.
fn sinks(
    setup: &Setup<'_>,
    access_log: Option<&Arc<AccessLog>>,
    traces: Option<&Arc<Traces>>,
) -> Option<Arc<Sinks>> {
    let access_log = access_log.map(|log| -> Arc<dyn SessionSink> { Arc::clone(log) as _ });
    let traces = traces.map(|traces| -> Arc<dyn SessionSink> { Arc::clone(traces) as _ });
    let share = setup.traces.map(|traces| traces.sample).unwrap_or_default();
    Sinks::of(access_log.into_iter().chain(traces).collect(), share)
}

/// Ends the other workers at once when one of them panics: a process without it would accept
/// connections that it does not serve.
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
    (listener, register): (std::net::TcpListener, &dyn Fn(&Registry)),
    workers: Vec<Arc<Worker>>,
    health: &Health,
) -> Result<tradewind_telemetry::Server, StreamError> {
    let program = setup.program;
    let registry = Registry::new(program, env!("CARGO_PKG_VERSION"));
    let collector = Box::new(CountsCollector { program, workers });
    registry.register(|inner| inner.register_collector(collector));
    register(&registry);
    let (hosts, health) = (setup.metrics_hosts, health.clone());
    let serve = || tradewind_telemetry::serve_on(listener, hosts, registry, health);
    Ok(sandbox::as_reader(serve)??)
}

/// Drops all rights of this thread, and those that it starts, except those that workers' sockets
/// need.
pub fn bind_worker() {
    warn_of_rights(sandbox::bind_worker());
}

/// Drops all rights of this thread, and those that it starts.
pub(crate) fn bind_reader() {
    warn_of_rights(sandbox::bind_reader());
}

fn warn_of_rights(bound: Result<(), NetError>) {
    if let Err(error) = bound {
        tracing::warn!(%error, "a worker keeps all rights of its process");
    }
}

impl WorkerContext {
    fn new(limits: Arc<SharedLimits>) -> Result<Self, StreamError> {
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(StreamError::Runtime)?;
        Ok(Self { runtime, listeners: Vec::new(), worker: Arc::new(Worker::new(limits)) })
    }

    /// Accepts and serves until the shutdown. Sessions that are open when it returns are dropped
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
                    tokio::time::sleep(HEARTBEAT_INTERVAL).await;
                }
            });
            let mut accepting = Vec::with_capacity(self.listeners.len());
            for (listener_index, listener) in self.listeners {
                let listener = TcpListener::from_std(listener).expect("a fresh listener");
                let worker = Arc::clone(&self.worker);
                let accept =
                    accept(listener, listener_index, Arc::clone(service), worker, phase.clone());
                accepting.push(tokio::spawn(accept));
            }
            for accept in accepting {
                accept.await.expect("accepting does not panic");
            }
            // A process that carries packets alone has no listener, and runs until the shutdown as
            // well.
            let mut over = phase.clone();
            // The returned guard locks the phase, so that it could not be changed: it must be
            // dropped at once.
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

/// Accepts connections until the process drains, and then those already in the backlog: closing a
/// listener resets them.
async fn accept<S: Service>(
    listener: TcpListener,
    listener_index: usize,
    service: Arc<S>,
    worker: Arc<Worker>,
    mut phase: watch::Receiver<Phase>,
) {
    let mut reserve = Reserve::new();
    let shortage = LogLimit::new();
    // Created once, since each new wait takes a lock that all workers share.
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
                let permit = worker.permit(peer);
                let (arrival, record) = (permit.arrival(), permit.record().cloned());
                // Opening takes more memory than carrying: it is freed in between.
                let opening = opened(Arc::clone(&service), stream, listener_index, permit);
                let serve = carried(Box::pin(opening));
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
            // A failure between the handshake and the accept concerns that connection alone.
            Err(error) => tracing::debug!("accept: {}", plain(&error)),
        }
    }
}

/// A connection with the service that it uses, and its session if its path is open.
struct Opened<S> {
    service: Arc<S>,
    permit: Permit,
    session: Box<Session>,
}

/// Opens the path for a connection. Returns `None` when it could not be opened.
async fn opened<S: Service>(
    service: Arc<S>,
    stream: TcpStream,
    listener_index: usize,
    mut permit: Permit,
) -> Option<Opened<S>> {
    match service.open(stream, listener_index, &mut permit).await {
        // Boxed, since a task would hold a session twice: in its old place and its new one.
        Ok(session) => Some(Opened { service, permit, session: Box::new(session) }),
        Err(outcome) => {
            permit.leave(outcome);
            None
        }
    }
}

/// Carries a connection's session once its path is open.
#[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
fn carried<S: Service>(
    opening: Pin<Box<impl Future<Output = Option<Opened<S>>> + Send>>,
) -> impl Future<Output = ()> + Send {
    async move {
        let Some(Opened { service, permit, mut session }) = opening.await else { return };
        session.bind(&permit);
        let outcome = session.carry(permit.worker(), service.session_settings()).await;
        permit.leave(outcome);
    }
}

/// Accepts a connection from the backlog, if there is one.
async fn accept_waiting(listener: &TcpListener) -> Option<io::Result<(TcpStream, SocketAddr)>> {
    poll_fn(|cx| match listener.poll_accept(cx) {
        Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// A descriptor in reserve for when there is no other: with it a waiting connection can be accepted
/// and reset, so that its client learns at once instead of waiting in the backlog.
struct Reserve(Option<File>);

impl Reserve {
    fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Accepts and resets one waiting connection. Returns false if there was no descriptor even for
    /// that.
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
