//! Reports on a gateway's paths, for people and programs: which is chosen, the round trips of its
//! legs, and the reasons.
//!
//! A running gateway serves the report as JSON at `/paths` of its metrics port,
//! `/paths?to=HOST:PORT` for one destination; [`survey`](fn@super::survey) produces the same from a
//! configuration alone by probing.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tradewind_grant::Destination;
use tradewind_telemetry::client::collector::Collector;
use tradewind_telemetry::client::encoding::{DescriptorEncoder, EncodeMetric};
use tradewind_telemetry::client::metrics::MetricType;
use tradewind_telemetry::client::metrics::counter::ConstCounter;
use tradewind_telemetry::client::metrics::gauge::ConstGauge;
use tradewind_telemetry::client::registry::Unit;
use tradewind_units::time::as_millis_f64;
use tradewind_units::{Duration, Timestamp};

use super::health::State;
use super::paths::{PathOption, RelayPath, Routes, Routing, order};

/// Version of the schema of a [`PathsReport`].
pub const SCHEMA_VERSION: u32 = 1;

/// The paths of a gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathsReport {
    /// The schema's version, [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The source of the report: a running gateway, or probes made from its configuration.
    pub source: Source,
    /// The rules of the route table in order, or the one that covers the destination asked for.
    pub rules: Vec<RuleReport>,
}

/// The source of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The running gateway, whose sessions choose by it.
    Gateway,
    /// Probes from this host, with the gateway's configuration.
    Probes,
}

/// One rule and its options, in the order of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuleReport {
    /// The destinations that it covers; `None` for the default.
    pub destination: Option<String>,
    /// The options for carrying it.
    pub options: Vec<PathOptionReport>,
}

/// One option to carry a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathOptionReport {
    /// `relays`, `direct` or `refuse`.
    pub kind: String,
    /// The relays in order.
    pub relays: Vec<RelayReport>,
    /// True if new sessions take it now.
    pub chosen: bool,
    /// `good`, `slow`, `dead`, or `unproven`; `None` if it is not probed.
    pub state: Option<String>,
    /// The reason for this state.
    pub cause: String,
    /// Time that it has been in this state, in seconds.
    pub for_s: f64,
    /// The last round trip from the gateway to the last relay, in milliseconds.
    pub rtt_ms: Option<f64>,
    /// The least round trip of the last minutes, in milliseconds.
    pub rtt_least_ms: Option<f64>,
    /// The last round trip of each leg, the gateway's first, in milliseconds.
    pub legs_ms: Vec<f64>,
}

/// One relay of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayReport {
    /// Its name.
    pub name: String,
    /// The address that it listens on.
    pub address: String,
}

impl PathOptionReport {
    fn plain(kind: &str, cause: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            relays: Vec::new(),
            chosen: false,
            state: None,
            cause: cause.to_owned(),
            for_s: 0.0,
            rtt_ms: None,
            rtt_least_ms: None,
            legs_ms: Vec::new(),
        }
    }

    fn of_path(path: &RelayPath, to: Option<&Destination>, now: Timestamp) -> Self {
        let relays = path.hops.iter().map(|hop| RelayReport {
            name: hop.name.to_string(),
            address: hop.address.to_string(),
        });
        let relays = relays.collect();
        if !path.is_watched {
            let cause = "the only path, so it is not probed";
            return Self { relays, ..Self::plain("relays", cause) };
        }
        let mut health = path.health();
        let state = health.state(now);
        let cause = match to.filter(|to| path.unreached.holds(to, now)) {
            Some(to) => format!("its last relay could not reach {to} lately"),
            None => health.cause().to_owned(),
        };
        Self {
            kind: "relays".to_owned(),
            relays,
            chosen: false,
            state: Some(state.to_string()),
            cause,
            for_s: now.since(health.since()).as_secs_f64(),
            rtt_ms: health.rtt().map(as_millis_f64),
            rtt_least_ms: health.low().map(as_millis_f64),
            legs_ms: health.legs().iter().copied().map(as_millis_f64).collect(),
        }
    }
}

