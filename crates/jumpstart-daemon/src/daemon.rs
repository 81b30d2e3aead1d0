//! The loop: observe, decide, act.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;

use serde_json::json;
use tradewind_jumpstart::{
    Begun, Change, Config, Explanation, Hint, IpNet, Learner, Reason, Setting,
};
use tradewind_net::clock::monotonic;
use tradewind_net::epoll::Epoll;
use tradewind_net::jumpstart::ProgramEvent;
use tradewind_net::signals::Signals;
use tradewind_net::{NetError, sandbox, systemd};
use tradewind_telemetry::{Health, Registry, Server, serve};
use tradewind_units::{Duration, Segments, Timestamp};

use crate::DaemonError;
use crate::actuate::{Actuator, Outcome};
use crate::choose::{Chosen, choose};
use crate::control::{Control, Request};
use crate::count_log::CountLog;
use crate::hints::HintFile;
use crate::kernel;
use crate::metrics::Metrics;
use crate::observe::{Observer, SocketTable};
use crate::receive;
use crate::switch::Switch;
use tradewind_config::JumpstartConfig;

/// Tokens of the loop's event sources.
const STOP: u64 = 0;
const QUESTION: u64 = 1;
const NEWS: u64 = 2;

/// A jump-start daemon that is about to run.
pub struct Daemon {
    learner: Learner,
    observer: Box<dyn Observer>,
    pub(crate) actuator: Box<dyn Actuator>,
    why: Option<String>,
    /// Limit of this host on the receiving side.
    limit: Option<String>,
    switch: Switch,
    hints: Option<HintFile>,
    is_off: bool,
    /// True while something that was set before may still be in force.
    to_take_back: bool,
    /// Forgotten destinations whose settings the actuator could not remove, with the reasons.
    unremoved: BTreeMap<IpNet, Reason>,
    interval: Duration,
    pub(crate) control: Control,
    pub(crate) metrics: Metrics,
    health: Health,
    server: Option<Server>,
    started: Timestamp,
    samples: u64,
    /// Log of the sockets that the actuator could not record.
    unremembered: CountLog,
}

/// Parts that a daemon is put together from.
struct Parts {
    control: Control,
    switch: Switch,
    observer: Box<dyn Observer>,
    chosen: Chosen,
    limit: Option<String>,
}

/// Creates the learner. An actuator that sees each connection takes the control share of
/// connections itself, and reports how each began; for others the learner keeps whole destinations
/// back.
fn learner_for(config: Config, actuator: &dyn Actuator) -> Learner {
    if !actuator.tells() {
        return Learner::new(config);
    }
    let mut learner = Learner::new(config.by_connection());
    learner.expect_reports();
    learner
}

impl Daemon {
    /// Opens everything needed in the calling thread's network namespace, and sweeps what an
    /// earlier daemon left. Changes nothing else.
    ///
    /// # Errors
    /// When something is missing: in one line what, and what works without it.
    pub fn open(config: &JumpstartConfig, socket: &Path) -> Result<Self, DaemonError> {
        Self::over(config, Control::open(socket)?)
    }

    /// Opens the same over a control socket that is open.
    pub(crate) fn over(config: &JumpstartConfig, control: Control) -> Result<Self, DaemonError> {
        let switch = Switch::beside(control.path())?;
        let learn = Config::resolve(&config.learn)?;
        kernel::check_groups(config)?;
        let observer = Box::new(SocketTable::open(kernel::filter(config))?);
        let mut chosen = choose(config, &learn)?;
        if let Some(why) = &chosen.why {
            tracing::warn!("{why}");
        }
        chosen.actuator.sweep()?;
        let limit = receive::limit(config, &learn, chosen.actuator.name());
        if let Some(limit) = &limit {
            tracing::warn!("{limit}");
        }
        Self::of(config, Parts { control, switch, observer, chosen, limit })
    }

