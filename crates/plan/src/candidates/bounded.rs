//! A few paths for each flow of a large problem, and a lower bound on the time of the others.
//!
//! Retained are the fastest paths by the lower bound on their time ([`super::tables`]), those that
//! are best at some price of time, the cheapest over each number of relays, and the flow's current
//! path. Proofs still cover the paths left out: [`crate::Problem::left_out`] bounds their time, and
//! `LagrangianSearch` prices all of them in its lower bound.

use tradewind_model::StartUp;

use super::tables::{FlowTables, PartialPath};
use super::{Candidate, FlowCandidates, Maker};
use crate::problem::{MAX_RELAYS, Problem, ProblemError};

/// The most paths enumerated for all flows. Chosen: a second or two.
const MAX_LOOKED_AT: u64 = 300_000_000;

/// The most candidates of all flows together. Chosen: memory of a few hundred megabytes.
const MAX_RETAINED: usize = 1_000_000;

/// The same limit where a completion-time model is run for each. Chosen: some seconds.
const MAX_MODELLED: usize = 60_000;

/// Prices of time, as multiples of the fastest path's time over its cost.
const PRICES_OF_TIME: [f64; 4] = [0.1, 0.5, 2.0, 10.0];

/// Returns the number of relays up to which all paths are enumerated.
pub(crate) fn depth(problem: &Problem) -> usize {
    let (flows, offers) = (problem.flows().len() as u64, problem.offers().len() as u64);
    let looked_at = |depth: &usize| {
        let paths = offers.saturating_pow(u32::try_from(*depth).unwrap_or(u32::MAX));
        paths.saturating_mul(flows) <= MAX_LOOKED_AT
    };
    (1..=problem.max_relays()).take_while(looked_at).last().unwrap_or(0)
}

/// Returns how many candidates each flow may have.
fn share(problem: &Problem) -> usize {
    let most = match problem.inputs().start_up {
        StartUp::Ignored => MAX_RETAINED,
        StartUp::Cold | StartUp::Warm => MAX_MODELLED,
    };
    (most / problem.flows().len()).max(6)
}

/// Returns the candidates of one flow.
pub(super) fn candidates(
    maker: &Maker<'_>,
    tables: &FlowTables<'_>,
    depth: usize,
) -> Result<FlowCandidates, ProblemError> {
    let direct = maker.direct(tables)?;
    let limit = maker.limit(direct.as_ref().filter(|_| tables.direct_is_cheapest()));
    let limit_s = limit.map_or(f64::INFINITY, |limit| limit.as_secs_f64());
    let (paths, mut left_out_s) = best_paths(tables, depth, limit_s, share(maker.problem));
    if depth < maker.problem.max_relays() {
        left_out_s = left_out_s.min(tables.least_of_any().0);
    }
    let mut found: Vec<Candidate> = Vec::with_capacity(paths.len() + 1);
    for relays in paths.iter().map(PartialPath::offers) {
        let Some(legs) = tables.legs(&relays) else { continue };
        let fct = tables.fct(&legs);
        let candidate = maker.candidate(tables, relays, fct)?;
        if candidate.helps_beside(direct.as_ref()) {
            found.push(candidate);
        }
    }
    maker.add_running(tables, &mut found)?;
    let left_out = left_out_s.is_finite().then(|| super::safely(left_out_s));
    maker.finish(direct, found, left_out)
}

