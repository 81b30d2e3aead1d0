//! The prober: sends probes along every path that has an alternative, from a thread of its own.
//!
//! Each path has two lanes, each with a connection of its own on which one probe follows the other.
//! The results go to the path's [`Health`](super::health::Health), which decides its state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tradewind_grant::{Echo, Status};
use tradewind_stream::StreamError;
use tradewind_stream::clock::unix_now;
use tradewind_stream::dial::probe_leg::{Ask, ProbeLeg};
use tradewind_stream::failure::Failure;
use tradewind_stream::process::server::bind_worker;
use tradewind_stream::process::shutdown::Phase;
use tradewind_stream::session::buffer_pool::BufferPool;
use tradewind_units::{Duration, FlowId, Timestamp};

use super::attempt::{PathOpener, is_own_fault};
use super::health::{INTERVAL, LANES, State};
use super::names;
use super::paths::RelayPath;
use super::service::GatewayService;

/// Interval at which the states of all paths are compared and logged. Chosen.
const LOOK: Duration = Duration::from_millis(100);

/// Longest time that the first sessions wait for the lookup of relays' names. Chosen: one lost
/// query and its retry.
const FIRST_NAMES: Duration = Duration::from_secs(2);

/// A prober that runs until the process drains, or until this is dropped.
pub(super) struct Prober {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Prober {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the prober ended by a bug");
        }
    }
}

/// Starts probing.
pub(super) fn start(
    service: Arc<GatewayService>,
    mut phase: watch::Receiver<Phase>,
) -> Result<Prober, StreamError> {
    let (stop, stopped) = oneshot::channel();
    let runtime =
        Builder::new_current_thread().enable_all().build().map_err(StreamError::Runtime)?;
    // Waiting sessions find the named relays' addresses, if those can be looked up soon.
    let looking_up = names::look_up(&service);
    let _known = runtime.block_on(async { timeout(FIRST_NAMES, looking_up).await });
    let probe = move || {
        // It reads bytes from relays, and from any host that has their address.
        bind_worker();
        runtime.block_on(async {
            tokio::select! {
                () = probe_all(&service) => {}
                () = names::follow(&service) => {}
                _ = stopped => {}
                _ = phase.wait_for(|phase| *phase >= Phase::Draining) => {}
            }
        });
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("prober".to_owned());
    let thread = thread.spawn(probe).map_err(StreamError::Runtime)?;
    Ok(Prober { stop: Some(stop), thread: Some(thread) })
}

/// Probes the paths of the table in force, also after it is replaced.
async fn probe_all(service: &Arc<GatewayService>) {
    let buffer_pool = Arc::new(BufferPool::default());
    let mut version = service.opener.routes.version();
    loop {
        version.mark_unchanged();
        let routing = service.opener.routes.current();
        // Dropped with this iteration, and all its tasks with it.
        let mut tasks = JoinSet::new();
        for path in routing.paths().filter(|path| path.is_watched) {
            path.health().begin(service.opener.routes.now());
            for number in 0..LANES {
                let (service, path) = (Arc::clone(service), Arc::clone(path));
                tasks.spawn(lane(service, path, number, Arc::clone(&buffer_pool)));
            }
        }
        if !tasks.is_empty() {
            tasks.spawn(look(Arc::clone(service)));
        }
        if version.changed().await.is_err() {
            return;
        }
    }
}

/// Runs one lane of a path. An old connection is replaced by another only once that has carried a
/// probe: dials take several round trips, during which the old one still shows the state of the
/// path.
async fn lane(
    service: Arc<GatewayService>,
    path: Arc<RelayPath>,
    number: usize,
    buffer_pool: Arc<BufferPool>,
) {
    sleep(INTERVAL * number as u32).await;
    let (mut leg, mut younger) = (None, JoinSet::new());
    loop {
        let (begun, sent) = (Instant::now(), service.opener.routes.now());
        let limit = {
            let mut health = path.health();
            health.due(number, sent);
            health.probe_timeout() * 2
        };
        match younger.try_join_next() {
            Some(Ok(Ok(Ok(dialled)))) => leg = dialled,
            Some(Ok(Ok(Err(failure)))) => missed(&path, service.opener.routes.now(), &failure),
            // A late dial proves nothing while the old connection is answered: another is tried
            // later, and if the old one ends, a dial is awaited.
            _ => {}
        }
        if younger.is_empty() && leg.as_ref().is_some_and(ProbeLeg::is_old) {
            let (service, path, buffer_pool) = (service.clone(), path.clone(), buffer_pool.clone());
            younger.spawn(timeout(limit, async move {
                let mut leg = None;
                service.opener.probe(&path, &mut leg, &buffer_pool).await.map(|_| leg)
            }));
        }
        let outcome = timeout(limit, service.opener.probe(&path, &mut leg, &buffer_pool)).await;
        let now = service.opener.routes.now();
        match outcome {
            Ok(Ok(legs)) => path.health().answered(number, sent, now, legs),
            Ok(Err(failure)) => {
                if is_own_fault(&failure) {
                    path.health().not_sent(number);
                }
                missed(&path, now, &failure);
            }
            // The path's health decides whether the path is silent or only this connection.
            Err(_) => leg = None,
        }
        sleep_until(begun + INTERVAL * LANES as u32).await;
    }
}

/// Notes a failed probe of `path`: the path has failed, unless the fault is this host's own.
fn missed(path: &RelayPath, now: Timestamp, failure: &Failure) {
    if is_own_fault(failure) {
        tracing::debug!("probe of {}: {}", path.name(), failure.message);
    } else {
        path.health().failed(now, &failure.message);
    }
}

/// Logs changes of the paths' states, and passes each path the round trip of its alternatives.
async fn look(service: Arc<GatewayService>) {
    let mut seen: BTreeMap<String, State> = BTreeMap::new();
    let mut turns = interval(LOOK);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let (routing, now) = (service.opener.routes.current(), service.opener.routes.now());
        routing.compare(now);
        for path in routing.paths().filter(|path| path.is_watched) {
            let (state, cause) = {
                let mut health = path.health();
                (health.state(now), health.cause().to_owned())
            };
            let before = seen.insert(path.name(), state).unwrap_or(State::Unproven);
            if state == before {
                continue;
            }
            match state {
                State::Slow | State::Dead => {
                    tracing::warn!("path {} is {state}: {cause}", path.name());
                }
                _ => tracing::info!("path {} is {state}: {cause}", path.name()),
            }
        }
    }
}

