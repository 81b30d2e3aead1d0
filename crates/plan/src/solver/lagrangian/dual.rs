//! A lower bound by Lagrangian relaxation, with prices of the budget, of set-up and of relays'
//! capacity.
//!
//! Let a dollar be worth `lambda` seconds. The set-up `S` of an offer `k` is divided beforehand:
//! flow `f` pays `v_fk S` if it passes it, whatever its rate, and `m_k S` for each relay's worth of
//! capacity that it takes. Shares that add up to no more than one never make a plan pay more than
//! its real cost: there are at least as many relays as capacity is filled, and at least one where
//! any flow passes. So each flow may choose for itself, and
//!
//! ```text
//! bound = sum over f of min over paths p of
//!           score_p + lambda (egress_p + sum over k in p of S_k (v_fk + m_k rate_p / capacity_k))
//!         - lambda (budget + sum over k of S_k m_k running_k)
//! for lambda, v, m >= 0,  m_k + sum over f of v_fk <= 1
//! ```
//!
//! is below every plan within the budget. Relays that run already cost nothing, so only `m` is
//! charged there. The multipliers rise where the flows' choices use more of a resource than is paid
//! for: they are multiplied by exponentials, which keeps shares non-negative and adding up to one
//! (mirror ascent; Beck and Teboulle 2003). With scores of zero and `lambda` of one the same is a
//! bound on cost.
//!
//! If the number of an offer's relays is limited to a [`Range`], as [`super::branch`] does, the
//! required relays are paid for beforehand and then count as running, and under an upper limit
//! capacity may cost more than set-up: the difference, `e_k S_k`, is given back for each relay
//! allowed.

use super::table::{Choice, Supply, Table};
use crate::solver::Work;

/// The first step of the multipliers' exponents. Chosen by trial on problems of 5 to 10,000 flows.
const FIRST_STEP: f64 = 0.6;

/// The number of rounds after which steps begin to shrink. Chosen likewise.
const ROUNDS_BEFORE_SHRINKING: f64 = 8.0;

/// The round at which an ascent resumes from prices that are nearly right. Chosen likewise.
const RESUMED_ROUND: u32 = 60;

/// The allowed number of relays of an offer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    /// The number that run already or must be set up.
    pub(super) least: usize,
    pub(super) most: Option<usize>,
}

/// The multipliers: prices of money, set-up and capacity.
#[derive(Debug, Clone)]
pub(super) struct Prices {
    /// By offer.
    pub(super) ranges: Vec<Range>,
    /// The allowed range of each flow's cost, in nano-dollars.
    pub(super) spans: Vec<(i64, i64)>,
    /// The surcharge on capacity under an upper limit of relays, as a share of the set-up.
    on_top: Vec<f64>,
    /// Seconds a dollar.
    pub(super) lambda: f64,
    /// The share of an offer's set-up that is paid by capacity.
    pub(super) by_capacity: Vec<f64>,
    /// The share that each flow pays of each offer that it may pass, indexed as [`Table::uses`].
    by_flow: Vec<f64>,
}

impl Prices {
    /// Returns the dollars that a path costs the flow, set-up included.
    pub(super) fn usd(&self, table: &Table, choice: &Choice) -> f64 {
        let charge =
            |(offer, at): (usize, usize)| self.charge(table, offer, self.by_flow[at], choice.rate);
        choice.usd + choice.relays_used().map(charge).sum::<f64>()
    }

    /// Returns the dollars that a flow pays of an offer's set-up, where it pays this share whatever
    /// its rate.
    pub(super) fn charge(&self, table: &Table, offer: usize, share: f64, rate: u64) -> f64 {
        if self.ranges[offer].most == Some(0) {
            return f64::INFINITY;
        }
        let supply = &table.supplies[offer];
        let filled = rate as f64 / supply.capacity as f64;
        supply.set_up_usd * (share + (self.by_capacity[offer] + self.on_top[offer]) * filled)
    }