    fn of(config: &JumpstartConfig, parts: Parts) -> Result<Self, DaemonError> {
        let Parts { control, switch, observer, chosen: Chosen { actuator, why }, limit } = parts;
        let learner = learner_for(Config::resolve(&config.learn)?, actuator.as_ref());
        let (metrics, health) = (Metrics::default(), Health::new());
        let registry = Registry::new("jumpstart", env!("CARGO_PKG_VERSION"));
        metrics.register(&registry);
        let server = match config.metrics {
            Some(address) => {
                let serve = || serve(address, &config.metrics_hosts, registry, health.clone());
                Some(sandbox::as_reader(serve)??)
            }
            None => None,
        };
        Ok(Self {
            learner,
            observer,
            actuator,
            why,
            limit,
            switch,
            hints: config.hints.clone().map(HintFile::at),
            is_off: false,
            to_take_back: false,
            unremoved: BTreeMap::new(),
            interval: config.observe.interval,
            control,
            metrics,
            health,
            server,
            started: monotonic(),
            samples: 0,
            unremembered: CountLog::default(),
        })
    }

    /// Returns the address on which metrics are served, if any.
    #[must_use]
    pub fn metrics_addr(&self) -> Option<std::net::SocketAddr> {
        self.server.as_ref().map(Server::local_addr)
    }

    /// Returns the actuator's name, and in one line why a better one was not chosen.
    #[must_use]
    pub fn acts_through(&self) -> (&'static str, Option<&str>) {
        (self.actuator.name(), self.why.as_deref())
    }

    /// Runs as a service until one of `stop` arrives that ends it; then removes everything that it
    /// set.
    ///
    /// # Errors
    /// When the kernel refuses to wait, or to remove what was set.
    pub fn run(self, stop: &Signals) -> Result<(), DaemonError> {
        notify("READY=1");
        let ends = || match stop.read() {
            Ok(Some(signal)) if !signal.ends => {
                tracing::warn!("{} has no meaning here and is ignored", signal.name);
                false
            }
            Ok(None) => false,
            Ok(Some(_)) | Err(_) => true,
        };
        self.run_until((stop, &ends), systemd::watchdog_interval()).map(drop)
    }

    /// Runs until `stop` has input that ends it; then removes everything that it set, and returns
    /// the actuator.
    pub(crate) fn run_until(
        mut self,
        stop: (&impl AsFd, &dyn Fn() -> bool),
        watchdog_interval: Option<Duration>,
    ) -> Result<Box<dyn Actuator>, DaemonError> {
        let ended = self.rounds(stop, watchdog_interval);
        let swept = self.actuator.sweep();
        ended?;
        tracing::info!(removed = swept?, "ended; everything starts by default again");
        Ok(self.actuator)
    }

