//! The planner's legs, from measurements.
//!
//! A leg whose rate was measured carries that rate. The rate of any other leg is estimated
//! optimistically: its window over its round-trip time, and at most the rate that the access of its
//! site was measured to carry. Optimism makes the planner ask for the measurements that could
//! change the plan, and for no others.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_model::Leg;
use tradewind_model::leg::{DEFAULT_WINDOW, RELAY_TO_RELAY_WINDOW};
use tradewind_model::measurement::LegMeasurement;
use tradewind_plan::{Legs, Place};
use tradewind_units::{Bandwidth, Bytes, Duration, RegionId, SiteId};

use crate::state::State;

/// Age from which on a measured rate counts no more, so that a leg that was slow once gets another
/// chance. Chosen: six of the times after which the rates of a plan are measured again.
pub const RATES_LAST: Duration = Duration::from_secs(6 * 3600);

/// The share of the window's limit below which something else bound a measured rate. Chosen: beyond
/// a probe's own error.
const CLEARLY_BELOW: f64 = 0.9;

/// Returns the measurements that plans are made from: all, without the rates of too long ago.
#[must_use]
pub fn current(state: &State, now_unix_ms: u64) -> Vec<LegMeasurement> {
    let is_recent = |ends: &(SiteId, SiteId)| {
        let test = state.rate_tests.get(ends);
        test.is_some_and(|test| {
            u128::from(now_unix_ms.abs_diff(test.unix_ms)) < RATES_LAST.as_millis()
        })
    };
    let leg = |(ends, leg): (&(SiteId, SiteId), &LegMeasurement)| LegMeasurement {
        rate: leg.rate.filter(|_| is_recent(ends)),
        ..leg.clone()
    };
    state.measurements.iter().map(leg).collect()
}

/// Returns every measured leg; `regions` are those of relays, all other places are sites.
#[must_use]
pub fn legs(measurements: &[LegMeasurement], regions: &BTreeSet<RegionId>) -> Legs {
    let knowledge = Knowledge::new(measurements, regions);
    let leg = |measured: &LegMeasurement| {
        let ends = (knowledge.place(&measured.source), knowledge.place(&measured.destination));
        (ends, knowledge.leg(measured))
    };
    measurements.iter().map(leg).collect()
}

struct Knowledge<'a> {
    measurements: &'a [LegMeasurement],
    regions: BTreeMap<SiteId, &'a RegionId>,
    /// The window of a site's connections.
    window: Bytes,
}

impl<'a> Knowledge<'a> {
    fn new(measurements: &'a [LegMeasurement], regions: &'a BTreeSet<RegionId>) -> Self {
        let regions = regions.iter().map(|region| (region.clone().into(), region)).collect();
        let mut knowledge = Self { measurements, regions, window: DEFAULT_WINDOW };
        knowledge.window = knowledge.measured_window().unwrap_or(DEFAULT_WINDOW);
        knowledge
    }

    fn place(&self, name: &SiteId) -> Place {
        let region = self.regions.get(name);
        region.map_or_else(|| Place::Site(name.clone()), |id| Place::Relay((*id).clone()))
    }

    fn is_site(&self, name: &SiteId) -> bool {
        !self.regions.contains_key(name)
    }

    fn is_between_relays(&self, leg: &LegMeasurement) -> bool {
        !self.is_site(&leg.source) && !self.is_site(&leg.destination)
    }

    /// Returns the median window of the tests of sites' connections that the window bound.
    fn measured_window(&self) -> Option<Bytes> {
        let of_sites = self.measurements.iter().filter(|leg| !self.is_between_relays(leg));
        let mut seen: Vec<Bytes> = of_sites.filter_map(|leg| leg.rate?.window).collect();
        seen.sort();
        seen.get(seen.len() / 2).copied()
    }

    fn leg(&self, measured: &LegMeasurement) -> Leg {
        let is_between_relays = self.is_between_relays(measured);
        let window = if is_between_relays { RELAY_TO_RELAY_WINDOW } else { self.window };
        let leg = measured.leg(Leg::new(measured.rtt.min).with_window(window));
        if measured.rate.is_some() {
            return leg;
        }
        let sends = |other: &LegMeasurement| other.source == measured.source;
        let receives = |other: &LegMeasurement| other.destination == measured.destination;
        let source = self.is_site(&measured.source).then(|| self.access_cap(sends));
        let destination = self.is_site(&measured.destination).then(|| self.access_cap(receives));
        source.into_iter().chain(destination).flatten().fold(leg, Leg::capped_at)
    }

