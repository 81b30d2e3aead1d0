//! The world of CP's simulations [CP VII-A]: regions, end points near them, legs between all.
//!
//! RTTs are the distance model's (docs/explanation/rtt-model.md), where CP measured those between
//! regions. That makes no difference here: with its window of 500 MB no leg between two relays is
//! limited by its RTT.

use tradewind_model::geo::distance_km;
use tradewind_model::leg::RELAY_TO_RELAY_WINDOW;
use tradewind_model::{Continent, Coordinates, Leg, Region, RttModel};
use tradewind_plan::{Flow, LegEnd, Legs};
use tradewind_units::{Bandwidth, Bytes, Duration, FlowId, RegionId, SiteId};

use crate::harness::{Random, catalogue};
use crate::numeric::FIBRE_KM_PER_MS;

/// A place where flows start or end.
#[derive(Debug, Clone)]
pub(super) struct EndPoint {
    id: SiteId,
    at: Coordinates,
    last_mile: Option<Bandwidth>,
}

/// Regions, and end points drawn from a seed.
pub(super) struct World {
    regions: Vec<Region>,
    near: Duration,
    random: Random,
    drawn: usize,
}

impl World {
    /// Creates the world of these regions.
    ///
    /// # Panics
    /// When a region is not in the catalogue; scenarios are checked for that.
    pub(super) fn new(regions: &[RegionId], near: Duration, seed: u64) -> Self {
        let region = |id| catalogue().require(id).expect("the scenario was checked").clone();
        let regions = regions.iter().map(region).collect();
        Self { regions, near, random: Random::new(seed), drawn: 0 }
    }

    /// Returns the regions that may hold relays.
    pub(super) fn regions(&self) -> Vec<RegionId> {
        self.regions.iter().map(|region| region.id.clone()).collect()
    }

    /// Draws a number from 0 to below `count`.
    pub(super) fn draw(&mut self, count: usize) -> usize {
        self.random.draw(count)
    }

    /// Draws an end point in a region.
    pub(super) fn inside(&mut self, region: &RegionId) -> EndPoint {
        let known = self.regions.iter().find(|known| known.id == *region);
        let at = known.expect("the scenario was checked").location;
        self.end_point(at)
    }

    /// Draws an end point near any region.
    pub(super) fn anywhere(&mut self) -> EndPoint {
        let region = self.draw(self.regions.len());
        self.near(region)
    }

    /// Draws an end point near a region of this continent, as the catalogue names it.
    pub(super) fn on_continent(&mut self, continent: Continent) -> EndPoint {
        let all = self.regions.iter().enumerate();
        let there: Vec<usize> =
            all.filter(|(_, r)| r.continent == continent).map(|(i, _)| i).collect();
        let region = there[self.draw(there.len())];
        self.near(region)
    }

    /// Draws an end point near a region, all places equally likely.
    fn near(&mut self, region: usize) -> EndPoint {
        // No place farther away has so short an RTT.
        let most_km = self.near.as_secs_f64() * 1e3 / 2.0 * FIBRE_KM_PER_MS;
        let centre = self.regions[region].location;
        loop {
            // Uniform on the sphere: the sine of the latitude and the longitude are.
            let latitude = (2.0 * self.random.fraction() - 1.0).asin().to_degrees();
            let longitude = 360.0 * self.random.fraction() - 180.0;
            let at = Coordinates::new(latitude, longitude).expect("on the globe by construction");
            if distance_km(at, centre) < most_km
                && RttModel::fitted().rtt_between(at, centre) < self.near
            {
                return self.end_point(at);
            }
        }
    }

    fn end_point(&mut self, at: Coordinates) -> EndPoint {
        self.drawn += 1;
        let id = SiteId::new(format!("site{}", self.drawn)).expect("a short word");
        EndPoint { id, at, last_mile: None }
    }

    /// Returns the flows between these pairs, and all legs that they may use.
    pub(super) fn flows(&self, pairs: &[(EndPoint, EndPoint)], volume: Bytes) -> (Vec<Flow>, Legs) {
        let mut legs = Legs::new();
        for from in &self.regions {
            for to in self.regions.iter().filter(|to| to.id != from.id) {
                let ends = (LegEnd::Relay(from.id.clone()), LegEnd::Relay(to.id.clone()));
                let leg = leg(from.location, to.location).with_window(RELAY_TO_RELAY_WINDOW);
                legs.insert(ends, leg);
            }
        }
        let mut flows = Vec::with_capacity(pairs.len());
        for (index, (source, destination)) in pairs.iter().enumerate() {
            let id = FlowId::new(format!("flow{index}")).expect("a short word");
            flows.push(Flow::new(id, source.id.clone(), destination.id.clone(), volume));
            let (from, to) =
                (LegEnd::Site(source.id.clone()), LegEnd::Site(destination.id.clone()));
            let direct = leg(source.at, destination.at);
            legs.insert((from.clone(), to.clone()), destination.behind(source.behind(direct)));
            for region in &self.regions {
                let relay = LegEnd::Relay(region.id.clone());
                let there = source.behind(leg(source.at, region.location));
                legs.entry((from.clone(), relay.clone())).or_insert(there);
                let onward = destination.behind(leg(region.location, destination.at));
                legs.entry((relay, to.clone())).or_insert(onward);
            }
        }
        (flows, legs)
    }
}

impl EndPoint {
    /// Returns the same with a last mile of this rate; `None`: no limit, as servers of many flows
    /// have [CP VII-A].
    pub(super) fn with_last_mile(self, last_mile: Option<Bandwidth>) -> Self {
        Self { last_mile, ..self }
    }

    /// Returns the RTT to another.
    pub(super) fn rtt_to(&self, other: &Self) -> Duration {
        RttModel::fitted().rtt_between(self.at, other.at)
    }

    fn behind(&self, leg: Leg) -> Leg {
        self.last_mile.map_or(leg, |rate| leg.capped_at(rate))
    }
}

fn leg(from: Coordinates, to: Coordinates) -> Leg {
    Leg::new(RttModel::fitted().rtt_between(from, to))
}
