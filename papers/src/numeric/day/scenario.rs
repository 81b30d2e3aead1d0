//! The scenario file of `lab-day`.

use std::collections::BTreeSet;

use serde::Deserialize;
use tradewind_units::time::as_text;
use tradewind_units::{Bytes, Duration, FlowId, RegionId, SiteId};

use crate::harness::{Runs, ScenarioError, catalogue, from_toml};

/// Most flows, regions and sites. Chosen: a day of more takes longer than two minutes.
const MAX: usize = 20;

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Its assumptions, a sentence each.
    #[serde(default)]
    pub assumptions: Vec<String>,
    /// Number of runs, and their seeds.
    pub runs: Runs,
    /// Length of one of the day's 24 hours.
    #[serde(with = "as_text")]
    pub hour: Duration,
    /// The same in a quick run.
    #[serde(with = "as_text")]
    pub hour_quick: Duration,
    /// Regions with hosts for relays.
    pub regions: Vec<RegionId>,
    /// Hosts in each of them.
    pub hosts_a_region: u8,
    /// Ends of flows.
    pub sites: Vec<Site>,
    /// The flows.
    pub flows: Vec<Flow>,
    /// The most that the day may cost, in dollars.
    pub budget_usd: f64,
    /// Price of each GB that leaves a relay, in dollars.
    pub egress_usd_per_gb: f64,
    /// Price of a relay's machine for 24 hours of clock time, in dollars.
    pub relay_usd_per_day: f64,
    /// Size of a session.
    pub session: Bytes,
    /// The conditions of the day.
    pub conditions: Conditions,
}

/// An end of flows.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// Its name.
    pub name: SiteId,
    /// The region that it is close to.
    pub at: RegionId,
}

/// A flow.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Its name.
    pub name: FlowId,
    /// The site of its gateway.
    pub from: SiteId,
    /// The site of its destination.
    pub to: SiteId,
    /// The volume of the day, as declared.
    pub per_day: Bytes,
}

/// The conditions of the day.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Round trip between a site and the region that it is close to.
    #[serde(with = "as_text")]
    pub access: Duration,
    /// Round trip between two sites over that between their regions.
    pub detour: f64,
    /// Largest deviation of a sample of a round trip, as a share of it.
    pub jitter: f64,
    /// Standard deviation of the logarithm of sessions' times, and of rates that connections show.
    pub noise: f64,
    /// Growth of the round trips of sites at the busiest hour, as a share.
    pub swell: f64,
    /// Largest deviation of a flow's volume from the declared one, as a share.
    pub demand_error: f64,
    /// Legs of the morning's plan that slow down, and recover.
    pub slow: Slow,
    /// Hosts of the morning's relays that die, and come back.
    pub dead: Dead,
}

/// Legs that slow down.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// Their number.
    pub legs: u8,
    /// The share of its rate that such a leg has left.
    pub to: f64,
    /// Shortest and longest time, in hours of the day.
    pub hours: [f64; 2],
}

/// Hosts that die.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dead {
    /// Their number.
    pub hosts: u8,
    /// Shortest and longest time, in hours of the day.
    pub hours: [f64; 2],
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or a value makes no sense.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        scenario.check_places()?;
        scenario.check_numbers()?;
        Ok(scenario)
    }

    fn check_places(&self) -> Result<(), ScenarioError> {
        let wrong = |what: String| Err(ScenarioError::Inconsistent { what });
        let at = self.sites.iter().map(|site| &site.at);
        if let Some(id) = self.regions.iter().chain(at).find(|id| catalogue().region(id).is_none())
        {
            let close = catalogue().did_you_mean(id.as_str());
            return wrong(format!("regions, sites: `{id}` is not in the catalogue{close}"));
        }
        let regions: BTreeSet<&RegionId> = self.regions.iter().collect();
        let sites: BTreeSet<&SiteId> = self.sites.iter().map(|site| &site.name).collect();
        let flows: BTreeSet<&FlowId> = self.flows.iter().map(|flow| &flow.name).collect();
        for (key, different, given) in [
            ("regions", regions.len(), self.regions.len()),
            ("sites", sites.len(), self.sites.len()),
            ("flows", flows.len(), self.flows.len()),
        ] {
            if different < given || !(1..=MAX).contains(&given) {
                return wrong(format!("{key}: 1 to {MAX} different ones"));
            }
        }
        if sites.iter().any(|site| catalogue().regions().any(|it| it.id.as_str() == site.as_str()))
        {
            return wrong("sites: none is named as a region".to_owned());
        }
        for flow in &self.flows {
            if flow.from == flow.to || !sites.contains(&flow.from) || !sites.contains(&flow.to) {
                return wrong(format!(
                    "flows: `{}` goes from one of `sites` to another",
                    flow.name
                ));
            }
            if !(1_000_000..=10_000_000_000_000).contains(&flow.per_day.as_u64()) {
                return wrong(format!("flows: `{}` carries 1 MB to 10 TB a day", flow.name));
            }
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), ScenarioError> {
        let wrong = |what: String| Err(ScenarioError::Inconsistent { what });
        let conditions = &self.conditions;
        for (key, value, least, most) in [
            ("hosts_a_region", f64::from(self.hosts_a_region), 1.0, 5.0),
            ("budget_usd", self.budget_usd, 0.0, 10_000.0),
            ("egress_usd_per_gb", self.egress_usd_per_gb, 0.0, 10.0),
            ("relay_usd_per_day", self.relay_usd_per_day, 0.0, 1000.0),
            ("conditions.detour", conditions.detour, 1.0, 5.0),
            ("conditions.jitter", conditions.jitter, 0.0, 0.5),
            ("conditions.noise", conditions.noise, 0.0, 0.5),
            ("conditions.swell", conditions.swell, 0.0, 2.0),
            ("conditions.demand_error", conditions.demand_error, 0.0, 0.5),
            ("conditions.slow.to", conditions.slow.to, 0.05, 1.0),
            ("session, MB", self.session.as_u64() as f64 / 1e6, 0.1, 1e5),
            ("hour, minutes", self.hour.as_secs_f64() / 60.0, 5.0, 60.0),
            ("hour_quick, minutes", self.hour_quick.as_secs_f64() / 60.0, 5.0, 60.0),
            ("conditions.access, ms", conditions.access.as_secs_f64() * 1e3, 0.1, 500.0),
        ] {
            if !(least..=most).contains(&value) {
                return wrong(format!("{key}: {value} given, expected {least} to {most}"));
            }
        }
        for [least, most] in [conditions.slow.hours, conditions.dead.hours] {
            if !(0.0 < least && least <= most && most <= 12.0) {
                return wrong("hours: two of up to 12, the shorter one first".to_owned());
            }
        }
        Ok(())
    }
}
