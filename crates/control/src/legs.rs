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
use tradewind_plan::{LegEnd, Legs};
use tradewind_units::{Bandwidth, Bytes, RegionId, RelayId, SiteId};

use crate::record::PlanRecord;

/// The share of the window's limit below which something else bound a measured rate. Chosen: beyond
/// a probe's own error.
const CLEARLY_BELOW: f64 = 0.9;

/// Returns every measured leg; `regions` are those of relays, all other places are sites.
#[must_use]
pub fn of_measurements(measurements: &[LegMeasurement], regions: &BTreeSet<RegionId>) -> Legs {
    let knowledge = Knowledge::new(measurements, regions);
    let leg = |measured: &LegMeasurement| {
        let ends = (knowledge.place(&measured.source), knowledge.place(&measured.destination));
        (ends, knowledge.leg(measured))
    };
    measurements.iter().map(leg).collect()
}

/// Returns every measured leg, from the regions and sites of a plan.
pub(crate) fn of_plan(plan: &PlanRecord, measurements: &[LegMeasurement]) -> Legs {
    let regions: BTreeSet<RegionId> =
        plan.plan.relays.iter().map(|relay| relay.region.clone()).collect();
    of_measurements(measurements, &regions)
}

/// Returns the legs of a plan's paths, and the direct ones of its flows, by the measurements that
/// it rests on.
pub(crate) fn of_paths(plan: &PlanRecord) -> Legs {
    let relays = plan.plan.relays.iter();
    let regions: BTreeMap<&RelayId, &RegionId> =
        relays.map(|relay| (&relay.id, &relay.region)).collect();
    let mut pairs: BTreeSet<(LegEnd, LegEnd)> = BTreeSet::new();
    for (flow, path) in plan.paths() {
        let [from, to] = [&flow.from, &flow.to_site].map(|site| LegEnd::Site(site.clone()));
        let relays = path.iter().filter_map(|relay| regions.get(relay));
        let relays = relays.map(|region| LegEnd::Relay((*region).clone()));
        let places: Vec<LegEnd> =
            [from.clone()].into_iter().chain(relays).chain([to.clone()]).collect();
        pairs.extend(places.windows(2).map(|pair| (pair[0].clone(), pair[1].clone())));
        pairs.insert((from, to));
    }
    let mut legs = of_plan(plan, &plan.measurements);
    legs.retain(|ends, _| pairs.contains(ends));
    legs
}

struct Knowledge<'a> {
    measurements: &'a [LegMeasurement],
    regions: BTreeMap<SiteId, &'a RegionId>,
    /// The window of a site's connections.
    window: Bytes,
    /// The rates that the access of each place was measured to send, and to receive.
    sends: BTreeMap<&'a SiteId, AccessRate>,
    receives: BTreeMap<&'a SiteId, AccessRate>,
}

/// The rate that the access of a place was measured to carry.
#[derive(Debug, Clone, Copy)]
struct AccessRate {
    /// The greatest of all tests.
    best: Bandwidth,
    /// True if something else than the window bound a test.
    is_bound: bool,
}

impl<'a> Knowledge<'a> {
    fn new(measurements: &'a [LegMeasurement], regions: &'a BTreeSet<RegionId>) -> Self {
        let regions = regions.iter().map(|region| (region.clone().into(), region)).collect();
        let (sends, receives) = (BTreeMap::new(), BTreeMap::new());
        let mut knowledge = Self { measurements, regions, window: DEFAULT_WINDOW, sends, receives };
        let window = knowledge.measured_window().unwrap_or(DEFAULT_WINDOW);
        knowledge.window = window.max(knowledge.shown_window());
        for leg in measurements {
            let Some(measured) = knowledge.access_rate(leg) else { continue };
            for (rates, place) in
                [(&mut knowledge.sends, &leg.source), (&mut knowledge.receives, &leg.destination)]
            {
                let rate = rates.entry(place).or_insert(measured);
                rate.best = rate.best.max(measured.best);
                rate.is_bound |= measured.is_bound;
            }
        }
        knowledge
    }

    fn place(&self, name: &SiteId) -> LegEnd {
        let region = self.regions.get(name);
        region.map_or_else(|| LegEnd::Site(name.clone()), |id| LegEnd::Relay((*id).clone()))
    }

    fn is_site(&self, name: &SiteId) -> bool {
        !self.regions.contains_key(name)
    }

    fn is_between_relays(&self, leg: &LegMeasurement) -> bool {
        !self.is_site(&leg.source) && !self.is_site(&leg.destination)
    }

    /// Returns the median window of the tests of sites' connections that the window bound.
    fn measured_window(&self) -> Option<Bytes> {
        let mut seen: Vec<Bytes> = self.of_sites().filter_map(|leg| leg.rate?.window).collect();
        seen.sort();
        seen.get(seen.len() / 2).copied()
    }

