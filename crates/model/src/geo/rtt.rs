//! RTT between two places, from their coordinates alone.
//!
//! Light in fibre covers about 204 km a millisecond, but cables do not follow great circles: from
//! Europe to Singapore they pass Suez, from Africa to South America they pass Europe and the United
//! States. So the model takes the shortest route over a small map of cable cities
//! ([`super::cables`]): each place enters it at one of its nearest cities, the route is stretched
//! by one factor on land and another at sea, each city on the route adds a little, and each RTT has
//! a fixed part.
//!
//! The four coefficients are fitted; the command in `docs/explanation/rtt-model.md` prints them
//! again with their error on each cloud held out of the fit.

use std::sync::OnceLock;

use tradewind_units::Duration;

use super::cables::{HUBS, LAND, SEA};
use super::{Coordinates, distance_km};

/// Kilometres that light covers in a millisecond in fibre: 299,792 km/s over a group index of
/// 1.468.
const FIBRE_KM_PER_MS: f64 = 204.2;
/// Number of nearest cities at which a place may enter the map. Chosen: two leaves coasts out, four
/// changes nothing.
const ENTRIES: usize = 3;
/// Distance up to which places are also joined directly. Chosen: the size of a metropolitan area
/// and its surroundings.
const NEARBY_KM: f64 = 400.0;

/// Fitted coefficients of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Coefficients {
    /// Length of a cable on land over its great circle.
    pub land_detour: f64,
    /// Length of a cable at sea over its great circle.
    pub sea_detour: f64,
    /// Cost of passing a city, as kilometres of cable.
    pub city_km: f64,
    /// The part of an RTT that no distance explains: access and queues at both ends, in
    /// milliseconds.
    pub fixed_ms: f64,
}

impl Coefficients {
    /// Fitted to all three clouds' RTTs of 2022-04; see `docs/explanation/rtt-model.md`.
    pub const FITTED: Self =
        Self { land_detour: 1.61, sea_detour: 1.25, city_km: 153.0, fixed_ms: 3.53 };
}

/// Relative error of the model, `|predicted - measured| / measured`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StatedError {
    /// Half of all pairs are off by no more than this share.
    pub median: f64,
    /// Nine in ten pairs are off by no more than this share.
    pub p90: f64,
}

/// The distance-to-RTT model. Creating one takes some 400,000 steps; share it.
#[derive(Debug, Clone, PartialEq)]
pub struct RttModel {
    coefficients: Coefficients,
    /// Cable kilometres between each two cities, row by row.
    between_cities: Vec<f64>,
    cities: Vec<Coordinates>,
}

/// A place beside the nearest cities of a model.
#[derive(Debug, Clone)]
pub struct Located {
    place: Coordinates,
    nearest: [(usize, f64); ENTRIES],
}

impl RttModel {
    /// The error of [`RttModel::fitted`] against minimum ping RTTs between 69 regions of three
    /// clouds (2022-04); see `docs/explanation/rtt-model.md`.
    pub const STATED_ERROR: StatedError = StatedError { median: 0.07, p90: 0.25 };

