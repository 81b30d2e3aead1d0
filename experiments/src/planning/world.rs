//! Settings of CP's simulations [CP VII-A]: 18 regions, end points near them, legs between all.
//!
//! RTTs come from the distance model (docs/rtt-model.md), where CP measured those between regions.

use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;
use tradewind_model::geo::distance_km;
use tradewind_model::leg::RELAY_TO_RELAY_WINDOW;
use tradewind_model::{Catalogue, Continent, Coordinates, Leg, Region, RttModel};
use tradewind_plan::{Flow, Legs, Place};
use tradewind_units::{Bandwidth, Bytes, Duration, FlowId, RegionId, SiteId};

/// CP has 18 regions of GCP and does not name them. Chosen: the first 18 that GCP opened.
const REGIONS: [&str; 18] = [
    "gcp:asia-east1",
    "gcp:asia-east2",
    "gcp:asia-northeast1",
    "gcp:asia-south1",
    "gcp:asia-southeast1",
    "gcp:australia-southeast1",
    "gcp:europe-north1",
    "gcp:europe-west1",
    "gcp:europe-west2",
    "gcp:europe-west3",
    "gcp:europe-west4",
    "gcp:northamerica-northeast1",
    "gcp:southamerica-east1",
    "gcp:us-central1",
    "gcp:us-east1",
    "gcp:us-east4",
    "gcp:us-west1",
    "gcp:us-west2",
];

/// End points lie this near to a region, or nearer [CP VII-A].
const NEAR: Duration = Duration::from_millis(40);
/// No place further away has so short an RTT: light in fibre goes 204 km in a millisecond.
const NEAR_KM: f64 = 40.0 / 2.0 * 204.2;
/// What a flow carries [CP VII-A].
const VOLUME: Bytes = Bytes::new(2_000_000_000);

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
    generator: Pcg64Mcg,
    drawn: usize,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let catalogue = Catalogue::builtin();
        let region = |id: &&str| {
            let id = RegionId::new(*id).expect("a constant of this file");
            catalogue.require(&id).expect("a constant of this file").clone()
        };
        let regions = REGIONS.iter().map(region).collect();
        Self { regions, generator: Pcg64Mcg::seed_from_u64(seed), drawn: 0 }
    }

    /// The regions that may hold relays.
    pub(super) fn regions(&self) -> Vec<RegionId> {
        self.regions.iter().map(|region| region.id.clone()).collect()
    }

    /// A number from 0 to below `count`.
    pub(super) fn draw(&mut self, count: usize) -> usize {
        let wide = u128::from(self.generator.next_u64()) * count as u128;
        usize::try_from(wide >> 64).expect("below the count")
    }

    /// A number from 0 to below 1.
    fn fraction(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// An end point in Tokyo's region.
    pub(super) fn tokyo(&mut self) -> EndPoint {
        let tokyo = self.regions.iter().find(|region| region.label == "Tokyo");
        let at = tokyo.expect("one of the constants").location;
        self.end_point(at)
    }

    /// An end point near any region.
    pub(super) fn anywhere(&mut self) -> EndPoint {
        let region = self.draw(self.regions.len());
        self.near(region)
    }

    /// An end point near a region of this continent, as the catalogue names it.
    pub(super) fn on_continent(&mut self, continent: Continent) -> EndPoint {
        let all = self.regions.iter().enumerate();
        let there: Vec<usize> =
            all.filter(|(_, r)| r.continent == continent).map(|(i, _)| i).collect();
        let region = there[self.draw(there.len())];
        self.near(region)
    }

    /// An end point within [`NEAR`] of a region, all places equally likely.
    fn near(&mut self, region: usize) -> EndPoint {
        let centre = self.regions[region].location;
        loop {
            // Uniform on the sphere: the sine of the latitude and the longitude are.
            let latitude = (2.0 * self.fraction() - 1.0).asin().to_degrees();
            let longitude = 360.0 * self.fraction() - 180.0;
            let at = Coordinates::new(latitude, longitude).expect("on the globe by construction");
            if distance_km(at, centre) < NEAR_KM
                && RttModel::fitted().rtt_between(at, centre) < NEAR
            {
                return self.end_point(at);
            }
        }
    }

    fn end_point(&mut self, at: Coordinates) -> EndPoint {
        self.drawn += 1;
        let id = SiteId::new(format!("site{}", self.drawn)).expect("a short word");
        let last_mile = Some(Bandwidth::from_mbps(1000.0).expect("a rate"));
        EndPoint { id, at, last_mile }
    }

    /// The flows between these pairs, and all legs that they may use.
    pub(super) fn flows(&self, pairs: &[(EndPoint, EndPoint)]) -> (Vec<Flow>, Legs) {
        let mut legs = Legs::new();
        for from in &self.regions {
            for to in self.regions.iter().filter(|to| to.id != from.id) {
                let ends = (Place::Relay(from.id.clone()), Place::Relay(to.id.clone()));
                let leg = leg(from.location, to.location).with_window(RELAY_TO_RELAY_WINDOW);
                legs.insert(ends, leg);
            }
        }
        let mut flows = Vec::with_capacity(pairs.len());
        for (index, (source, destination)) in pairs.iter().enumerate() {
            let id = FlowId::new(format!("flow{index}")).expect("a short word");
            flows.push(Flow::new(id, source.id.clone(), destination.id.clone(), VOLUME));
            let (from, to) = (Place::Site(source.id.clone()), Place::Site(destination.id.clone()));
            let direct = leg(source.at, destination.at);
            legs.insert((from.clone(), to.clone()), destination.behind(source.behind(direct)));
            for region in &self.regions {
                let relay = Place::Relay(region.id.clone());
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
    /// The same with a last mile of this rate; `None`: no limit, as servers of many flows have [CP VII-A].
    pub(super) fn with_last_mile(self, last_mile: Option<Bandwidth>) -> Self {
        Self { last_mile, ..self }
    }

    /// RTT to another.
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