    /// Returns the largest window that a test of sites' connections has filled. On a short leg, a
    /// receiver that is busy looks like a small window.
    fn shown_window(&self) -> Bytes {
        let shown = |leg: &LegMeasurement| {
            let rate = leg.rate?;
            let each = rate.rate.scaled(1.0 / f64::from(rate.connections.max(1)));
            Some(each.volume_in(leg.rtt.min))
        };
        self.of_sites().filter_map(shown).max().unwrap_or(Bytes::ZERO)
    }

    fn of_sites(&self) -> impl Iterator<Item = &LegMeasurement> {
        self.measurements.iter().filter(|leg| !self.is_between_relays(leg))
    }

    fn leg(&self, measured: &LegMeasurement) -> Leg {
        let is_between_relays = self.is_between_relays(measured);
        let window = if is_between_relays { RELAY_TO_RELAY_WINDOW } else { self.window };
        let leg = measured.leg(Leg::new(measured.rtt.min).with_window(window));
        if measured.rate.is_some() {
            return leg;
        }
        let (source, destination) = (&measured.source, &measured.destination);
        let sends = self.sends.get(source).filter(|_| self.is_site(source));
        let receives = self.receives.get(destination).filter(|_| self.is_site(destination));
        let caps = sends.into_iter().chain(receives).filter(|rate| rate.is_bound);
        caps.map(|rate| rate.best).fold(leg, Leg::capped_at)
    }

    /// Returns the rate of a leg's test, if there was one.
    fn access_rate(&self, leg: &LegMeasurement) -> Option<AccessRate> {
        let best = leg.rate?.rate;
        let limit = Leg::new(leg.rtt.min).with_window(self.window).window_limit();
        Some(AccessRate { best, is_bound: best < limit.scaled(CLEARLY_BELOW) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tradewind_model::measurement::{Method, RateSummary, RttSummary};
    use tradewind_units::Duration;

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

    fn rate(legs: &Legs, from: LegEnd, to: LegEnd) -> f64 {
        legs[&(from, to)].rate().as_mbps()
    }

    #[test]
    fn measured_rates_cap_and_others_are_estimated_by_window_over_rtt() {
        let region = RegionId::new("gcp:europe-north1").unwrap();
        let (site, relay) =
            (LegEnd::Site(SiteId::new("office").unwrap()), LegEnd::Relay(region.clone()));
        let far = LegEnd::Site(SiteId::new("far").unwrap());
        let known = [
            measured("office", "gcp:europe-north1", 23, None),
            measured("gcp:europe-north1", "far", 100, None),
            measured("office", "far", 230, None),
        ];
        let legs_before = of_measurements(&known, &[region.clone()].into());
        // 2.875 MB each 23 ms.
        assert!((rate(&legs_before, site.clone(), relay.clone()) - 1000.0).abs() < 1.0);
        assert!((rate(&legs_before, site.clone(), far.clone()) - 100.0).abs() < 1.0);
        let mut known = known;
        known[2].rate = measured("office", "far", 230, Some(20.0)).rate;
        let legs_after = of_measurements(&known, &[region].into());
        assert!((rate(&legs_after, site.clone(), far) - 20.0).abs() < 0.1);
        // The access of the office was bound by something else than the window.
        assert!((rate(&legs_after, site, relay) - 20.0).abs() < 0.1);
    }

    #[test]
    fn window_is_no_smaller_than_any_test_has_filled() {
        let region = RegionId::new("gcp:europe-north1").unwrap();
        let [office, far] = ["office", "far"].map(|id| LegEnd::Site(SiteId::new(id).unwrap()));
        let mut known = [
            measured("gcp:europe-north1", "far", 11, Some(960.0)),
            measured("office", "far", 276, Some(82.0)),
        ];
        if let Some(rate) = &mut known[0].rate {
            rate.window = Some(Bytes::new(1_320_000));
        }
        let legs = of_measurements(&known, &[region].into());
        assert!((rate(&legs, office, far) - 82.0).abs() < 0.1);
    }

    proptest! {
        #[test]
        fn legs_carry_what_was_measured_or_what_their_window_allows(
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
            let legs = of_measurements(&known, &[region.clone()].into());
            prop_assert_eq!(legs.len(), known.len());
            let knowledge_regions = [region].into();
            let knowledge = Knowledge::new(&known, &knowledge_regions);
            for leg in &known {
                let ends = (knowledge.place(&leg.source), knowledge.place(&leg.destination));
                let rate = legs[&ends].rate().as_mbps();
                let window = knowledge.window;
                let by_window = Leg::new(leg.rtt.min).with_window(window).window_limit();
                prop_assert!(rate <= by_window.as_mbps() * 1.000_001);
                if let Some(measured) = leg.rate {
                    prop_assert!((rate / measured.rate.as_mbps() - 1.0).abs() < 1e-5);
                }
            }
        }
    }
}
