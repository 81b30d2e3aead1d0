//! All paths of a flow that can help, by depth-first search.

use tradewind_units::Duration;

use super::tables::{FlowTables, Known};
use super::{Candidate, FlowCandidates, Maker};
use crate::problem::ProblemError;

/// Returns the candidates of one flow.
pub(super) fn candidates(
    maker: Maker<'_>,
    tables: &FlowTables<'_>,
) -> Result<FlowCandidates, ProblemError> {
    let direct = maker.direct(tables)?;
    let limits = direct.as_ref().filter(|_| tables.direct_is_cheapest());
    let slower_than = limits.map(|direct| direct.fct);
    let (relays, legs, found) = (Vec::new(), Vec::new(), Vec::new());
    let mut search = Search { maker, tables, direct, slower_than, relays, legs, found };
    for offer in 0..tables.offers() {
        if let Some(leg) = tables.first(offer) {
            search.extend(offer, leg)?;
        }
    }
    let Search { maker, direct, mut found, .. } = search;
    maker.add_running(tables, &mut found)?;
    maker.finish(direct, found, None)
}

struct Search<'a> {
    maker: Maker<'a>,
    tables: &'a FlowTables<'a>,
    direct: Option<Candidate>,
    /// The completion time at and above which paths are pruned.
    slower_than: Option<Duration>,
    /// The relays of the partial path, and its legs.
    relays: Vec<usize>,
    legs: Vec<Known>,
    found: Vec<Candidate>,
}

impl Search<'_> {
    /// Adds every path that continues to `offer` over `leg`.
    fn extend(&mut self, offer: usize, leg: &Known) -> Result<(), ProblemError> {
        let is_full = self.relays.len() == self.maker.problem.max_relays();
        if is_full || self.is_too_slow(leg) {
            return Ok(());
        }
        let tables = self.tables;
        self.relays.push(offer);
        self.legs.push(*leg);
        if let Some(last) = tables.last(offer)
            && !self.is_too_slow(last)
        {
            self.legs.push(*last);
            let fct = tables.fct(&self.legs);
            self.legs.pop();
            if self.slower_than.is_none_or(|limit| fct < limit) {
                let found = self.maker.candidate(tables, self.relays.clone(), fct)?;
                if found.helps_beside(self.direct.as_ref()) {
                    self.found.push(found);
                }
            }
        }
        for next in 0..tables.offers() {
            let passed = self.relays.iter().any(|relay| tables.same_region(*relay, next));
            if let Some(leg) = tables.between(offer, next).filter(|_| !passed) {
                self.extend(next, leg)?;
            }
        }
        self.relays.pop();
        self.legs.pop();
        Ok(())
    }

    /// Returns whether no path over this leg can help: none completes more than one RTT before the
    /// volume over the leg's rate.
    fn is_too_slow(&self, known: &Known) -> bool {
        let limit = self.slower_than.map(|limit| limit + self.tables.longest_rtt());
        limit.is_some_and(|limit| known.rate.time_for(self.maker.volume()) > limit)
    }
}
