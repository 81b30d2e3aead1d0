//! A world map as SVG: land, sites and regions, and the flows' paths as great circles.
//!
//! Plate carree projection, one unit per degree. Lines that cross the antimeridian are cut there.
//! The land's outline is simplified from Natural Earth's 1:110m land polygons (public domain).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{DemoReport, MapPoint, Role};

/// One polygon per line, `longitude,latitude` pairs in whole degrees. A polygon that crosses the
/// antimeridian is listed twice, on either side, and extends beyond the map.
const LAND: &str = include_str!("land.txt");

/// The degrees shown: the map leaves out the polar seas.
const NORTH: f64 = 78.0;
const SOUTH: f64 = -56.0;

/// Points on a great circle between two places. Chosen: smooth at any size on a screen.
const ARC_STEPS: u32 = 48;

/// Returns the map of a report as one `<svg>` element.
pub(super) fn svg(report: &DemoReport) -> String {
    let mut out = format!(
        "<svg class=\"map\" viewBox=\"-180 {} 360 {}\" role=\"img\" \
         aria-label=\"Map of sites, relays and paths\">",
        -NORTH,
        NORTH - SOUTH
    );
    for polygon in LAND.lines() {
        let _ = write!(out, "<polygon class=\"land\" points=\"{}\"/>", flip(polygon));
    }
    let places: BTreeMap<&str, &MapPoint> =
        report.places.iter().map(|place| (place.name.as_str(), place)).collect();
    for flow in &report.flows {
        let stops: Vec<&MapPoint> = std::iter::once(&flow.source)
            .chain(&flow.path)
            .chain(std::iter::once(&flow.destination))
            .filter_map(|name| places.get(name.as_str()).copied())
            .collect();
        let class = if flow.path.is_empty() { "direct" } else { "relayed" };
        for leg in stops.windows(2) {
            let _ = write!(out, "<path class=\"{class}\" d=\"{}\"/>", arc(leg[0], leg[1]));
        }
    }
    for place in &report.places {
        out.push_str(&marker(place));
    }
    out.push_str("</svg>");
    out
}

/// Flips the latitudes of a polygon: SVG's y axis points down, latitude points up.
fn flip(polygon: &str) -> String {
    let points = polygon.split(' ').filter_map(|point| {
        let (longitude, latitude) = point.split_once(',')?;
        let latitude: f64 = latitude.parse().ok()?;
        Some(format!("{longitude},{}", -latitude))
    });
    points.collect::<Vec<_>>().join(" ")
}

fn marker(place: &MapPoint) -> String {
    let (x, y) = (place.longitude_deg, -place.latitude_deg);
    let name = tradewind_output::html::escape(&place.name);
    let shape = match place.role {
        Role::Site => format!("<circle class=\"site\" cx=\"{x}\" cy=\"{y}\" r=\"2\">"),
        Role::Relay => format!(
            "<rect class=\"relay\" x=\"{}\" y=\"{}\" width=\"3.4\" height=\"3.4\">",
            x - 1.7,
            y - 1.7
        ),
        Role::Candidate => format!("<circle class=\"candidate\" cx=\"{x}\" cy=\"{y}\" r=\"1\">"),
    };
    let close = if place.role == Role::Relay { "rect" } else { "circle" };
    let label = match place.role {
        Role::Site => format!("<text x=\"{}\" y=\"{}\">{name}</text>", x + 3.0, y - 2.0),
        Role::Relay | Role::Candidate => String::new(),
    };
    format!("{shape}<title>{name}</title></{close}>{label}")
}

/// Returns the great circle between two places as path data, in pieces where it leaves the map's
/// edge.
fn arc(from: &MapPoint, to: &MapPoint) -> String {
    let (a, b) = (unit_vector(from), unit_vector(to));
    let dot: f64 = a.iter().zip(&b).map(|(p, q)| p * q).sum();
    let angle = dot.clamp(-1.0, 1.0).acos();
    let mut out = String::new();
    let mut last_longitude = f64::NAN;
    for step in 0..=ARC_STEPS {
        let share = f64::from(step) / f64::from(ARC_STEPS);
        let (longitude, latitude) = if angle < 1e-6 {
            (from.longitude_deg, from.latitude_deg)
        } else {
            let weight_a = ((1.0 - share) * angle).sin() / angle.sin();
            let weight_b = (share * angle).sin() / angle.sin();
            let point: Vec<f64> =
                a.iter().zip(&b).map(|(p, q)| weight_a * p + weight_b * q).collect();
            (point[1].atan2(point[0]).to_degrees(), point[2].clamp(-1.0, 1.0).asin().to_degrees())
        };
        let jumps = (longitude - last_longitude).abs() > 180.0;
        let verb = if step == 0 || jumps { 'M' } else { 'L' };
        let _ = write!(out, "{verb}{longitude:.1} {:.1}", -latitude);
        last_longitude = longitude;
    }
    out
}

fn unit_vector(place: &MapPoint) -> [f64; 3] {
    let (latitude, longitude) = (place.latitude_deg.to_radians(), place.longitude_deg.to_radians());
    [latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()]
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    fn place(latitude_deg: f64, longitude_deg: f64) -> MapPoint {
        MapPoint { name: "here".into(), latitude_deg, longitude_deg, role: Role::Site }
    }

    #[test]
    fn land_polygons_do_not_cross_antimeridian() {
        for polygon in LAND.lines() {
            let longitudes: Vec<f64> = polygon
                .split(' ')
                .map(|point| point.split_once(',').unwrap().0.parse().unwrap())
                .collect();
            let furthest = longitudes.windows(2).map(|pair| (pair[0] - pair[1]).abs());
            assert!(furthest.fold(0.0, f64::max) < 180.0, "{polygon}");
        }
    }

    #[test]
    fn pacific_path_is_cut_at_antimeridian() {
        let across = arc(&place(35.0, 140.0), &place(37.0, -122.0));
        assert_eq!(across.matches('M').count(), 2);
        let within = arc(&place(51.0, 0.0), &place(35.0, 140.0));
        assert_eq!(within.matches('M').count(), 1);
    }

    #[test]
    fn a_path_from_a_place_to_itself_is_a_point() {
        assert!(!arc(&place(1.0, 1.0), &place(1.0, 1.0)).contains("NaN"));
    }

    #[test]
    fn every_leg_and_every_place_is_drawn() {
        let svg = svg(&sample());
        assert_eq!(svg.matches("class=\"relayed\"").count(), 3);
        assert_eq!(svg.matches("class=\"direct\"").count(), 1);
        assert_eq!(svg.matches("<title>").count(), 6);
        assert!(!svg.contains("NaN"));
    }
}
