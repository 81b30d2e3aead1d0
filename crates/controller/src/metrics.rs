//! The controller's metrics: counters of its work, and figures of its state at each scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use tradewind_control::{gain, schedule};
use tradewind_stream::clock::unix_now;
use tradewind_telemetry::Registry;
use tradewind_telemetry::client::collector::Collector;
use tradewind_telemetry::client::encoding::{DescriptorEncoder, EncodeMetric as _};
use tradewind_telemetry::client::metrics::MetricType;
use tradewind_telemetry::client::metrics::counter::Counter;
use tradewind_telemetry::client::metrics::gauge::{ConstGauge, Gauge};
use tradewind_telemetry::client::registry::Unit;

use crate::engine::{Engine, millis};
use crate::host_state::host_state;
use crate::view::HostState;

/// The states of hosts, each of which has a figure, also if no host is in it.
const STATES: [HostState; 8] = [
    HostState::Well,
    HostState::Awaited,
    HostState::Behind,
    HostState::Refuses,
    HostState::Failing,
    HostState::Away,
    HostState::Drained,
    HostState::Revoked,
];

/// The counters; clones are the same ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) reports: Counter,
    pub(crate) decisions: Timed,
    pub(crate) store_writes: Timed,
    pub(crate) plans: Timed,
    pub(crate) plans_failed: Counter,
    /// Reasons why a new plan should be made.
    pub(crate) stale: Gauge,
}

/// A counter of things, and of the seconds that they took.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timed {
    count: Counter,
    seconds: Counter<f64, std::sync::atomic::AtomicU64>,
}

impl Timed {
    /// Counts one that began at `begun` and ends now.
    pub(crate) fn add(&self, begun: Instant) {
        self.count.inc();
        self.seconds.inc_by(begun.elapsed().as_secs_f64());
    }
}

/// Returns the registry of a controller.
pub(crate) fn registry(engine: &Engine) -> Registry {
    let registry = Registry::new("controller", env!("CARGO_PKG_VERSION"));
    let counts = engine.counts().clone();
    registry.register(|inner| {
        let inner = inner.sub_registry_with_prefix("controller");
        let mut count = |name: &str, help: &str, counter: &Counter| {
            inner.register(name, help, counter.clone());
        };
        count("reports", "Reports of agents that were taken", &counts.reports);
        count("decisions", "Decisions on events", &counts.decisions.count);
        count("store_writes", "Transactions of the store", &counts.store_writes.count);
        count("plans", "Plans made", &counts.plans.count);
        count("plans_failed", "Attempts that made no plan", &counts.plans_failed);
        for (name, help, timed) in [
            ("decisions", "Time that decisions took", &counts.decisions),
            ("store_writes", "Time that transactions took", &counts.store_writes),
            ("plans", "Time that plans took", &counts.plans),
        ] {
            inner.register_with_unit(name, help, Unit::Seconds, timed.seconds.clone());
        }
        let help = "Reasons why a new plan should be made";
        inner.register("stale_reasons", help, counts.stale.clone());
        inner.register_collector(Box::new(OfState(engine.clone())));
    });
    registry
}

/// Reads the state when it is scraped.
struct OfState(Engine);

impl fmt::Debug for OfState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OfState")
    }
}

impl Collector for OfState {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (now, links) = (unix_now(), self.0.links());
        let (hosts, flows, step, spent, budget, probed) = self.0.read_now(|controller| {
            let state = controller.state();
            let mut hosts: BTreeMap<&'static str, u64> =
                STATES.iter().map(|state| (state.as_str(), 0)).collect();
            for host in state.hosts.values() {
                *hosts.entry(host_state(state, links, host, millis(now)).as_str()).or_default() +=
                    1;
            }
            let spending = gain::spending(state, now);
            let spent = (spending.machines + spending.traffic + spending.tests).as_usd();
            let probed = schedule::bytes_of_day(state, millis(now));
            (hosts, state.flows.len(), state.rollout.step, spent, spending.budget.as_usd(), probed)
        });
        let gauge = MetricType::Gauge;
        let mut metric = encoder.encode_descriptor("hosts", "Hosts by state", None, gauge)?;
        for (state, count) in hosts {
            let count = ConstGauge::new(count as f64);
            count.encode(metric.encode_family(&[("state", state)])?)?;
        }
        for (name, help, unit, value) in [
            ("flows", "Declared flows", None, flows as f64),
            (
                "rollout_step",
                "Step of the rollout: 0 relays start, 1 gateways change, 2 done",
                None,
                f64::from(step as u8),
            ),
            ("spent_today_usd", "Money spent today (UTC)", None, spent),
            ("budget_usd", "The most that a day may cost", None, budget),
            (
                "probed_today",
                "Bytes that rate tests have carried today (UTC)",
                Some(&Unit::Bytes),
                probed as f64,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, unit, gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        Ok(())
    }
}
