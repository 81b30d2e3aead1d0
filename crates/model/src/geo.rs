//! Places, the distances between them, and the round-trip time of light in the cables between them.
//!
//! Measured RTTs are always better than [`RttModel`]; it fills the gaps of a topology and gives the
//! planner a first estimate for pairs that nobody has measured yet.

use serde::{Deserialize, Serialize};

use crate::ModelError;

mod cables;
mod rtt;

pub use rtt::{Coefficients, Located, RttModel, StatedError};

/// Mean radius of the Earth in kilometres (IUGG).
const EARTH_RADIUS_KM: f64 = 6371.0;

/// A place on the globe, in degrees.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(try_from = "Degrees", into = "Degrees")]
pub struct Coordinates {
    latitude: f64,
    longitude: f64,
}

/// Latitude and longitude, in degrees.
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Degrees {
    latitude: f64,
    longitude: f64,
}

impl Coordinates {
    /// Creates the place `latitude` degrees north and `longitude` degrees east.
    ///
    /// # Errors
    /// When either is NaN, or they are off the globe (90 degrees, 180 degrees).
    pub fn new(latitude: f64, longitude: f64) -> Result<Self, ModelError> {
        if !(-90.0..=90.0).contains(&latitude) || !(-180.0..=180.0).contains(&longitude) {
            return Err(ModelError::Coordinates {
                latitude: latitude.to_string(),
                longitude: longitude.to_string(),
            });
        }
        Ok(Self { latitude, longitude })
    }

    /// Returns the degrees north, from -90 to 90.
    #[must_use]
    pub const fn latitude(self) -> f64 {
        self.latitude
    }

    /// Returns the degrees east, from -180 to 180.
    #[must_use]
    pub const fn longitude(self) -> f64 {
        self.longitude
    }
}

impl TryFrom<Degrees> for Coordinates {
    type Error = ModelError;

    fn try_from(degrees: Degrees) -> Result<Self, ModelError> {
        Self::new(degrees.latitude, degrees.longitude)
    }
}

impl From<Coordinates> for Degrees {
    fn from(place: Coordinates) -> Self {
        Self { latitude: place.latitude, longitude: place.longitude }
    }
}

/// Returns the great-circle distance in kilometres (haversine; the Earth as a sphere, error below
/// 0.6 %).
#[must_use]
pub fn distance_km(a: Coordinates, b: Coordinates) -> f64 {
    let (lat_a, lat_b) = (a.latitude.to_radians(), b.latitude.to_radians());
    let half_lat = (lat_b - lat_a) / 2.0;
    let half_lon = (b.longitude - a.longitude).to_radians() / 2.0;
    let h = half_lat.sin().powi(2) + lat_a.cos() * lat_b.cos() * half_lon.sin().powi(2);
    2.0 * EARTH_RADIUS_KM * h.sqrt().min(1.0).asin()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_match_the_atlas() {
        let at = |latitude, longitude| Coordinates::new(latitude, longitude).unwrap();
        let london = at(51.51, -0.13);
        assert!((distance_km(london, at(40.71, -74.01)) - 5570.0).abs() < 10.0);
        assert!((distance_km(at(0.0, 179.5), at(0.0, -179.5)) - 111.2).abs() < 0.1);
        assert!((distance_km(at(90.0, 0.0), at(-90.0, 0.0)) - 20_015.0).abs() < 1.0);
        assert_eq!(distance_km(london, london), 0.0);
    }

    #[test]
    fn places_off_the_globe_are_refused() {
        for (latitude, longitude) in [(90.1, 0.0), (0.0, 181.0), (f64::NAN, 0.0)] {
            assert!(Coordinates::new(latitude, longitude).is_err());
        }
    }
}
