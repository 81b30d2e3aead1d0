//! The greedy steps themselves [CP VI, Algorithm 1], over a given supply of relays.

use std::cmp::Reverse;

use tradewind_units::Money;

use super::cheapest_wins;
use super::events::Events;
use super::list::{Entry, Lists, Needs, Open, Rank, nano_dollars};
use super::queue::Queue;
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
    /// The least that a path takes of one.
    least_rate: u64,
}

/// The relays of an offer that are in use.
#[derive(Debug, Clone, Copy, Default)]
struct Fleet {
    used: usize,
    /// Most room that one of them has, in bit/s.
    most_room: u64,
}

/// No path.
const NONE: Rank = Rank::MAX;

/// How far a run is.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The best path left of each flow.
    heads: Vec<Rank>,
    fleets: Vec<Fleet>,
    /// Room of each relay in use: `stride` places for each offer.
    rooms: Vec<u64>,
    stride: usize,
    /// What no path may need any more.
    missing: Needs,
    /// Nano-dollars.
    left: i128,
    urgent: usize,
    gain: i128,
    /// What the run can come to, if prices tell.
    pub(crate) hope: i128,
    taken: Vec<Rank>,
}

impl Clone for State {
    fn clone(&self) -> Self {
        let mut copy = Self::default();
        copy.clone_from(self);
        copy
    }

