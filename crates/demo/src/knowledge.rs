//! The planner's input: legs derived from probe reports and nothing else.
//!
//! A leg whose rate was measured carries that rate. The rate of any other leg is estimated
//! optimistically: its window over its round-trip time, at most a relay's cap per connection, and
//! at most the rate that its site's access was measured to carry. Optimism makes the planner ask
//! for the measurements that could change the plan, and for no others (see [`super::choose`]).

use std::collections::{BTreeMap, BTreeSet};

use tradewind_model::leg::{DEFAULT_WINDOW, RELAY_TO_RELAY_WINDOW};
use tradewind_model::measurement::{LegMeasurement, Method, RateSummary, RttSummary};
use tradewind_model::{Leg, ModelError};
use tradewind_plan::{Legs, Place};
use tradewind_probe::window::BoundBy;
use tradewind_probe::{RateReport, RttReport};
use tradewind_units::{Bandwidth, Bytes, RegionId, SiteId, UnitError, time};

use super::measure::{Pair, RateTest};
use crate::report::MeasuredLeg;

/// The share of the window's limit below which something else bound a measured rate. Chosen: beyond
/// a probe's own error.
const CLEARLY_BELOW: f64 = 0.9;

/// All measurements so far.
pub(super) struct Knowledge {
    sites: BTreeSet<SiteId>,
    regions: Vec<RegionId>,
    per_connection: Bandwidth,
    rtts: BTreeMap<Pair, RttReport>,
    rates: BTreeMap<Pair, RateReport>,
}

impl Knowledge {
    /// Starts with round-trip times and without rates.
    pub(super) fn new(
        sites: &[SiteId],
        regions: &[RegionId],
        per_connection: Bandwidth,
        rtts: BTreeMap<Pair, RttReport>,
    ) -> Self {
        Self {
            sites: sites.iter().cloned().collect(),
            regions: regions.to_vec(),
            per_connection,
            rtts,
            rates: BTreeMap::new(),
        }
    }

    /// Adds measured rates.
    pub(super) fn learn(&mut self, rates: BTreeMap<Pair, RateReport>) {
        self.rates.extend(rates);
    }

    /// Returns every rate test, for the report.
    pub(super) fn measured(&self) -> Vec<MeasuredLeg> {
        let leg = |(pair, report): (&Pair, &RateReport)| MeasuredLeg {
            source: pair.0.to_string(),
            destination: pair.1.to_string(),
            rtt_ms: self.rtts.get(pair).map_or(report.rtt_min_ms, |rtt| rtt.rtt_min_ms),
            rate_mbps: report.rate_mbps,
            bound_by: match report.window.bound_by {
                BoundBy::Window => "window",
                BoundBy::Capacity => "capacity",
                BoundBy::Growth => "growth",
            }
            .into(),
            test_s: report.duration_s,
        };
        self.rates.iter().map(leg).collect()
    }

    /// Returns whether the rate of a pair was measured.
    pub(super) fn has_rate(&self, pair: &Pair) -> bool {
        self.rates.contains_key(pair)
    }

    /// Returns a rate test of this pair: the expected rate if the estimate is right, and the
    /// largest useful rate. A leg between relays need not carry more than any site was measured to
    /// send or receive.
    pub(super) fn test(&self, pair: &Pair) -> Result<RateTest, KnowledgeError> {
        let expected = self.leg(pair, self.window())?.rate();
        let max_rate = if self.is_between_relays(pair) {
            let of_sites = self.rates.iter().filter(|(pair, _)| !self.is_between_relays(pair));
            of_sites.filter_map(|(_, report)| report.rate()).max()
        } else {
            None
        };
        Ok(RateTest { pair: pair.clone(), expected, max_rate })
    }

    /// Returns whether neither end is a site.
    pub(super) fn is_between_relays(&self, pair: &Pair) -> bool {
        !self.sites.contains(&pair.0) && !self.sites.contains(&pair.1)
    }

    /// Returns every leg that a path could have: between sites, from and to relays, and between
    /// relays.
    pub(super) fn legs(&self) -> Result<Legs, KnowledgeError> {
        let window = self.window();
        let mut legs = Legs::new();
        for pair in self.rtts.keys() {
            let ends = [&pair.0, &pair.1].map(|place| self.place(place));
            let [Some(from), Some(to)] = ends else { continue };
            let leg = self.leg(pair, window)?;
            legs.insert((from, to), leg);
        }
        Ok(legs)
    }

