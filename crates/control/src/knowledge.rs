//! Measurements that plans are made from.

use std::collections::BTreeMap;

use tradewind_model::measurement::LegMeasurement;
use tradewind_units::{Duration, SiteId};

use crate::state::State;

/// Most relays on a path [CP V].
pub(crate) const MAX_RELAYS: usize = 2;
/// The share by which a figure must differ from the one that the plan used, beside its own spread.
/// Chosen: below it, no path that is worth its price changes.
pub(crate) const CHANGED_BY: f64 = 0.2;

/// Age from which on a measured rate counts no more, so that a leg that was slow once gets another
/// chance. Chosen: six of the times after which the rates of a plan are measured again.
pub const RATES_LAST: Duration = Duration::from_secs(6 * 3600);

/// Returns the measurements that plans are made from: all, without the rates of too long ago and
/// those that misled.
#[must_use]
pub fn current(state: &State, now_unix_ms: u64) -> Vec<LegMeasurement> {
    renewed(state, now_unix_ms, state.measurements.values())
}

/// Returns the same of legs that may have been measured anew since.
pub(crate) fn renewed<'a>(
    state: &State,
    now_unix_ms: u64,
    legs: impl Iterator<Item = &'a LegMeasurement>,
) -> Vec<LegMeasurement> {
    let misled = misled(state);
    let leg = |leg: &LegMeasurement| {
        let ends = (leg.source.clone(), leg.destination.clone());
        let newest = state.measurements.get(&ends).unwrap_or(leg);
        let is_current = is_rate_current(state, &misled, &ends, now_unix_ms);
        LegMeasurement { rate: newest.rate.filter(|_| is_current), ..newest.clone() }
    };
    legs.map(leg).collect()
}

/// The legs whose rates have misled, with the time since when that is known.
type Misled = BTreeMap<(SiteId, SiteId), u64>;

/// Returns the legs whose rates have misled.
pub(crate) fn misled(state: &State) -> Misled {
    let mut misled = BTreeMap::new();
    for taken in state.taken_back.values().flat_map(|taken| &taken.paths) {
        for leg in &taken.legs {
            let ends = (leg.source.clone(), leg.destination.clone());
            let since = misled.entry(ends).or_insert(taken.since_unix_ms);
            *since = taken.since_unix_ms.max(*since);
        }
    }
    misled
}

/// Returns whether plans count on a measured rate of a leg.
pub(crate) fn has_current_rate(
    state: &State,
    from: &SiteId,
    to: &SiteId,
    now_unix_ms: u64,
) -> bool {
    let ends = (from.clone(), to.clone());
    let has_rate = state.measurements.get(&ends).is_some_and(|leg| leg.rate.is_some());
    has_rate && is_rate_current(state, &misled(state), &ends, now_unix_ms)
}

fn is_rate_current(
    state: &State,
    misled: &Misled,
    ends: &(SiteId, SiteId),
    now_unix_ms: u64,
) -> bool {
    state.rate_tests.get(ends).is_some_and(|test| {
        let is_new = u128::from(now_unix_ms.abs_diff(test.unix_ms)) < RATES_LAST.as_millis();
        is_new && misled.get(ends).is_none_or(|since| *since < test.unix_ms)
    })
}