/// Returns the report of `routing`; with `to`, of the rule that covers it alone.
pub(super) fn report(
    routing: &Routing,
    source: Source,
    to: Option<&Destination>,
    now: Timestamp,
) -> PathsReport {
    let only = to.map(|to| routing.table.routes_to(to).0);
    let rules = routing.table.rules().zip(&routing.rules).enumerate();
    let rules = rules.filter(|(index, _)| only.is_none_or(|only| only == *index)).map(
        |(_, ((rule, _), options))| {
            let first = order(options, to, now).first().copied();
            let report_option = |(index, option): (usize, &PathOption)| {
                let report = match option {
                    PathOption::Refuse => PathOptionReport::plain("refuse", "the table refuses it"),
                    PathOption::Direct => {
                        PathOptionReport::plain("direct", "without relays; never probed")
                    }
                    PathOption::Relays(path) => PathOptionReport::of_path(path, to, now),
                };
                PathOptionReport {
                    chosen: first == Some(index) && report.kind != "refuse",
                    ..report
                }
            };
            RuleReport {
                destination: rule.map(ToString::to_string),
                options: options.iter().enumerate().map(report_option).collect(),
            }
        },
    );
    PathsReport { schema_version: SCHEMA_VERSION, source, rules: rules.collect() }
}

/// Returns the page `/paths` of a running gateway.
pub(super) fn page(routes: &Routes, query: Option<&str>) -> Result<String, String> {
    let to = match query.map(|query| query.strip_prefix("to=").ok_or(query)) {
        None => None,
        Some(Ok(text)) => Some(text.parse::<Destination>().map_err(|error| error.to_string())?),
        Some(Err(query)) => return Err(format!("`{query}`: expected `to=HOST:PORT`")),
    };
    let report = report(&routes.current(), Source::Gateway, to.as_ref(), routes.now());
    serde_json::to_string(&report).map_err(|error| error.to_string())
}

/// The metrics of paths and flows.
pub(super) struct PathsCollector(pub(super) Arc<Routes>);

impl fmt::Debug for PathsCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PathsCollector")
    }
}

impl Collector for PathsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let (routing, now) = (self.0.current(), self.0.now());
        let watched = || routing.paths().filter(|path| path.is_watched);
        let gauge = MetricType::Gauge;

        let help = "1 for the state that a path is in";
        let mut family = encoder.encode_descriptor("gateway_path_state", help, None, gauge)?;
        for path in watched() {
            let (name, is_in) = (path.name(), path.health().state(now));
            for state in State::ALL {
                let labels = [("path", name.as_str()), ("state", state.as_str())];
                let value = f64::from(u8::from(state == is_in));
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }

        let help = "Round trip of the last probe, from the gateway to a path's last relay";
        let unit = Some(&Unit::Seconds);
        let mut family = encoder.encode_descriptor("gateway_path_rtt", help, unit, gauge)?;
        for path in watched() {
            let (name, rtt): (_, Option<Duration>) = (path.name(), path.health().rtt());
            if let Some(rtt) = rtt {
                let labels = [("path", name.as_str())];
                ConstGauge::new(rtt.as_secs_f64()).encode(family.encode_family(&labels)?)?;
            }
        }

        let help = "Round trip of one leg of a path at the last probe; leg 1 is the gateway's";
        let mut family = encoder.encode_descriptor("gateway_leg_rtt", help, unit, gauge)?;
        for path in watched() {
            let (name, legs) = (path.name(), path.health().legs().to_vec());
            for (index, rtt) in legs.into_iter().enumerate() {
                let labels = [("path", name.clone()), ("leg", (index + 1).to_string())];
                ConstGauge::new(rtt.as_secs_f64()).encode(family.encode_family(&labels)?)?;
            }
        }

        let help = "Open sessions of each flow that has some";
        let name = "gateway_flow_open_sessions";
        let mut family = encoder.encode_descriptor(name, help, None, gauge)?;
        for (flow, sessions) in self.0.open_flows.counts() {
            let metric = ConstGauge::new(sessions as f64);
            metric.encode(family.encode_family(&[("flow", flow.as_str())])?)?;
        }

        let help = "Sessions that went on to another path before their destination was dialled";
        let metric = ConstCounter::new(self.0.retries());
        let counter = MetricType::Counter;
        metric.encode(encoder.encode_descriptor("gateway_retries", help, None, counter)?)
    }
}
