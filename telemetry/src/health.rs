//! Whether a process lives, and whether it is ready for traffic.
//!
//! Readiness is a switch that the process sets, with a reason while it is off: starting, draining,
//! a neighbour out of reach. Liveness is lost when the process declares a fault it cannot mend, or
//! when a heartbeat it promised stays away: the telemetry thread would answer even if the data
//! plane had stopped, so the data plane must show by its own beat that it runs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The health of one process; clones share it.
#[derive(Debug, Clone)]
pub struct Health(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    not_ready: Option<String>,
    fault: Option<String>,
    heartbeat: Option<Heartbeat>,
}

#[derive(Debug)]
struct Heartbeat {
    longest_silence: Duration,
    last: Instant,
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// Alive, and not ready yet because it is starting.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            not_ready: Some("starting".to_owned()),
            fault: None,
            heartbeat: None,
        })))
    }

    /// Takes traffic from now on.
    pub fn set_ready(&self) {
        self.with(|state| state.not_ready = None);
    }

    /// Wants no new traffic for `reason`, e.g. `draining`.
    pub fn set_not_ready(&self, reason: impl Into<String>) {
        self.with(|state| state.not_ready = Some(reason.into()));
    }

    /// Declares a fault that only a restart mends. The first one stays.
    pub fn set_fault(&self, reason: impl Into<String>) {
        self.with(|state| {
            state.fault.get_or_insert_with(|| reason.into());
        });
    }

    /// Promises a [`Health::beat`] at least every `longest_silence` from now on.
    pub fn expect_beats(&self, longest_silence: Duration) {
        let heartbeat = Heartbeat { longest_silence, last: Instant::now() };
        self.with(|state| state.heartbeat = Some(heartbeat));
    }

    /// Shows that the process makes progress; without effect when no beat was promised.
    pub fn beat(&self) {
        let now = Instant::now();
        self.with(|state| {
            if let Some(heartbeat) = &mut state.heartbeat {
                heartbeat.last = now;
            }
        });
    }

    /// Whether the process lives; if not, why.
    ///
    /// # Errors
    /// The fault, or how long the heartbeat has been silent.
    pub fn live(&self) -> Result<(), String> {
        self.live_at(Instant::now())
    }

    fn live_at(&self, now: Instant) -> Result<(), String> {
        self.with(|state| {
            if let Some(fault) = &state.fault {
                return Err(fault.clone());
            }
            let Some(heartbeat) = &state.heartbeat else { return Ok(()) };
            let silence = now.saturating_duration_since(heartbeat.last);
            if silence <= heartbeat.longest_silence {
                return Ok(());
            }
            let allowed = heartbeat.longest_silence.as_secs_f64();
            Err(format!("no heartbeat for {:.1} s, at most {allowed} s", silence.as_secs_f64()))
        })
    }

    /// Whether the process takes traffic; if not, why. Only what lives can be ready.
    ///
    /// # Errors
    /// The reason given, or that of [`Health::live`].
    pub fn ready(&self) -> Result<(), String> {
        self.live()?;
        self.with(|state| state.not_ready.clone().map_or(Ok(()), Err))
    }

    /// Runs `act` on the state. A panic elsewhere must not silence the health report.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_process_lives_and_is_not_ready() {
        let health = Health::new();
        assert_eq!(health.live(), Ok(()));
        assert_eq!(health.ready(), Err("starting".to_owned()));
    }

    #[test]
    fn readiness_follows_the_switch_in_every_clone() {
        let health = Health::new();
        let other = health.clone();
        health.set_ready();
        assert_eq!(other.ready(), Ok(()));
        other.set_not_ready("draining");
        assert_eq!(health.ready(), Err("draining".to_owned()));
    }

    #[test]
    fn a_fault_ends_life_and_readiness_and_the_first_is_kept() {
        let health = Health::new();
        health.set_ready();
        health.set_fault("listener lost");
        health.set_fault("second");
        assert_eq!(health.live(), Err("listener lost".to_owned()));
        assert_eq!(health.ready(), Err("listener lost".to_owned()));
    }

    #[test]
    fn a_silent_heartbeat_ends_life_until_it_beats_again() {
        let health = Health::new();
        health.expect_beats(Duration::from_secs(5));
        let later = Instant::now() + Duration::from_secs(6);
        assert!(health.live_at(later).unwrap_err().contains("at most 5 s"));
        health.beat();
        assert_eq!(health.live(), Ok(()));
    }
}
