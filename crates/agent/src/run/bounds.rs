//! The part of the loop that keeps the rate and the spend of the owner's ceiling: processes are
//! asked what they have sent and whether they are alive, and probes are bounded.

use std::time::Instant;

use tokio::sync::mpsc;
use tradewind_control::Ceiling;
use tradewind_control::ceiling::Bounds;
use tradewind_control::message::{Probe, ProbeKind};
use tradewind_stream::clock::unix_now;
use tradewind_units::Segments;

use super::Agent;
use crate::metrics::Counted;

impl Agent {
    /// Returns whether the owner bounds rate or spend. A ceiling that cannot be read may.
    pub(super) fn is_bounded(&self) -> bool {
        self.ceiling().map_or(true, |ceiling| ceiling.is_bounded())
    }

    /// Returns what the controller is told of the owner's bounds.
    pub(super) fn bounds(&self) -> Option<Bounds> {
        self.ceiling().ok()?.bounds(self.is_used_up, self.spent.known())
    }

    /// Returns whether a document has to wait until former processes have ended: where the owner
    /// bounds rate or spend, those of many documents do not share the host.
    pub(super) fn must_wait(&self) -> bool {
        self.is_bounded() && self.supervisor.has_formers()
    }

    /// Asks the processes what they count, whose answers go to `count`, and watches the spend.
    pub(super) fn count(&mut self, count: &mpsc::UnboundedSender<(String, Counted)>) {
        for (name, metrics) in self.supervisor.metrics() {
            let count = count.clone();
            tokio::spawn(async move { count.send((name, metrics.counted().await)) });
        }
        self.watch_spend();
    }

    /// Asks the processes whether they are alive.
    pub(super) fn check_health(&self, check: &mpsc::UnboundedSender<(String, Result<(), String>)>) {
        for (name, metrics) in self.supervisor.metrics() {
            let check = check.clone();
            tokio::spawn(async move { check.send((name, metrics.alive().await)) });
        }
    }

    /// Takes in whether a process is alive.
    pub(super) fn take_health(&mut self, name: &str, alive: Result<(), String>) {
        if self.supervisor.take_health(name, alive) {
            self.changed();
        }
    }

    /// Takes what a process counts.
    pub(super) fn take_count(&mut self, name: &str, counted: Counted) {
        if self.supervisor.take_count(name, &counted, Instant::now()) {
            self.changed();
        }
        self.spent.count(name, counted);
    }

    /// Adds up what was sent today. Once the spend of the ceiling is used up, and when another day
    /// begins, the document is put into effect again, by what it may now. If that fails once it is
    /// used up, all processes are told to end.
    fn watch_spend(&mut self) {
        let Ok(ceiling) = self.ceiling() else { return };
        let ended = self.sources.sessions.take_sent();
        if ceiling.spend.is_some() && self.supervisor.take_formers() {
            self.spent.former(ended);
        }
        self.spent.turn(unix_now().as_nanos() / 1_000_000);
        if let Some(document) = &self.document {
            self.spent.retain(|name| document.processes.iter().any(|it| it.name == name));
        }
        self.keep_spent(&ceiling);
        let is_used_up = ceiling.is_used_up(self.spent.sent());
        let Some(document) = self.document.clone().filter(|_| is_used_up != self.is_used_up) else {
            return;
        };
        let version = document.version;
        match self.apply(document) {
            Ok(()) if is_used_up => {
                tracing::warn!("the ceiling's `spend` of today is used up: nothing is relayed");
            }
            Ok(()) => tracing::info!("document {version}: the ceiling's `spend` allows it again"),
            Err(why) => {
                let (_, reason) = why.told();
                tracing::warn!("document {version}: {reason}");
                if is_used_up {
                    tracing::warn!("the ceiling's `spend` of today is used up: all processes end");
                    self.is_used_up = true;
                    if let Err(error) = self.supervisor.end_all() {
                        tracing::warn!("{error}");
                    }
                }
            }
        }
        self.changed();
    }

    /// Keeps what was sent today for the next agent, where the ceiling has a spend.
    fn keep_spent(&mut self, ceiling: &Ceiling) {
        if ceiling.spend.is_none() || self.kept_spent.as_ref() == Some(&self.spent) {
            return;
        }
        match self.home.set_spent(&self.spent) {
            Ok(()) => self.kept_spent = Some(self.spent.clone()),
            Err(error) => self.spent_trouble.say(error.to_string()),
        }
    }

    /// Starts the probes that the ceiling allows, and reports the others as failed.
    pub(super) fn start(&mut self, probes: Vec<Probe>) {
        if probes.is_empty() {
            return;
        }
        let ceiling = self.ceiling();
        for probe in probes {
            let refused = ceiling.as_ref().map_err(ToString::to_string);
            let allowed = refused.and_then(|ceiling| {
                ceiling.allows_probe(&probe)?;
                let is_rate_test = matches!(probe.kind, ProbeKind::Rate { .. });
                if self.is_used_up && !matches!(probe.kind, ProbeKind::Rtt { .. }) {
                    return Err("the ceiling's `spend` of today is used up".to_owned());
                }
                if is_rate_test && ceiling.is_bounded() && self.sources.probes.tests_rate() {
                    return Err("the ceiling takes one rate test at a time".to_owned());
                }
                let (probe, bytes) = ceiling.bounded_probe(probe.clone(), self.spent.sent())?;
                Ok((probe, bytes, ceiling.initial_window))
            });
            match allowed {
                Ok((probe, bytes, most)) => {
                    let learned = self.sources.learners.window_to(probe.target.ip());
                    let window = Segments::new(most).ok().and_then(|most| Some(learned?.min(most)));
                    if self.sources.probes.start(probe, window) {
                        self.spent.test(bytes);
                    }
                }
                Err(reason) => self.sources.probes.refuse(probe, reason),
            }
        }
        if let Ok(ceiling) = &ceiling {
            self.keep_spent(ceiling);
        }
    }
}
