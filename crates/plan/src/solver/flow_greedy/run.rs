//! The greedy steps [CP VI, Algorithm 1], over a given supply of relays.
//!
//! A flow's list is a sublist of the list of all paths, in the same order. So the steps are one
//! pass over that list: a path is selected if its flow has none yet and relays and budget allow it.

use std::cmp::Reverse;

use tradewind_units::Money;

use super::cheapest_wins;
use super::events::Events;
use super::list::{Entry, Lists, Rank, nano_dollars};
use super::rows::{CLASSES, Left};
use crate::problem::Problem;
use crate::solver::Work;

/// The value of a run: the greater, the better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Value {
    /// The number of flows without a direct path that got a path.
    urgent: usize,
    /// The nanoseconds of score saved.
    pub(crate) gain: i128,
    /// The cost, where only that counts.
    cost: Reverse<i128>,
}

/// An offer's numbers for the greedy steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// The capacity of one relay, in bit/s.
    pub(crate) capacity: u64,
    /// The set-up of one relay, in nano-dollars.
    pub(crate) set_up: i128,
    /// The number of relays that cost no set-up.
    pub(crate) running: usize,
    /// The most relays.
    most: usize,
    /// The least rate of a path over it.
    least_rate: u64,
}

/// The relays of an offer.
#[derive(Debug, Clone, Copy)]
struct Fleet {
    /// The number in use.
    used: usize,
    /// The greatest free capacity of one of them, in bit/s.
    free: u64,
    /// The free capacity of one more; zero where there may be none.
    next: u64,
    /// The cost of one more, in nano-dollars.
    price: i128,
    /// The class from which on the paths over it have been removed.
    closed_from: u8,
    /// The free capacity, in bit/s, at which more paths are to be removed.
    watched: u64,
}

impl Fleet {
    /// A fleet with none in use and all paths left.
    const OPEN: Self =
        Self { used: 0, free: 0, next: 0, price: 0, closed_from: CLASSES as u8, watched: u64::MAX };

    /// Returns the cost of capacity for the rate; none if there is not enough.
    fn cost_of(&self, rate: u64) -> Option<i128> {
        if rate <= self.free {
            return Some(0);
        }
        (rate <= self.next).then_some(self.price)
    }
}

/// The state of a run.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The paths left to try.
    pub(crate) paths: Left,
    /// By flow: whether it has its path.
    pub(crate) is_done: Vec<bool>,
    fleets: Vec<Fleet>,
    /// The free capacity of each relay in use: `stride` entries for each offer.
    free_by_relay: Vec<u64>,
    stride: usize,
    /// Set once paths over several relays have been removed.
    has_no_several: bool,
    /// The budget left, in nano-dollars.
    left: i128,
    urgent: usize,
    gain: i128,
    /// An upper bound on the run's value, where prices are given.
    pub(crate) hope: i128,
}

impl Clone for State {
    fn clone(&self) -> Self {
        let mut copy = Self::default();
        copy.clone_from(self);
        copy
    }

    fn clone_from(&mut self, other: &Self) {
        self.paths.clone_from(&other.paths);
        self.is_done.clone_from(&other.is_done);
        self.fleets.clone_from(&other.fleets);
        self.free_by_relay.clone_from(&other.free_by_relay);
        self.stride = other.stride;
        (self.has_no_several, self.left) = (other.has_no_several, other.left);
        (self.urgent, self.gain, self.hope) = (other.urgent, other.gain, other.hope);
    }
}

/// A bound by which a run ends early that cannot win any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Race<'p> {
    /// Each path's gain less its price.
    pub(crate) reduced: &'p [i64],
    /// The greatest such difference of each flow.
    pub(crate) most: &'p [i64],
    /// The value to exceed.
    pub(crate) threshold: i128,
}

/// One run of the greedy steps. Reused between runs to save allocations.
#[derive(Debug, Clone)]
pub(crate) struct Run<'a> {
    lists: &'a Lists,
    budget: i128,
    cheapest_wins: bool,
    terms: Vec<Terms>,
    /// The greatest set-up of any relay.
    most_set_up: i128,
    /// Set if no path gives money back.
    only_costs: bool,
    /// The most relays that may be used, by offer.
    pub(crate) supply: Vec<usize>,
    pub(crate) state: State,
    /// The paths selected since the run was started.
    selected: Vec<Rank>,
    /// The number of paths tried since the beginning.
    tried: u64,
}