    /// Returns the offers of which a flow pays a share whatever its rate, and the share.
    pub(super) fn shares<'a>(
        &'a self,
        table: &'a Table,
        flow: usize,
    ) -> impl Iterator<Item = (usize, f64)> + 'a {
        let shared = |at: usize| (usize::from(table.uses()[at]), self.by_flow[at]);
        table.uses_of(flow).map(shared)
    }

    /// Returns the dollars that are given without any flow: the budget, and the value of capacity
    /// that is there anyway.
    pub(super) fn given_usd(&self, table: &Table) -> f64 {
        let given = |(offer, supply): (usize, &Supply)| {
            let Range { least, most } = self.ranges[offer];
            let must = least.saturating_sub(supply.running) as f64;
            let shares = self.by_capacity[offer] * least as f64 - must
                + self.on_top[offer] * most.unwrap_or(0) as f64;
            supply.set_up_usd * shares
        };
        let given: f64 = table.supplies.iter().enumerate().map(given).sum();
        given + if table.costs_only { 0.0 } else { table.budget_usd() }
    }

    /// Tightens the range of an offer's relays.
    pub(super) fn confine(&mut self, table: &Table, offer: usize, range: Range) {
        self.ranges[offer] = range;
        if range.least > 0 {
            let uses = self.by_flow.iter_mut().zip(table.uses());
            uses.filter(|(_, at)| usize::from(**at) == offer).for_each(|(share, _)| *share = 0.0);
        }
        if range.most.is_some_and(|most| most > 0) {
            self.on_top[offer] = self.on_top[offer].max(0.02);
        } else {
            self.on_top[offer] = 0.0;
        }
    }
}

/// The lower bound and the prices that prove it.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    /// In seconds; in dollars where cost alone is minimised.
    pub(super) least: f64,
    pub(super) prices: Prices,
    /// Each flow's choice at these prices.
    pub(super) choices: Vec<usize>,
}

/// The ascent of the multipliers.
pub(super) struct Ascent<'t> {
    table: &'t Table,
    prices: Prices,
    /// The flows' choices at these prices, and the relays' loads that follow.
    choices: Vec<usize>,
    loads: Vec<f64>,
    round: u32,
    /// The last relative excess over the budget, and the factor by which `lambda` speeds up because
    /// of it.
    trend: f64,
    gain: f64,
    pub(super) used: Used,
    pub(super) best: Bound,
}

/// The resources used by the choices of all rounds since the last resumption.
#[derive(Debug, Clone, Default)]
pub(super) struct Used {
    /// Load in relays' worth of capacity, by offer.
    loads: Vec<f64>,
    /// The number of times that each flow passed each offer, indexed as [`Table::uses`]; empty when
    /// not counted.
    passes: Vec<u32>,
    /// Least, most and sum of each flow's costs, in nano-dollars; empty when not counted.
    costs: Vec<(i64, i64, f64)>,
    rounds: u32,
}

/// The costs of a flow over the rounds, in nano-dollars.
#[derive(Debug, Clone, Copy)]
pub(super) struct CostRange {
    pub(super) least: i64,
    pub(super) mean: f64,
    pub(super) most: i64,
}

impl Used {
    /// Returns the relays of each offer, in the mean over the rounds: by capacity or, where none
    /// runs, by the flow that passes most often.
    pub(super) fn relays(&self, table: &Table, ranges: &[Range]) -> Vec<f64> {
        let rounds = f64::from(self.rounds.max(1));
        let mut relays: Vec<f64> = self.loads.iter().map(|load| load / rounds).collect();
        for (passes, offer) in self.passes.iter().zip(table.uses()) {
            let offer = usize::from(*offer);
            if ranges[offer].least == 0 {
                relays[offer] = relays[offer].max(f64::from(*passes) / rounds);
            }
        }
        relays
    }

    /// Returns each flow's costs.
    pub(super) fn costs(&self) -> impl Iterator<Item = CostRange> + '_ {
        let rounds = f64::from(self.rounds.max(1));
        let costs = self.costs.iter();
        costs.map(move |(least, most, sum)| CostRange {
            least: *least,
            mean: sum / rounds,
            most: *most,
        })
    }
}

