//! The loop: observe, decide, act.

use std::os::fd::AsFd as _;
use std::path::Path;

use serde_json::json;
use tradewind_jumpstart::{Begun, Change, Config, Hint, Learner, Mode};
use tradewind_net::clock::monotonic;
use tradewind_net::epoll::Epoll;
use tradewind_net::jump_start::Told;
use tradewind_net::signals::Signals;
use tradewind_telemetry::{Health, Registry, Server, serve};
use tradewind_units::{Duration, Segments, Timestamp};

use crate::TunerError;
use crate::actuate::{Actuator, Outcome};
use crate::choose::{Chosen, choose};
use crate::config::{Through, TunerConfig};
use crate::control::{Control, Request};
use crate::metrics::Metrics;
use crate::observe::{Observer, SocketTable};
use crate::switch::Switch;

/// Tokens of what the loop waits for.
const STOP: u64 = 0;
const QUESTION: u64 = 1;
const NEWS: u64 = 2;

/// A jump-start daemon that is about to run.
pub struct Tuner {
    learner: Learner,
    observer: Box<dyn Observer>,
    actuator: Box<dyn Actuator>,
    why: Option<String>,
    switch: Switch,
    is_off: bool,
    interval: Duration,
    control: Control,
    metrics: Metrics,
    health: Health,
    server: Option<Server>,
    started: Timestamp,
    samples: u64,
}

/// What a daemon is put together from.
struct Parts {
    control: Control,
    switch: Switch,
    observer: Box<dyn Observer>,
    chosen: Chosen,
}

/// An actuator that sees each connection takes the control share of connections itself, and tells of each how it
/// began; for others the learner keeps whole destinations back.
fn learner_for(config: Config, actuator: &dyn Actuator) -> Learner {
    if !actuator.tells() {
        return Learner::new(config);
    }
    let mut learner = Learner::new(config.by_connection());
    learner.expect_to_be_told();
    learner
}

impl Tuner {
    /// Opens all that is needed in the calling thread's network namespace, and sweeps what an earlier
    /// daemon left. Changes nothing else.
    ///
    /// # Errors
    /// In one line what is missing, and what goes without it.
    pub fn open(config: &TunerConfig, socket: &Path) -> Result<Self, TunerError> {
        let learn = config.learn()?;
        let control = Control::open(socket)?;
        let observer = Box::new(SocketTable::open(config.filter())?);
        let mut chosen = choose(config, &learn)?;
        if let Some(why) = &chosen.why {
            tracing::warn!("{why}");
        }
        chosen.actuator.sweep()?;
        if learn.mode == Mode::Paced && config.act.through == Through::Routes {
            tracing::warn!("routes cannot pace: mode `paced` sets its windows, without a rate");
        }
        Self::of(config, Parts { control, switch: Switch::beside(socket), observer, chosen })
    }

    fn of(config: &TunerConfig, parts: Parts) -> Result<Self, TunerError> {
        let Parts { control, switch, observer, chosen: Chosen { actuator, why } } = parts;
        let learner = learner_for(config.learn()?, actuator.as_ref());
        let (metrics, health) = (Metrics::default(), Health::new());
        let registry = Registry::new("jumpstart", env!("CARGO_PKG_VERSION"));
        metrics.register(&registry);
        let server = match config.metrics {
            Some(address) => Some(serve(address, registry, health.clone())?),
            None => None,
        };
        Ok(Self {
            learner,
            observer,
            actuator,
            why,
            switch,
            is_off: false,
            interval: config.observe.interval,
            control,
            metrics,
            health,
            server,
            started: monotonic(),
            samples: 0,
        })
    }

    /// Where metrics are served, if anywhere.
    #[must_use]
    pub fn metrics_addr(&self) -> Option<std::net::SocketAddr> {
        self.server.as_ref().map(Server::local_addr)
    }

    /// What acts, and why not what would be better, in one line.
    #[must_use]
    pub fn acts_through(&self) -> (&'static str, Option<&str>) {
        (self.actuator.name(), self.why.as_deref())
    }

    /// Runs until one of `stop` comes; then removes all that it set.
    ///
    /// # Errors
    /// When the kernel refuses to wait, or to remove what was set.
    pub fn run(mut self, stop: &Signals) -> Result<(), TunerError> {
        let ended = self.rounds(stop);
        let swept = self.actuator.sweep();
        ended?;
        tracing::info!(removed = swept?, "ended; everything starts by default again");
        Ok(())
    }

    fn rounds(&mut self, stop: &Signals) -> Result<(), TunerError> {
        let mut wait = Epoll::new()?;
        wait.watch(stop, STOP)?;
        wait.watch(&self.control.listener, QUESTION)?;
        if let Some(news) = self.actuator.news() {
            wait.watch(&news.as_fd(), NEWS)?;
        }
        let heart = self.health.expect_beats("rounds", self.interval.saturating_mul(10));
        self.health.set_ready();
        crate::notify::ready();
        let mut next = monotonic();
        loop {
            let now = monotonic();
            if now >= next {
                self.round(now);
                heart.beat();
                next = now + self.interval;
            }
            let left = next.since(monotonic());
            let tokens: Vec<u64> = wait.wait(Some(left))?.collect();
            if tokens.contains(&STOP) {
                return Ok(());
            }
            if tokens.contains(&NEWS) {
                self.follow();
            }
            if tokens.contains(&QUESTION) {
                self.answer_all();
            }
        }
    }

