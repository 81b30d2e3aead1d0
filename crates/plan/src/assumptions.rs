//! Assumptions behind predicted times: the legs of a plan's paths, the limit that binds each, and
//! the origin of its figures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::explain::legs_of;
use crate::plan::Plan;
use crate::problem::{LegEnd, Problem};

/// Origin of a leg's round-trip time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RttOrigin {
    /// A table, a report or a `[[pair]]` states it of these two places, in either direction.
    Stated,
    /// Stated of the regions of its ends, their access networks added.
    OfRegions,
    /// `same_region_rtt`.
    SameRegion,
    /// Estimated by the distance model.
    Distance,
}

/// Origin of a leg's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowOrigin {
    /// The problem states it.
    Stated,
    /// Not stated: the default of a Linux host ([`tradewind_model::leg::DEFAULT_WINDOW`]).
    Default,
}

/// The origins of a leg's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegOrigin {
    /// Its round-trip time.
    pub rtt: RttOrigin,
    /// Its window.
    pub window: WindowOrigin,
}

/// The origins of all legs.
pub type Origins = BTreeMap<(LegEnd, LegEnd), LegOrigin>;

/// A leg that a prediction rests on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssumedLeg {
    /// Its start: a site or a region.
    pub from: String,
    /// Its end: a site or a region.
    pub to: String,
    /// Round-trip time.
    pub rtt_ms: f64,
    /// Origin of the round-trip time.
    pub rtt_from: RttOrigin,
    /// Steady-state rate.
    pub rate_mbps: f64,
    /// The limit on the rate: `window`, `cap`, `per-connection cap`, `loss`, `source's cap`.
    pub bound_by: String,
    /// Bytes in flight of each connection.
    pub window_bytes: u64,
    /// Origin of the window.
    pub window_from: WindowOrigin,
    /// True if it is the slowest leg of its path, which sets the path's rate.
    pub slowest: bool,
}

/// Returns the legs of each flow's path, in the plan's order; `None` if the plan does not fit the
/// problem or a leg's origin is not known.
#[must_use]
pub fn assumed(problem: &Problem, plan: &Plan, origins: &Origins) -> Option<Vec<Vec<AssumedLeg>>> {
    let flows = plan.flows.iter().map(|planned| {
        let index = problem.flows().iter().position(|flow| flow.id == planned.id)?;
        let offers = plan.offers_of(problem, planned)?;
        let flow = &problem.flows()[index];
        let relays = offers.iter().map(|offer| &problem.offers()[*offer].region);
        let mut places = vec![LegEnd::Site(flow.source.clone())];
        places.extend(relays.cloned().map(LegEnd::Relay));
        places.push(LegEnd::Site(flow.destination.clone()));
        let legs = legs_of(problem, index, &offers)?;
        let windows = problem.legs(index, &offers)?;
        let assumed = legs.into_iter().zip(windows).zip(places.windows(2));
        let assumed = assumed.map(|((leg, window), ends)| {
            let origin = origins.get(&(ends[0].clone(), ends[1].clone()))?;
            Some(AssumedLeg {
                from: leg.from,
                to: leg.to,
                rtt_ms: leg.rtt_ms,
                rtt_from: origin.rtt,
                rate_mbps: leg.rate_mbps,
                bound_by: leg.bound_by.to_owned(),
                window_bytes: window.window.as_u64(),
                window_from: origin.window,
                slowest: leg.slowest,
            })
        });
        assumed.collect::<Option<Vec<_>>>()
    });
    flows.collect()
}
