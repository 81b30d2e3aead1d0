//! A few paths for each flow of a large problem, and a time that none of the others beats.
//!
//! Kept are the fastest paths by their least time ([`super::tables`]), those that are best for some price of time, and
//! the path that runs. What is left out is not lost to proofs: [`crate::Problem::left_out`] says how fast it might
//! be, and `Auto` prices all of it again in its bound.

use tradewind_model::StartUp;

use super::tables::{FlowTables, Way};
use super::{Candidate, FlowCandidates, Maker};
use crate::problem::{Problem, ProblemError};

/// Paths looked at in all at most. Chosen: a second or two.
const MOST_LOOKED_AT: u64 = 300_000_000;

/// Candidates of all flows together. Chosen: memory of a few hundred megabytes.
const MOST_KEPT: usize = 1_000_000;

/// The same where each costs a completion-time model. Chosen: some seconds.
const MOST_MODELLED: usize = 60_000;

/// Prices of time, as multiples of the fastest path's time over its cost.
const PRICES_OF_TIME: [f64; 4] = [0.1, 0.5, 2.0, 10.0];

/// The number of relays up to which all paths are looked at.
pub(crate) fn depth(problem: &Problem) -> usize {
    let (flows, offers) = (problem.flows().len() as u64, problem.offers().len() as u64);
    let looked_at = |depth: &usize| {
        let paths = offers.saturating_pow(u32::try_from(*depth).unwrap_or(u32::MAX));
        paths.saturating_mul(flows) <= MOST_LOOKED_AT
    };
    (1..=problem.max_relays()).take_while(looked_at).last().unwrap_or(0)
}

/// How many candidates each flow may have.
fn share(problem: &Problem) -> usize {
    let most = match problem.inputs().start_up {
        StartUp::Ignored => MOST_KEPT,
        StartUp::Cold | StartUp::Warm => MOST_MODELLED,
    };
    (most / problem.flows().len()).max(6)
}

/// The candidates of one flow.
pub(super) fn candidates(
    maker: &Maker<'_>,
    tables: &FlowTables<'_>,
    depth: usize,
) -> Result<FlowCandidates, ProblemError> {
    let direct = maker.direct(tables)?;
    let limit = maker.limit(direct.as_ref());
    let limit_s = limit.map_or(f64::INFINITY, |limit| limit.as_secs_f64());
    let (ways, mut left_out_s) = best_ways(tables, depth, limit_s, share(maker.problem));
    if depth < maker.problem.max_relays() {
        left_out_s = left_out_s.min(tables.least_of_any().0);
    }
    let mut found: Vec<Candidate> = Vec::with_capacity(ways.len() + 1);
    let mut running = maker.running_path();
    running.retain(|path| ways.iter().all(|way| way.offers() != *path));
    for relays in ways.iter().map(Way::offers).chain(running) {
        let Some(legs) = tables.legs(&relays) else { continue };
        let fct = tables.fct(&legs);
        if direct.as_ref().is_none_or(|direct| fct < direct.fct) {
            found.push(maker.candidate(tables, relays, fct)?);
        }
    }
    let left_out = left_out_s.is_finite().then(|| super::safely(left_out_s));
    maker.finish(direct, found, left_out)
}

/// The best ways, and the least time among the others: endless, if there are none.
fn best_ways(tables: &FlowTables<'_>, depth: usize, limit_s: f64, keep: usize) -> (Vec<Way>, f64) {
    let (mut kept, mut left_out_s) = (Vec::new(), f64::INFINITY);
    tables.visit(depth.min(1), limit_s, &mut |way| {
        kept.push(*way);
        limit_s
    });
    // Half the room at most for paths over one relay, which cost least: the fastest alone would all be longer.
    if kept.len() > keep / 2 {
        kept.sort_unstable_by(order);
        left_out_s = kept[keep / 2].least_s;
        kept.truncate(keep / 2);
    }
    let room = keep - kept.len();
    let one_price = tables.one_price();
    let mut longer: Vec<Way> = Vec::new();
    let mut limit_now = limit_s;
    tables.visit(depth, limit_s, &mut |way| {
        if way.relays().len() > 1 {
            longer.push(*way);
        }
        // Where all cost the same, only the fastest so far can still be among the best.
        if one_price && longer.len() >= 2 * room + 64 {
            longer.select_nth_unstable_by(room, order);
            limit_now = longer[room].least_s;
            left_out_s = left_out_s.min(limit_now);
            longer.truncate(room);
        }
        limit_now
    });
    if longer.len() > room {
        longer.select_nth_unstable_by(room, order);
        left_out_s = left_out_s.min(longer[room].least_s);
        let others = longer.split_off(room);
        if !one_price {
            kept.extend(cheap_for_their_time(&longer, &others));
        }
    }
    kept.extend(longer);
    (kept, left_out_s)
}

fn order(a: &Way, b: &Way) -> std::cmp::Ordering {
    let first = a.least_s.total_cmp(&b.least_s).then(a.egress_usd.total_cmp(&b.egress_usd));
    first.then_with(|| a.relays().cmp(b.relays()))
}

/// Those of `others` that are best for some price of time; `fastest` gives the scale.
fn cheap_for_their_time(fastest: &[Way], others: &[Way]) -> Vec<Way> {
    let least_s = fastest.iter().map(|way| way.least_s).fold(f64::INFINITY, f64::min);
    let dearest = fastest.iter().map(|way| way.egress_usd).fold(0.0, f64::max);
    let mut found: Vec<Way> = Vec::new();
    for price in PRICES_OF_TIME.iter().filter(|_| dearest > 0.0) {
        let value = |way: &Way| way.least_s + price * least_s / dearest * way.egress_usd;
        let best = others.iter().min_by(|a, b| value(a).total_cmp(&value(b)).then(order(a, b)));
        let new = best.filter(|way| found.iter().all(|other| other.relays() != way.relays()));
        found.extend(new);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::{Tables, example};
    use super::*;

    #[test]
    fn no_path_beats_its_least_time_and_none_left_out_what_is_said_of_them() {
        for seed in 0..60 {
            for start_up in [StartUp::Ignored, StartUp::Cold, StartUp::Warm] {
                let problem = example::problem(seed, start_up);
                let tables = Tables::new(&problem);
                let tables = tables.of(0);
                let mut all: Vec<Way> = Vec::new();
                tables.visit(2, f64::INFINITY, &mut |way| {
                    all.push(*way);
                    f64::INFINITY
                });
                assert_eq!(all.len(), 8 + 8 * 7);
                let (kept, left_out_s) = best_ways(&tables, 2, f64::INFINITY, 12);
                assert_eq!(kept.len(), 12);
                for way in all {
                    let fct = problem.fct(0, &way.offers()).unwrap();
                    assert_eq!(fct, tables.fct(&tables.legs(&way.offers()).unwrap()));
                    assert!(super::super::safely(way.least_s) <= fct, "{seed} {start_up:?}");
                    let is_kept = kept.iter().any(|other| other.relays() == way.relays());
                    assert!(is_kept || way.least_s >= left_out_s, "{seed} {start_up:?}");
                    let egress = problem.egress_cost(0, &way.offers()).unwrap();
                    assert!((egress.as_usd() - way.egress_usd).abs() < 1e-8);
                }
                assert!(tables.least_of_any().0 <= left_out_s);
            }
        }
    }
}