impl PathOpener {
    /// Sends one probe along `path`; returns the round trip of each leg.
    pub(super) async fn probe(
        &self,
        path: &RelayPath,
        leg: &mut Option<ProbeLeg>,
        buffer_pool: &BufferPool,
    ) -> Result<Vec<Duration>, Failure> {
        path.check_placed()?;
        let flow = FlowId::new("probe").expect("a short word");
        let header = self.with_sealer(|sealer, nonce| {
            sealer.seal_probe(unix_now(), nonce, &flow, &path.route)
        })?;
        let hops = path.route.hops();
        let address = hops[0].address;
        let ask = Ask { hop: hops[0], header: &header };
        let answer = ProbeLeg::ask(leg, &self.dialler, buffer_pool, &ask).await?;
        let reply = answer.reply;
        if reply.status != Status::Ok {
            let at = hops.get(reply.hop).map_or(address, |hop| hop.address);
            // A relay's own failure is the path's, not this host's.
            let message = format!("relay {} ({at}): {}", reply.hop + 1, reply.message);
            return Err(Failure::new(Status::NextHopFailed, message));
        }
        match Echo::parse(&reply.message) {
            Ok(echo) if echo.legs.len() + 1 == hops.len() => Ok(echo.legs_after(answer.waited)),
            _ => {
                let message = format!("next relay {address}: an echo of another path");
                Err(Failure::new(Status::NextHopFailed, message))
            }
        }
    }
}
