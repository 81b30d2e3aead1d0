//! Upper bounds on the runs over a set of relays.
//!
//! Let a dollar be worth `lambda` seconds of score, and a bit/s of an offer's capacity `m`. A
//! path's reduced gain is its gain less what it pays at these prices. Whatever paths a run takes,
//! they cost at most the budget, set-up included, and fill at most the relays of the set; so
//!
//! ```text
//! gain of any run <= sum over flows of the most reduced gain of a path over the set, or none
//!                    + lambda budget + sum over relays of max(0, m capacity - lambda set-up)
//! ```
//!
//! for any `lambda, m >= 0` (a Lagrangian bound). A step that gives a flow a path of less reduced
//! gain than it could have lowers the bound by the difference, so a run is known to lose long
//! before its end. Prices affect only how soon; a few subgradient steps before each round adapt
//! them to the set.
//!
//! Sums are exact: prices are rounded down and allowances up to whole nanoseconds, by more than the
//! rounding errors in between.

use crate::problem::MAX_RELAYS;
use crate::solver::flow_greedy::{Entry, List, Lists, Needs, Race, Rank, Run, Terms};

/// The relative margin by which products of floating-point numbers are moved to the safe side.
/// Chosen: a thousand times their errors.
const MARGIN: f64 = 1e-12;

/// The number of subgradient steps before each round, and before the first one. Chosen by trial:
/// more take longer than they save.
const STEPS: usize = 12;
const FIRST_STEPS: usize = 36;

/// The number of paths above which there are no bounds. Chosen: prices for more take tenths of a
/// second, in which `should_stop` is not called.
const MAX_PATHS: usize = 100_000;

/// The relative size of a round's first step, and the last step's size as a part of it. Chosen by
/// trial.
const STEP: f64 = 0.3;
const LAST_PART: f64 = 0.1;

/// A path's gain, cost and rate as the steps need them.
#[derive(Debug)]
struct PricedPath {
    gain: f64,
    more: f64,
    rate: f64,
    needs: Needs,
    relays: [u8; MAX_RELAYS],
    relay_count: u8,
}

impl PricedPath {
    fn new(entry: &Entry, needs: Needs) -> Self {
        let mut relays = [0; MAX_RELAYS];
        for (to, offer) in relays.iter_mut().zip(entry.relays()) {
            *to = u8::try_from(*offer).expect("there are at most 128 offers");
        }
        let (gain, more, rate) = (entry.gain as f64, entry.more as f64, entry.rate as f64);
        Self { gain, more, rate, needs, relays, relay_count: entry.relays().len() as u8 }
    }

    /// Returns the offers that it passes.
    fn relays(&self) -> impl Iterator<Item = usize> + '_ {
        self.relays[..usize::from(self.relay_count)].iter().map(|offer| usize::from(*offer))
    }
}

/// Prices, and the reduced gain of each path. The same for all sets of a round.
#[derive(Debug)]
pub(super) struct Bounds<'a> {
    lists: &'a Lists,
    /// All paths flow by flow, the best first, and the end of each flow's.
    paths: Vec<PricedPath>,
    ends: Vec<usize>,
    terms: Vec<Terms>,
    /// In nano-dollars.
    budget: f64,
    /// Nanoseconds a nano-dollar.
    lambda: f64,
    /// By offer: nanoseconds a bit/s.
    prices: Vec<f64>,
    /// The reduced gains, by rank.
    reduced: Vec<i64>,
    /// By flow: paths that may have the most reduced gain over a set of this round, with that gain.
    retained: Vec<Vec<(i64, Needs)>>,
    /// The most that one more relay may save at these prices, by offer: if set up, and if running.
    allowances: Vec<[i64; 2]>,
    rounds: usize,
}

