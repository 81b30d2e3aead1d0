//! The candidate paths of a flow: direct, and over each sequence of offers that is faster or
//! cheaper.
//!
//! Only paths that can never help are left out: those that are neither faster nor cheaper than the
//! direct path, which takes no relay's capacity, and those that miss the flow's deadline. The
//! flow's current path stays however slow it is: where moves have a price, it may cost less than
//! the direct one. A slower path over the same offers as a faster one stays, because it takes less
//! of their capacity; [`undominated`] leaves those out where capacity does not matter.
//!
//! A large problem has too many paths to hold in memory: each flow then keeps a few
//! ([`crate::Problem::left_out`]).

use tradewind_model::StartUp;
use tradewind_units::{Bandwidth, Bytes, Duration, Money};

use crate::problem::{Problem, ProblemError};

mod bounded;
mod complete;
mod tables;

pub(crate) use bounded::depth;
pub(crate) use tables::{PartialPath, Tables};

/// The number of paths of all flows up to which all are held. Chosen: a second, a hundred
/// megabytes.
const MAX_PATHS: u64 = 1_000_000;

/// The same limit where a completion-time model is run for each path. Chosen: some seconds.
const MAX_MODELLED_PATHS: u64 = 100_000;

/// A path that may carry a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The indexes of its relays in [`Problem::offers`], in the path's order; empty: direct.
    pub relays: Vec<usize>,
    /// Predicted completion time.
    pub fct: Duration,
    /// Its term of the objective.
    pub score: Duration,
    /// Egress of all its relays, and the price of moving the flow here from its current path.
    pub cost: Money,
    /// The capacity that it takes of each relay.
    pub rate: Bandwidth,
}

impl Candidate {
    /// Returns whether it is faster or cheaper than the direct path, if there is one.
    fn helps_beside(&self, direct: Option<&Self>) -> bool {
        direct.is_none_or(|direct| self.fct < direct.fct || self.cost < direct.cost)
    }
}

/// The candidates of one flow.
pub(crate) struct FlowCandidates {
    /// The direct path first, then by increasing completion time.
    pub(crate) candidates: Vec<Candidate>,
    /// A lower bound on the completion time of the paths left out; none when all are there.
    pub(crate) left_out: Option<Duration>,
}

/// Returns the candidates of every flow, in the flows' order.
pub(crate) fn all_candidates(problem: &Problem) -> Result<Vec<FlowCandidates>, ProblemError> {
    let tables = Tables::new(problem);
    let few = few_paths(problem);
    let depth = depth(problem);
    let of = |flow| {
        let (maker, tables) = (Maker { problem, flow }, tables.of(flow));
        if few {
            complete::candidates(maker, &tables)
        } else {
            bounded::candidates(&maker, &tables, depth)
        }
    };
    (0..problem.flows().len()).map(of).collect()
}

/// Returns whether all paths can be held in memory.
fn few_paths(problem: &Problem) -> bool {
    let (flows, offers) = (problem.flows().len() as u64, problem.offers().len() as u64);
    let relays = u32::try_from(problem.max_relays()).unwrap_or(u32::MAX);
    let paths = offers.saturating_pow(relays).saturating_mul(flows);
    paths
        <= match problem.inputs().start_up {
            StartUp::Ignored => MAX_PATHS,
            StartUp::Cold | StartUp::Warm => MAX_MODELLED_PATHS,
        }
}

/// Returns a time that is no more than this number of seconds, rounding allowed for.
pub(crate) fn safely(seconds: f64) -> Duration {
    let less = seconds * (1.0 - 1e-12) - 2e-9;
    Duration::try_from_secs_f64(less.max(0.0)).unwrap_or(Duration::MAX)
}

/// A builder of one flow's candidates.
struct Maker<'a> {
    problem: &'a Problem,
    flow: usize,
}