/// Returns the best paths, and the least time among the others: infinite if there are no others.
fn best_paths(
    tables: &FlowTables<'_>,
    depth: usize,
    limit_s: f64,
    keep: usize,
) -> (Vec<PartialPath>, f64) {
    let (mut retained, mut left_out_s) = (Vec::new(), f64::INFINITY);
    tables.visit(depth.min(1), limit_s, &mut |path| {
        retained.push(*path);
        limit_s
    });
    // At most half of the places are for paths over one relay, which cost least: the fastest paths
    // are mostly longer ones.
    if retained.len() > keep / 2 {
        retained.sort_unstable_by(order);
        left_out_s = retained[keep / 2].least_s;
        retained.truncate(keep / 2);
    }
    let mut longer = Longer::new(keep - retained.len(), tables.one_price());
    tables.visit(depth, limit_s, &mut |path| {
        if path.relays().len() > 1 {
            longer.add(path);
        }
        limit_s.min(longer.limit_s())
    });
    left_out_s = left_out_s.min(longer.finish());
    retained.extend(longer.cheap_for_their_time());
    retained.extend(longer.fastest);
    (retained, left_out_s)
}

/// Paths over several relays: the fastest, and of the others those that may be best at some price
/// of time and the cheapest over each number of relays. Memory is bounded by the number to keep,
/// however many are added.
struct Longer {
    most: usize,
    /// Set if all cost the same, so that only the fastest count.
    one_price: bool,
    /// The fastest so far, in any order, and those added since the last pruning.
    fastest: Vec<PartialPath>,
    /// The lower convex hull of the others, by increasing time and decreasing cost ([`hull`]).
    others: Vec<PartialPath>,
    /// The least time of all others.
    others_s: f64,
    /// The cheapest of all, by the number of relays.
    cheapest: [Option<PartialPath>; MAX_RELAYS + 1],
}

/// The number of paths added between two prunings: small with one price, where pruning lowers the
/// limit of the enumeration. Chosen.
const BATCH_OF_ONE_PRICE: usize = 64;
const BATCH: usize = 4_096;

impl Longer {
    fn new(most: usize, one_price: bool) -> Self {
        let (fastest, others, cheapest) = (Vec::new(), Vec::new(), [None; MAX_RELAYS + 1]);
        Self { most, one_price, fastest, others, others_s: f64::INFINITY, cheapest }
    }

    fn add(&mut self, path: &PartialPath) {
        self.fastest.push(*path);
        let cheapest = &mut self.cheapest[path.relays().len()];
        if cheapest.is_none_or(|other| by_cost(path, &other).is_lt()) {
            *cheapest = Some(*path);
        }
        let batch = if self.one_price { BATCH_OF_ONE_PRICE } else { BATCH };
        if self.fastest.len() >= 2 * self.most + batch {
            self.sort_out();
        }
    }

    /// Returns the time above which a path cannot be among the best.
    fn limit_s(&self) -> f64 {
        if self.one_price { self.others_s } else { f64::INFINITY }
    }

    /// Keeps as many of the fastest as asked for, and of the others the hull.
    fn sort_out(&mut self) {
        if self.fastest.len() <= self.most {
            return;
        }
        self.fastest.select_nth_unstable_by(self.most, order);
        self.others_s = self.others_s.min(self.fastest[self.most].least_s);
        if self.one_price {
            self.fastest.truncate(self.most);
            return;
        }
        let known = self.others.len();
        for path in self.fastest.drain(self.most..) {
            let faster =
                self.others[..known].partition_point(|other| other.least_s <= path.least_s);
            let is_dominated = |other: &PartialPath| other.egress_usd <= path.egress_usd;
            if !self.others[..faster].last().is_some_and(is_dominated) {
                self.others.push(path);
            }
        }
        if self.others.len() > known {
            hull(&mut self.others);
        }
    }

    /// Returns the least time of those that are not among the fastest; infinite if all are.
    fn finish(&mut self) -> f64 {
        self.sort_out();
        self.others_s
    }