/// Bounds on runs over one set of relays, and by how much one or two more relays raise them.
#[derive(Debug, Default)]
pub(super) struct Prospects {
    /// The upper bound on runs over the set.
    pub(super) of_set: i128,
    /// By flow: the greatest reduced gain over the set.
    pub(super) most: Vec<i64>,
    /// By the one offer that is lacking: flows that would gain more, and their reduced gain.
    with_one: Vec<Vec<(u32, i64)>>,
    /// The same by the two offers that are lacking, the lower one as the row.
    with_two: Vec<Vec<(u32, i64)>>,
    /// The sums of these over the flows, less the flows' gains over the set.
    sum_with_one: Vec<i64>,
    sum_with_two: Vec<i64>,
    /// The most that one more relay may save, by offer.
    allowances: Vec<i64>,
}

impl<'a> Bounds<'a> {
    /// Returns none where the bounds would not hold or be too large: where the gain alone is not
    /// the objective, or numbers are out of range.
    pub(super) fn new(lists: &'a Lists, run: &Run<'_>) -> Option<Self> {
        let flows = &lists.flows;
        let gain =
            |list: &List| list.ranks.first().map_or(0, |rank| i128::from(lists.entry(*rank).gain));
        let most: i128 = flows.iter().map(gain).sum();
        let terms = run.terms().to_vec();
        let is_small = most < i128::from(i64::MAX / 4) && lists.entries.len() <= MAX_PATHS;
        let has_bits = !terms.is_empty() && terms.len() <= Needs::OFFERS;
        if !run.is_plain() || run.budget() <= 0 || !is_small || !has_bits {
            return None;
        }
        let lambda = most as f64 / run.budget() as f64;
        let price = |terms: &Terms| lambda * terms.set_up as f64 / terms.capacity.max(1) as f64;
        let ranks = flows.iter().flat_map(|list| &list.ranks);
        let path = |rank: &Rank| PricedPath::new(lists.entry(*rank), lists.needs[*rank as usize]);
        let end = |end: &mut usize, list: &List| {
            *end += list.ranks.len();
            Some(*end)
        };
        Some(Self {
            lists,
            paths: ranks.map(path).collect(),
            ends: flows.iter().scan(0, end).collect(),
            budget: run.budget() as f64,
            lambda,
            prices: terms.iter().map(price).collect(),
            reduced: vec![0; lists.entries.len()],
            retained: vec![Vec::new(); flows.len()],
            allowances: vec![[0; 2]; terms.len()],
            terms,
            rounds: 0,
        })
    }

    /// Adapts the prices to sets that differ from this one by a relay less and some more.
    pub(super) fn begin_round(&mut self, set: &[usize]) {
        self.rounds += 1;
        let steps = if self.rounds == 1 { FIRST_STEPS } else { STEPS };
        for step in 0..steps {
            let done = step as f64 / steps as f64;
            let size = STEP * (1.0 - (1.0 - LAST_PART) * done);
            self.step(&near(set, step, self.rounds), size);
        }
        let reduced = |entry: &Entry| entry.gain.saturating_sub(self.price_of(entry));
        self.reduced = self.lists.entries.iter().map(reduced).collect();
        let there = Needs::all_of(set);
        for flow in 0..self.retained.len() {
            self.keep(flow, there);
        }
        for offer in 0..self.terms.len() {
            self.allowances[offer] = [false, true].map(|running| self.allowance(offer, running));
        }
    }

    fn needs(&self, rank: Rank) -> Needs {
        self.lists.needs[rank as usize]
    }

    /// Returns the price of a path, in nanoseconds.
    fn price_of(&self, entry: &Entry) -> i64 {
        let capacity: f64 = entry.relays().iter().map(|offer| self.prices[*offer as usize]).sum();
        let price = self.lambda * entry.more as f64 + capacity * entry.rate as f64;
        (price * (1.0 - MARGIN)) as i64
    }

