//! The resources of a process beside its sessions, and their release: at its end, or when the next
//! process takes over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Builder;
use tokio::sync::watch;
use tradewind_net::systemd;
use tradewind_telemetry::Health;

use crate::failure::plain;
use crate::limits::timeouts::LiveTimeouts;
use crate::process::server::Service;
use crate::process::shutdown::Phase;
use crate::process::upgrade::PassedSockets;
use crate::{Shutdown, StreamError};

/// Waits until the drain timeout of open sessions is over, or the process must stop.
pub(crate) async fn sessions_time_out(timeouts: &LiveTimeouts, phase: &mut watch::Receiver<Phase>) {
    let retiring = *phase.borrow() == Phase::Retiring;
    if retiring {
        tokio::select! {
            () = tokio::time::sleep(timeouts.retire()) => return,
            _ = phase.wait_for(|phase| *phase > Phase::Retiring) => {}
        }
    }
    tokio::select! {
        () = tokio::time::sleep(timeouts.drain()) => {}
        _ = phase.wait_for(|phase| *phase == Phase::Stopping) => {}
    }
}

/// The resources that a process releases when it ends or is upgraded.
#[derive(Clone)]
pub(crate) struct ProcessResources {
    pub(crate) health: Health,
    telemetry: Arc<Mutex<Option<tradewind_telemetry::Server>>>,
    passed: Arc<Mutex<Option<PassedSockets>>>,
}

impl ProcessResources {
    pub(crate) fn new(
        health: Health,
        telemetry: Option<tradewind_telemetry::Server>,
        passed: PassedSockets,
    ) -> Self {
        let telemetry = Arc::new(Mutex::new(telemetry));
        Self { health, telemetry, passed: Arc::new(Mutex::new(Some(passed))) }
    }

    /// Starts a thread that upgrades on request, and reports when the process begins to drain.
    pub(crate) fn watch<S: Service>(
        &self,
        service: &Arc<S>,
        shutdown: &Shutdown,
    ) -> Result<(), StreamError> {
        let (service, shutdown) = (Arc::clone(service), shutdown.clone());
        let process_resources = self.clone();
        let watch = move || {
            if let Ok(runtime) = Builder::new_current_thread().build() {
                runtime.block_on(process_resources.serve(&*service, &shutdown));
            }
        };
        let thread = std::thread::Builder::new().name("drain".to_owned());
        thread.spawn(watch).map(drop).map_err(StreamError::Runtime)
    }

    async fn serve<S: Service>(&self, service: &S, shutdown: &Shutdown) {
        let (mut phase, mut upgrades) = (shutdown.watch(), shutdown.watch_upgrades());
        shutdown.begin();
        loop {
            tokio::select! {
                _ = phase.wait_for(|phase| *phase > Phase::Running) => break,
                _ = upgrades.changed() => {}
            }
            if self.upgrade(service) {
                return shutdown.retire();
            }
        }
        self.health.set_not_ready("draining");
        drop(lock(&self.passed).take());
        tracing::info!("draining: no new sessions are taken");
    }

    /// Starts another process; returns true if that has taken over.
    fn upgrade<S: Service>(&self, service: &S) -> bool {
        let Some(passed) = lock(&self.passed).take() else { return false };
        tracing::info!("upgrade: starting the new process");
        match passed.hand_over(service) {
            Ok(successor) => {
                tracing::info!("upgrade: process {successor} serves; open sessions end here");
                let _nobody_asks = systemd::notify(&format!("MAINPID={successor}"));
                // The port is the successor's.
                drop(lock(&self.telemetry).take());
                true
            }
            Err(error) => {
                tracing::error!("upgrade failed, nothing has changed: {}", plain(&error));
                *lock(&self.passed) = Some(passed);
                false
            }
        }
    }

    /// Closes the metrics port and the listeners.
    pub(crate) fn give_up(&self) {
        drop(lock(&self.passed).take());
        if let Some(telemetry) = lock(&self.telemetry).take() {
            telemetry.shutdown();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