    /// Returns those of the others that are best at some price of time, and the cheapest. The
    /// prices are scaled by the time and cost of the fastest.
    fn cheap_for_their_time(&self) -> Vec<PartialPath> {
        if self.one_price {
            return Vec::new();
        }
        let least_s = self.fastest.iter().map(|path| path.least_s).fold(f64::INFINITY, f64::min);
        let dearest = self.fastest.iter().map(|path| path.egress_usd).fold(0.0, f64::max);
        let mut found: Vec<PartialPath> = Vec::new();
        let is_in = |path: &PartialPath, all: &[PartialPath]| {
            all.iter().any(|other| other.relays() == path.relays())
        };
        for price in PRICES_OF_TIME.iter().filter(|_| dearest > 0.0) {
            let value =
                |path: &PartialPath| path.least_s + price * least_s / dearest * path.egress_usd;
            let by_value = |a: &&PartialPath, b: &&PartialPath| {
                value(a).total_cmp(&value(b)).then(order(a, b))
            };
            let best = self.others.iter().min_by(by_value);
            let new = best.filter(|path| !is_in(path, &found));
            found.extend(new);
        }
        for path in self.cheapest.iter().flatten() {
            if !is_in(path, &found) && !is_in(path, &self.fastest) {
                found.push(*path);
            }
        }
        found
    }
}

fn order(a: &PartialPath, b: &PartialPath) -> std::cmp::Ordering {
    let first = a.least_s.total_cmp(&b.least_s).then(a.egress_usd.total_cmp(&b.egress_usd));
    first.then_with(|| a.relays().cmp(b.relays()))
}

fn by_cost(a: &PartialPath, b: &PartialPath) -> std::cmp::Ordering {
    a.egress_usd.total_cmp(&b.egress_usd).then_with(|| order(a, b))
}

/// Keeps, by increasing time, the paths that are best at some price of time: the lower convex hull
/// of time and cost. Of equal ones it keeps the first.
fn hull(paths: &mut Vec<PartialPath>) {
    paths.sort_unstable_by(order);
    let mut retained = 0;
    for at in 0..paths.len() {
        let path = paths[at];
        if retained > 0 && paths[retained - 1].egress_usd <= path.egress_usd {
            continue;
        }
        while retained > 1 && is_above(&paths[retained - 1], &paths[retained - 2], &path) {
            retained -= 1;
        }
        paths[retained] = path;
        retained += 1;
    }
    paths.truncate(retained);
}