impl<'t> Ascent<'t> {
    pub(super) fn new(table: &'t Table) -> Self {
        let (flows, offers) = (table.flows(), table.supplies.len());
        let mut users = vec![0.0; offers];
        for offer in table.uses() {
            users[usize::from(*offer)] += 1.0;
        }
        let equally = |offer: &u16| match table.supplies[usize::from(*offer)].running {
            0 => 0.5 / users[usize::from(*offer)],
            _ => 0.0,
        };
        let by_flow = table.uses().iter().map(equally).collect();
        let lambda = if table.costs_only { 1.0 } else { first_lambda(table) };
        let any = |supply: &Supply| Range { least: supply.running, most: None };
        let prices = Prices {
            lambda,
            ranges: table.supplies.iter().map(any).collect(),
            spans: vec![(i64::MIN, i64::MAX); flows],
            on_top: vec![0.0; offers],
            by_capacity: vec![0.5; offers],
            by_flow,
        };
        let choices = vec![0; flows];
        let best =
            Bound { least: fastest(table), prices: prices.clone(), choices: choices.clone() };
        let best = Bound {
            prices: Prices { lambda: if table.costs_only { 1.0 } else { 0.0 }, ..best.prices },
            ..best
        };
        let (loads, sums) = (vec![0.0; offers], vec![0.0; offers]);
        Self {
            table,
            prices,
            choices,
            loads,
            round: 0,
            trend: 0.0,
            gain: 1.0,
            used: Used { loads: sums, ..Used::default() },
            best,
        }
    }

    /// Resumes from other prices, whose bound is at least `least`, and resets the counts of use.
    pub(super) fn resume(&mut self, prices: Prices, least: f64) {
        let (flows, offers) = (self.table.flows(), self.table.supplies.len());
        let loads = vec![0.0; offers];
        self.used = Used {
            loads,
            passes: vec![0; self.table.uses().len()],
            costs: vec![(i64::MAX, i64::MIN, 0.0); flows],
            rounds: 0,
        };
        self.best = Bound { least, prices: prices.clone(), choices: self.choices.clone() };
        (self.prices, self.round) = (prices, RESUMED_ROUND);
    }

    /// Runs at most this many rounds, or until the bound reaches `enough`.
    pub(super) fn run(&mut self, rounds: u64, enough: f64, work: &mut Work<'_>) {
        for _ in 0..rounds {
            if self.best.least >= enough || !(0..=self.table.flows() / 8).all(|_| work.step()) {
                return;
            }
            let (least, paid_usd) = self.choose();
            if least > self.best.least {
                let (prices, choices) = (self.prices.clone(), self.choices.clone());
                self.best = Bound { least, prices, choices };
            }
            self.rise(paid_usd);
        }
    }

    /// Chooses for each flow at the present prices; returns the bound that they prove and the
    /// dollars that all flows pay.
    fn choose(&mut self) -> (f64, f64) {
        let (table, prices) = (self.table, &self.prices);
        let (mut total, mut paid_usd) = (0.0, 0.0);
        self.loads.fill(0.0);
        for flow in 0..table.flows() {
            let mut best = (f64::INFINITY, 0, 0.0);
            let (low, high) = prices.spans[flow];
            for (index, choice) in table.of(flow).iter().enumerate() {
                if choice.cost < low || choice.cost > high {
                    continue;
                }
                let usd = prices.usd(table, choice);
                let value = choice.score_s + prices.lambda * usd;
                if value < best.0 {
                    best = (value, index, usd);
                }
            }
            let (value, index, usd) = best;
            (total, paid_usd) = (total + value, paid_usd + usd);
            self.choices[flow] = index;
            let choice = &table.of(flow)[index];
            if let Some((least, most, sum)) = self.used.costs.get_mut(flow) {
                *least = (*least).min(choice.cost);
                *most = (*most).max(choice.cost);
                *sum += choice.cost as f64;
            }
            for (relay, at) in choice.relays_used() {
                if let Some(passes) = self.used.passes.get_mut(at) {
                    *passes += 1;
                }
                self.loads[relay] += choice.rate as f64 / table.supplies[relay].capacity as f64;
            }
        }
        let given = prices.lambda * prices.given_usd(table);
        self.used.rounds += 1;
        for (sum, load) in self.used.loads.iter_mut().zip(&self.loads) {
            *sum += load;
        }
        (total - given, paid_usd)
    }

