//! The rate and the spend of a ceiling. They do not rest on the controller: the agent writes the
//! rate into the configurations that it runs, whatever the document says, counts what processes
//! send, and closes relayed traffic once the spend of the day is used up. With either of them,
//! processes drain and retire for 30 seconds at most, and one rate test runs at a time.

use toml::{Table, Value};
use tradewind_config::{AccessLogConfig, GatewayConfig, Kind, RelayConfig, Timeouts};
use tradewind_desired::{Route, RouteTable};
use tradewind_grant::DestinationRule;
use tradewind_units::{Bandwidth, Bytes};

use super::{Ceiling, CeilingViolation, internet, is_of_agent};
use crate::bounds::{Bounds, SpendBound};
use crate::message::{Document, Probe, ProbeKind, Process};

/// Most bytes that the kernel sends of a rate test's connection beyond its time. Chosen: its
/// largest send buffer (`tcp_wmem`).
const MAX_BUFFERED: f64 = (4 << 20) as f64;

/// Reads and writes an optional amount of a day such as `5 usd/day`.
pub(super) mod of_day {
    use serde::{Deserialize as _, Deserializer, Serializer};
    use tradewind_units::Money;

    #[allow(clippy::ref_option, reason = "the form that serde asks for")]
    pub(in super::super) fn serialize<S: Serializer>(
        amount: &Option<Money>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match amount {
            Some(amount) => serializer.collect_str(&format_args!("{} usd/day", amount.as_usd())),
            None => serializer.serialize_none(),
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Money>, D::Error> {
        let text = String::deserialize(deserializer)?;
        Money::of_day(&text).map(Some).map_err(serde::de::Error::custom)
    }
}

impl Ceiling {
    /// Returns whether it bounds rate or spend.
    #[must_use]
    pub const fn is_bounded(&self) -> bool {
        self.rate.is_some() || self.spend.is_some()
    }

    /// Returns what the host tells of its bounds, of which it may know the bytes `sent` today: none
    /// if it has none.
    #[must_use]
    pub fn bounds(&self, is_used_up: bool, sent: Option<Bytes>) -> Option<Bounds> {
        let price = self.egress_usd_per_gb.unwrap_or_default();
        let used_usd = sent.map(|sent| price.cost_of(sent));
        let of_day = |usd_per_day| SpendBound { usd_per_day, used_usd, is_used_up };
        let spend = self.spend.map(of_day);
        self.is_bounded().then_some(Bounds { rate: self.rate, spend })
    }

    /// Returns whether the spend of a day is used up by so many bytes that were sent.
    #[must_use]
    pub fn is_used_up(&self, sent: Bytes) -> bool {
        let price = self.egress_usd_per_gb.unwrap_or_default();
        self.spend.is_some_and(|spend| price.cost_of(sent) >= spend)
    }

    /// Returns the document that the agent runs instead of one that the ceiling allows: within the
    /// rate, which its processes share equally; and once the spend `is_used_up`, without relays and
    /// gateways that are open to other hosts, and with others that send all direct.
    ///
    /// # Errors
    /// When what a process would send could not be bounded or counted, or when one of the two forms
    /// is beyond the ceiling: no document is taken that could not be closed later.
    pub fn bounded(
        &self,
        document: &Document,
        is_used_up: bool,
    ) -> Result<Document, CeilingViolation> {
        if !self.is_bounded() {
            return Ok(document.clone());
        }
        let form = |is_used_up| {
            let form = self.form(document, is_used_up)?;
            self.allows(&form).map(|()| form)
        };
        let open = form(false)?;
        let closed = self.spend.map(|_| form(true)).transpose()?;
        Ok(closed.filter(|_| is_used_up).unwrap_or(open))
    }

    fn form(&self, document: &Document, is_used_up: bool) -> Result<Document, CeilingViolation> {
        let mut form = document.clone();
        let count = form.processes.len().max(1);
        let rate = self.rate.map(|rate| rate.scaled(1.0 / count as f64));
        for mut process in std::mem::take(&mut form.processes) {
            match self.bounded_config(&process, rate, is_used_up) {
                Ok(Some(config)) => {
                    process.config = config;
                    form.processes.push(process);
                }
                Ok(None) => {}
                Err(problem) => return Err(CeilingViolation { process: process.name, problem }),
            }
        }
        Ok(form)
    }

    /// Returns a probe whose rate test stays within the rate, and the bytes that it may send, where
    /// `sent` was sent today. They count whatever the other side tells, and if the test fails.
    ///
    /// # Errors
    /// In one line, when the test could go beyond the spend.
    pub fn bounded_probe(&self, mut probe: Probe, sent: Bytes) -> Result<(Probe, Bytes), String> {
        let target = probe.target;
        let most = match &mut probe.kind {
            ProbeKind::Rtt { .. } => return Ok((probe, Bytes::ZERO)),
            // Each with both windows.
            ProbeKind::Transfers { sizes } => {
                sizes.iter().map(|size| 2.0 * f64::from(*size) + MAX_BUFFERED).sum()
            }
            ProbeKind::Rate { connections, duration_ms, max_rate_mbps } => {
                let count = f64::from(*connections).max(1.0);
                if let Some(rate) = self.rate {
                    let each = rate.as_mbps() / count;
                    *max_rate_mbps = Some(max_rate_mbps.map_or(each, |most| most.min(each)));
                }
                // A Mbit/s is 125 bytes per millisecond.
                let each = |mbps: f64| mbps * 125.0 * *duration_ms as f64 + MAX_BUFFERED;
                max_rate_mbps.map_or(f64::INFINITY, |mbps| each(mbps) * count)
            }
        };
        if self.spend.is_none() {
            return Ok((probe, Bytes::ZERO));
        }
        if !most.is_finite() {
            return Err(format!("probe of {target}: the ceiling's `spend` takes a greatest rate"));
        }
        let most = Bytes::new(most as u64);
        if self.is_used_up(Bytes::new(sent.as_u64().saturating_add(most.as_u64()))) {
            return Err(format!("probe of {target}: it could go beyond the ceiling's `spend`"));
        }
        Ok((probe, most))
    }

    /// Returns the configuration that a process gets; `None` for one that ends.
    fn bounded_config(
        &self,
        process: &Process,
        rate: Option<Bandwidth>,
        is_used_up: bool,
    ) -> Result<Option<String>, String> {
        let text = &process.config;
        let invalid = |error: toml::de::Error| error.message().to_owned();
        let mut table: Table = toml::from_str(text).map_err(invalid)?;
        if let Some(key) =
            ["packet", "packet_endpoint"].into_iter().find(|it| table.contains_key(*it))
        {
            return Err(format!(
                "{key}: a ceiling with `rate` or `spend` takes no packets, which it cannot bound"
            ));
        }
        let own = Own::of(process)?;
        if let Some(rate) = rate {
            let least = own.rate.map_or(rate, |own| own.min(rate));
            set(&mut table, "limits", "rate", least.to_string())?;
        }
        if self.spend.is_some() {
            self.check_counted(&own)?;
        }
        let most = Timeouts::default().drain;
        for (key, own) in [("drain", own.drain), ("retire", own.retire)] {
            if own > most {
                set(&mut table, "timeouts", key, format!("{} s", most.as_secs()))?;
            }
        }
        if is_used_up {
            let Some(gateway) = own.gateway.filter(|gateway| !gateway.is_open) else {
                return Ok(None);
            };
            let routes = self.direct(&gateway).map_err(|error| format!("routes: {error}"))?;
            let routes = Value::try_from(&routes).map_err(|error| format!("routes: {error}"))?;
            table.insert("routes".to_owned(), routes);
            table.insert("direct".to_owned(), Value::Boolean(true));
        }
        toml::to_string(&table).map(Some).map_err(|error| error.to_string())
    }

    /// Returns a gateway's routes with `direct` in place of all paths over relays; where it has
    /// proxies, with `refuse` for what they may not reach directly.
    fn direct(&self, gateway: &OfGateway) -> Result<RouteTable, tradewind_desired::DesiredError> {
        let without = |rules: &[DestinationRule], routes: &[Route]| {
            if !routes.iter().any(|route| matches!(route, Route::Relays(_))) {
                return routes.to_vec();
            }
            let is_allowed =
                !gateway.has_proxies || self.check_destinations("routes", rules).is_ok();
            vec![if is_allowed { Route::Direct } else { Route::Refuse }]
        };
        let (mut ruled, mut default) = (Vec::new(), vec![Route::Refuse]);
        for (rule, routes) in gateway.routes.rules() {
            match rule {
                Some(rule) => {
                    ruled.push((rule.clone(), without(std::slice::from_ref(rule), routes)));
                }
                None => default = without(&internet(), routes),
            }
        }
        RouteTable::with_fallbacks(ruled, default)
    }

    /// Refuses a process of which the agent cannot tell what it sends.
    fn check_counted(&self, own: &Own) -> Result<(), String> {
        if self.egress_usd_per_gb.is_none() {
            return Err("the ceiling's `spend` takes `egress_usd_per_gb`, too".to_owned());
        }
        if !own.has_metrics {
            return Err("metrics: the ceiling's `spend` takes them, at a fixed port".to_owned());
        }
        if !own.tells_all_sessions {
            let whole = "takes an access log of all sessions to the agent";
            return Err(format!("access_log: the ceiling's `spend` {whole}"));
        }
        Ok(())
    }
}

/// The settings of a process that bounds concern.
struct Own {
    rate: Option<Bandwidth>,
    drain: std::time::Duration,
    retire: std::time::Duration,
    has_metrics: bool,
    tells_all_sessions: bool,
    gateway: Option<OfGateway>,
}

/// Those of a gateway alone.
struct OfGateway {
    routes: RouteTable,
    has_proxies: bool,
    /// True if other hosts reach its proxies, or are intercepted.
    is_open: bool,
}

impl Own {
    fn of(process: &Process) -> Result<Self, String> {
        let (limits, timeouts, metrics, log, gateway) = if process.kind == Kind::Relay {
            let config = RelayConfig::parse(&process.config).map_err(|e| e.to_string())?;
            (config.limits, config.timeouts, config.metrics, config.access_log, None)
        } else {
            let config = GatewayConfig::parse(&process.config).map_err(|e| e.to_string())?;
            let gateway = OfGateway {
                has_proxies: !config.socks5.is_empty() || !config.connect.is_empty(),
                is_open: config.has_open_proxies() || !config.tproxy.is_empty(),
                routes: config.routes,
            };
            (config.limits, config.timeouts, config.metrics, config.access_log, Some(gateway))
        };
        let is_whole = |log: &AccessLogConfig| is_of_agent(log) && log.one_in.get() == 1;
        Ok(Self {
            rate: limits.rate,
            drain: timeouts.drain,
            retire: timeouts.retire,
            has_metrics: metrics.is_some_and(|metrics| metrics.port() != 0),
            tells_all_sessions: log.as_ref().is_some_and(is_whole),
            gateway,
        })
    }
}

/// Sets a key of a section.
fn set(table: &mut Table, section: &str, key: &str, text: String) -> Result<(), String> {
    let entry = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
    let section = entry.as_table_mut().ok_or_else(|| format!("expected `[{section}]`"))?;
    section.insert(key.to_owned(), Value::String(text));
    Ok(())
}
