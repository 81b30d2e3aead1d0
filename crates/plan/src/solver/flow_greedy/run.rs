//! The greedy steps themselves [CP VI, Algorithm 1], over a given supply of relays.
//!
//! A flow's list is a part of the list of all paths, in the same order. So the steps are one walk
//! over that list: a path is taken if its flow has none yet and relays and budget allow it.

use std::cmp::Reverse;

use tradewind_units::Money;

use super::cheapest_wins;
use super::events::Events;
use super::list::{Entry, Lists, Rank, nano_dollars};
use super::rows::{CLASSES, Left};
use crate::problem::Problem;
use crate::solver::Work;

/// How good a run is: the greater, the better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Value {
    /// Flows without direct path that got one.
    urgent: usize,
    /// Nanoseconds of score saved.
    pub(crate) gain: i128,
    /// What is paid, where only that counts.
    cost: Reverse<i128>,
}

/// What a relay type in a region offers, as the steps need it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// What one carries, in bit/s.
    pub(crate) capacity: u64,
    /// Nano-dollars.
    pub(crate) set_up: i128,
    /// Relays that cost no set-up.
    pub(crate) running: usize,
    /// Relays that there may be.
    most: usize,
    /// The least that a path takes of one.
    least_rate: u64,
}

/// The relays of an offer.
#[derive(Debug, Clone, Copy)]
struct Fleet {
    /// How many are in use.
    used: usize,
    /// Most room that one of them has, in bit/s.
    room: u64,
    /// What one more would have, if there may be one.
    next: u64,
    /// What that would cost, in nano-dollars.
    price: i128,
    /// From which class on the paths over it have been removed.
    closed_from: u8,
    /// More are to be removed once there is room for no more than this, in bit/s.
    watched: u64,
}

impl Fleet {
    /// None in use, all paths there.
    const OPEN: Self =
        Self { used: 0, room: 0, next: 0, price: 0, closed_from: CLASSES as u8, watched: u64::MAX };

    /// What room for the rate costs, if there is some.
    fn cost_of(&self, rate: u64) -> Option<i128> {
        if rate <= self.room {
            return Some(0);
        }
        (rate <= self.next).then_some(self.price)
    }
}

/// How far a run is.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Paths that are to be tried.
    pub(crate) paths: Left,
    /// Flow by flow: whether it has its path.
    pub(crate) is_done: Vec<bool>,
    fleets: Vec<Fleet>,
    /// Room of each relay in use: `stride` places for each offer.
    rooms: Vec<u64>,
    stride: usize,
    /// Whether paths over several relays have been removed.
    has_no_several: bool,
    /// Nano-dollars.
    left: i128,
    urgent: usize,
    gain: i128,
    /// What the run can come to, if prices tell.
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
        self.rooms.clone_from(&other.rooms);
        self.stride = other.stride;
        (self.has_no_several, self.left) = (other.has_no_several, other.left);
        (self.urgent, self.gain, self.hope) = (other.urgent, other.gain, other.hope);
    }
}

/// Tells when a run cannot win any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Race<'p> {
    /// Each path's gain less its price.
    pub(crate) reduced: &'p [i64],
    /// The most of it that each flow could have.
    pub(crate) most: &'p [i64],
    /// What must be exceeded.
    pub(crate) beat: i128,
}

/// One run of the greedy steps. Kept between runs for its memory.
#[derive(Debug, Clone)]
pub(crate) struct Run<'a> {
    lists: &'a Lists,
    budget: i128,
    cheapest_wins: bool,
    terms: Vec<Terms>,
    /// The most set-up of any relay.
    most_set_up: i128,
    /// Whether no path gives anything back.
    only_costs: bool,
    /// Most relays that may be used, offer by offer.
    pub(crate) supply: Vec<usize>,
    pub(crate) state: State,
    /// The paths taken since the run was started.
    taken: Vec<Rank>,
    /// Paths tried since the beginning.
    tried: u64,
}

/// Paths tried for one step of work. Chosen: some million are tried in a second.
const PATHS_PER_STEP: u64 = 16;