/// The paths tried in one step of work. Chosen: some million are tried in a second.
const PATHS_PER_STEP: u64 = 16;

/// The initial number of entries for relays of an offer. Chosen: few problems need more.
const FIRST_STRIDE: usize = 4;

impl<'a> Run<'a> {
    pub(crate) fn new(problem: &Problem, lists: &'a Lists) -> Self {
        let mut terms: Vec<Terms> = (problem.offers().iter())
            .map(|offer| Terms {
                capacity: offer.capacity_bps(),
                set_up: nano_dollars(offer.relay_type.set_up),
                running: offer.running,
                most: offer.most.unwrap_or(usize::MAX),
                least_rate: u64::MAX,
            })
            .collect();
        for entry in &lists.entries {
            for offer in entry.relays() {
                let least = &mut terms[*offer as usize].least_rate;
                *least = entry.rate.min(*least);
            }
        }
        let direct: Money = lists.flows.iter().filter_map(|list| list.direct).sum();
        Self {
            lists,
            budget: nano_dollars(problem.budget()) - nano_dollars(direct),
            cheapest_wins: cheapest_wins(problem),
            most_set_up: terms.iter().map(|terms| terms.set_up).max().unwrap_or_default(),
            only_costs: direct == Money::ZERO,
            supply: vec![0; terms.len()],
            terms,
            state: State::default(),
            selected: Vec::new(),
            tried: 0,
        }
    }

    /// Returns whether a run's value is its gain alone, and no path gives money back.
    pub(crate) fn is_plain(&self) -> bool {
        self.only_costs && self.lists.all_direct && !self.cheapest_wins
    }

    /// Returns the budget in nano-dollars, less the direct paths' costs.
    pub(crate) const fn budget(&self) -> i128 {
        self.budget
    }

    /// Returns the offers' numbers.
    pub(crate) fn terms(&self) -> &[Terms] {
        &self.terms
    }

    /// Starts anew, with paths over at most so many offers without relays.
    pub(crate) fn start(&mut self, lacks: usize) {
        let state = &mut self.state;
        self.lists.rows.all(&mut state.paths);
        self.lists.rows.keep_within(&self.supply, lacks, &mut state.paths);
        state.is_done.clear();
        state.is_done.resize(self.lists.flows.len(), false);
        state.fleets.clear();
        state.fleets.resize(self.terms.len(), Fleet::OPEN);
        state.stride = state.stride.max(FIRST_STRIDE);
        state.free_by_relay.clear();
        state.free_by_relay.resize(self.terms.len() * state.stride, 0);
        (state.has_no_several, state.left) = (false, self.budget);
        (state.urgent, state.gain, state.hope) = (0, 0, i128::MAX);
        (0..self.supply.len()).for_each(|offer| self.count(offer));
        self.selected.clear();
    }

    /// Resumes from this state, with a supply that has one relay more of the offer than the one in
    /// the run that led to it.
    pub(crate) fn resume(&mut self, state: &State, offer: usize) {
        self.state.clone_from(state);
        self.count(offer);
    }

    /// Updates capacity and cost of one more relay of the offer.
    fn count(&mut self, offer: usize) {
        let (terms, fleet) = (&self.terms[offer], &mut self.state.fleets[offer]);
        let supply = self.supply[offer].min(terms.most);
        fleet.next = if fleet.used < supply { terms.capacity } else { 0 };
        fleet.price = if fleet.used < terms.running { 0 } else { terms.set_up };
    }