    fn clone_from(&mut self, other: &Self) {
        self.heads.clone_from(&other.heads);
        self.fleets.clone_from(&other.fleets);
        self.rooms.clone_from(&other.rooms);
        self.taken.clone_from(&other.taken);
        (self.stride, self.missing, self.left) = (other.stride, other.missing, other.left);
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
#[derive(Debug)]
pub(crate) struct Run<'a> {
    lists: &'a Lists,
    budget: i128,
    cheapest_wins: bool,
    terms: Vec<Terms>,
    /// The least set-up of any relay.
    least_set_up: i128,
    /// Whether no path gives anything back.
    only_costs: bool,
    /// Most relays that may be used, offer by offer.
    pub(crate) supply: Vec<usize>,
    pub(crate) state: State,
    /// All heads.
    queue: Queue,
    open: Open,
    /// Heads tried since the beginning.
    tried: u64,
}

/// Heads tried for one step of work. Chosen: some million heads are tried in a second.
const HEADS_PER_STEP: u64 = 16;

/// Relays of an offer that there is room for at first. Chosen: few problems need more.
const FIRST_STRIDE: usize = 4;

impl<'a> Run<'a> {
    pub(crate) fn new(problem: &Problem, lists: &'a Lists) -> Self {
        let mut terms: Vec<Terms> = (problem.offers().iter())
            .map(|offer| Terms {
                capacity: offer.capacity_bps(),
                set_up: nano_dollars(offer.relay_type.set_up),
                running: offer.running,
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
            least_set_up: terms.iter().map(|terms| terms.set_up).min().unwrap_or_default(),
            only_costs: direct == Money::ZERO,
            supply: vec![0; terms.len()],
            queue: Queue::new(lists.entries.len()),
            open: Open::new(terms.len()),
            terms,
            state: State::default(),
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

    /// Begins anew with these heads.
    pub(crate) fn start(&mut self, heads: impl Iterator<Item = Rank>) {
        let state = &mut self.state;
        state.heads.clear();
        state.heads.resize(self.lists.flows.len(), NONE);
        heads.for_each(|rank| state.heads[self.lists.entry(rank).flow as usize] = rank);
        state.fleets.clear();
        state.fleets.resize(self.terms.len(), Fleet::default());
        state.stride = state.stride.max(FIRST_STRIDE);
        state.rooms.resize(self.terms.len() * state.stride, 0);
        state.missing = Needs::NONE;
        state.left = self.budget;
        (state.urgent, state.gain, state.hope) = (0, 0, i128::MAX);
        state.taken.clear();
        for offer in 0..self.supply.len() {
            self.note_missing(offer);
        }
    }

    /// Goes on from this state, with a supply that is no smaller than the one that led to it.
    pub(crate) fn resume(&mut self, state: &State, mut events: Option<&mut Events>) {
        self.state.clone_from(state);
        for offer in 0..self.supply.len() {
            let is_noted = !Needs::offer(offer).without(self.state.missing);
            if let Some(events) = events.as_deref_mut()
                && !is_noted
                && self.is_exhausted(offer)
            {
                events.note(offer, self.tried, &self.state);
            }
        }
        (0..self.supply.len()).for_each(|offer| self.note_missing(offer));
    }

    /// Takes greedy steps until no list has a head that could be taken, and notes in `events` where a larger supply would
    /// have mattered. Stops early, and says so by `false`, once the race is lost, or when there is no work left.
    pub(crate) fn go(
        &mut self,
        race: Option<Race<'_>>,
        mut events: Option<&mut Events>,
        work: &mut Work<'_>,
    ) -> bool {
        let lists = self.lists;
        self.queue.clear();
        let heads = self.state.heads.iter().filter(|head| **head != NONE);
        heads.for_each(|head| self.queue.insert(*head));
        for offer in 0..self.supply.len() {
            self.note_open(offer, events.as_deref());
        }
        while let Some(rank) = self.queue.first() {
            self.tried += 1;
            if self.tried.is_multiple_of(HEADS_PER_STEP) && !work.step() {
                return false;
            }
            if self.only_costs && self.state.left < i128::from(lists.cheapest) {
                return true;
            }
            let entry = lists.entry(rank);
            let is_open = entry.needs.without(self.state.missing);
            if is_open && let Some(cost) = self.cost_of(entry) {
                if let Some(race) = race {
                    let flow = entry.flow as usize;
                    self.state.hope -=
                        i128::from(race.most[flow]) - i128::from(race.reduced[rank as usize]);
                    if self.state.hope <= race.beat {
                        return false;
                    }
                }
                self.queue.remove(rank);
                self.state.heads[entry.flow as usize] = NONE;
                self.take(rank, entry, cost, events.as_deref_mut());
            } else {
                if is_open && let Some(events) = events.as_deref_mut() {
                    self.note_short(entry, events);
                }
                let goes_on = self.advance(rank, entry);
                if !goes_on && let Some(race) = race {
                    self.state.hope -= i128::from(race.most[entry.flow as usize]);
                    if self.state.hope <= race.beat {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Moves the flow whose turn it is on to its next path that is not seen to be impossible at a glance, if there is one.
    fn advance(&mut self, rank: Rank, entry: &Entry) -> bool {
        let list = &self.lists.flows[entry.flow as usize];
        let next = list.next(entry.at as usize + 1, self.state.missing, &self.open);
        self.queue.remove(rank);
        self.state.heads[entry.flow as usize] = next.unwrap_or(NONE);
        next.into_iter().for_each(|next| self.queue.insert(next));
        next.is_some()
    }

    /// Notes what a path may take of the offer: what one of its relays has, or one more would have, if there may be one or it
    /// would have to be noted that there may not.
    fn note_open(&mut self, offer: usize, events: Option<&Events>) {
        let fleet = &self.state.fleets[offer];
        let may_grow = fleet.used < self.supply[offer]
            || events.is_some_and(|events| events.first(offer).is_none());
        let most = if may_grow { self.terms[offer].capacity } else { fleet.most_room };
        self.open.set(offer, most);
    }

    /// What the path costs on top, relays included; `None` when relays or budget do not allow it.
    fn cost_of(&self, entry: &Entry) -> Option<i128> {
        let mut cost = i128::from(entry.more);
        for offer in entry.relays() {
            let offer = *offer as usize;
            let (terms, fleet) = (&self.terms[offer], &self.state.fleets[offer]);
            if fleet.most_room < entry.rate {
                if fleet.used >= self.supply[offer] || entry.rate > terms.capacity {
                    return None;
                }
                cost += if fleet.used >= terms.running { terms.set_up } else { 0 };
            }
        }
        (cost <= self.state.left).then_some(cost)
    }

    /// Notes which offers the path lacks a relay of, unless it could not be paid for with it either.
    fn note_short(&mut self, entry: &Entry, events: &mut Events) {
        let mut cost = i128::from(entry.more);
        for offer in entry.relays() {
            let (terms, fleet) =
                (&self.terms[*offer as usize], &self.state.fleets[*offer as usize]);
            if fleet.most_room < entry.rate {
                if entry.rate > terms.capacity {
                    return;
                }
                cost += if fleet.used >= terms.running { terms.set_up } else { 0 };
            }
        }
        if cost > self.state.left {
            return;
        }
        for offer in entry.relays() {
            let fleet = &self.state.fleets[*offer as usize];
            if fleet.most_room < entry.rate && fleet.used >= self.supply[*offer as usize] {
                events.note(*offer as usize, self.tried, &self.state);
                self.note_open(*offer as usize, Some(events));
            }
        }
    }

    /// Gives the flow its head, on the first relays with room or on new ones.
    fn take(&mut self, rank: Rank, entry: &Entry, cost: i128, mut events: Option<&mut Events>) {
        for offer in entry.relays() {
            self.place(*offer as usize, entry.rate);
        }
        let state = &mut self.state;
        state.left -= cost;
        state.gain += i128::from(entry.gain);
        state.taken.push(rank);
        state.urgent += usize::from(self.lists.flows[entry.flow as usize].direct.is_none());
        if let Some(events) = events.as_deref_mut() {
            for offer in entry.relays() {
                if self.is_exhausted(*offer as usize) {
                    events.note(*offer as usize, self.tried, &self.state);
                }
            }
        }
        for offer in entry.relays() {
            self.note_missing(*offer as usize);
            self.note_open(*offer as usize, events.as_deref());
        }
        if self.only_costs && self.state.left < i128::from(self.lists.cheapest_several) {
            self.state.missing = self.state.missing.or(Needs::SEVERAL);
        }
        if self.only_costs && self.state.left < i128::from(self.lists.cheapest) + self.least_set_up
        {
            (0..self.supply.len()).for_each(|offer| self.note_unaffordable(offer));
        }
    }

    /// Takes the rate of the first relay with room.
    fn place(&mut self, offer: usize, rate: u64) {
        if self.state.fleets[offer].used == self.state.stride {
            self.grow();
        }
        let State { fleets, rooms, stride, .. } = &mut self.state;
        let fleet = &mut fleets[offer];
        let rooms = &mut rooms[offer * *stride..][..fleet.used + 1];
        let (new, rooms) = rooms.split_last_mut().expect("one place more than relays in use");
        if let Some(first) = rooms.iter_mut().find(|room| **room >= rate) {
            let was_most = *first == fleet.most_room;
            *first -= rate;
            if was_most {
                fleet.most_room = rooms.iter().copied().max().unwrap_or(0);
            }
        } else {
            *new = self.terms[offer].capacity - rate;
            fleet.used += 1;
            fleet.most_room = fleet.most_room.max(*new);
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

    /// Whether no relay of the offer has room for any path, and no other one may be used.
    fn is_exhausted(&self, offer: usize) -> bool {
        let fleet = &self.state.fleets[offer];
        fleet.most_room < self.terms[offer].least_rate && fleet.used >= self.supply[offer]
    }

    fn note_missing(&mut self, offer: usize) {
        if self.is_exhausted(offer) {
            self.state.missing = self.state.missing.or(Needs::offer(offer));
        }
    }

    /// Notes an offer none of whose relays has room, where another one cannot be paid for.
    fn note_unaffordable(&mut self, offer: usize) {
        let (terms, fleet) = (&self.terms[offer], &self.state.fleets[offer]);
        let free = fleet.used < terms.running && fleet.used < self.supply[offer];
        let affordable = terms.set_up + i128::from(self.lists.cheapest) <= self.state.left;
        if fleet.most_room < terms.least_rate && !free && !affordable {
            self.state.missing = self.state.missing.or(Needs::offer(offer));
        }
    }

    /// How good the run is.
    pub(crate) fn value(&self) -> Value {
        let spent = self.budget - self.state.left;
        let cost = if self.cheapest_wins { spent } else { 0 };
        Value { urgent: self.state.urgent, gain: self.state.gain, cost: Reverse(cost) }
    }

    /// The paths taken, in the order in which they were.
    pub(crate) fn taken(&self) -> &[Rank] {
        &self.state.taken
    }
}