/// Returns whether `path` lies above the line between a faster and a cheaper one, so that one of
/// them is better at any price of time.
fn is_above(path: &PartialPath, faster: &PartialPath, cheaper: &PartialPath) -> bool {
    let (slower_s, saved) = (path.least_s - faster.least_s, faster.egress_usd - path.egress_usd);
    let (all_s, all_saved) =
        (cheaper.least_s - faster.least_s, faster.egress_usd - cheaper.egress_usd);
    saved * all_s < all_saved * slower_s
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tradewind_model::cost::Prices;
    use tradewind_units::{PricePerGb, RegionId};

    use super::super::{Tables, example};
    use super::*;
    use crate::problem::Inputs;

    #[test]
    fn lower_bounds_hold_for_all_paths() {
        for seed in 0..60 {
            for start_up in [StartUp::Ignored, StartUp::Cold, StartUp::Warm] {
                let problem = example::problem(seed, start_up);
                let tables = Tables::new(&problem);
                let tables = tables.of(0);
                let mut all: Vec<PartialPath> = Vec::new();
                tables.visit(2, f64::INFINITY, &mut |path| {
                    all.push(*path);
                    f64::INFINITY
                });
                assert_eq!(all.len(), 8 + 8 * 7);
                let (retained, left_out_s) = best_paths(&tables, 2, f64::INFINITY, 12);
                assert_eq!(retained.len(), 12);
                for path in all {
                    let fct = problem.fct(0, &path.offers()).unwrap();
                    assert_eq!(fct, tables.fct(&tables.legs(&path.offers()).unwrap()));
                    assert!(super::super::safely(path.least_s) <= fct, "{seed} {start_up:?}");
                    let is_retained = retained.iter().any(|other| other.relays() == path.relays());
                    assert!(is_retained || path.least_s >= left_out_s, "{seed} {start_up:?}");
                    let egress = problem.egress_cost(0, &path.offers()).unwrap();
                    assert!((egress.as_usd() - path.egress_usd).abs() < 1e-8);
                }
                assert!(tables.least_of_any().0 <= left_out_s);
            }
        }
    }

    /// Returns the example with egress prices that differ from region to region.
    fn priced(seed: u64, start_up: StartUp) -> Problem {
        let inputs = example::problem(seed, start_up).inputs().clone();
        let usd = |at: usize| PricePerGb::from_usd_per_gb((at * 5 + seed as usize) as f64 % 7.0);
        let price = |(at, region): (usize, &RegionId)| ((region.clone(), None), usd(at).unwrap());
        let pairs = inputs.regions.iter().enumerate().map(price).collect();
        let prices = Prices::Stated { pairs, otherwise: Box::new(inputs.prices.clone()) };
        Problem::new(Inputs { prices, ..inputs }).unwrap()
    }

    #[test]
    fn early_pruning_loses_no_best_path() {
        for seed in 0..30 {
            let problem = priced(seed, StartUp::Cold);
            let tables = Tables::new(&problem);
            let mut all: Vec<PartialPath> = Vec::new();
            tables.of(0).visit(3, f64::INFINITY, &mut |path| {
                if path.relays().len() > 1 {
                    all.push(*path);
                }
                f64::INFINITY
            });
            // All paths pruned at once, against the same paths pruned after each addition.
            let mut at_once = Longer::new(10, false);
            let mut early = Longer::new(10, false);
            for path in &all {
                at_once.fastest.push(*path);
                early.add(path);
                early.sort_out();
                assert!(early.fastest.len() <= 10 && early.others.len() <= 40);
            }
            at_once.cheapest = early.cheapest;
            assert_eq!(at_once.finish(), early.finish());
            let relays = |paths: &[PartialPath]| -> BTreeSet<Vec<usize>> {
                paths.iter().map(PartialPath::offers).collect()
            };
            assert_eq!(relays(&at_once.fastest), relays(&early.fastest), "{seed}");
            let cheap = early.cheap_for_their_time();
            assert_eq!(relays(&at_once.cheap_for_their_time()), relays(&cheap), "{seed}");
            // By the definition: for each price of time the best of all paths that are not among
            // the fastest.
            all.sort_by(order);
            let (fastest, others) = all.split_at(10);
            let dearest = fastest.iter().map(|path| path.egress_usd).fold(0.0, f64::max);
            for price in PRICES_OF_TIME.iter().filter(|_| dearest > 0.0) {
                let worth = price * fastest[0].least_s / dearest;
                let value = |path: &PartialPath| path.least_s + worth * path.egress_usd;
                let least = others.iter().map(value).fold(f64::INFINITY, f64::min);
                let found = cheap.iter().map(value).fold(f64::INFINITY, f64::min);
                assert!(found <= least * (1.0 + 1e-12), "{seed}: {found} above {least}");
            }
            for count in [2, 3] {
                let of_that_many = |paths: &[PartialPath]| {
                    let paths = paths.iter().filter(|path| path.relays().len() == count);
                    paths.map(|path| path.egress_usd).fold(f64::INFINITY, f64::min)
                };
                let retained = of_that_many(&cheap).min(of_that_many(fastest));
                assert_eq!(retained, of_that_many(&all), "{seed}, {count} relays");
            }
        }
    }

    #[test]
    fn added_paths_use_bounded_memory() {
        let problem = priced(1, StartUp::Ignored);
        let tables = Tables::new(&problem);
        for one_price in [false, true] {
            let mut longer = Longer::new(5, one_price);
            for _ in 0..100 {
                tables.of(0).visit(3, f64::INFINITY, &mut |path| {
                    longer.add(path);
                    f64::INFINITY
                });
            }
            assert!(longer.fastest.capacity() <= 4 * BATCH, "{}", longer.fastest.capacity());
            assert!(longer.others.capacity() <= 2 * BATCH, "{}", longer.others.capacity());
        }
    }
}
