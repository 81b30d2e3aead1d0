//! The paths worth considering for a flow: direct, and over each sequence of offers that is faster.
//!
//! Only what can never help is left out: a path no faster than the direct one, which costs nothing
//! and burdens no relay, and one that misses the flow's deadline. A slower path over the same offers
//! as a faster one stays, because it takes less of their capacity; [`undominated`] leaves those out
//! where capacity does not matter.

use tradewind_model::Leg;
use tradewind_model::fct::path_fct;
use tradewind_units::{Bandwidth, Bytes, Duration, Money};

use crate::problem::{Problem, ProblemError};

/// One way to carry a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The relays' places in [`Problem::offers`], in the path's order; empty: direct.
    pub relays: Vec<usize>,
    /// Predicted completion time.
    pub fct: Duration,
    /// What it adds to what is to be made least.
    pub score: Duration,
    /// Egress of all its relays, and moving the flow here if it runs elsewhere.
    pub cost: Money,
    /// What it takes of each relay's capacity.
    pub rate: Bandwidth,
}

/// The candidates of every flow, in their order.
pub(crate) fn all_candidates(problem: &Problem) -> Result<Vec<Vec<Candidate>>, ProblemError> {
    let between = Between::new(problem);
    (0..problem.flows().len()).map(|flow| Search::new(problem, &between, flow).run()).collect()
}

/// Legs between relays by their offers, which all flows share.
struct Between {
    /// Row by row; `None` where it is not known or both are in one region.
    legs: Vec<Option<Leg>>,
    offers: usize,
    longest_rtt: Duration,
}

impl Between {
    fn new(problem: &Problem) -> Self {
        let offers = problem.offers().len();
        let legs = (0..offers * offers)
            .map(|index| problem.leg_between(index / offers, index % offers))
            .collect();
        let all = problem.inputs().legs.values();
        let longest_rtt = all.map(|leg| leg.rtt).max().unwrap_or_default();
        Self { legs, offers, longest_rtt }
    }

    fn get(&self, from: usize, to: usize) -> Option<&Leg> {
        self.legs[from * self.offers + to].as_ref()
    }
}

