//! Liveness and readiness of a process.
//!
//! Readiness is a switch that the process sets, with a reason while it is off: starting, draining,
//! a peer out of reach. Liveness is lost when the process reports a fault it cannot mend, or when a
//! promised heartbeat is late: the telemetry thread would answer even if the data plane had
//! stopped, so each of its workers must send its own heartbeats.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The health of one process; clones share it.
#[derive(Debug, Clone)]
pub struct Health(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    not_ready: Option<String>,
    fault: Option<String>,
    heartbeats: BTreeMap<u64, Heartbeat>,
    next_heart: u64,
}

#[derive(Debug)]
struct Heartbeat {
    worker: String,
    longest_silence: Duration,
    last: Instant,
}

/// One worker's promise of heartbeats; withdrawn when dropped.
#[derive(Debug)]
pub struct Heart {
    health: Health,
    number: u64,
}

impl Heart {
    /// Records a heartbeat: the worker makes progress.
    pub fn heartbeat(&self) {
        let now = Instant::now();
        self.health.with(|state| {
            if let Some(heartbeat) = state.heartbeats.get_mut(&self.number) {
                heartbeat.last = now;
            }
        });
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.health.with(|state| state.heartbeats.remove(&self.number));
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// Creates the health of a process that is alive, and not ready yet because it is starting.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            not_ready: Some("starting".to_owned()),
            fault: None,
            heartbeats: BTreeMap::new(),
            next_heart: 0,
        })))
    }

    /// Marks the process as ready for traffic.
    pub fn set_ready(&self) {
        self.with(|state| state.not_ready = None);
    }

    /// Marks the process as not ready for `reason`, e.g. `draining`.
    pub fn set_not_ready(&self, reason: impl Into<String>) {
        self.with(|state| state.not_ready = Some(reason.into()));
    }

    /// Reports a fault that only a restart mends. The first one is stored.
    pub fn set_fault(&self, reason: impl Into<String>) {
        self.with(|state| {
            state.fault.get_or_insert_with(|| reason.into());
        });
    }

    /// Registers a worker that promises a [`Heart::heartbeat`] at least every `longest_silence`
    /// from now on.
    #[must_use]
    pub fn expect_heartbeats(&self, worker: impl Into<String>, longest_silence: Duration) -> Heart {
        let (worker, last) = (worker.into(), Instant::now());
        let number = self.with(|state| {
            state.next_heart += 1;
            let heartbeat = Heartbeat { worker, longest_silence, last };
            state.heartbeats.insert(state.next_heart, heartbeat);
            state.next_heart
        });
        Heart { health: self.clone(), number }
    }

    /// Checks that the process lives.
    ///
    /// # Errors
    /// The fault, or the silent worker with the length of its silence.
    pub fn live(&self) -> Result<(), String> {
        self.live_at(Instant::now())
    }

    /// Checks the same at a time that may lie in the future, assuming no heartbeat until then.
    ///
    /// # Errors
    /// As [`Health::live`].
    pub fn live_at(&self, now: Instant) -> Result<(), String> {
        self.with(|state| {
            if let Some(fault) = &state.fault {
                return Err(fault.clone());
            }
            state.heartbeats.values().try_for_each(|heartbeat| {
                let silence = now.saturating_duration_since(heartbeat.last);
                if silence <= heartbeat.longest_silence {
                    return Ok(());
                }
                let (worker, silence) = (&heartbeat.worker, silence.as_secs_f64());
                let allowed = heartbeat.longest_silence.as_secs_f64();
                Err(format!("{worker}: no heartbeat for {silence:.1} s, at most {allowed} s"))
            })
        })
    }

    /// Checks that the process takes traffic. Only a live process can be ready.
    ///
    /// # Errors
    /// The reason given, or that of [`Health::live`].
    pub fn ready(&self) -> Result<(), String> {
        self.live()?;
        self.with(|state| state.not_ready.clone().map_or(Ok(()), Err))
    }

    /// Runs `act` on the state, even if another thread panicked with the lock held.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_process_is_live_and_not_ready() {
        let health = Health::new();
        assert_eq!(health.live(), Ok(()));
        assert_eq!(health.ready(), Err("starting".to_owned()));
    }

    #[test]
    fn clones_share_readiness() {
        let health = Health::new();
        let other = health.clone();
        health.set_ready();
        assert_eq!(other.ready(), Ok(()));
        other.set_not_ready("draining");
        assert_eq!(health.ready(), Err("draining".to_owned()));
    }

    #[test]
    fn first_fault_ends_liveness_and_readiness() {
        let health = Health::new();
        health.set_ready();
        health.set_fault("listener lost");
        health.set_fault("second");
        assert_eq!(health.live(), Err("listener lost".to_owned()));
        assert_eq!(health.ready(), Err("listener lost".to_owned()));
    }

    #[test]
    fn missed_heartbeat_ends_liveness() {
        let health = Health::new();
        let patient = health.expect_heartbeats("worker 0", Duration::from_secs(60));
        let silent = health.expect_heartbeats("worker 1", Duration::from_secs(5));
        let later = Instant::now() + Duration::from_secs(6);
        let fault = health.live_at(later).unwrap_err();
        assert!(fault.starts_with("worker 1") && fault.contains("at most 5 s"), "{fault}");
        silent.heartbeat();
        assert_eq!(health.live(), Ok(()));
        drop(silent);
        assert_eq!(health.live_at(later), Ok(()));
        patient.heartbeat();
    }
}
