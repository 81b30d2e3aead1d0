//! Predicted completion times of sessions over the paths of a plan.

use std::borrow::Cow;

use tradewind_model::fct::path_fct;
use tradewind_model::measurement::LegMeasurement;
use tradewind_model::{Leg, StartUp};
use tradewind_plan::{LegEnd, Legs, RelayType};
use tradewind_units::{Bytes, Duration, RelayId};

use crate::legs;
use crate::prices;
use crate::record::{FlowRecord, PlanRecord};
use crate::terms::Terms;

/// The legs of a plan.
#[derive(Debug)]
pub struct Predictor<'a> {
    terms: &'a Terms,
    plan: &'a PlanRecord,
    legs: Cow<'a, Legs>,
}

impl<'a> Predictor<'a> {
    /// Predicts by measurements of the plan's legs: those that it rests on, or newer ones.
    #[must_use]
    pub fn new(terms: &'a Terms, plan: &'a PlanRecord, measurements: &[LegMeasurement]) -> Self {
        Self { terms, plan, legs: Cow::Owned(legs::of_plan(plan, measurements)) }
    }

    /// Predicts by legs that are known already.
    pub(crate) const fn by(terms: &'a Terms, plan: &'a PlanRecord, legs: &'a Legs) -> Self {
        Self { terms, plan, legs: Cow::Borrowed(legs) }
    }

    /// Returns the legs of a flow over these relays, directly over none; `None` if one is not
    /// known.
    #[must_use]
    pub fn path(&self, flow: &FlowRecord, relays: &[RelayId]) -> Option<Vec<Leg>> {
        let mut places = vec![(LegEnd::Site(flow.from.clone()), None)];
        for relay in relays {
            let relay = self.plan.plan.relays.iter().find(|known| known.id == *relay)?;
            let relay_type = prices::offered_type(self.terms, &relay.relay_type).ok()?;
            places.push((LegEnd::Relay(relay.region.clone()), Some(relay_type)));
        }
        places.push((LegEnd::Site(flow.to_site.clone()), None));
        let limited = |leg: Leg, relay: &Option<RelayType>| match relay {
            Some(relay) => relay.limits(leg),
            None => leg,
        };
        let leg = |pair: &[(LegEnd, Option<RelayType>)]| {
            let leg = *self.legs.get(&(pair[0].0.clone(), pair[1].0.clone()))?;
            Some(limited(limited(leg, &pair[0].1), &pair[1].1))
        };
        places.windows(2).map(leg).collect()
    }
}

/// Returns the round-trip time of a path, end to end.
pub(crate) fn rtt(legs: &[Leg]) -> Duration {
    legs.iter().map(|leg| leg.rtt).sum()
}

/// Returns the completion time of a session in seconds, over legs that nobody else uses. Where
/// more bytes come back than go, they are as fast, and come after a request.
pub(crate) fn seconds(legs: &[Leg], up: u64, down: u64) -> f64 {
    let request = if down > up { rtt(legs) / 2 } else { Duration::ZERO };
    (path_fct(legs, Bytes::new(up.max(down)), StartUp::default()) + request).as_secs_f64()
}
