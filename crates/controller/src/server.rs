//! The running controller: its listeners, its clock, and its end.

use std::net::SocketAddr;
use std::time::Instant;

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tradewind_control::{Controller, Event};
use tradewind_grant::{IdentityKey, PublicIdentity};
use tradewind_net::systemd;
use tradewind_telemetry::Health;
use tradewind_units::Duration;

use crate::agents;
use crate::api::{self, Tokens};
use crate::changes::Kind;
use crate::engine::Engine;
use crate::error::ControllerError;
use crate::folder::{Folder, Lock};
use crate::links::LOOK_EVERY;
use crate::listener::{adopt, bind, stopped};
use crate::metrics;
use crate::planning::{Planner, Threads};
use crate::store::Store;

/// Time between two ticks of the controller.
const TICK: Duration = Duration::from_secs(1);
/// Time without a tick after which the controller counts as stuck. Chosen: far longer than any
/// decision takes.
const MAX_SILENCE: Duration = Duration::from_secs(30);
/// Ticks between two times that old data is removed from the store: an hour's.
const PRUNE_EVERY: u64 = 3600;

/// A controller that listens.
#[derive(Debug)]
pub struct Server {
    runtime: Runtime,
    listeners: (TcpListener, TcpListener),
    identity: IdentityKey,
    engine: Engine,
    planner: Planner,
    advertise: SocketAddr,
    tokens: Tokens,
    stop: watch::Sender<bool>,
    health: Health,
    telemetry: Option<tradewind_telemetry::Server>,
    _lock: Lock,
}

/// The switch that ends a controller.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// Ends the controller: requests under way are answered.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Opens the controller of a folder: reads its store and listens. `threads` runs the planner's
    /// pieces of work.
    ///
    /// # Errors
    /// When a file is not valid, another controller has the folder, or an address is in use.
    pub fn open(folder: &Folder, threads: Threads) -> Result<Self, ControllerError> {
        Self::open_on(folder, threads, None)
    }

    /// Opens the controller of a folder on a listener for agents that is open already, as one in
    /// another network namespace; without one, as [`Server::open`].
    ///
    /// # Errors
    /// As [`Server::open`].
    pub fn open_on(
        folder: &Folder,
        threads: Threads,
        agents: Option<std::net::TcpListener>,
    ) -> Result<Self, ControllerError> {
        let settings = folder.settings()?;
        let lock = folder.lock()?;
        let keys = folder.keys()?;
        let tokens = Tokens::new(&folder.admin()?.token, &folder.reader()?.token);
        let store = Store::open(&folder.store())?;
        let identity = keys.identity.clone();
        let controller = Controller::new(keys, store.records()?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| ControllerError::Failed(error.to_string()))?;
        let listeners = runtime.block_on(async {
            Ok::<_, ControllerError>((
                match agents {
                    Some(listener) => adopt(listener)?,
                    None => bind("agents", settings.agents).await?,
                },
                bind("api", settings.api).await?,
            ))
        })?;
        let (engine, health) = (Engine::new(controller, store), Health::new());
        let telemetry = settings.metrics.map(|address| {
            let (registry, hosts) = (metrics::registry(&engine), &settings.metrics_hosts);
            let served = tradewind_telemetry::serve(address, hosts, registry, health.clone());
            served.map_err(|error| ControllerError::Failed(format!("metrics: {error}")))
        });
        Ok(Self {
            runtime,
            listeners,
            identity,
            engine,
            planner: Planner::new(threads),
            advertise: settings.advertise,
            tokens,
            stop: watch::Sender::new(false),
            health,
            telemetry: telemetry.transpose()?,
            _lock: lock,
        })
    }

    /// Returns the controller's identity.
    #[must_use]
    pub fn identity(&self) -> PublicIdentity {
        self.identity.public()
    }

    /// Returns the addresses of the listener for agents and of the API.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn addresses(&self) -> std::io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.listeners.0.local_addr()?, self.listeners.1.local_addr()?))
    }

    /// Returns the address that serves metrics and health, if one does.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.telemetry.as_ref().map(tradewind_telemetry::Server::local_addr)
    }

    /// Returns the switch that ends it.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// Has SIGTERM and SIGINT end it.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub fn stop_on_signals(&self) -> Result<(), ControllerError> {
        let _inside = self.runtime.enter();
        for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
            let failed = |error| ControllerError::Failed(format!("wait for signals: {error}"));
            let mut arrived: Signal = signal(kind).map_err(failed)?;
            let stopper = self.stopper();
            self.runtime.spawn(async move {
                if arrived.recv().await.is_some() {
                    tracing::info!("ends");
                    stopper.stop();
                }
            });
        }
        Ok(())
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    /// When the identity cannot be prepared: a bug.
    pub fn run(self) -> Result<(), ControllerError> {
        let Self { runtime, listeners, identity, engine, planner, advertise, tokens, .. } = self;
        let watch = || self.stop.subscribe();
        let of_agents = agents::serve(listeners.0, &identity, engine.clone(), watch());
        let shared = api::Shared::new(
            engine.clone(),
            planner.clone(),
            identity.public(),
            advertise,
            watch(),
        );
        let of_operators = api::serve(listeners.1, shared, tokens);
        self.health.set_ready();
        tell_systemd("READY=1");
        let served = runtime.block_on(async {
            tokio::join!(
                of_agents,
                of_operators,
                planner.run(&engine, watch()),
                tick(&engine, &self.health, watch()),
                look_at_links(&engine, watch()),
                notify_at_end(watch()),
            )
            .0
        });
        // A plan that is being made has no use any more.
        runtime.shutdown_background();
        served
    }
}

async fn notify_at_end(mut stop: watch::Receiver<bool>) {
    stopped(&mut stop).await;
    tell_systemd("STOPPING=1");
}

fn tell_systemd(state: &str) {
    if let Err(error) = systemd::notify(state) {
        tracing::warn!(%error, "systemd does not take `{state}`");
    }
}

/// Lets time pass for the controller until `stop` is true.
async fn tick(engine: &Engine, health: &Health, mut stop: watch::Receiver<bool>) {
    let heart = health.expect_heartbeats("the clock", MAX_SILENCE);
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut was_refused = false;
    for number in 0_u64.. {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stopped(&mut stop) => return,
        }
        let ticked = engine.handle(Event::Tick).await.map(drop);
        heart.heartbeat();
        let pruned = if number % PRUNE_EVERY == 0 { engine.prune().await } else { Ok(()) };
        match ticked.and(pruned) {
            Ok(()) => {
                if was_refused {
                    health.set_ready();
                }
                was_refused = false;
            }
            Err(failure) => {
                health.set_not_ready(failure.to_string());
                // A full disk is one line, not one each second.
                if !was_refused {
                    tracing::error!("{failure}");
                }
                was_refused = true;
            }
        }
    }
}

/// Looks at the connections of agents until `stop` is true, and tells operators when one falls
/// silent or is heard again.
async fn look_at_links(engine: &Engine, mut stop: watch::Receiver<bool>) {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = stopped(&mut stop) => return,
        }
        if engine.links().look(Instant::now()) {
            engine.tell(&[Kind::Hosts]);
        }
    }
}
