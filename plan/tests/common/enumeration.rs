//! The best of all plans by plain enumeration: every path of each flow, and every split of flows over relays.

use tradewind_plan::{Objective, Problem};
use tradewind_units::{Duration, Money};

/// Makespan (zero unless it is what counts), score and cost of the best of all plans.
pub(crate) fn enumerated(problem: &Problem) -> Option<(Duration, Duration, Money)> {
    let mut best: Option<(Duration, Duration, Money)> = None;
    let mut choice = vec![0; problem.flows().len()];
    loop {
        let chosen = || choice.iter().enumerate().map(|(flow, at)| &problem.candidates(flow)[*at]);
        let set_up: Option<Money> = (problem.offers().iter().enumerate())
            .map(|(place, offer)| {
                let through = chosen().filter(|candidate| candidate.relays.contains(&place));
                let rates: Vec<u64> = through.map(|candidate| candidate.rate.as_bps()).collect();
                let capacity = offer.relay_type.capacity.as_bps();
                Some(offer.set_up(fewest_relays(&rates, capacity, &mut Vec::new())?))
            })
            .sum();
        let cost = set_up.map(|set_up| chosen().map(|c| c.cost).sum::<Money>() + set_up);
        if let Some(cost) = cost.filter(|cost| *cost <= problem.budget()) {
            let last = chosen().map(|candidate| candidate.fct).max().unwrap();
            let makespan = problem.objective() == Objective::Makespan;
            let last = if makespan { last } else { Duration::ZERO };
            let key = (last, chosen().map(|candidate| candidate.score).sum(), cost);
            best = Some(best.map_or(key, |best| best.min(key)));
        }
        let mut at = 0;
        loop {
            if at == choice.len() {
                return best;
            }
            choice[at] += 1;
            if choice[at] < problem.candidates(at).len() {
                break;
            }
            choice[at] = 0;
            at += 1;
        }
    }
}

fn fewest_relays(rates: &[u64], capacity: u64, loads: &mut Vec<u64>) -> Option<usize> {
    let Some((rate, rest)) = rates.split_first() else { return Some(loads.len()) };
    let mut best = None;
    for relay in 0..loads.len() {
        if loads[relay] + rate <= capacity {
            loads[relay] += rate;
            best = best.into_iter().chain(fewest_relays(rest, capacity, loads)).min();
            loads[relay] -= rate;
        }
    }
    if *rate <= capacity {
        loads.push(*rate);
        best = best.into_iter().chain(fewest_relays(rest, capacity, loads)).min();
        loads.pop();
    }
    best
}
