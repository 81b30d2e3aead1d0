//! The running controller: its listeners, its clock, and its end.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tradewind_control::{Controller, Event};
use tradewind_grant::{IdentityKey, PublicIdentity};
use tradewind_net::systemd;
use tradewind_units::Duration;

use crate::agents;
use crate::api::{self, Tokens};
use crate::engine::Engine;
use crate::error::ControllerError;
use crate::folder::{Folder, Lock};
use crate::listener::{bind, stopped};
use crate::planning::{Planner, Threads};
use crate::store::Store;

/// Time between two ticks of the controller.
const TICK: Duration = Duration::from_secs(1);
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
                bind("agents", settings.agents).await?,
                bind("api", settings.api).await?,
            ))
        })?;
        Ok(Self {
            runtime,
            listeners,
            identity,
            engine: Engine::new(controller, store),
            planner: Planner::new(threads),
            advertise: settings.advertise,
            tokens,
            stop: watch::Sender::new(false),
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
        let Self { runtime, listeners, identity, engine, planner, advertise, tokens, stop, _lock } =
            self;
        let watch = || stop.subscribe();
        let of_agents = agents::serve(listeners.0, &identity, engine.clone(), watch());
        let shared = api::Shared {
            engine: engine.clone(),
            planner: planner.clone(),
            identity: identity.public(),
            advertise,
        };
        let of_operators = api::serve(listeners.1, shared, tokens, watch());
        tell_systemd("READY=1");
        let served = runtime.block_on(async {
            tokio::join!(
                of_agents,
                of_operators,
                planner.run(&engine, watch()),
                tick(&engine, watch()),
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
async fn tick(engine: &Engine, mut stop: watch::Receiver<bool>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut was_refused = false;
    for number in 0_u64.. {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stopped(&mut stop) => return,
        }
        let ticked = engine.handle(Event::Tick).await.map(drop);
        let pruned = if number % PRUNE_EVERY == 0 { engine.prune().await } else { Ok(()) };
        match ticked.and(pruned) {
            Ok(()) => was_refused = false,
            Err(failure) => {
                // A full disk is one line, not one each second.
                if !was_refused {
                    tracing::error!("{failure}");
                }
                was_refused = true;
            }
        }
    }
}