impl Maker<'_> {
    fn volume(&self) -> Bytes {
        self.problem.flows()[self.flow].volume
    }

    fn direct(&self, tables: &tables::FlowTables<'_>) -> Result<Option<Candidate>, ProblemError> {
        let fct = self.problem.fct(self.flow, &[]);
        fct.map(|fct| self.candidate(tables, Vec::new(), fct)).transpose()
    }

    /// Returns the completion time above which no path is a candidate, given the direct one.
    fn limit(&self, direct: Option<&Candidate>) -> Option<Duration> {
        let deadline = self.problem.flows()[self.flow].deadline;
        direct.map(|direct| direct.fct).into_iter().chain(deadline).min()
    }

    fn candidate(
        &self,
        tables: &tables::FlowTables<'_>,
        relays: Vec<usize>,
        fct: Duration,
    ) -> Result<Candidate, ProblemError> {
        let (problem, flow) = (self.problem, self.flow);
        Ok(Candidate {
            fct,
            score: problem.score(flow, fct),
            cost: tables.egress(&relays)? + problem.move_cost(flow, &relays),
            rate: problem.rate_used(flow, fct),
            relays,
        })
    }

    /// Adds the flow's current path to the candidates found, if it is not one of them.
    fn add_running(
        &self,
        tables: &tables::FlowTables<'_>,
        found: &mut Vec<Candidate>,
    ) -> Result<(), ProblemError> {
        for relays in self.running_path() {
            if found.iter().any(|candidate| candidate.relays == relays) {
                continue;
            }
            if let Some(legs) = tables.legs(&relays) {
                found.push(self.candidate(tables, relays, tables.fct(&legs))?);
            }
        }
        Ok(())
    }

    /// Returns the flow's current path, over each choice of relay types.
    fn running_path(&self) -> Vec<Vec<usize>> {
        let (problem, id) = (self.problem, &self.problem.flows()[self.flow].id);
        let Some(path) = problem.inputs().running.paths.get(id) else { return Vec::new() };
        let passes_twice = (1..path.len()).any(|at| path[..at].contains(&path[at]));
        if path.is_empty() || path.len() > problem.max_relays() || passes_twice {
            return Vec::new();
        }
        let mut paths = vec![Vec::new()];
        for region in path {
            let offers = problem.offers().iter().enumerate();
            let here: Vec<usize> =
                offers.filter(|(_, offer)| offer.region == *region).map(|(at, _)| at).collect();
            let longer = |path: &Vec<usize>| -> Vec<Vec<usize>> {
                here.iter().map(|offer| [path.as_slice(), &[*offer]].concat()).collect()
            };
            paths = paths.iter().flat_map(longer).collect();
        }
        paths
    }

    fn finish(
        &self,
        direct: Option<Candidate>,
        mut all: Vec<Candidate>,
        left_out: Option<Duration>,
    ) -> Result<FlowCandidates, ProblemError> {
        let flow = &self.problem.flows()[self.flow];
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
        Ok(FlowCandidates { candidates: all, left_out })
    }
}

/// Returns the candidates of one flow that no other candidate dominates: none over a subset of the
/// same offers is no worse in score and cost and better in one of them, or shorter.
///
/// Loses nothing when no relay's capacity can bind; see [`capacity_never_binds`].
#[must_use]
pub fn undominated(candidates: &[Candidate]) -> Vec<&Candidate> {
    let dominates = |a: &Candidate, b: &Candidate| {
        let no_worse = a.score <= b.score && a.cost <= b.cost;
        let better = (a.score, a.cost, a.relays.len()) < (b.score, b.cost, b.relays.len());
        no_worse && better && a.relays.iter().all(|relay| b.relays.contains(relay))
    };
    let is_dominated = |b: &Candidate| candidates.iter().any(|a| dominates(a, b));
    candidates.iter().filter(|candidate| !is_dominated(candidate)).collect()
}

/// Returns whether, for each offer, one relay could carry all flows that may use it.
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

#[cfg(test)]
pub(crate) mod example {
    use tradewind_model::{Leg, StartUp};
    use tradewind_units::{Bandwidth, Bytes, Duration, FlowId, Money, RegionId, SiteId};

    use crate::problem::{Flow, Inputs, LegEnd, Legs, Problem};

    /// Returns a problem of one flow from `a` to `b` over eight regions, with RTTs drawn from a
    /// seed.
    pub(crate) fn problem(seed: u64, start_up: StartUp) -> Problem {
        let mut state = seed;
        let mut rtt = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            Duration::from_millis(5 + (state >> 33) % 200)
        };
        let site = |name| SiteId::new(name).unwrap();
        let regions: Vec<RegionId> =
            (0..8).map(|index| RegionId::new(format!("cloud:r{index}")).unwrap()).collect();
        let places = [LegEnd::Site(site("a")), LegEnd::Site(site("b"))];
        let places: Vec<LegEnd> =
            places.into_iter().chain(regions.iter().cloned().map(LegEnd::Relay)).collect();
        let cap = Bandwidth::from_mbps(1000.0).unwrap();
        let mut legs = Legs::new();
        for from in &places {
            for to in places.iter().filter(|to| *to != from) {
                legs.insert((from.clone(), to.clone()), Leg::new(rtt()).capped_at(cap));
            }
        }
        let volume = Bytes::new(3_000_000 << (seed % 12));
        let flow = Flow::new(FlowId::new("f").unwrap(), site("a"), site("b"), volume);
        let budget = Money::from_usd(5.0).unwrap();
        Problem::new(Inputs { start_up, ..Inputs::cloudpilot(vec![flow], regions, legs, budget) })
            .unwrap()
    }
}