    /// One round. What fails is logged and counted; the next round tries again.
    fn round(&mut self, now: Timestamp) {
        let mut samples = 0;
        let learner = &mut self.learner;
        let observed = self.observer.round(&mut |sample| {
            samples += 1;
            learner.observe(sample);
        });
        if let Err(error) = &observed {
            self.metrics.failed_rounds.inc();
            tracing::warn!(%error, "the table of connections could not be read");
        }
        self.hear();
        let changes = match observed {
            Ok(()) => self.learner.decide(now),
            Err(_) => self.learner.leave_out(now),
        };
        self.look_at_switch();
        if self.is_off {
            // Nothing is given out, so nothing is to be known: it is learned anew in one round.
            self.learner.flush(None);
        } else {
            self.apply(&changes);
        }
        self.samples = samples;
        self.metrics.rounds.inc();
        self.metrics.samples.set(i64::try_from(samples).unwrap_or(i64::MAX));
        self.metrics.round_seconds.set(monotonic().since(now).as_secs_f64());
        self.metrics.destinations.set(i64::try_from(self.learner.len()).unwrap_or(i64::MAX));
        self.metrics.catch_up(&self.learner);
    }

    /// Tells the learner what the actuator saw.
    fn hear(&mut self) {
        let Self { actuator, learner, metrics, .. } = self;
        actuator.hear(&mut |told| {
            metrics.count_told(told);
            match told {
                Told::Jumped { connection, window } => {
                    if let Ok(window) = Segments::new(window) {
                        learner.began(connection, Begun::Jumped(window));
                    }
                }
                Told::Control { connection } => learner.began(connection, Begun::Control),
                Told::FirstFlightLost { connection, prefix } => {
                    if let Some(prefix) = prefix {
                        learner.first_flight_lost(connection, prefix);
                    }
                }
            }
        });
    }

    /// Takes everything back when the kill switch is found turned; what fails is tried again next round.
    fn look_at_switch(&mut self) {
        let is_off = self.switch.is_off();
        if is_off == self.is_off {
            return;
        }
        if is_off {
            self.learner.flush(None);
            if let Err(error) = self.actuator.sweep() {
                tracing::warn!(%error, "what was set could not be taken back");
                return;
            }
            tracing::warn!("turned off: everything starts by default");
        } else {
            tracing::info!("turned on again");
        }
        self.is_off = is_off;
        self.metrics.off.set(i64::from(is_off));
    }

    fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            let outcome = self.actuator.apply(change);
            if !matches!(change, Change::Renew { .. }) {
                self.metrics.count(outcome.as_ref().ok().copied());
            }
            if let (Change::Set(setting), Ok(outcome)) = (change, &outcome) {
                let (window, rate) = (setting.window.as_u32(), setting.pacing);
                tracing::debug!(prefix = %setting.prefix, window, ?rate, why = %setting.reason, outcome = outcome.name(), "set");
                if *outcome != Outcome::Done {
                    self.learner.not_in_force(&setting.prefix);
                }
            }
            if let Err(error) = outcome {
                tracing::warn!(%error, "a change was refused");
                if let Change::Set(setting) = change {
                    self.learner.not_in_force(&setting.prefix);
                }
            }
        }
    }

    fn follow(&mut self) {
        match self.actuator.follow() {
            Ok(touched) => {
                for (prefix, outcome) in touched {
                    tracing::debug!(%prefix, outcome = outcome.name(), "followed a route change");
                    if outcome != Outcome::Done {
                        self.learner.not_in_force(&prefix);
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "a route change could not be followed"),
        }
    }

    fn answer_all(&mut self) {
        let Self { control, learner, actuator, samples, started, why, .. } = self;
        let (now, switch) = (monotonic(), &self.switch);
        let mut orders = Vec::new();
        let mut turned = false;
        control.serve(|request| match request {
            Request::Status {} => json!({
                "schema_version": 1,
                "mode": learner.config().mode,
                "through": actuator.name(),
                "why": why,
                "off": switch.is_off(),
                "running_s": now.since(*started).as_secs_f64(),
                "connections": *samples,
                "refused_samples": learner.refused(),
                "arms": learner.arms(),
                "destinations": learner.explain_all(now),
            }),
            Request::Explain { address } => json!({
                "schema_version": 1,
                "address": address,
                "destination": learner.explain(address, now),
            }),
            Request::Flush { within } => {
                let changes = learner.flush(within);
                let count = changes.len();
                orders.extend(changes);
                json!({ "schema_version": 1, "flushed": count })
            }
            Request::Switch {} => {
                turned = true;
                json!({ "schema_version": 1, "off": switch.is_off() })
            }
            Request::Hint { within, order, lasts_s } => {
                learner.hint(Hint { within, order, until: now + lasts_s });
                json!({ "schema_version": 1, "hint": order.to_string() })
            }
        });
        self.apply(&orders);
        if turned {
            self.look_at_switch();
        }
    }
}

#[cfg(test)]
mod tests;