    /// Returns the model as fitted, created once.
    #[must_use]
    pub fn fitted() -> &'static Self {
        static FITTED: OnceLock<RttModel> = OnceLock::new();
        FITTED.get_or_init(|| Self::new(Coefficients::FITTED))
    }

    /// Creates a model with the caller's coefficients.
    #[must_use]
    pub fn new(coefficients: Coefficients) -> Self {
        let cities = cities();
        let between_cities = shortest_routes(&cities, &coefficients);
        Self { coefficients, between_cities, cities }
    }

    /// Returns the RTT between two places, at least the fixed part.
    #[must_use]
    pub fn rtt_between(&self, a: Coordinates, b: Coordinates) -> Duration {
        self.rtt(&self.locate(a), &self.locate(b))
    }

    /// Returns a place beside its nearest cities, for the RTTs of many pairs.
    #[must_use]
    pub fn locate(&self, place: Coordinates) -> Located {
        Located { place, nearest: self.nearest(place) }
    }

    /// Returns the RTT between two located places, as [`RttModel::rtt_between`].
    #[must_use]
    pub fn rtt(&self, a: &Located, b: &Located) -> Duration {
        let cable_km = self.cable_km(a, b);
        let millis = self.coefficients.fixed_ms + 2.0 * cable_km / FIBRE_KM_PER_MS;
        Duration::from_secs_f64(millis / 1e3)
    }

    /// Returns the kilometres of cable from `a` to `b`: the shortest route over the map, or
    /// straight if they are near.
    fn cable_km(&self, a: &Located, b: &Located) -> f64 {
        let detour = self.coefficients.land_detour;
        let straight = distance_km(a.place, b.place);
        let mut best = if straight <= NEARBY_KM { straight * detour } else { f64::INFINITY };
        for (entry, in_km) in a.nearest {
            for (exit, out_km) in b.nearest {
                let across = self.between_cities[entry * self.cities.len() + exit];
                best = best.min((in_km + out_km) * detour + across);
            }
        }
        best
    }

    /// Returns the nearest cities with their distances.
    fn nearest(&self, place: Coordinates) -> [(usize, f64); ENTRIES] {
        let mut best = [(0, f64::INFINITY); ENTRIES];
        for (city, &location) in self.cities.iter().enumerate() {
            let mut candidate = (city, distance_km(place, location));
            for slot in &mut best {
                if candidate.1 < slot.1 {
                    std::mem::swap(slot, &mut candidate);
                }
            }
        }
        best
    }
}

fn cities() -> Vec<Coordinates> {
    let place = |(_, latitude, longitude): &_| Coordinates::new(*latitude, *longitude);
    HUBS.iter().map(place).collect::<Result<_, _>>().expect("the map's cities are on the globe")
}

/// Returns the cable kilometres of the shortest route between each two cities (Floyd and Warshall).
fn shortest_routes(cities: &[Coordinates], coefficients: &Coefficients) -> Vec<f64> {
    let count = cities.len();
    let mut km = vec![f64::INFINITY; count * count];
    for city in 0..count {
        km[city * count + city] = 0.0;
    }
    let links = LAND.iter().map(|link| (link, coefficients.land_detour));
    let links = links.chain(SEA.iter().map(|link| (link, coefficients.sea_detour)));
    for ((a, b), detour) in links {
        let (a, b) = (city_index(a), city_index(b));
        let length = distance_km(cities[a], cities[b]) * detour + coefficients.city_km;
        km[a * count + b] = length;
        km[b * count + a] = length;
    }
    for via in 0..count {
        for from in 0..count {
            for to in 0..count {
                let over = km[from * count + via] + km[via * count + to];
                if over < km[from * count + to] {
                    km[from * count + to] = over;
                }
            }
        }
    }
    km
}

fn city_index(name: &str) -> usize {
    HUBS.iter().position(|(hub, ..)| *hub == name).expect("a link joins cities of the map")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rtt_ms(a: (f64, f64), b: (f64, f64)) -> f64 {
        let place = |(latitude, longitude)| Coordinates::new(latitude, longitude).unwrap();
        RttModel::fitted().rtt_between(place(a), place(b)).as_secs_f64() * 1e3
    }

    #[test]
    fn every_city_reaches_every_other() {
        assert!(RttModel::fitted().between_cities.iter().all(|km| km.is_finite()));
    }

    #[test]
    fn rtt_is_symmetric_and_never_faster_than_light() {
        let model = RttModel::fitted();
        for &a in &model.cities {
            for &b in &model.cities {
                let there = model.rtt_between(a, b).as_secs_f64() * 1e3;
                let back = model.rtt_between(b, a).as_secs_f64() * 1e3;
                assert!((there - back).abs() < 1e-6);
                assert!(there >= 2.0 * distance_km(a, b) / FIBRE_KM_PER_MS, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn well_known_pairs_match_measured_rtts() {
        let (london, new_york) = ((51.51, -0.13), (40.71, -74.01));
        let (tokyo, singapore) = ((35.68, 139.69), (1.35, 103.82));
        for (a, b, expected) in [
            (london, new_york, 74.0),
            (london, singapore, 168.0),
            (tokyo, singapore, 69.0),
            (new_york, tokyo, 165.0),
        ] {
            let predicted = rtt_ms(a, b);
            assert!((predicted / expected - 1.0).abs() < 0.2, "{predicted} for {expected}");
        }
        assert!(rtt_ms(london, london) < 5.0);
    }
}
