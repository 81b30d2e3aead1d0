//! All trees of a plan in the making: what each leg carries, what each offer sends, and what that
//! costs.
//!
//! Relays of an offer are not told apart here, so that a change costs little to judge: an offer
//! needs as many as its streams fill. The true plan, packed relay by relay, may need more;
//! [`super::climb`] asks for it before it keeps anything.

use std::collections::BTreeMap;

use tradewind_units::Money;

use crate::problem::Problem;

/// Rates of the flows in one stream, in bit/s, and how many have each.
#[derive(Debug, Clone, Default)]
struct Stream {
    rates: BTreeMap<u64, u32>,
    usd: f64,
}

impl Stream {
    fn rate(&self) -> u64 {
        self.rates.last_key_value().map_or(0, |(rate, _)| *rate)
    }
}

/// What flows make of the offers that they pass.
#[derive(Debug, Clone)]
pub(super) struct Grove<'p> {
    problem: &'p Problem,
    /// Legs between relays, by tree and the offers to their end.
    streams: BTreeMap<(usize, Vec<usize>), Stream>,
    /// What each offer sends, in bit/s.
    loads: Vec<u64>,
    /// Streams out of each offer.
    users: Vec<usize>,
    /// Sums over flows: seconds, and dollars without set-up.
    pub(super) score_s: f64,
    carrying_usd: f64,
    set_up_usd: f64,
}

impl<'p> Grove<'p> {
    pub(super) fn new(problem: &'p Problem) -> Self {
        let offers = problem.offers().len();
        Self {
            problem,
            streams: BTreeMap::new(),
            loads: vec![0; offers],
            users: vec![0; offers],
            score_s: 0.0,
            carrying_usd: 0.0,
            set_up_usd: 0.0,
        }
    }

    /// Dollars for everything.
    pub(super) fn usd(&self) -> f64 {
        self.carrying_usd + self.set_up_usd
    }

    /// Streams out of an offer.
    pub(super) fn users(&self, offer: usize) -> usize {
        self.users[offer]
    }

    /// Puts a flow on a candidate.
    pub(super) fn add(&mut self, flow: usize, candidate: usize) {
        let chosen = &self.problem.candidates(flow)[candidate];
        self.score_s += chosen.score.as_secs_f64();
        self.carrying_usd += chosen.cost.as_usd();
        let rate = chosen.rate.as_bps();
        let Some(tree) = self.problem.tree(flow) else {
            return chosen.relays.iter().for_each(|offer| self.send(*offer, 0, rate, 1));
        };
        self.grow(tree, flow, &chosen.relays, rate);
        if let Some(last) = chosen.relays.last() {
            self.send(*last, 0, rate, 1);
        }
    }

    /// Takes a flow off its candidate.
    pub(super) fn remove(&mut self, flow: usize, candidate: usize) {
        let chosen = &self.problem.candidates(flow)[candidate];
        self.score_s -= chosen.score.as_secs_f64();
        self.carrying_usd -= chosen.cost.as_usd();
        let rate = chosen.rate.as_bps();
        let Some(tree) = self.problem.tree(flow) else {
            return chosen.relays.iter().for_each(|offer| self.send(*offer, rate, 0, -1));
        };
        self.cut(tree, &chosen.relays, rate);
        if let Some(last) = chosen.relays.last() {
            self.send(*last, rate, 0, -1);
        }
    }

    /// Opens a trunk's legs and a relay at its end as if a flow took them that weighs nothing and
    /// pays nothing: whoever joins finds them paid for, until [`Grove::close`].
    pub(super) fn open(&mut self, tree: usize, flow: usize, shared_prefix: &[usize]) {
        self.grow(tree, flow, shared_prefix, 0);
        if let Some(last) = shared_prefix.last() {
            self.send(*last, 0, 0, 1);
        }
    }

    /// Takes that flow away.
    pub(super) fn close(&mut self, tree: usize, shared_prefix: &[usize]) {
        self.cut(tree, shared_prefix, 0);
        if let Some(last) = shared_prefix.last() {
            self.send(*last, 0, 0, -1);
        }
    }

    /// Adds a flow to the legs between these relays; those that have one already cost nothing more.
    fn grow(&mut self, tree: usize, flow: usize, relays: &[usize], rate: u64) {
        for end in 1..=relays.len() {
            let (from, to) = (end.checked_sub(2).map(|at| relays[at]), relays[end - 1]);
            let stream = self.streams.entry((tree, relays[..end].to_vec())).or_default();
            let (is_new, before) = (stream.rates.is_empty(), stream.rate());
            if is_new {
                let egress = match from {
                    Some(from) => self.problem.egress_between(flow, from, to),
                    None => self.problem.egress_to_first(flow, to),
                };
                stream.usd = egress.unwrap_or(Money::ZERO).as_usd();
            } else {
                self.carrying_usd -= stream.usd;
            }
            *stream.rates.entry(rate).or_default() += 1;
            let after = stream.rate();
            // What the source sends takes nothing of any relay's capacity.
            if let Some(from) = from {
                self.send(from, before, after, i64::from(is_new));
            }
        }
    }

    fn cut(&mut self, tree: usize, relays: &[usize], rate: u64) {
        for end in 1..=relays.len() {
            let key = (tree, relays[..end].to_vec());
            let Some(stream) = self.streams.get_mut(&key) else { continue };
            let before = stream.rate();
            if let Some(count) = stream.rates.get_mut(&rate) {
                *count -= 1;
                if *count == 0 {
                    stream.rates.remove(&rate);
                }
            }
            let (after, is_gone) = (stream.rate(), stream.rates.is_empty());
            if is_gone {
                self.streams.remove(&key);
            } else {
                self.carrying_usd += stream.usd;
            }
            if let Some(from) = end.checked_sub(2).map(|at| relays[at]) {
                self.send(from, before, after, -i64::from(is_gone));
            }
        }
    }

    /// Changes what an offer sends, and with it how many relays it needs.
    fn send(&mut self, offer: usize, before: u64, after: u64, users: i64) {
        self.set_up_usd -= self.set_up(offer);
        self.loads[offer] = (self.loads[offer] + after).saturating_sub(before);
        self.users[offer] = self.users[offer].saturating_add_signed(users as isize);
        self.set_up_usd += self.set_up(offer);
    }

    fn set_up(&self, offer: usize) -> f64 {
        let offered = &self.problem.offers()[offer];
        let filled = self.loads[offer].div_ceil(offered.capacity_bps());
        let count = usize::try_from(filled).unwrap_or(usize::MAX);
        offered.set_up(count.max(usize::from(self.users[offer] > 0))).as_usd()
    }
}
