//! The best of all plans by plain enumeration: every path of each flow, built from the legs and not
//! from the problem's candidates, and every split of flows over relays.

use tradewind_plan::{Candidate, LegEnd, Objective, Problem};
use tradewind_units::{Duration, Money};

/// Returns makespan (zero unless it is the objective), score and cost of the best of all plans;
/// among equal ones the cheapest.
pub(crate) fn enumerated(problem: &Problem) -> Option<(Duration, Duration, Money)> {
    let mut best: Option<(Duration, Duration, Money)> = None;
    let paths: Vec<Vec<Candidate>> =
        (0..problem.flows().len()).map(|flow| paths_of(problem, flow)).collect();
    let mut choice = vec![0; paths.len()];
    loop {
        let chosen = || choice.iter().zip(&paths).map(|(at, own)| &own[*at]);
        // Machines are paid for the whole hours until the last flow is done.
        let last = chosen().map(|candidate| candidate.fct).max().unwrap();
        let hours = (last.as_secs_f64() / 3600.0).ceil().max(1.0) as u64;
        let set_up: Option<Money> = (problem.offers().iter().enumerate())
            .map(|(place, offer)| {
                let through = chosen().filter(|candidate| candidate.relays.contains(&place));
                let rates: Vec<u64> = through.map(|candidate| candidate.rate.as_bps()).collect();
                let capacity = offer.relay_type.capacity.as_bps();
                let fewest = fewest_relays(&rates, capacity, &mut Vec::new())?;
                let may_be = offer.most.is_none_or(|most| fewest <= most);
                let hourly = problem.inputs().hourly.get(&offer.relay_type.id);
                let machine = hourly.map_or(Money::ZERO, |price| price.times(hours));
                let paid = fewest.saturating_sub(offer.running) as u64;
                may_be.then(|| offer.set_up(fewest) + machine.times(paid))
            })
            .sum();
        let cost = set_up.map(|set_up| chosen().map(|c| c.cost).sum::<Money>() + set_up);
        if let Some(cost) = cost.filter(|cost| *cost <= problem.budget()) {
            let makespan = problem.objective() == Objective::Makespan;
            let last = if makespan { last } else { Duration::ZERO };
            let key = (last, chosen().map(|candidate| candidate.score).sum(), cost);
            let order = |(last, score, cost): &(Duration, Duration, Money)| {
                let first = if makespan { *last } else { *score };
                (first, *cost, *score)
            };
            best = best.into_iter().chain([key]).min_by_key(order);
        }
        let mut at = 0;
        loop {
            if at == choice.len() {
                return best;
            }
            choice[at] += 1;
            if choice[at] < paths[at].len() {
                break;
            }
            choice[at] = 0;
            at += 1;
        }
    }
}

/// Returns every path of a flow that meets its deadline.
fn paths_of(problem: &Problem, flow: usize) -> Vec<Candidate> {
    let mut found = Vec::new();
    extend(problem, flow, &mut Vec::new(), &mut found);
    found
}

/// Adds the path over these offers, and all its extensions.
fn extend(problem: &Problem, flow: usize, relays: &mut Vec<usize>, found: &mut Vec<Candidate>) {
    let ends = &problem.flows()[flow];
    let in_time = |fct: &Duration| ends.deadline.is_none_or(|deadline| *fct <= deadline);
    if let Some(fct) = problem.fct(flow, relays).filter(in_time) {
        found.push(Candidate {
            relays: relays.clone(),
            fct,
            score: problem.score(flow, fct),
            cost: problem.egress_cost(flow, relays).unwrap() + problem.move_cost(flow, relays),
            rate: problem.rate_used(flow, fct),
        });
    }
    if relays.len() == problem.max_relays() {
        return;
    }
    let region = |offer: usize| problem.offers()[offer].region.clone();
    let last = relays.last().map(|offer| LegEnd::Relay(region(*offer)));
    let from = last.unwrap_or_else(|| LegEnd::Site(ends.source.clone()));
    for next in 0..problem.offers().len() {
        let is_known =
            problem.inputs().legs.contains_key(&(from.clone(), LegEnd::Relay(region(next))));
        if is_known && relays.iter().all(|passed| region(*passed) != region(next)) {
            relays.push(next);
            extend(problem, flow, relays, found);
            relays.pop();
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