    /// Updates the prices: up where they were too low.
    fn rise(&mut self, paid_usd: f64) {
        let table = self.table;
        let rounds = f64::from(self.round) / ROUNDS_BEFORE_SHRINKING;
        let step = FIRST_STEP / (1.0 + rounds).sqrt();
        self.round += 1;
        let given_usd = self.prices.given_usd(table);
        if !table.costs_only {
            let excess = (paid_usd - given_usd) / paid_usd.max(given_usd).max(1e-9);
            // Speeds up while the sign stays the same: near the budget the excess is small but may
            // last.
            let goes_on = excess * self.trend > 0.0;
            self.gain = (self.gain * if goes_on { 1.3 } else { 0.5 }).clamp(0.5, 30.0);
            self.trend = excess;
            self.prices.lambda *= (step * self.gain * excess).clamp(-1.0, 1.0).exp();
        }
        let offers = table.supplies.len();
        let up = step.exp();
        let mut sums = vec![0.0; offers];
        for (flow, choice) in self.choices.iter().enumerate() {
            for (_, at) in table.of(flow)[*choice].relays_used() {
                self.prices.by_flow[at] *= up;
            }
        }
        for (share, offer) in self.prices.by_flow.iter().zip(table.uses()) {
            sums[usize::from(*offer)] += *share;
        }
        for (offer, sum) in sums.iter_mut().enumerate() {
            let Range { least, most } = self.prices.ranges[offer];
            let excess = (self.loads[offer] - least as f64).clamp(-4.0, 4.0);
            if let Some(most) = most.filter(|most| *most > 0) {
                let excess = (self.loads[offer] - most as f64).clamp(-4.0, 4.0);
                let on_top = &mut self.prices.on_top[offer];
                *on_top = (*on_top * (step * excess).exp()).clamp(1e-6, 1e6);
            }
            let share = &mut self.prices.by_capacity[offer];
            // Where relays run or are required, the share that capacity does not pay is paid by no
            // flow.
            let nobody = if least > 0 { 1.0 - *share } else { 0.0 };
            *share = (*share * (step * excess).exp()).max(1e-9);
            *sum += *share + nobody;
            *share /= *sum;
        }
        let parts: Vec<f64> = sums.iter().map(|sum| 1.0 / sum).collect();
        for (share, offer) in self.prices.by_flow.iter_mut().zip(table.uses()) {
            *share *= parts[usize::from(*offer)];
        }
    }
}

/// Returns the sum of each flow's best score, or least cost where cost alone counts: a lower bound.
fn fastest(table: &Table) -> f64 {
    let value = |choice: &Choice| if table.costs_only { choice.usd } else { choice.score_s };
    let best = |flow| table.of(flow).iter().map(value).fold(f64::INFINITY, f64::min);
    (0..table.flows()).map(best).sum()
}

/// Returns the seconds won for a dollar if each flow went from its cheapest to its best option and
/// paid for its part of relays. Positive where money is worth anything: multiplicative updates
/// never leave zero.
fn first_lambda(table: &Table) -> f64 {
    let filled_usd = |choice: &Choice| -> f64 {
        let part = |relay: usize| {
            let supply = &table.supplies[relay];
            supply.set_up_usd * choice.rate as f64 / supply.capacity as f64
        };
        choice.usd + choice.relays().map(part).sum::<f64>()
    };
    let (mut won, mut paid) = (0.0, 0.0);
    for flow in 0..table.flows() {
        let all = || table.of(flow).iter().map(|choice| (choice.score_s, filled_usd(choice)));
        let least = |a: &(f64, f64), b: &(f64, f64)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1));
        let cheapest = all().min_by(|a, b| least(&(a.1, a.0), &(b.1, b.0)));
        if let (Some(cheapest), Some(best)) = (cheapest, all().min_by(least)) {
            won += cheapest.0 - best.0;
            paid += best.1 - cheapest.1;
        }
    }
    if paid > 0.0 { won / paid } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use tradewind_model::StartUp;
    use tradewind_model::cost::Prices as Egress;
    use tradewind_units::{Money, PricePerGb};

    use super::*;
    use crate::candidates::example;
    use crate::problem::{Inputs, Problem};
    use crate::solver::Limits;

    #[test]
    fn money_has_a_price_where_transfer_is_free() {
        for seed in 0..20 {
            let mut inputs = example::problem(seed, StartUp::Ignored).inputs().clone();
            inputs.prices = Egress::Flat(PricePerGb::from_usd_per_gb(0.0).unwrap());
            inputs.relay_types[0].set_up = Money::from_usd(1.0).unwrap();
            let budget = Money::from_usd(0.5).unwrap();
            let problem = Problem::new(Inputs { budget, ..inputs }).unwrap();
            let table = Table::new(&problem).unwrap();
            let fastest = fastest(&table);
            let direct = table.of(0)[0].score_s;
            if direct <= fastest {
                continue;
            }
            let mut ascent = Ascent::new(&table);
            ascent.run(200, f64::INFINITY, &mut Work::new(&Limits::work(100_000)));
            let part = (ascent.best.least - fastest) / (direct - fastest);
            assert!(part > 0.3, "seed {seed}: {part} of the way to the only plan");
        }
    }
}