    /// Returns the rate that the access of a site was measured to carry on its legs, if something
    /// else than the window bound a test.
    fn access_cap(&self, is_its: impl Fn(&LegMeasurement) -> bool) -> Option<Bandwidth> {
        let mut best: Option<Bandwidth> = None;
        let mut is_bound = false;
        for leg in self.measurements.iter().filter(|leg| is_its(leg)) {
            let Some(rate) = leg.rate.map(|measured| measured.rate) else { continue };
            let limit = Leg::new(leg.rtt.min).with_window(self.window).window_limit();
            is_bound |= rate < limit.scaled(CLEARLY_BELOW);
            best = best.max(Some(rate));
        }
        best.filter(|_| is_bound)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tradewind_model::measurement::{Method, RateSummary, RttSummary};

    use super::*;

    fn measured(from: &str, to: &str, rtt_ms: u64, mbps: Option<f64>) -> LegMeasurement {
        LegMeasurement {
            source: SiteId::new(from).unwrap(),
            destination: SiteId::new(to).unwrap(),
            rtt: RttSummary::single(Duration::from_millis(rtt_ms)),
            rate: mbps.map(|mbps| RateSummary {
                rate: Bandwidth::from_mbps(mbps).unwrap(),
                connections: 1,
                window: None,
                retransmitted: None,
            }),
            method: Method::Tcp,
            measured_at_unix_ms: Some(0),
        }
    }

    fn rate(legs: &Legs, from: Place, to: Place) -> f64 {
        legs[&(from, to)].rate().as_mbps()
    }

    #[test]
    fn measured_rates_cap_and_others_are_estimated_by_window_over_rtt() {
        let region = RegionId::new("gcp:europe-north1").unwrap();
        let (site, relay) =
            (Place::Site(SiteId::new("office").unwrap()), Place::Relay(region.clone()));
        let far = Place::Site(SiteId::new("far").unwrap());
        let known = [
            measured("office", "gcp:europe-north1", 23, None),
            measured("gcp:europe-north1", "far", 100, None),
            measured("office", "far", 230, None),
        ];
        let legs_before = legs(&known, &[region.clone()].into());
        // 2.875 MB each 23 ms.
        assert!((rate(&legs_before, site.clone(), relay.clone()) - 1000.0).abs() < 1.0);
        assert!((rate(&legs_before, site.clone(), far.clone()) - 100.0).abs() < 1.0);
        let mut known = known;
        known[2].rate = measured("office", "far", 230, Some(20.0)).rate;
        let legs_after = legs(&known, &[region].into());
        assert!((rate(&legs_after, site.clone(), far) - 20.0).abs() < 0.1);
        // The access of the office was bound by something else than the window.
        assert!((rate(&legs_after, site, relay) - 20.0).abs() < 0.1);
    }

    proptest! {
        #[test]
        fn no_leg_is_faster_than_measured_or_than_its_window_allows(
            figures in prop::collection::vec((1_u64..400, prop::option::of(1.0_f64..2000.0)), 6),
        ) {
            let region = RegionId::new("gcp:europe-north1").unwrap();
            let ends = ["office", "far", "gcp:europe-north1"];
            let pairs = ends.iter().flat_map(|from| ends.iter().map(move |to| (from, to)));
            let known: Vec<_> = pairs
                .filter(|(from, to)| from != to)
                .zip(figures)
                .map(|((from, to), (rtt, mbps))| measured(from, to, rtt, mbps))
                .collect();
            let legs = legs(&known, &[region.clone()].into());
            prop_assert_eq!(legs.len(), known.len());
            let knowledge_regions = [region].into();
            let knowledge = Knowledge::new(&known, &knowledge_regions);
            for leg in &known {
                let ends = (knowledge.place(&leg.source), knowledge.place(&leg.destination));
                let rate = legs[&ends].rate().as_mbps();
                let by_window = Leg::new(leg.rtt.min).with_window(DEFAULT_WINDOW).window_limit();
                prop_assert!(rate <= by_window.as_mbps() * 1.000_001);
                if let Some(measured) = leg.rate {
                    prop_assert!(rate <= measured.rate.as_mbps() * 1.000_001);
                }
            }
        }
    }
}