    /// Takes greedy steps until no path is left that could be selected, and records in `events`
    /// where a larger supply would have mattered. Returns false when it stops early: once the run
    /// cannot win any more, or when there is no work left.
    pub(crate) fn go(
        &mut self,
        race: Option<Race<'_>>,
        mut events: Option<&mut Events>,
        work: &mut Work<'_>,
    ) -> bool {
        let cheapest = i128::from(self.lists.cheapest);
        while let Some(rank) = self.state.paths.first() {
            if self.only_costs && self.state.left < cheapest {
                return true;
            }
            self.tried += 1;
            if self.tried.is_multiple_of(PATHS_PER_STEP) && !work.step() {
                return false;
            }
            let entry = self.lists.entry(rank);
            if !self.state.is_done[entry.flow as usize] {
                if let Some(cost) = self.cost_of(entry) {
                    if race.is_some_and(|race| self.is_lost_by(rank, entry, race)) {
                        return false;
                    }
                    self.take(rank, entry, cost, events.as_deref());
                } else if let Some(events) = events.as_deref_mut() {
                    self.note_short(rank, entry, events);
                }
            }
            self.state.paths.remove(rank);
        }
        true
    }

    /// Takes all remaining steps, as [`Run::go`] does; returns none when the run cannot win or no
    /// work is left, in which case all lacks not recorded so far count as lost.
    pub(crate) fn finish(
        &mut self,
        race: Option<Race<'_>>,
        mut events: Option<&mut Events>,
        work: &mut Work<'_>,
    ) -> Option<Value> {
        let is_lost = race.is_some_and(|race| self.state.hope <= race.threshold);
        if !is_lost && self.go(race, events.as_deref_mut(), work) {
            return Some(self.value());
        }
        events.into_iter().for_each(Events::lose_the_rest);
        None
    }

    /// Subtracts the loss of this path against the flow's best one; returns whether the run cannot
    /// win any more.
    fn is_lost_by(&mut self, rank: Rank, entry: &Entry, race: Race<'_>) -> bool {
        let (most, own) = (race.most[entry.flow as usize], race.reduced[rank as usize]);
        self.state.hope -= i128::from(most) - i128::from(own);
        self.state.hope <= race.threshold
    }

    /// Returns the path's extra cost, relays included; `None` when relays or budget do not allow
    /// it.
    fn cost_of(&self, entry: &Entry) -> Option<i128> {
        let mut cost = i128::from(entry.more);
        for offer in entry.relays() {
            cost += self.state.fleets[*offer as usize].cost_of(entry.rate)?;
        }
        (cost <= self.state.left).then_some(cost)
    }

    /// Records the offers of which the path lacks a relay, unless it lacks too many or exceeds the
    /// budget with them, too.
    fn note_short(&mut self, rank: Rank, entry: &Entry, events: &mut Events) {
        let is_short = |run: &Self, offer: usize| {
            let fleet = &run.state.fleets[offer];
            entry.rate > fleet.free && fleet.used >= run.supply[offer]
        };
        let mut cost = i128::from(entry.more);
        let mut short = 0;
        for offer in entry.relays().iter().map(|offer| *offer as usize) {
            let fleet = &self.state.fleets[offer];
            if entry.rate > self.terms[offer].capacity {
                return;
            }
            cost += if entry.rate > fleet.free { fleet.price } else { 0 };
            short += usize::from(is_short(self, offer));
        }
        if short > events.lacks || cost > self.state.left {
            return;
        }
        for offer in entry.relays().iter().map(|offer| *offer as usize) {
            if is_short(self, offer) {
                events.note(offer, rank, &self.state);
            }
        }
        for offer in entry.relays() {
            self.remove_exhausted(*offer as usize, Some(events));
        }
    }

    /// Gives the flow its path, on the first relays with the capacity or on new ones.
    fn take(&mut self, rank: Rank, entry: &Entry, cost: i128, events: Option<&Events>) {
        for offer in entry.relays() {
            self.place(*offer as usize, entry.rate);
        }
        let (state, flow) = (&mut self.state, entry.flow as usize);
        state.left -= cost;
        state.gain += i128::from(entry.gain);
        state.urgent += usize::from(self.lists.flows[flow].direct.is_none());
        state.is_done[flow] = true;
        state.paths.remove_flow(flow, &self.lists.rows);
        self.selected.push(rank);
        for offer in entry.relays() {
            self.remove_exhausted(*offer as usize, events);
        }
        if self.only_costs {
            self.remove_unaffordable();
        }
    }

