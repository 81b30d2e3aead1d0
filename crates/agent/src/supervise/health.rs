//! The health of processes that are ready: whether they are alive, and run by their newest
//! configuration, as they say on their metrics ports.

use std::time::Instant;

use tradewind_control::message::ProcessState;
use tradewind_units::Duration;

use super::{Supervisor, Unit};
use crate::home::PendingSignal;
use crate::metrics::{Counted, Metrics};

/// Time in which a process takes a new configuration over. Chosen: it looks four times a second.
const TAKES_OVER_WITHIN: Duration = Duration::from_secs(3);
/// The failure of a process that has not.
const NOT_TAKEN_OVER: &str =
    "it does not run by its newest configuration; the agent's log has the reason";

/// Times in a row that a process is not alive before it counts as failing. Chosen: a busy host is
/// late once.
const MAX_ILL: u32 = 3;

impl Supervisor {
    /// Returns the metrics of the processes that are ready, by name.
    pub(crate) fn metrics(&self) -> Vec<(String, Metrics)> {
        let ready = self.units.iter().filter(|(_, unit)| unit.state() == ProcessState::Ready);
        ready.filter_map(|(name, unit)| Some((name.clone(), unit.metrics?))).collect()
    }

    /// Takes in how many sessions a process has open, of which flows, and the configuration by
    /// which it runs. Returns whether it is known now that it fails, or no longer does.
    pub(crate) fn take_count(&mut self, name: &str, counted: &Counted, now: Instant) -> bool {
        let Some(unit) = self.units.get_mut(name) else { return false };
        unit.sessions = counted.open;
        unit.flows.clone_from(&counted.flows);
        let before = unit.is_stale;
        unit.check_config(counted.config_hash, now);
        unit.is_stale != before
    }

    /// Takes in whether a process is alive, or why not. Returns whether it is known now that it
    /// fails, or no longer does.
    pub(crate) fn take_health(&mut self, name: &str, alive: Result<(), String>) -> bool {
        let Some(unit) = self.units.get_mut(name) else { return false };
        let before = unit.is_ill();
        // One that hands over may not answer for a moment.
        unit.ill = if alive.is_err() && unit.upgrading.is_none() { unit.ill + 1 } else { 0 };
        unit.illness = alive.err();
        unit.is_ill() != before
    }
}

impl Unit {
    /// Judges its configuration by what it says from `since` on, and a little later.
    pub(super) fn confirm_from(&mut self, since: Instant) {
        self.is_stale = false;
        self.config = self.config.map(|(hash, before)| (hash, before.max(since)));
    }

    /// Returns whether it has said several times that it is not alive, or nothing.
    const fn is_ill(&self) -> bool {
        self.ill >= MAX_ILL
    }

    /// Returns the reason why it ended, or does not do what it is to do.
    pub(super) fn told_failure(&self) -> Option<String> {
        let illness = self.illness.as_ref().filter(|_| self.is_ill());
        let stale = self.is_stale.then(|| NOT_TAKEN_OVER.to_owned());
        self.failure.as_ref().or(illness).cloned().or(stale)
    }

    /// Takes in the hash of the configuration that is in force at the running process, if it says.
    fn check_config(&mut self, in_force: Option<i64>, now: Instant) {
        let Some(((hash, since), in_force)) = self.config.zip(in_force) else { return };
        // Its successor takes over the new one.
        let is_due = self.upgrading.is_some() || self.due != PendingSignal::Nothing;
        if self.state() != ProcessState::Ready || is_due {
            return;
        }
        let has_time = now.saturating_duration_since(since) < TAKES_OVER_WITHIN;
        self.is_stale = in_force != hash && (self.is_stale || !has_time);
    }
}

#[cfg(test)]
mod tests {
    use tradewind_config::Kind;
    use tradewind_net::processes::Running;
    use tradewind_stream::process::in_force::config_hash;

    use super::super::UPGRADE_LIMIT;
    use super::*;
    use crate::Home;

    fn ready_unit(begun: Instant) -> Unit {
        let mut unit = Unit::new(Kind::Gateway, begun);
        (unit.running, unit.lines) = (Running::of(std::process::id()), 1);
        unit
    }

    #[test]
    fn process_that_runs_by_another_configuration_fails() {
        let begun = Instant::now();
        let (old, new) = (config_hash("share = 1"), config_hash("share = 2"));
        let mut unit = ready_unit(begun);
        unit.config = Some((new, begun));
        let (soon, late) = (TAKES_OVER_WITHIN - Duration::from_millis(1), TAKES_OVER_WITHIN);
        unit.check_config(Some(old), begun + soon);
        assert_eq!(unit.told_failure(), None, "it has time");
        unit.check_config(None, begun + late);
        assert_eq!(unit.told_failure(), None, "it does not say");
        unit.upgrading = Some(begun);
        unit.check_config(Some(old), begun + late);
        assert_eq!(unit.told_failure(), None, "its successor starts");
        (unit.upgrading, unit.due) = (None, PendingSignal::Upgrade);
        unit.check_config(Some(old), begun + late);
        assert_eq!(unit.told_failure(), None, "its successor is about to start");
        unit.due = PendingSignal::Nothing;
        unit.check_config(Some(old), begun + late);
        assert_eq!(unit.told_failure().as_deref(), Some(NOT_TAKEN_OVER));
        unit.check_config(None, begun + late);
        assert_eq!(unit.told_failure().as_deref(), Some(NOT_TAKEN_OVER));
        unit.check_config(Some(new), begun + late);
        assert_eq!(unit.told_failure(), None);
        // The reason of another failure stays.
        unit.failure = Some("no successor".to_owned());
        unit.check_config(Some(new), begun + late);
        assert_eq!(unit.told_failure().as_deref(), Some("no successor"));
        // One that an agent before has told to start its successor has longer.
        unit.failure = None;
        unit.confirm_from(begun + UPGRADE_LIMIT);
        unit.confirm_from(begun + late);
        unit.check_config(Some(old), begun + UPGRADE_LIMIT);
        assert_eq!(unit.told_failure(), None);
        unit.check_config(Some(old), begun + UPGRADE_LIMIT + late);
        assert_eq!(unit.told_failure().as_deref(), Some(NOT_TAKEN_OVER));
    }

    #[test]
    fn process_that_is_not_alive_several_times_fails() {
        let home = Home::at(&std::env::temp_dir()).unwrap();
        let mut supervisor = Supervisor::new(home, "/bin/sh".into()).unwrap();
        supervisor.units.insert("gateway".to_owned(), ready_unit(Instant::now()));
        let mut hear = |is_alive: bool| {
            let alive = if is_alive { Ok(()) } else { Err("stuck".to_owned()) };
            let is_news = supervisor.take_health("gateway", alive);
            (is_news, supervisor.statuses()[0].failure.clone())
        };
        let (well, ill) = (None, Some("stuck".to_owned()));
        for _ in 0..2 {
            assert_eq!(hear(false), (false, well.clone()));
            assert_eq!(hear(false), (false, well.clone()));
            assert_eq!(hear(false), (true, ill.clone()));
            assert_eq!(hear(false), (false, ill.clone()));
            assert_eq!(hear(true), (true, well.clone()));
        }
    }
}