    /// Returns one leg from the measurements so far; see the module's documentation.
    fn leg(&self, pair: &Pair, site_window: Bytes) -> Result<Leg, KnowledgeError> {
        let rtt = self.rtt(pair)?;
        let window = if self.is_between_relays(pair) { RELAY_TO_RELAY_WINDOW } else { site_window };
        let template =
            Leg::new(rtt.min).with_window(window).capped_per_connection_at(self.per_connection);
        let measurement = LegMeasurement {
            source: pair.0.clone(),
            destination: pair.1.clone(),
            rtt,
            rate: self.rates.get(pair).and_then(rate_summary),
            method: Method::Tcp,
            measured_at_unix_ms: None,
        };
        let leg = measurement.leg(template);
        if measurement.rate.is_some() {
            return Ok(leg);
        }
        Ok(self.access_caps(pair)?.fold(leg, Leg::capped_at))
    }

    fn rtt(&self, pair: &Pair) -> Result<RttSummary, KnowledgeError> {
        let report = self.rtts.get(pair).ok_or_else(|| KnowledgeError::NoRtt(pair.clone()))?;
        Ok(RttSummary {
            min: report.rtt_min()?,
            median: time::duration_from_millis(report.rtt_median_ms)?,
            spread: time::duration_from_millis(report.rtt_spread_ms)?,
            count: report.samples,
        })
    }

    /// Returns the window of a site's connections: the median over tests that the window bound,
    /// else the paper's.
    fn window(&self) -> Bytes {
        let bound = |report: &&RateReport| report.window.bound_by == BoundBy::Window;
        let mut seen: Vec<Bytes> = self
            .rates
            .iter()
            .filter(|(pair, _)| self.sites.contains(&pair.0) || self.sites.contains(&pair.1))
            .map(|(_, report)| report)
            .filter(bound)
            .map(|report| Bytes::new(report.window_effective_bytes))
            .collect();
        seen.sort();
        seen.get(seen.len() / 2).copied().unwrap_or(DEFAULT_WINDOW)
    }

    /// Returns the rates that the access of a pair's sites was measured to carry, for sites where
    /// something else than the window bound a test.
    fn access_caps(&self, pair: &Pair) -> Result<impl Iterator<Item = Bandwidth>, KnowledgeError> {
        let window = self.window();
        let mut caps = Vec::new();
        for (site, end_of) in [(&pair.0, source_of as EndOf), (&pair.1, destination_of as EndOf)] {
            if !self.sites.contains(site) {
                continue;
            }
            let mut best: Option<Bandwidth> = None;
            let mut bound = false;
            for (measured, report) in self.rates.iter().filter(|(other, _)| end_of(other) == site) {
                let Some(rate) = report.rate() else { continue };
                let window_limit =
                    Leg::new(self.rtt(measured)?.min).with_window(window).window_limit();
                bound |= rate < window_limit.scaled(CLEARLY_BELOW);
                best = best.max(Some(rate));
            }
            caps.extend(best.filter(|_| bound));
        }
        Ok(caps.into_iter())
    }

    fn place(&self, name: &SiteId) -> Option<Place> {
        if self.sites.contains(name) {
            return Some(Place::Site(name.clone()));
        }
        let region = self.regions.iter().find(|region| region.as_str() == name.as_str())?;
        Some(Place::Relay(region.clone()))
    }
}

/// A function that selects one end of a pair.
type EndOf = fn(&Pair) -> &SiteId;

fn source_of(pair: &Pair) -> &SiteId {
    &pair.0
}

fn destination_of(pair: &Pair) -> &SiteId {
    &pair.1
}

/// Returns the planner's view of a rate test: `None` if the rate still grew, because that is only a
/// lower bound. The window is included only if it bound the rate: otherwise a larger one would not
/// have helped.
fn rate_summary(report: &RateReport) -> Option<RateSummary> {
    if report.window.bound_by == BoundBy::Growth {
        return None;
    }
    let bound = report.window.bound_by == BoundBy::Window;
    Some(RateSummary {
        rate: report.rate()?,
        connections: 1,
        window: bound.then(|| Bytes::new(report.window_effective_bytes)),
        retransmitted: None,
    })
}

/// The reason why reports cannot be turned into legs.
#[derive(Debug, thiserror::Error)]
pub enum KnowledgeError {
    /// A pair without a measurement.
    #[error("no round-trip time from {} to {}", .0.0, .0.1)]
    NoRtt(Pair),
    /// A report has a value out of range.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// The model refused a value.
    #[error(transparent)]
    Model(#[from] ModelError),
}
