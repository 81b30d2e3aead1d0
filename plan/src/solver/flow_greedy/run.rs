//! The greedy steps themselves [CP VI, Algorithm 1], over a given supply of relays.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tradewind_units::Money;

use super::cheapest_wins;
use super::list::{Entry, Head, Lists, Needs};
use crate::problem::{MAX_RELAYS, Problem};
use crate::solver::Work;

/// What the steps came to.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// Each flow's entry; none: direct, or nothing.
    pub(crate) choice: Vec<Option<usize>>,
    /// The numbers of its relays among those of their offers, in the path's order.
    pub(crate) numbers: Vec<[u32; MAX_RELAYS]>,
    /// What is paid in all.
    pub(crate) spent: Money,
    /// How good it is.
    pub(crate) value: Value,
}

/// How good an outcome is: the greater, the better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Value {
    /// Flows without direct path that got one.
    urgent: usize,
    /// Nanoseconds of score saved.
    gain: i128,
    /// What is paid, where only that counts.
    cost: Reverse<Money>,
}

/// What a relay type in a region offers, as the steps need it.
#[derive(Debug, Clone, Copy)]
struct Terms {
    capacity: u64,
    set_up: Money,
    running: usize,
    /// Most that may be used.
    supply: usize,
    /// Most room that one of those in use has.
    most_room: u64,
}

/// One run of the greedy steps. Kept between runs for its memory.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    lists: &'a Lists,
    budget: Money,
    /// What all flows pay before any has a relay.
    direct: Money,
    cheapest_wins: bool,
    terms: Vec<Terms>,
    /// Room of each relay in use, offer by offer.
    rooms: Vec<Vec<u64>>,
    choice: Vec<Option<usize>>,
    numbers: Vec<[u32; MAX_RELAYS]>,
    spent: Money,
    urgent: usize,
    gain: i128,
    /// Heads that the run began with, the greatest first.
    heads: Vec<Head>,
    /// Heads of flows whose first ones had to be dropped.
    later: BinaryHeap<Head>,
    /// What no path may need any more, as far as it was worked out since the last change.
    missing: Option<Needs>,
    /// Room of all relays that may be used, in bit/s.
    room: u64,
    /// Most flows that can still get a relay.
    most_more: i128,
    /// Heads tried since the beginning.
    tried: u64,
}

/// Heads tried for one step of work. Chosen: some million heads are tried in a second.
const HEADS_PER_STEP: u64 = 16;

impl<'a> Run<'a> {
    pub(crate) fn new(problem: &Problem, lists: &'a Lists) -> Self {
        let terms = problem.offers().iter().map(|offer| Terms {
            capacity: offer.capacity_bps(),
            set_up: offer.relay_type.set_up,
            running: offer.running,
            supply: 0,
            most_room: 0,
        });
        let terms: Vec<Terms> = terms.collect();
        let flows = lists.flows.len();
        Self {
            lists,
            budget: problem.budget(),
            direct: lists.flows.iter().filter_map(|list| list.direct).sum(),
            cheapest_wins: cheapest_wins(problem),
            rooms: vec![Vec::new(); terms.len()],
            terms,
            choice: vec![None; flows],
            numbers: vec![[0; MAX_RELAYS]; flows],
            spent: Money::ZERO,
            urgent: 0,
            gain: 0,
            heads: Vec::new(),
            later: BinaryHeap::new(),
            missing: None,
            room: 0,
            most_more: 0,
            tried: 0,
        }
    }

    /// Forgets the last run; at most `supply[o]` relays of offer `o` may be used from now on.
    pub(crate) fn start(&mut self, supply: &[usize]) {
        for ((terms, rooms), supply) in self.terms.iter_mut().zip(&mut self.rooms).zip(supply) {
            terms.supply = *supply;
            terms.most_room = 0;
            rooms.clear();
        }
        self.choice.fill(None);
        self.spent = self.direct;
        (self.urgent, self.gain) = (0, 0);
        self.later.clear();
        self.missing = None;
    }

    /// Lets one relay more of this offer be used.
    pub(crate) fn supply_more(&mut self, offer: usize) {
        let supply = &mut self.terms[offer].supply;
        *supply = supply.saturating_add(1);
    }

    /// Takes greedy steps until no list has a head that could be taken. Stops early, and says so by `false`, once it
    /// cannot become better than `beat`, or when there is no work left.
    ///
    /// Where `beat` is given, a path's worth must be what it gains.
    pub(crate) fn go(
        &mut self,
        heads: impl Iterator<Item = Head>,
        beat: Option<&Value>,
        work: &mut Work<'_>,
    ) -> bool {
        self.heads.clear();
        self.heads.extend(heads);
        let mut hope: i128 = self.heads.iter().map(|head| self.gain_of(*head)).sum();
        let beat = beat.filter(|_| self.lists.all_direct && !self.cheapest_wins);
        let hopeless = |hope: i128| beat.is_some_and(|beat| hope <= beat.gain);
        if hopeless(hope) {
            return false;
        }
        self.heads.sort_unstable_by(|a, b| b.cmp(a));
        self.room = self.count_room();
        self.most_more = self.most_more();
        let mut next = 0;
        loop {
            let sorted = self.heads.get(next);
            // No head that is left promises more than the next one.
            let most = sorted.max(self.later.peek()).map_or(0, |head| self.gain_of(*head));
            if hopeless(self.gain + hope.min(most.saturating_mul(self.most_more))) {
                return false;
            }
            let head = if sorted >= self.later.peek() {
                next += 1;
                sorted.copied()
            } else {
                self.later.pop()
            };
            let Some(head) = head else { return true };
            self.tried += 1;
            if self.tried.is_multiple_of(HEADS_PER_STEP) && !work.step() {
                return false;
            }
            if !self.can_spend(self.lists.cheapest) {
                return true;
            }
            hope -= self.gain_of(head);
            if !self.take(head) {
                let missing = self.missing();
                if missing == Needs::ALL {
                    return true;
                }
                if let Some(next) = self.next_feasible(head, missing) {
                    hope += self.gain_of(next);
                    self.later.push(next);
                }
            }
        }
    }

