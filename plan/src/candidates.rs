//! The paths worth considering for a flow: direct, and over each sequence of regions that is faster.
//!
//! Only what can never help is left out: a path no faster than the direct one, which costs nothing
//! and burdens no relay. A slower path over the same regions as a faster one stays, because it takes
//! less of their capacity; [`undominated`] leaves those out where capacity does not matter.

use tradewind_model::fct::path_rate;
use tradewind_units::{Bandwidth, Duration, Money, RegionId};

use crate::problem::{Flow, Problem, ProblemError};

/// One way to carry a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Places of the relays' regions in [`Problem::regions`], in the path's order; empty: direct.
    pub regions: Vec<usize>,
    /// Predicted completion time.
    pub fct: Duration,
    /// Egress of all its relays.
    pub egress: Money,
    /// What it takes of each relay's capacity.
    pub rate: Bandwidth,
}

/// All paths of `flow` that could be worth it, the direct one first, then by rising completion time.
pub(crate) fn candidates_of(
    problem: &Problem,
    flow: &Flow,
) -> Result<Vec<Candidate>, ProblemError> {
    let direct = candidate(problem, flow, &[], None)?;
    let slower_than = direct.as_ref().map(|direct| direct.fct);
    let mut relayed = Vec::new();
    let mut path = Vec::new();
    extend(problem, flow, slower_than, &mut path, &mut relayed)?;
    relayed.sort_by(|a, b| (a.fct, a.egress, &a.regions).cmp(&(b.fct, b.egress, &b.regions)));
    let all: Vec<Candidate> = direct.into_iter().chain(relayed).collect();
    if all.is_empty() {
        return Err(ProblemError::NoPath {
            flow: flow.id.clone(),
            source_site: flow.source.clone(),
            destination: flow.destination.clone(),
        });
    }
    Ok(all)
}

/// Adds every path that begins with `path` and goes on.
fn extend(
    problem: &Problem,
    flow: &Flow,
    slower_than: Option<Duration>,
    path: &mut Vec<usize>,
    found: &mut Vec<Candidate>,
) -> Result<(), ProblemError> {
    if path.len() == problem.max_relays() {
        return Ok(());
    }
    for region in 0..problem.regions().len() {
        if path.contains(&region) {
            continue;
        }
        path.push(region);
        found.extend(candidate(problem, flow, path, slower_than)?);
        extend(problem, flow, slower_than, path, found)?;
        path.pop();
    }
    Ok(())
}

/// The path over these regions; `None` when a leg is unknown or it is no faster than `slower_than`.
fn candidate(
    problem: &Problem,
    flow: &Flow,
    regions: &[usize],
    slower_than: Option<Duration>,
) -> Result<Option<Candidate>, ProblemError> {
    let relays: Vec<RegionId> = regions.iter().map(|r| problem.regions()[*r].clone()).collect();
    let Some(legs) = problem.legs(flow, &relays) else { return Ok(None) };
    if let Some(limit) = slower_than {
        // A path never completes more than one RTT before what its rate says, so most need no model.
        let longest = legs.iter().map(|leg| leg.rtt).max().unwrap_or_default();
        if path_rate(&legs).time_for(flow.volume) > limit + longest {
            return Ok(None);
        }
    }
    let Some(fct) = problem.fct(flow, &relays) else { return Ok(None) };
    if slower_than.is_some_and(|limit| fct >= limit) {
        return Ok(None);
    }
    Ok(Some(Candidate {
        regions: regions.to_vec(),
        fct,
        egress: problem.egress_cost(flow, &relays)?,
        rate: problem.rate_taken(flow, fct),
    }))
}

/// Of one flow's candidates, those not beaten in time and egress by one over some of the same regions.
///
/// Loses nothing when no relay's capacity can bind; see [`capacity_never_binds`].
#[must_use]
pub fn undominated(candidates: &[Candidate]) -> Vec<&Candidate> {
    let beats = |a: &Candidate, b: &Candidate| {
        let no_worse = a.fct <= b.fct && a.egress <= b.egress;
        let better = (a.fct, a.egress, a.regions.len()) < (b.fct, b.egress, b.regions.len());
        no_worse && better && a.regions.iter().all(|region| b.regions.contains(region))
    };
    let beaten = |b: &Candidate| candidates.iter().any(|a| beats(a, b));
    candidates.iter().filter(|candidate| !beaten(candidate)).collect()
}

/// Whether one relay could carry every flow that might come through its region, for all regions.
#[must_use]
pub fn capacity_never_binds(problem: &Problem) -> bool {
    let most_through = |region: usize, flow: usize| {
        let through = problem.candidates(flow).iter().filter(|c| c.regions.contains(&region));
        through.map(|candidate| candidate.rate.as_bps()).max().unwrap_or(0)
    };
    let capacity = problem.relay_capacity().as_bps();
    (0..problem.regions().len()).all(|region| {
        let flows = 0..problem.flows().len();
        flows.map(|flow| most_through(region, flow)).sum::<u64>() <= capacity
    })
}