    /// Takes the rate from the first relay with the capacity, or from a new one.
    fn place(&mut self, offer: usize, rate: u64) {
        if self.state.fleets[offer].used == self.state.stride {
            self.grow();
        }
        let State { fleets, free_by_relay, stride, .. } = &mut self.state;
        let fleet = &mut fleets[offer];
        let free_by_relay = &mut free_by_relay[offer * *stride..][..*stride];
        let is_there = rate <= fleet.free;
        if is_there {
            let first = free_by_relay.iter_mut().find(|free| **free >= rate);
            *first.expect("one has the most room") -= rate;
        } else {
            free_by_relay[fleet.used] = self.terms[offer].capacity - rate;
            fleet.used += 1;
        }
        // Entries of relays that are not in use are zero.
        let (quads, _) = free_by_relay.as_chunks::<FIRST_STRIDE>();
        let most = |[a, b, c, d]: &[u64; FIRST_STRIDE]| (*a.max(b)).max(*c.max(d));
        fleet.free = quads.iter().map(most).max().unwrap_or(0);
        if !is_there {
            self.count(offer);
        }
    }

    /// Doubles the entries for relays of each offer.
    fn grow(&mut self) {
        let state = &mut self.state;
        let wider = state.stride * 2;
        let mut free_by_relay = vec![0; self.terms.len() * wider];
        for (new, old) in
            free_by_relay.chunks_mut(wider).zip(state.free_by_relay.chunks(state.stride))
        {
            new[..old.len()].copy_from_slice(old);
        }
        (state.free_by_relay, state.stride) = (free_by_relay, wider);
    }

    /// Removes paths over an offer that lacks the capacity for them, once its lack has been
    /// recorded.
    fn remove_exhausted(&mut self, offer: usize, events: Option<&Events>) {
        let fleet = &self.state.fleets[offer];
        let free = fleet.free.max(fleet.next);
        if free <= fleet.watched && events.is_none_or(|events| events.has(offer)) {
            self.close(offer, self.lists.rows.class_above(offer, free));
        }
    }

    /// Removes the paths over more than `lacks` offers without relays.
    pub(crate) fn keep_within(&mut self, lacks: usize) {
        self.lists.rows.keep_within(&self.supply, lacks, &mut self.state.paths);
        if lacks > 0 {
            return;
        }
        for (fleet, _) in self.state.fleets.iter_mut().zip(&self.supply).filter(|(_, n)| **n == 0) {
            (fleet.closed_from, fleet.watched) = (0, 0);
        }
    }

    /// Removes the paths over the offer from this class on.
    fn close(&mut self, offer: usize, class: usize) {
        let State { fleets, paths, .. } = &mut self.state;
        let (fleet, rows) = (&mut fleets[offer], &self.lists.rows);
        if class < usize::from(fleet.closed_from) {
            fleet.closed_from = class as u8;
            paths.remove_class(offer, class, rows);
        }
        fleet.watched = rows.limit_below(offer, usize::from(fleet.closed_from));
    }

    /// Removes paths that cost more than is left, where cheap checks find them.
    fn remove_unaffordable(&mut self) {
        let (lists, state) = (self.lists, &mut self.state);
        let is_short = state.left < i128::from(lists.cheapest_several);
        if is_short && !std::mem::replace(&mut state.has_no_several, true) {
            state.paths.remove_several(&lists.rows);
        }
        let least = i128::from(lists.cheapest);
        if state.left >= least + self.most_set_up {
            return;
        }
        for offer in 0..self.terms.len() {
            let fleet = &self.state.fleets[offer];
            let is_dear = fleet.price > 0 && self.state.left < least + fleet.price;
            if is_dear && fleet.free < self.terms[offer].least_rate {
                self.close(offer, 0);
            }
        }
    }

    /// Returns the value of the run.
    pub(crate) fn value(&self) -> Value {
        let spent = self.budget - self.state.left;
        let cost = if self.cheapest_wins { spent } else { 0 };
        Value { urgent: self.state.urgent, gain: self.state.gain, cost: Reverse(cost) }
    }

    /// Returns the paths selected, in order, if the run was not resumed.
    pub(crate) fn selected(&self) -> &[Rank] {
        &self.selected
    }
}
