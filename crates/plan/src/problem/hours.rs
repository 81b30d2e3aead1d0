//! Machines that are paid by the hour, for as long as the plan takes.
//!
//! The cost of a relay then depends on the slowest flow, on any path. For a given number of whole
//! hours it does not: [`Problem::paid_for`] is the problem in which no flow takes longer and each
//! relay's cost is fixed, which any solver can plan. Only numbers of hours that some path takes
//! ([`Problem::hours`]) matter: with others the same paths cost more.

use std::collections::BTreeSet;

use tradewind_units::{Duration, Money};

use super::{Offer, Problem, offers};

const NANOS_AN_HOUR: u128 = 3_600_000_000_000;

/// Returns the whole hours of a span, at least one, for which machines are charged.
fn hours_of(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(NANOS_AN_HOUR)).unwrap_or(u64::MAX).max(1)
}

impl Problem {
    /// Returns whether some machine is paid for as long as the plan takes.
    #[must_use]
    pub fn is_paid_by_the_hour(&self) -> bool {
        self.inputs.hourly.values().any(|price| *price > Money::ZERO)
    }

    /// Returns the numbers of whole hours that plans over the candidates may take, in ascending
    /// order.
    pub(crate) fn hours(&self) -> Vec<u64> {
        let of = |flow: usize| self.candidates[flow].iter().map(|path| hours_of(path.fct));
        let flows = || 0..self.candidates.len();
        let least = flows().filter_map(|flow| of(flow).min()).max().unwrap_or(1);
        let all: BTreeSet<u64> = flows().flat_map(of).filter(|hours| *hours >= least).collect();
        all.into_iter().collect()
    }

    /// Returns the problem in which machines are paid for so many hours and no flow takes longer;
    /// `None` if a flow has no such path.
    pub(crate) fn paid_for(&self, hours: u64) -> Option<Self> {
        let mut problem = self.clone();
        let hourly = std::mem::take(&mut problem.inputs.hourly);
        for relay_type in &mut problem.inputs.relay_types {
            let price = hourly.get(&relay_type.id).copied().unwrap_or_default();
            relay_type.set_up = relay_type.set_up.saturating_add(price.times(hours));
        }
        problem.offers = offers::all(&problem.inputs);
        for (offer, own) in problem.offers.iter_mut().zip(&self.offers) {
            offer.beyond = own.beyond;
        }
        for candidates in &mut problem.candidates {
            candidates.retain(|path| hours_of(path.fct) <= hours);
        }
        problem.candidates.iter().all(|paths| !paths.is_empty()).then_some(problem)
    }

    /// Returns the cost of so many relays of each offer; `last` gives the makespan.
    pub(crate) fn set_up(&self, counts: &[usize], last: impl FnOnce() -> Duration) -> Money {
        let offers = || self.offers.iter().zip(counts);
        let set_up: Money = offers().map(|(offer, count)| offer.set_up(*count)).sum();
        if !self.is_paid_by_the_hour() {
            return set_up;
        }
        let hours = hours_of(last());
        let machines = |(offer, count): (&Offer, &usize)| {
            let price = self.inputs.hourly.get(&offer.relay_type.id).copied().unwrap_or_default();
            price.times(hours).times(count.saturating_sub(offer.running) as u64)
        };
        set_up + offers().map(machines).sum::<Money>()
    }
}
