//! Measurements in the API.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use tradewind_control::{Controller, Event};
use tradewind_model::geo::Located;
use tradewind_model::measurement::{LegMeasurement, Method, RttSummary};
use tradewind_model::{Coordinates, RttModel};
use tradewind_units::SiteId;

use super::Shared;
use super::handlers::{MAX_IMPORT_BYTES, done, named, queried};
use super::places;
use crate::answer::{self, Answered};
use crate::asking;
use crate::view::{
    History, ImportRequest, MeasurementColumns, Measurements, SCHEMA_VERSION, SiteLocation,
};

/// The newest measurement of each leg, by its ends.
type Measured = BTreeMap<(SiteId, SiteId), LegMeasurement>;

pub(super) async fn list(State(shared): State<Shared>) -> Answered {
    let legs = |controller: &Controller| {
        let legs = controller.state().measurements.values().cloned().collect();
        Measurements { schema_version: SCHEMA_VERSION, legs }
    };
    answer::ok(&shared.engine.read(legs).await)
}

/// Of all legs, those that are modelled included, or the measured ones from and to one place.
pub(super) async fn columns(State(shared): State<Shared>, request: Request) -> Answered {
    let place: Option<SiteId> = queried(request.uri().query(), "place")?;
    let known = |controller: &Controller| {
        (Arc::clone(&controller.state().measurements), places::places(controller).places)
    };
    let (measured, places) = shared.engine.read(known).await;
    let columns = move || {
        let Some(place) = &place else {
            let modelled = modelled(&places, &measured);
            return MeasurementColumns::of(&measured.values().chain(&modelled).collect::<Vec<_>>());
        };
        let is_asked = |leg: &&LegMeasurement| [&leg.source, &leg.destination].contains(&place);
        MeasurementColumns::of(&measured.values().filter(is_asked).collect::<Vec<_>>())
    };
    answer::ok(&asking::computed(move || Ok(columns())).await?)
}

/// Returns the distance model's estimates of the legs between these places that nobody has
/// measured.
fn modelled(places: &[SiteLocation], measured: &Measured) -> Vec<LegMeasurement> {
    let model = RttModel::fitted();
    let locate = |place: &SiteLocation| {
        let at = Coordinates::new(place.latitude, place.longitude).ok()?;
        Some((place.site.clone(), model.locate(at)))
    };
    let located: Vec<_> = places.iter().filter_map(locate).collect();
    let pairs = located.iter().flat_map(|from| located.iter().map(move |to| (from, to)));
    let leg = |((source, from), (destination, to)): (&(_, Located), &(_, Located))| {
        let (source, destination): (&SiteId, &SiteId) = (source, destination);
        let is_measured = measured.contains_key(&(source.clone(), destination.clone()));
        (source != destination && !is_measured).then(|| LegMeasurement {
            source: source.clone(),
            destination: destination.clone(),
            rtt: RttSummary::single(model.rtt(from, to)),
            rate: None,
            method: Method::Distance,
            measured_at_unix_ms: None,
        })
    };
    pairs.filter_map(leg).collect()
}

pub(super) async fn import(State(shared): State<Shared>, request: Request) -> Answered {
    let ImportRequest { measurements } = answer::body(request, MAX_IMPORT_BYTES).await?;
    let answered = done(&shared, Event::Import(measurements)).await?;
    // They may allow another plan.
    shared.planner.wake();
    Ok(answered)
}

pub(super) async fn history(
    State(shared): State<Shared>,
    Path((from, to)): Path<(String, String)>,
) -> Answered {
    let (from, to): (SiteId, SiteId) = (named(&from)?, named(&to)?);
    let measured = shared.engine.history(from.to_string(), to.to_string()).await?;
    answer::ok(&History { schema_version: SCHEMA_VERSION, from, to, measured })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legs_that_nobody_has_measured_are_modelled() {
        let place = |site: &str, latitude, longitude| SiteLocation {
            site: site.parse().unwrap(),
            label: site.to_owned(),
            latitude,
            longitude,
            is_guess: false,
        };
        let places =
            [place("tokyo", 35.7, 139.7), place("lima", -12.0, -77.0), place("osaka", 34.7, 135.5)];
        let all = modelled(&places, &Measured::new());
        assert_eq!(all.len(), 6);
        assert!(all.iter().all(|leg| leg.method == Method::Distance && leg.rate.is_none()));
        let rtt = |from: usize, to: usize| {
            let (from, to) = (&places[from].site, &places[to].site);
            let leg = all.iter().find(|leg| leg.source == *from && leg.destination == *to);
            leg.unwrap().rtt.min
        };
        assert!(rtt(0, 1) > rtt(0, 2) * 5, "{all:?}");
        assert_eq!(rtt(0, 1), rtt(1, 0));
        let first = all[0].clone();
        let measured = [((first.source.clone(), first.destination.clone()), first)].into();
        assert_eq!(modelled(&places, &measured), all[1..]);
    }
}
