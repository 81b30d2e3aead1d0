//! The operator's settings.

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::{Duration, HostId, Money, Ratio, Segments, SiteId, time};

use crate::terms::Terms;

/// Longest time that machines of relays may take to set up. Chosen: longer than clouds take.
pub const MAX_RELAY_SETUP: Duration = Duration::from_secs(1800);

/// The operator's settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The most that relays and their traffic may cost in a day.
    pub budget_usd_per_day: Money,
    /// Share of the budget whose use raises an alarm.
    pub alarm_share: Option<f64>,
    /// The one who applies plans.
    pub mode: Mode,
    /// Share of sessions with a planned path over relays that go direct, by lot, to measure the
    /// gain.
    #[serde(default = "default_control_share")]
    pub control_share: Ratio,
    /// Jump-start of the hosts.
    #[serde(default)]
    pub jumpstart: JumpstartSettings,
    /// Prices and relay types of the operator's own.
    #[serde(default)]
    pub terms: Terms,
    /// Share of the budget that rate tests may use.
    #[serde(default = "default_tests_share")]
    pub tests_share: Ratio,
    /// Time that machines of relays take to set up: a new plan waits so much longer for them.
    #[serde(default, with = "time::as_text")]
    pub relay_setup: Duration,
}

/// Returns the default share of the control arm. Chosen: the gain of 50 sessions is measured by
/// one that goes without.
fn default_control_share() -> Ratio {
    Ratio::new(0.02).expect("a share")
}

/// Returns the default share of rate tests. Chosen: what they find out moves far more than that.
fn default_tests_share() -> Ratio {
    Ratio::new(0.1).expect("a share")
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            budget_usd_per_day: Money::ZERO,
            alarm_share: None,
            mode: Mode::Suggest,
            control_share: default_control_share(),
            jumpstart: JumpstartSettings::default(),
            terms: Terms::default(),
            tests_share: default_tests_share(),
            relay_setup: Duration::ZERO,
        }
    }
}

/// The one who applies plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The operator.
    Suggest,
    /// The controller.
    Auto,
}

/// Jump-start of the hosts: relays and gateways learn initial windows from their own connections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JumpstartSettings {
    /// True if the hosts below learn; else none does.
    pub is_on: bool,
    /// The hosts; all if neither hosts nor sites are named.
    pub hosts: BTreeSet<HostId>,
    /// The sites and regions whose hosts do as well.
    pub sites: BTreeSet<SiteId>,
    /// Share of connections that keep the default window, to measure the benefit.
    pub control_share: Ratio,
    /// The greatest initial window, in segments.
    pub window_max: Segments,
    /// True to time transfers between the hosts each hour, with learned windows and without.
    #[serde(default)]
    pub has_probes: bool,
    /// True to have the hosts of a site use each other's windows where they have none.
    #[serde(default)]
    pub is_shared: bool,
}

impl JumpstartSettings {
    /// Returns whether a host of this site is to learn.
    #[must_use]
    pub fn covers(&self, host: &HostId, site: &SiteId) -> bool {
        let is_named = self.hosts.contains(host) || self.sites.contains(site);
        self.is_on && (is_named || self.hosts.is_empty() && self.sites.is_empty())
    }
}

impl fmt::Display for JumpstartSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_on {
            return f.write_str("off: all hosts start connections by default");
        }
        let hosts = self.hosts.iter().map(HostId::as_str);
        let names: Vec<&str> = hosts.chain(self.sites.iter().map(SiteId::as_str)).collect();
        let names = if names.is_empty() { "all hosts".to_owned() } else { names.join(", ") };
        let (most, share) = (self.window_max.as_u32(), self.control_share.as_f64() * 100.0);
        write!(
            f,
            "on for {names}: windows up to {most} segments, {share:.1} % of connections as control"
        )?;
        f.write_str(if self.has_probes { ", hourly probes" } else { "" })?;
        f.write_str(if self.is_shared { ", shared within sites" } else { "" })
    }
}

impl Default for JumpstartSettings {
    /// Off; as the learner's own defaults, 5 % of connections as control, and windows up to the
    /// knee of `[RT IV-B1]`.
    fn default() -> Self {
        Self {
            is_on: false,
            hosts: BTreeSet::new(),
            sites: BTreeSet::new(),
            control_share: Ratio::new(0.05).expect("a share"),
            window_max: Segments::new(100).expect("a window"),
            has_probes: false,
            is_shared: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumpstart_is_one_sentence() {
        let mut settings = JumpstartSettings::default();
        assert!(settings.to_string().starts_with("off"));
        settings.is_on = true;
        let expected =
            "on for all hosts: windows up to 100 segments, 5.0 % of connections as control";
        assert_eq!(settings.to_string(), expected);
        settings.has_probes = true;
        settings.is_shared = true;
        let expected = format!("{expected}, hourly probes, shared within sites");
        assert_eq!(settings.to_string(), expected);
        settings.hosts.insert("office-1".parse().unwrap());
        settings.sites.insert("gcp:us-east4".parse().unwrap());
        assert!(settings.to_string().starts_with("on for office-1, gcp:us-east4: "));
    }
}