    /// Takes a subgradient step towards the prices that minimise the bound for this set.
    fn step(&mut self, set: &[usize], size: f64) {
        let there = Needs::all_of(set);
        let mut loads = vec![0.0; set.len()];
        let mut cost = 0.0;
        let cheapest = self.lambda * self.lists.cheapest as f64;
        let mut start = 0;
        for end in &self.ends {
            let mut best: (f64, Option<&PricedPath>) = (0.0, None);
            for path in &self.paths[std::mem::replace(&mut start, *end)..*end] {
                if path.gain - cheapest <= best.0 {
                    break;
                }
                if path.needs.lacking(there) == Needs::NONE {
                    let capacity: f64 = path.relays().map(|offer| self.prices[offer]).sum();
                    let reduced = path.gain - self.lambda * path.more - capacity * path.rate;
                    best = if reduced > best.0 { (reduced, Some(path)) } else { best };
                }
            }
            let Some(path) = best.1 else { continue };
            cost += path.more;
            path.relays().for_each(|offer| loads[offer] += path.rate);
        }
        for (offer, count) in set.iter().enumerate().filter(|(_, count)| **count > 0) {
            let terms = &self.terms[offer];
            let (capacity, set_up) = (terms.capacity.max(1) as f64, terms.set_up as f64);
            let (count, price) = (*count as f64, self.prices[offer]);
            let even = self.lambda * set_up / capacity;
            let bought = if price > even { count } else { 0.0 };
            cost += bought * set_up;
            let short = loads[offer] / (capacity * count) - bought / count;
            self.prices[offer] = (price + size * short * even.max(price)).max(0.0);
        }
        let over = (cost - self.budget) / self.budget;
        self.lambda *= (2.0 * size * over).clamp(-0.5, 0.5).exp();
    }

    /// Keeps the flow's paths whose reduced gain is at least that of its best one over the set
    /// without any one of its offers.
    fn keep(&mut self, flow: usize, there: Needs) {
        let ranks = &self.lists.flows[flow].ranks;
        let best = |there: Needs| {
            let mut best: (i64, Option<Rank>) = (0, None);
            for rank in ranks {
                let entry = self.lists.entry(*rank);
                if entry.gain <= best.0 {
                    break;
                }
                let reduced = self.reduced[*rank as usize];
                if reduced > best.0 && self.needs(*rank).lacking(there) == Needs::NONE {
                    best = (reduced, Some(*rank));
                }
            }
            best
        };
        let (mut least, rank) = best(there);
        for offer in rank.iter().flat_map(|rank| self.lists.entry(*rank).relays()) {
            least = least.min(best(there.lacking(Needs::offer(*offer as usize))).0);
        }
        let retained = ranks.iter().filter_map(|rank| {
            let reduced = self.reduced[*rank as usize];
            let wanted = reduced > 0 && reduced >= least;
            wanted.then(|| (reduced, self.lists.needs[*rank as usize]))
        });
        self.retained[flow].clear();
        self.retained[flow].extend(retained);
    }

    /// Computes the bounds for this set, and for the relays that it lacks.
    pub(super) fn look_up(&self, set: &[usize], prospects: &mut Prospects) {
        let relays = set.iter().zip(&self.terms).zip(&self.allowances);
        let worth = relays.map(|((count, terms), [new, running])| {
            let retained = (*count).min(terms.running) as i128;
            i128::from(*running) * retained + i128::from(*new) * (*count as i128 - retained)
        });
        let budget = (self.lambda * self.budget * (1.0 + MARGIN)) as i128 + 1;
        prospects.of_set = budget + worth.sum::<i128>();
        let own = self.allowances.iter().zip(&self.terms);
        prospects.allowances.clear();
        prospects.allowances.extend(own.map(|(by, terms)| by[usize::from(terms.running > 0)]));
        prospects.look_up(&self.retained, Needs::all_of(set));
    }

    /// Returns the bound by which a run ends early.
    pub(super) fn race<'p>(&'p self, most: &'p [i64], threshold: i128) -> Race<'p> {
        Race { reduced: &self.reduced, most, threshold }
    }

    /// Returns the most that a relay may save at these prices, in nanoseconds.
    fn allowance(&self, offer: usize, running: bool) -> i64 {
        let terms = &self.terms[offer];
        let pays = if running { 0.0 } else { self.lambda * terms.set_up as f64 * (1.0 - MARGIN) };
        let saves = self.prices[offer] * terms.capacity as f64 * (1.0 + MARGIN) - pays;
        saves.max(0.0) as i64 + 1
    }
}