/// Relays of an offer that there is room for at first. Chosen: few problems need more.
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
            taken: Vec::new(),
            tried: 0,
        }
    }

    /// Whether a run is as good as what it gains, and never gets money back.
    pub(crate) fn is_plain(&self) -> bool {
        self.only_costs && self.lists.all_direct && !self.cheapest_wins
    }

    /// What is there to spend, in nano-dollars.
    pub(crate) const fn budget(&self) -> i128 {
        self.budget
    }

    /// What the offers have.
    pub(crate) fn terms(&self) -> &[Terms] {
        &self.terms
    }

    /// Begins anew, with paths that lack at most so many of the offers that have no relays.
    pub(crate) fn start(&mut self, lacks: usize) {
        let state = &mut self.state;
        self.lists.rows.all(&mut state.paths);
        self.lists.rows.keep_within(&self.supply, lacks, &mut state.paths);
        state.is_done.clear();
        state.is_done.resize(self.lists.flows.len(), false);
        state.fleets.clear();
        state.fleets.resize(self.terms.len(), Fleet::OPEN);
        state.stride = state.stride.max(FIRST_STRIDE);
        state.rooms.clear();
        state.rooms.resize(self.terms.len() * state.stride, 0);
        (state.has_no_several, state.left) = (false, self.budget);
        (state.urgent, state.gain, state.hope) = (0, 0, i128::MAX);
        (0..self.supply.len()).for_each(|offer| self.count(offer));
        self.taken.clear();
    }

    /// Goes on from this state, with a supply that has one relay more of the offer than the one
    /// that led to it.
    pub(crate) fn resume(&mut self, state: &State, offer: usize) {
        self.state.clone_from(state);
        self.count(offer);
    }

    /// Looks up what one relay more of the offer would have and cost.
    fn count(&mut self, offer: usize) {
        let (terms, fleet) = (&self.terms[offer], &mut self.state.fleets[offer]);
        let supply = self.supply[offer].min(terms.most);
        fleet.next = if fleet.used < supply { terms.capacity } else { 0 };
        fleet.price = if fleet.used < terms.running { 0 } else { terms.set_up };
    }

    /// Takes greedy steps until no path is left that could be taken, and notes in `events` where a
    /// larger supply would have mattered. Stops early, and says so by `false`, once the race is
    /// lost, or when there is no work left.
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

    /// Takes all steps that are left, as [`Run::go`] does; none when the race is lost, in which
    /// case all that was not lacking so far is lost too.
    pub(crate) fn finish(
        &mut self,
        race: Option<Race<'_>>,
        mut events: Option<&mut Events>,
        work: &mut Work<'_>,
    ) -> Option<Value> {
        let is_lost = race.is_some_and(|race| self.state.hope <= race.beat);
        if !is_lost && self.go(race, events.as_deref_mut(), work) {
            return Some(self.value());
        }
        events.into_iter().for_each(Events::lose_the_rest);
        None
    }

    /// Counts what is lost with this path against the flow's best one; says whether that is too
    /// much.
    fn is_lost_by(&mut self, rank: Rank, entry: &Entry, race: Race<'_>) -> bool {
        let (most, own) = (race.most[entry.flow as usize], race.reduced[rank as usize]);
        self.state.hope -= i128::from(most) - i128::from(own);
        self.state.hope <= race.beat
    }

    /// What the path costs on top, relays included; `None` when relays or budget do not allow it.
    fn cost_of(&self, entry: &Entry) -> Option<i128> {
        let mut cost = i128::from(entry.more);
        for offer in entry.relays() {
            cost += self.state.fleets[*offer as usize].cost_of(entry.rate)?;
        }
        (cost <= self.state.left).then_some(cost)
    }

    /// Notes which offers the path lacks a relay of, unless it lacks too many or could not be paid
    /// for with them either.
    fn note_short(&mut self, rank: Rank, entry: &Entry, events: &mut Events) {
        let is_short = |run: &Self, offer: usize| {
            let fleet = &run.state.fleets[offer];
            entry.rate > fleet.room && fleet.used >= run.supply[offer]
        };
        let mut cost = i128::from(entry.more);
        let mut short = 0;
        for offer in entry.relays().iter().map(|offer| *offer as usize) {
            let fleet = &self.state.fleets[offer];
            if entry.rate > self.terms[offer].capacity {
                return;
            }
            cost += if entry.rate > fleet.room { fleet.price } else { 0 };
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

    /// Gives the flow its path, on the first relays with room or on new ones.
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
        self.taken.push(rank);
        for offer in entry.relays() {
            self.remove_exhausted(*offer as usize, events);
        }
        if self.only_costs {
            self.remove_unaffordable();
        }
    }

    /// Takes the rate of the first relay with room.
    fn place(&mut self, offer: usize, rate: u64) {
        if self.state.fleets[offer].used == self.state.stride {
            self.grow();
        }
        let State { fleets, rooms, stride, .. } = &mut self.state;
        let fleet = &mut fleets[offer];
        let rooms = &mut rooms[offer * *stride..][..*stride];
        let is_there = rate <= fleet.room;
        if is_there {
            let first = rooms.iter_mut().find(|room| **room >= rate);
            *first.expect("one has the most room") -= rate;
        } else {
            rooms[fleet.used] = self.terms[offer].capacity - rate;
            fleet.used += 1;
        }
        // Relays that are not in use have none.
        let (quads, _) = rooms.as_chunks::<FIRST_STRIDE>();
        let most = |[a, b, c, d]: &[u64; FIRST_STRIDE]| (*a.max(b)).max(*c.max(d));
        fleet.room = quads.iter().map(most).max().unwrap_or(0);
        if !is_there {
            self.count(offer);
        }
    }

    /// Makes places for twice as many relays of each offer.
    fn grow(&mut self) {
        let state = &mut self.state;
        let wider = state.stride * 2;
        let mut rooms = vec![0; self.terms.len() * wider];
        for (new, old) in rooms.chunks_mut(wider).zip(state.rooms.chunks(state.stride)) {
            new[..old.len()].copy_from_slice(old);
        }
        (state.rooms, state.stride) = (rooms, wider);
    }

    /// Removes paths over an offer that has no room for them, once it has been noted that it has
    /// not.
    fn remove_exhausted(&mut self, offer: usize, events: Option<&Events>) {
        let fleet = &self.state.fleets[offer];
        let room = fleet.room.max(fleet.next);
        if room <= fleet.watched && events.is_none_or(|events| events.has(offer)) {
            self.close(offer, self.lists.rows.class_above(offer, room));
        }
    }

    /// Removes the paths that lack more than `lacks` of the offers that have no relays.
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

    /// Removes paths that cost more than is left, where that is seen at a glance.
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
            if is_dear && fleet.room < self.terms[offer].least_rate {
                self.close(offer, 0);
            }
        }
    }

    /// How good the run is.
    pub(crate) fn value(&self) -> Value {
        let spent = self.budget - self.state.left;
        let cost = if self.cheapest_wins { spent } else { 0 };
        Value { urgent: self.state.urgent, gain: self.state.gain, cost: Reverse(cost) }
    }

    /// The paths taken, in the order in which they were, if the run was not resumed.
    pub(crate) fn taken(&self) -> &[Rank] {
        &self.taken
    }
}
