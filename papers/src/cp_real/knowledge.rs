//! The measurements of the probes so far, and the planner's legs from them: those that a controller
//! derives ([`tradewind_control::legs`]), at most as fast as a relay's cap per connection.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_control::legs;
use tradewind_model::measurement::{LegMeasurement, Method, RateSummary, RttSummary};
use tradewind_plan::{LegEnd, Legs};
use tradewind_probe::window::BoundBy;
use tradewind_probe::{RateReport, RttReport};
use tradewind_units::{Bandwidth, Bytes, RegionId, SiteId, UnitError, time};

use super::measure::{Pair, RateTest};

/// All measurements so far.
pub(super) struct Knowledge {
    sites: BTreeSet<SiteId>,
    regions: BTreeSet<RegionId>,
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
            regions: regions.iter().cloned().collect(),
            per_connection,
            rtts,
            rates: BTreeMap::new(),
        }
    }

    /// Adds measured rates.
    pub(super) fn learn(&mut self, rates: BTreeMap<Pair, RateReport>) {
        self.rates.extend(rates);
    }

    /// Returns whether the rate of a pair was measured.
    pub(super) fn has_rate(&self, pair: &Pair) -> bool {
        self.rates.contains_key(pair)
    }

    /// Returns a rate test of this pair: the expected rate if the estimate is right, and the
    /// largest useful rate. A leg between relays need not carry more than any site was measured to
    /// send or receive.
    pub(super) fn test(&self, pair: &Pair) -> Result<RateTest, KnowledgeError> {
        let unknown = || KnowledgeError::NoRtt(pair.clone());
        let leg = self.legs()?.remove(&(self.place(&pair.0), self.place(&pair.1)));
        let expected = leg.ok_or_else(unknown)?.rate();
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
        let known = self.rtts.iter().filter(|((from, to), _)| self.is_known(from, to));
        let measured = known.map(|(pair, rtt)| self.measurement(pair, rtt));
        let measured = measured.collect::<Result<Vec<_>, _>>()?;
        let legs = legs::of_measurements(&measured, &self.regions).into_iter();
        Ok(legs
            .map(|(ends, leg)| (ends, leg.capped_per_connection_at(self.per_connection)))
            .collect())
    }

    fn measurement(&self, pair: &Pair, rtt: &RttReport) -> Result<LegMeasurement, KnowledgeError> {
        Ok(LegMeasurement {
            source: pair.0.clone(),
            destination: pair.1.clone(),
            rtt: RttSummary {
                min: rtt.rtt_min()?,
                median: time::duration_from_millis(rtt.rtt_median_ms)?,
                spread: time::duration_from_millis(rtt.rtt_spread_ms)?,
                count: rtt.samples,
            },
            rate: self.rates.get(pair).and_then(rate_summary),
            method: Method::Tcp,
            measured_at_unix_ms: None,
        })
    }

    /// Returns whether both are sites or regions of the scenario.
    fn is_known(&self, from: &SiteId, to: &SiteId) -> bool {
        [from, to].into_iter().all(|name| self.sites.contains(name) || self.region(name).is_some())
    }

    fn region(&self, name: &SiteId) -> Option<&RegionId> {
        self.regions.iter().find(|region| region.as_str() == name.as_str())
    }

    fn place(&self, name: &SiteId) -> LegEnd {
        let region = self.region(name).cloned();
        region.map_or_else(|| LegEnd::Site(name.clone()), LegEnd::Relay)
    }
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
pub(super) enum KnowledgeError {
    /// A pair without a measurement.
    #[error("no round-trip time from {} to {}", .0.0, .0.1)]
    NoRtt(Pair),
    /// A report has a value out of range.
    #[error(transparent)]
    Unit(#[from] UnitError),
}
