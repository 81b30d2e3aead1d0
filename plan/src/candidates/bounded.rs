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
const MOST_MODELLED: usize = 150_000;

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
    (most / problem.flows().len()).max(16)
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
    let mut ways: Vec<Way> = Vec::new();
    tables.visit(depth, limit_s, &mut |way| ways.push(*way));
    let keep = share(maker.problem);
    let left_out = keep_best(&mut ways, keep);
    let mut left_out_s = left_out.unwrap_or(f64::INFINITY);
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

/// Keeps the best ways in a fixed order; the least time among the others, if there are any.
fn keep_best(ways: &mut Vec<Way>, keep: usize) -> Option<f64> {
    if ways.len() <= keep {
        return None;
    }
    let order = |a: &Way, b: &Way| {
        let first = a.least_s.total_cmp(&b.least_s).then(a.egress_usd.total_cmp(&b.egress_usd));
        first.then_with(|| a.relays().cmp(b.relays()))
    };
    // Half the room for paths of few relays, which cost least: the fastest alone would all be long.
    let single = |way: &Way| way.relays().len() == 1;
    ways.select_nth_unstable_by(keep / 2, order);
    let mut kept: Vec<Way> = ways[..keep / 2].to_vec();
    let mut rest = ways.split_off(keep / 2);
    let room = keep - kept.len();
    rest.select_nth_unstable_by(room, |a, b| single(b).cmp(&single(a)).then_with(|| order(a, b)));
    let fastest = kept.iter().map(|way| way.least_s).fold(f64::INFINITY, f64::min);
    let dearest = kept.iter().map(|way| way.egress_usd).fold(0.0, f64::max);
    let others = rest.split_off(room);
    kept.extend(rest);
    let cheaper = others.iter().any(|way| way.egress_usd < dearest * (1.0 - 1e-9));
    if cheaper && dearest > 0.0 {
        for price in PRICES_OF_TIME {
            let value = |way: &Way| way.least_s + price * fastest / dearest * way.egress_usd;
            let best = others.iter().min_by(|a, b| value(a).total_cmp(&value(b)).then(order(a, b)));
            kept.extend(best);
        }
    }
    *ways = kept;
    others.iter().map(|way| way.least_s).min_by(f64::total_cmp)
}