    fn rounds(
        &mut self,
        (stop, ends): (&impl AsFd, &dyn Fn() -> bool),
        watchdog_interval: Option<Duration>,
    ) -> Result<(), DaemonError> {
        let mut wait = Epoll::new()?;
        wait.watch(stop, STOP)?;
        wait.watch(&self.control.listener, QUESTION)?;
        if let Some(news) = self.actuator.news() {
            wait.watch(&news.as_fd(), NEWS)?;
        }
        let heart = self.health.expect_heartbeats("rounds", self.interval.saturating_mul(10));
        self.health.set_ready();
        let mut next = monotonic();
        loop {
            let now = monotonic();
            if now >= next {
                self.round(now);
                heart.heartbeat();
                next = now + self.interval;
            }
            let mut left = next.since(monotonic());
            if let Some(interval) = watchdog_interval {
                notify("WATCHDOG=1");
                left = left.min(interval);
            }
            let tokens: Vec<u64> = wait.wait(Some(left))?.collect();
            if tokens.contains(&STOP) && ends() {
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

    /// Runs one round. Failures are logged and counted; the next round tries again.
    fn round(&mut self, now: Timestamp) {
        if let Err(error) = self.follow_switch() {
            tracing::warn!(
                %error,
                "what was set could not be taken back; nothing is set until it is"
            );
        }
        if let Some(hints) = self.hints.as_mut().and_then(HintFile::changed) {
            tracing::info!(count = hints.len(), "took the hints of the file");
            self.learner.stand(hints);
        }
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
        self.pass_events(now);
        let changes = match observed {
            Ok(()) => self.learner.decide(now),
            Err(_) => self.learner.leave_out(now),
        };
        if self.is_off || self.to_take_back {
            // Nothing is set, so nothing is retained: it is learned anew in one round.
            self.learner.flush(None);
        } else {
            self.remove_what_is_left();
            let _logged = self.apply(&changes);
        }
        self.samples = samples;
        self.metrics.rounds.inc();
        self.metrics.samples.set(i64::try_from(samples).unwrap_or(i64::MAX));
        self.metrics.round_seconds.set(monotonic().since(now).as_secs_f64());
        self.metrics.destinations.set(i64::try_from(self.learner.len()).unwrap_or(i64::MAX));
        self.metrics.catch_up(&self.learner);
    }

    /// Passes the actuator's events to the learner.
    fn pass_events(&mut self, now: Timestamp) {
        let Self { actuator, learner, metrics, .. } = self;
        metrics.count_lost_events(actuator.lost_events());
        metrics.count_unremembered(actuator.unremembered());
        if let Some(sockets) = self.unremembered.growth(now, actuator.unremembered()) {
            tracing::warn!(
                sockets,
                "the kernel had no room to remember sockets as this process's own: \
                 they begin by default"
            );
        }
        actuator.read_events(&mut |event| {
            metrics.count_event(event);
            match event {
                ProgramEvent::Jumped { connection, window } => {
                    if let Ok(window) = Segments::new(window) {
                        learner.began(connection, Begun::Jumped(window));
                    }
                }
                ProgramEvent::Control { connection } => learner.began(connection, Begun::Control),
                ProgramEvent::FirstFlightLost { connection, prefix } => {
                    if let Some(prefix) = prefix {
                        learner.first_flight_lost(connection, prefix);
                    }
                }
            }
        });
    }

    /// Follows the kill switch. Once it was found off, everything is removed before anything is set
    /// again; a removal that fails is retried each round.
    fn follow_switch(&mut self) -> Result<(), NetError> {
        let is_off = self.switch.is_off();
        if is_off != self.is_off {
            self.to_take_back |= is_off;
            self.is_off = is_off;
            self.metrics.off.set(i64::from(is_off));
            let what = if is_off { "off: everything starts by default" } else { "on again" };
            tracing::warn!("turned {what}");
        }
        if self.to_take_back {
            self.learner.flush(None);
            self.actuator.sweep()?;
            self.unremoved.clear();
            self.to_take_back = false;
        }
        Ok(())
    }

    /// Retries the removals that failed. Destinations that were set again since are no longer among
    /// them.
    fn remove_what_is_left(&mut self) {
        let left = std::mem::take(&mut self.unremoved);
        let removals = left.into_iter().map(|(prefix, reason)| Change::Remove { prefix, reason });
        // Each refusal is logged, and retried in the next round.
        let _again = self.apply(&removals.collect::<Vec<_>>());
    }

    /// Applies `changes`, as many as possible. A removal that fails is retried each round.
    ///
    /// # Errors
    /// The last refusal; each is logged.
    fn apply(&mut self, changes: &[Change]) -> Result<(), NetError> {
        let mut refused = Ok(());
        for change in changes {
            let outcome = self.actuator.apply(change);
            if !matches!(change, Change::Renew { .. }) {
                self.metrics.count(outcome.as_ref().ok().copied());
            }
            match change {
                Change::Set(setting) => {
                    self.note(setting, outcome.as_ref().ok().copied());
                    if outcome.is_ok() {
                        self.unremoved.remove(&setting.prefix);
                    }
                }
                Change::Remove { prefix, reason } if outcome.is_err() => {
                    self.unremoved.insert(*prefix, *reason);
                }
                Change::Remove { .. } | Change::Renew { .. } => {}
            }
            if let Err(error) = outcome {
                tracing::warn!(%error, "a change was refused");
                refused = Err(error);
            }
        }
        refused
    }

    /// Passes the outcome of `setting` to the learner; `None`: it was refused.
    fn note(&mut self, setting: &Setting, outcome: Option<Outcome>) {
        let (window, rate) = (setting.window.as_u32(), setting.pacing);
        let name = outcome.map_or("failed", Outcome::name);
        tracing::debug!(
            prefix = %setting.prefix, window, ?rate, why = %setting.reason, outcome = name, "set"
        );
        self.learner.record_outcome(&setting.prefix, name, outcome == Some(Outcome::Done));
    }

    fn follow(&mut self) {
        match self.actuator.follow() {
            Ok(touched) => {
                for (prefix, outcome) in touched {
                    tracing::debug!(%prefix, outcome = outcome.name(), "followed a route change");
                    self.learner.record_outcome(&prefix, outcome.name(), outcome == Outcome::Done);
                }
            }
            Err(error) => tracing::warn!(%error, "a route change could not be followed"),
        }
    }

    fn answer_all(&mut self) {
        while let Some(question) = self.control.next_question() {
            let answer = self.answer(&question.request);
            question.reply(&answer);
        }
    }

    /// Carries out a request, then returns the response.
    fn answer(&mut self, request: &Request) -> serde_json::Value {
        let now = monotonic();
        match request {
            Request::Status {} => self.status(now),
            Request::Explain { address } => json!({
                "schema_version": 1,
                "address": address,
                "destination": self.learner.explain(*address, now).map(|known| self.shown(&known)),
            }),
            Request::Flush { within } => {
                let changes = self.learner.flush(*within);
                match self.apply(&changes) {
                    Ok(()) => json!({ "schema_version": 1, "flushed": changes.len() }),
                    Err(error) => json!({ "error": format!(
                        "not all could be removed, which is tried again each round: {error}"
                    ) }),
                }
            }
            Request::Switch {} => match self.follow_switch() {
                Ok(()) => json!({ "schema_version": 1, "off": self.is_off, "daemon": true }),
                Err(error) => json!({ "error": format!(
                    "what was set could not be taken back yet, which is tried again each round: \
                     {error}"
                ) }),
            },
            Request::Share { windows, lasts_s } => {
                let windows = windows.iter().map(|it| (it.destination, it.window_segments));
                self.learner.share(windows, now + *lasts_s);
                json!({ "schema_version": 1, "shared": true })
            }
            Request::Hint { within, order, lasts_s } => {
                let hint = Hint { within: *within, order: *order, until: now + *lasts_s };
                self.learner.hint(hint);
                json!({ "schema_version": 1, "hint": order.to_string() })
            }
        }
    }

    /// Returns the explanation as shown; the lent rate is the actuator's.
    fn shown(&self, known: &Explanation) -> serde_json::Value {
        let mut shown = json!(known);
        shown["lent_mbps"] = json!(self.actuator.lent_mbps(&known.prefix));
        shown
    }

    fn status(&self, now: Timestamp) -> serde_json::Value {
        let known = self.learner.explain_all(now);
        json!({
            "schema_version": 1,
            "process": std::process::id(),
            "mode": self.learner.config().mode,
            "through": self.actuator.name(),
            "why": self.why,
            "limit": self.limit,
            "hints": self.hints.as_ref().and_then(HintFile::problem),
            "off": self.is_off,
            "to_take_back": self.to_take_back,
            "running_s": now.since(self.started).as_secs_f64(),
            "connections": self.samples,
            "refused_samples": self.learner.refused(),
            "arms": self.learner.arms(),
            "destinations": known.iter().map(|known| self.shown(known)).collect::<Vec<_>>(),
        })
    }
}

/// Notifies systemd, if it requested notifications; a failure is logged.
fn notify(state: &str) {
    if let Err(error) = systemd::notify(state) {
        tracing::warn!(%error, state, "systemd could not be notified");
    }
}

#[cfg(test)]
mod tests;
