//! Measurements in the API.

use axum::extract::{Path, Request, State};
use tradewind_control::{Controller, Event};
use tradewind_model::measurement::LegMeasurement;
use tradewind_units::SiteId;

use super::Shared;
use super::handlers::{MAX_IMPORT_BYTES, done, named, queried};
use crate::answer::{self, Answered};
use crate::view::{History, ImportRequest, MeasurementColumns, Measurements, SCHEMA_VERSION};

pub(super) async fn list(State(shared): State<Shared>) -> Answered {
    let legs = |controller: &Controller| {
        let legs = controller.state().measurements.values().cloned().collect();
        Measurements { schema_version: SCHEMA_VERSION, legs }
    };
    answer::ok(&shared.engine.read(legs).await)
}

/// Of all legs, or of those from and to one place.
pub(super) async fn columns(State(shared): State<Shared>, request: Request) -> Answered {
    let place: Option<SiteId> = queried(request.uri().query(), "place")?;
    let columns = move |controller: &Controller| {
        let is_asked = |leg: &&LegMeasurement| {
            place.as_ref().is_none_or(|place| [&leg.source, &leg.destination].contains(&place))
        };
        let legs: Vec<_> = controller.state().measurements.values().filter(is_asked).collect();
        MeasurementColumns::of(&legs)
    };
    answer::ok(&shared.engine.read(columns).await)
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