    /// Room of all relays that may be used, in bit/s.
    fn count_room(&self) -> u64 {
        let offer = |terms: &Terms| {
            u64::try_from(terms.supply).unwrap_or(u64::MAX).saturating_mul(terms.capacity)
        };
        self.terms.iter().map(offer).fold(0, u64::saturating_add)
    }

    /// Most flows that room and budget could still give a relay, if each took the least that any path takes.
    fn most_more(&self) -> i128 {
        let by_room = self.room / self.lists.least_rate;
        let left = self.budget.checked_sub(self.spent).unwrap_or_default();
        let by_budget = match left.pays(self.lists.cheapest) {
            Some(count) if self.direct == Money::ZERO => count,
            _ => u64::MAX,
        };
        i128::from(by_room.min(by_budget))
    }

    /// False if the budget does not allow as much more, whatever flows get back for leaving their direct paths.
    fn can_spend(&self, more: Money) -> bool {
        self.direct > Money::ZERO || self.spent + more <= self.budget
    }

    fn gain_of(&self, head: Head) -> i128 {
        i128::from(self.entry(head).gain)
    }

    fn entry(&self, head: Head) -> &'a Entry {
        &self.lists.flows[head.flow()].entries[head.at()]
    }

    /// What is paid if the flow takes the entry; `None` when relays or budget do not allow it.
    fn spent_with(&self, flow: usize, entry: &Entry) -> Option<Money> {
        let direct = self.lists.flows[flow].direct.unwrap_or_default();
        let before = self.spent.checked_sub(direct).unwrap_or_default();
        let mut spent = before + entry.cost;
        if spent > self.budget {
            return None;
        }
        for offer in entry.relays() {
            let (terms, rooms) = (&self.terms[*offer as usize], &self.rooms[*offer as usize]);
            if terms.most_room < entry.rate {
                if rooms.len() >= terms.supply || entry.rate > terms.capacity {
                    return None;
                }
                if rooms.len() >= terms.running {
                    spent = spent + terms.set_up;
                }
            }
        }
        (spent <= self.budget).then_some(spent)
    }

    /// Gives the flow its head, on the first relays with room or on new ones; false when that is not possible.
    fn take(&mut self, head: Head) -> bool {
        let (flow, entry) = (head.flow(), self.entry(head));
        let Some(spent) = self.spent_with(flow, entry) else { return false };
        let mut numbers = [0; MAX_RELAYS];
        for (number, offer) in numbers.iter_mut().zip(entry.relays()) {
            let (terms, rooms) =
                (&mut self.terms[*offer as usize], &mut self.rooms[*offer as usize]);
            let first = rooms.iter().position(|room| *room >= entry.rate);
            let at = first.unwrap_or_else(|| {
                rooms.push(terms.capacity);
                rooms.len() - 1
            });
            rooms[at] -= entry.rate;
            terms.most_room = rooms.iter().copied().max().unwrap_or(0);
            *number = u32::try_from(at).expect("no more relays than flows");
        }
        self.spent = spent;
        self.choice[flow] = Some(head.at());
        self.numbers[flow] = numbers;
        self.urgent += usize::from(head.is_urgent());
        self.gain += i128::from(entry.gain);
        self.missing = None;
        self.room =
            self.room.saturating_sub(entry.rate.saturating_mul(entry.relays().len() as u64));
        self.most_more = self.most_more();
        true
    }

    /// The flow's next path that is feasible now: the others never will be.
    fn next_feasible(&self, head: Head, missing: Needs) -> Option<Head> {
        let flow = head.flow();
        let list = &self.lists.flows[flow];
        let at = (head.at() + 1..list.entries.len()).find(|at| {
            list.needs[*at].without(missing) && self.spent_with(flow, &list.entries[*at]).is_some()
        })?;
        Some(self.lists.head(flow, at))
    }

    /// What no path may need that the run could still take.
    fn missing(&mut self) -> Needs {
        if let Some(missing) = self.missing {
            return missing;
        }
        let least_rate = self.lists.least_rate;
        let usable = |terms: &Terms, rooms: &[u64]| {
            let new = rooms.len() < terms.supply
                && (rooms.len() < terms.running
                    || self.can_spend(terms.set_up + self.lists.cheapest));
            new || terms.most_room >= least_rate
        };
        let offers = self.terms.iter().zip(&self.rooms).enumerate();
        let usable = offers.filter(|(_, (terms, rooms))| usable(terms, rooms));
        let missing = Needs::all_but(usable.map(|(offer, _)| offer));
        let several = self.can_spend(self.lists.cheapest_several);
        let missing = if several { missing } else { missing.or(Needs::SEVERAL) };
        *self.missing.insert(missing)
    }

    /// How good the run is.
    pub(crate) fn value(&self) -> Value {
        let cost = if self.cheapest_wins { self.spent } else { Money::ZERO };
        Value { urgent: self.urgent, gain: self.gain, cost: Reverse(cost) }
    }

    /// What the run came to.
    pub(crate) fn outcome(&self) -> Outcome {
        Outcome {
            choice: self.choice.clone(),
            numbers: self.numbers.clone(),
            spent: self.spent,
            value: self.value(),
        }
    }
}
