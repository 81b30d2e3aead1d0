//! The problem as flat arrays: each flow's options with their scores, costs and rates as plain
//! numbers.

use tradewind_units::Money;

use crate::problem::{MAX_RELAYS, Objective, Problem};
use crate::solver::obstacle::fits;

/// A candidate as plain numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    /// Its term of the objective, in seconds.
    pub(super) score_s: f64,
    /// Its egress and move, in dollars, and exactly in nano-dollars.
    pub(super) usd: f64,
    pub(super) cost: i64,
    /// The capacity that it takes of each relay, in bit/s.
    pub(super) rate: u64,
    /// Its index among the problem's candidates of the flow.
    pub(super) place: u32,
    /// The indexes in [`Table::uses`] of the flow's use of each of its relays.
    uses: [u32; MAX_RELAYS],
    relays: [u16; MAX_RELAYS],
    count: u8,
}

impl Choice {
    /// Returns its relays' offers.
    pub(super) fn relays(&self) -> impl Iterator<Item = usize> + '_ {
        self.relays[..usize::from(self.count)].iter().map(|relay| usize::from(*relay))
    }

    /// Returns its relays' offers, each with the index of the flow's use of it in [`Table::uses`].
    pub(super) fn relays_used(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.relays().zip(self.uses.iter().map(|place| *place as usize))
    }

    /// Returns the number of relays on it.
    pub(super) const fn hops(&self) -> usize {
        self.count as usize
    }

    /// Returns whether it passes a relay of this offer.
    pub(super) fn passes(&self, offer: usize) -> bool {
        self.relays().any(|relay| relay == offer)
    }
}

/// An offer's numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Supply {
    /// Set-up of one relay, in nano-dollars.
    pub(super) set_up: i64,
    pub(super) set_up_usd: f64,
    pub(super) running: usize,
    /// The greatest number of relays, and the extra cost of each beyond it.
    pub(super) most: usize,
    pub(super) beyond: i64,
    pub(super) capacity: u64,
}

impl Supply {
    /// Returns the cost of `count` relays, in nano-dollars.
    pub(super) const fn cost_of(&self, count: usize) -> i64 {
        let set_up = self.set_up.saturating_mul(count.saturating_sub(self.running) as i64);
        set_up.saturating_add(self.beyond.saturating_mul(count.saturating_sub(self.most) as i64))
    }

    /// Returns the cost of one more than `count`, in nano-dollars.
    pub(super) const fn cost_of_next(&self, count: usize) -> i64 {
        let set_up = if count >= self.running { self.set_up } else { 0 };
        if count >= self.most { set_up.saturating_add(self.beyond) } else { set_up }
    }
}

/// All flows' options, one after another.
#[derive(Debug)]
pub(super) struct Table {
    all: Vec<Choice>,
    starts: Vec<usize>,
    /// The offers that some choice of a flow passes, flow by flow, increasing.
    uses: Vec<u16>,
    use_starts: Vec<usize>,
    /// Flow and choice of all that pass an offer, by offer.
    through: Vec<Vec<(u32, u32)>>,
    pub(super) supplies: Vec<Supply>,
    /// In nano-dollars.
    pub(super) budget: i64,
    pub(super) costs_only: bool,
}

/// Returns nano-dollars; sums over a plan fit too, as [`Problem::new`] checks.
pub(super) fn nanos(money: Money) -> i64 {
    i64::try_from(money.as_nano_usd()).unwrap_or(i64::MAX)
}

impl Table {
    /// Returns `None` where no relay can carry a flow that has no direct path.
    pub(super) fn new(problem: &Problem) -> Option<Self> {
        let supplies: Vec<Supply> = (problem.offers().iter())
            .map(|offer| Supply {
                set_up: nanos(offer.relay_type.set_up),
                set_up_usd: offer.relay_type.set_up.as_usd(),
                running: offer.running,
                most: offer.most.unwrap_or(usize::MAX),
                beyond: nanos(offer.beyond()),
                capacity: offer.capacity_bps(),
            })
            .collect();
        let mut all = Vec::new();
        let mut starts = vec![0];
        for flow in 0..problem.flows().len() {
            for (place, candidate) in problem.candidates(flow).iter().enumerate() {
                if !fits(problem, candidate) {
                    continue;
                }
                let mut relays = [0; MAX_RELAYS];
                for (to, relay) in relays.iter_mut().zip(&candidate.relays) {
                    *to = u16::try_from(*relay).unwrap_or(u16::MAX);
                }
                all.push(Choice {
                    score_s: candidate.score.as_secs_f64(),
                    usd: candidate.cost.as_usd(),
                    cost: nanos(candidate.cost),
                    rate: candidate.rate.as_bps(),
                    place: u32::try_from(place).unwrap_or(u32::MAX),
                    uses: [0; MAX_RELAYS],
                    relays,
                    count: u8::try_from(candidate.relays.len()).unwrap_or(u8::MAX),
                });
            }
            if starts.last() == Some(&all.len()) {
                return None;
            }
            starts.push(all.len());
        }
        let mut through = vec![Vec::new(); supplies.len()];
        for flow in 0..starts.len() - 1 {
            for (index, choice) in all[starts[flow]..starts[flow + 1]].iter().enumerate() {
                for relay in choice.relays() {
                    through[relay].push((flow as u32, index as u32));
                }
            }
        }
        let costs_only = problem.objective() == Objective::Cost;
        let (uses, use_starts) = note_uses(&mut all, &starts);
        let budget = nanos(problem.budget_within());
        Some(Self { all, starts, uses, use_starts, through, supplies, budget, costs_only })
    }

    /// Returns the offers that flows may pass: each flow's, increasing, one flow after another.
    pub(super) fn uses(&self) -> &[u16] {
        &self.uses
    }

    /// Returns the range of a flow's offers in [`Table::uses`].
    pub(super) fn uses_of(&self, flow: usize) -> std::ops::Range<usize> {
        self.use_starts[flow]..self.use_starts[flow + 1]
    }

    pub(super) fn flows(&self) -> usize {
        self.starts.len() - 1
    }

    pub(super) fn of(&self, flow: usize) -> &[Choice] {
        &self.all[self.starts[flow]..self.starts[flow + 1]]
    }

    /// Returns flow and choice of all that pass an offer, by flow.
    pub(super) fn through(&self, offer: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.through[offer].iter().map(|(flow, choice)| (*flow as usize, *choice as usize))
    }

    pub(super) fn budget_usd(&self) -> f64 {
        self.budget as f64 / 1e9
    }

    /// Returns the number of options of all flows together.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

/// Returns the offers of each flow's choices and where each flow's begin; sets their indexes in the
/// choices.
fn note_uses(all: &mut [Choice], starts: &[usize]) -> (Vec<u16>, Vec<usize>) {
    let (mut uses, mut use_starts) = (Vec::new(), vec![0]);
    for flow in starts.windows(2) {
        let choices = &mut all[flow[0]..flow[1]];
        let first = uses.len();
        let mut offers: Vec<u16> =
            choices.iter().flat_map(|c| &c.relays[..usize::from(c.count)]).copied().collect();
        offers.sort_unstable();
        offers.dedup();
        for choice in choices {
            let hops = choice.hops();
            for (place, relay) in choice.uses.iter_mut().zip(choice.relays).take(hops) {
                let at = first + offers.partition_point(|offer| *offer < relay);
                *place = u32::try_from(at).unwrap_or(u32::MAX);
            }
        }
        uses.extend(offers);
        use_starts.push(uses.len());
    }
    (uses, use_starts)
}