impl Prospects {
    fn look_up(&mut self, retained: &[Vec<(i64, Needs)>], there: Needs) {
        let offers = self.allowances.len();
        self.most.clear();
        self.with_one.resize_with(offers, Vec::new);
        self.with_two.resize_with(offers * offers, Vec::new);
        self.with_one.iter_mut().chain(&mut self.with_two).for_each(Vec::clear);
        for (flow, retained) in retained.iter().enumerate() {
            let over_set = retained.iter().filter(|(_, needs)| needs.lacking(there) == Needs::NONE);
            let most = over_set.map(|(reduced, _)| *reduced).max().unwrap_or(0);
            self.most.push(most);
            for (reduced, needs) in retained.iter().filter(|(reduced, _)| *reduced > most) {
                let mut lacking = needs.lacking(there).offers();
                let more = match (lacking.next(), lacking.next(), lacking.next()) {
                    (Some(one), None, _) => &mut self.with_one[one],
                    (Some(one), Some(two), None) => &mut self.with_two[one * offers + two],
                    _ => continue,
                };
                match more.last_mut() {
                    Some(last) if last.0 as usize == flow => last.1 = last.1.max(*reduced),
                    _ => more.push((flow as u32, *reduced)),
                }
            }
        }
        let sum = |more: &Vec<(u32, i64)>| -> i64 {
            more.iter().map(|(flow, reduced)| reduced - self.most[*flow as usize]).sum()
        };
        self.sum_with_one = self.with_one.iter().map(sum).collect();
        self.sum_with_two = self.with_two.iter().map(sum).collect();
        self.of_set += i128::from(self.most.iter().sum::<i64>());
    }

    /// Returns a cheap upper bound on the increase by a relay of this offer.
    pub(super) fn more_by(&self, offer: usize) -> i128 {
        i128::from(self.sum_with_one[offer]) + self.allowance(offer)
    }

    /// Returns a cheap upper bound on the increase by a relay of the second offer, where one of the
    /// first has been added.
    pub(super) fn more_by_second(&self, one: usize, two: usize) -> i128 {
        let alone = if one == two { 0 } else { self.sum_with_one[two] };
        let together = self.sum_with_two[self.pair(one, two)];
        i128::from(alone) + i128::from(together) + self.allowance(two)
    }

    /// Returns a cheap upper bound on the increase by a relay of this offer and one of any.
    pub(super) fn more_by_two(&self, one: usize) -> i128 {
        let second = (0..self.allowances.len()).map(|two| self.more_by_second(one, two)).max();
        self.more_by(one) + second.unwrap_or(0)
    }

    /// Returns the increase by a relay of this offer, where one of another may have been added, for
    /// flows that have no path yet. Raises their `most`.
    pub(super) fn raise(
        &self,
        offer: usize,
        other: Option<usize>,
        is_done: &[bool],
        most: &mut [i64],
    ) -> i128 {
        let pair = other.map(|other| &self.with_two[self.pair(offer, other)]);
        let mut more = self.allowance(offer);
        for (flow, reduced) in [Some(&self.with_one[offer]), pair].into_iter().flatten().flatten() {
            let most = &mut most[*flow as usize];
            if !is_done[*flow as usize] && *reduced > *most {
                more += i128::from(*reduced - *most);
                *most = *reduced;
            }
        }
        more
    }

    fn pair(&self, one: usize, two: usize) -> usize {
        one.min(two) * self.allowances.len() + one.max(two)
    }

    /// Returns the most that one more relay may save.
    fn allowance(&self, offer: usize) -> i128 {
        i128::from(self.allowances[offer])
    }
}

/// Returns a set near this one: with other offers in each step.
fn near(set: &[usize], step: usize, round: usize) -> Vec<usize> {
    let mut near = set.to_vec();
    let there: Vec<usize> = (0..set.len()).filter(|offer| set[*offer] > 0).collect();
    if !there.is_empty() {
        near[there[(step + round) % there.len()]] -= 1;
    }
    near[(3 * step + round) % set.len()] += 1;
    near[(5 * step + 7 * round) % set.len()] += 1;
    near
}