/// The search for one flow's candidates, depth first.
struct Search<'a> {
    problem: &'a Problem,
    between: &'a Between,
    flow: usize,
    /// Legs from the source to each offer, and from each offer to the destination.
    first: Vec<Option<Leg>>,
    last: Vec<Option<Leg>>,
    volume: Bytes,
    /// Paths that take this long or longer are not worth it.
    slower_than: Option<Duration>,
    /// The relays of the path so far, and its legs.
    relays: Vec<usize>,
    legs: Vec<Leg>,
    found: Vec<Candidate>,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, between: &'a Between, flow: usize) -> Self {
        let offers = 0..problem.offers().len();
        Self {
            problem,
            between,
            flow,
            first: offers.clone().map(|offer| problem.first_leg(flow, offer)).collect(),
            last: offers.map(|offer| problem.last_leg(flow, offer)).collect(),
            volume: problem.flows()[flow].volume,
            slower_than: None,
            relays: Vec::new(),
            legs: Vec::new(),
            found: Vec::new(),
        }
    }

    /// All candidates, the direct one first, then by rising completion time.
    fn run(mut self) -> Result<Vec<Candidate>, ProblemError> {
        let flow = &self.problem.flows()[self.flow];
        let direct = match self.problem.fct(self.flow, &[]) {
            Some(fct) => Some(self.candidate(fct)?),
            None => None,
        };
        self.slower_than = direct.as_ref().map(|direct| direct.fct);
        for offer in 0..self.first.len() {
            if let Some(leg) = self.first[offer]
                && self.problem.max_relays() > 0
            {
                self.extend(offer, leg)?;
            }
        }
        let mut all = self.found;
        all.sort_by(|a, b| (a.fct, a.cost, &a.relays).cmp(&(b.fct, b.cost, &b.relays)));
        all.splice(0..0, direct);
        let Some(fastest) = all.iter().map(|candidate| candidate.fct).min() else {
            return Err(ProblemError::NoPath {
                flow: flow.id.clone(),
                source_site: flow.source.clone(),
                destination: flow.destination.clone(),
            });
        };
        if let Some(deadline) = flow.deadline {
            all.retain(|candidate| candidate.fct <= deadline);
            if all.is_empty() {
                return Err(ProblemError::Deadline { flow: flow.id.clone(), deadline, fastest });
            }
        }
        Ok(all)
    }

    /// Finds every path that goes on to `offer` over `leg`.
    fn extend(&mut self, offer: usize, leg: Leg) -> Result<(), ProblemError> {
        if self.is_too_slow(&leg) {
            return Ok(());
        }
        self.relays.push(offer);
        self.legs.push(leg);
        if let Some(last) = self.last[offer]
            && !self.is_too_slow(&last)
        {
            self.legs.push(last);
            let fct = path_fct(&self.legs, self.volume, self.problem.inputs().start_up);
            self.legs.pop();
            if self.slower_than.is_none_or(|limit| fct < limit) {
                let found = self.candidate(fct)?;
                self.found.push(found);
            }
        }
        if self.relays.len() < self.problem.max_relays() {
            let between = self.between;
            for next in 0..between.offers {
                let known = between.get(offer, next);
                if let Some(leg) = known.filter(|_| !self.passes_region_of(next)) {
                    self.extend(next, *leg)?;
                }
            }
        }
        self.relays.pop();
        self.legs.pop();
        Ok(())
    }

    /// Whether no path over this leg can be worth it: none completes more than one RTT before what
    /// its rate says.
    fn is_too_slow(&self, leg: &Leg) -> bool {
        let limit = self.slower_than.map(|limit| limit + self.between.longest_rtt);
        limit.is_some_and(|limit| leg.rate().time_for(self.volume) > limit)
    }

    fn passes_region_of(&self, offer: usize) -> bool {
        let types = self.problem.inputs().relay_types.len();
        self.relays.iter().any(|relay| relay / types == offer / types)
    }

    /// The path so far, which completes after `fct`.
    fn candidate(&self, fct: Duration) -> Result<Candidate, ProblemError> {
        let (problem, flow, relays) = (self.problem, self.flow, &self.relays);
        Ok(Candidate {
            relays: relays.clone(),
            fct,
            score: problem.score(flow, fct),
            cost: problem.egress_cost(flow, relays)? + problem.move_cost(flow, relays),
            rate: problem.rate_taken(flow, fct),
        })
    }
}

/// Of one flow's candidates, those not beaten in score and cost by one over some of the same offers.
///
/// Loses nothing when no relay's capacity can bind; see [`capacity_never_binds`].
#[must_use]
pub fn undominated(candidates: &[Candidate]) -> Vec<&Candidate> {
    let beats = |a: &Candidate, b: &Candidate| {
        let no_worse = a.score <= b.score && a.cost <= b.cost;
        let better = (a.score, a.cost, a.relays.len()) < (b.score, b.cost, b.relays.len());
        no_worse && better && a.relays.iter().all(|relay| b.relays.contains(relay))
    };
    let beaten = |b: &Candidate| candidates.iter().any(|a| beats(a, b));
    candidates.iter().filter(|candidate| !beaten(candidate)).collect()
}

/// Whether one relay could carry every flow that might use its offer, for all offers.
#[must_use]
pub fn capacity_never_binds(problem: &Problem) -> bool {
    let mut most_through = vec![0_u64; problem.offers().len()];
    for flow in 0..problem.flows().len() {
        let mut most = vec![0; problem.offers().len()];
        for candidate in problem.candidates(flow) {
            for relay in &candidate.relays {
                most[*relay] = most[*relay].max(candidate.rate.as_bps());
            }
        }
        for (total, most) in most_through.iter_mut().zip(most) {
            *total = total.saturating_add(most);
        }
    }
    most_through.iter().zip(problem.offers()).all(|(most, offer)| *most <= offer.capacity_bps())
}
