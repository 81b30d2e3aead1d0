//! A partial plan for local search: each flow's choice and the relays that carry it.

use super::table::{Choice, Table};
use crate::problem::MAX_RELAYS;

/// A flow's assignment: its choice, and the number of the relay at each hop.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Assignment {
    pub(super) choice: u32,
    relays: [u32; MAX_RELAYS],
}

/// The relays of one offer.
#[derive(Debug, Clone, Default)]
struct Fleet {
    /// The load of each, in bit/s; zero where it is not set up.
    loads: Vec<u64>,
    used: usize,
    /// The greatest free capacity of those in use, in bit/s.
    most_free: u64,
}

impl Fleet {
    fn measure(&mut self, capacity: u64) {
        let used = self.loads.iter().filter(|load| **load > 0);
        self.most_free = used.map(|load| capacity - load).max().unwrap_or(0);
    }

    /// Returns the fullest relay that has the capacity, else one not in use.
    fn place(&self, rate: u64, capacity: u64) -> usize {
        let in_use = self.loads.iter().enumerate().filter(|(_, load)| **load > 0);
        let fitting = in_use.filter(|(_, load)| *load + rate <= capacity);
        let fullest = fitting.max_by_key(|(number, load)| (**load, std::cmp::Reverse(*number)));
        let unused = || self.loads.iter().position(|load| *load == 0).unwrap_or(self.loads.len());
        fullest.map_or_else(unused, |(number, _)| number)
    }

    fn add(&mut self, number: usize, rate: u64, capacity: u64) {
        if number == self.loads.len() {
            self.loads.push(0);
        }
        let fullest = self.loads[number] > 0 && capacity - self.loads[number] == self.most_free;
        self.used += usize::from(self.loads[number] == 0);
        self.loads[number] += rate;
        if fullest {
            self.measure(capacity);
        } else {
            self.most_free = self.most_free.max(capacity - self.loads[number]);
        }
    }

    fn remove(&mut self, number: usize, rate: u64, capacity: u64) {
        self.loads[number] -= rate;
        if self.loads[number] == 0 {
            self.used -= 1;
            self.measure(capacity);
        } else {
            self.most_free = self.most_free.max(capacity - self.loads[number]);
        }
    }
}

/// The current plan of the search.
#[derive(Debug, Clone)]
pub(super) struct State<'t> {
    pub(super) table: &'t Table,
    pub(super) assignments: Vec<Assignment>,
    fleets: Vec<Fleet>,
    /// In seconds.
    pub(super) score_s: f64,
    /// In nano-dollars.
    pub(super) cost: i64,
}

impl<'t> State<'t> {
    /// Puts flow `f` on its choice `choices[f]`, with relays filled by decreasing rate.
    pub(super) fn new(table: &'t Table, choices: &[usize]) -> Self {
        let mut state = Self {
            table,
            assignments: vec![Assignment::default(); choices.len()],
            fleets: vec![Fleet::default(); table.supplies.len()],
            score_s: 0.0,
            cost: 0,
        };
        let chosen = |flow: usize| &table.of(flow)[choices[flow]];
        let mut order: Vec<usize> = (0..choices.len()).collect();
        order.sort_by_key(|flow| (std::cmp::Reverse(chosen(*flow).rate), *flow));
        for flow in order {
            state.attach_first_fit(flow, choices[flow]);
        }
        state
    }

    /// Repacks each offer's flows where that takes fewer relays.
    pub(super) fn tidy(&mut self) {
        for (offer, mut users) in self.users().into_iter().enumerate() {
            let supply = self.table.supplies[offer];
            users.sort_by_key(|flow| (std::cmp::Reverse(self.choice(*flow).rate), *flow));
            let mut fleet = Fleet::default();
            let mut numbers = Vec::with_capacity(users.len());
            for flow in &users {
                let rate = self.choice(*flow).rate;
                let fits = |load: &u64| load + rate <= supply.capacity;
                let number = fleet.loads.iter().position(fits).unwrap_or(fleet.loads.len());
                fleet.add(number, rate, supply.capacity);
                numbers.push(number);
            }
            if fleet.used >= self.fleets[offer].used {
                continue;
            }
            fleet.measure(supply.capacity);
            self.cost += supply.cost_of(fleet.used) - supply.cost_of(self.fleets[offer].used);
            self.fleets[offer] = fleet;
            for (flow, number) in users.into_iter().zip(numbers) {
                let at = self.choice(flow).relays().position(|relay| relay == offer);
                let at = at.expect("a user passes the offer");
                self.assignments[flow].relays[at] = u32::try_from(number).unwrap_or(u32::MAX);
            }
        }
    }

    /// Returns the relays of an offer that its users take, numbered without gaps.
    pub(super) fn packing(&self, offer: usize, users: &[usize]) -> Vec<usize> {
        let loads = self.fleets[offer].loads.iter();
        let number = |used: &mut usize, load: &u64| {
            let own = *used;
            *used += usize::from(*load > 0);
            Some(own)
        };
        let numbers: Vec<usize> = loads.scan(0, number).collect();
        let at = |flow: &usize| self.number_at(*flow, offer).map_or(0, |at| numbers[at as usize]);
        users.iter().map(at).collect()
    }

    pub(super) fn choice(&self, flow: usize) -> &'t Choice {
        &self.table.of(flow)[self.assignments[flow].choice as usize]
    }

    /// Returns the number of relays of an offer in use.
    pub(super) fn used(&self, offer: usize) -> usize {
        self.fleets[offer].used
    }

    /// Returns the number of the flow's relay of this offer, if it passes one.
    pub(super) fn number_at(&self, flow: usize, offer: usize) -> Option<u32> {
        let at = self.choice(flow).relays().position(|relay| relay == offer)?;
        Some(self.assignments[flow].relays[at])
    }

    /// Returns the nano-dollars of set-up if a detached flow took this choice.
    pub(super) fn set_up_for(&self, choice: &Choice) -> i64 {
        choice.relays().map(|relay| self.set_up_at(relay, choice.rate)).sum()
    }

    /// Returns the nano-dollars of set-up for this rate on an offer.
    pub(super) fn set_up_at(&self, offer: usize, rate: u64) -> i64 {
        let fleet = &self.fleets[offer];
        let fits = fleet.used > 0 && rate <= fleet.most_free;
        if fits { 0 } else { self.table.supplies[offer].cost_of_next(fleet.used) }
    }

    /// Returns whether a choice fits into relays in use, or new ones up to so many of each offer.
    pub(super) fn fits_within(&self, choice: &Choice, most: &[usize]) -> bool {
        choice.relays().all(|relay| {
            let fleet = &self.fleets[relay];
            fleet.used < most[relay] || (fleet.used > 0 && choice.rate <= fleet.most_free)
        })
    }

    /// Returns the numbers of an offer's relays in use.
    pub(super) fn numbers_in_use(&self, offer: usize) -> Vec<u32> {
        let loads = self.fleets[offer].loads.iter().enumerate();
        loads.filter(|(_, load)| **load > 0).map(|(number, _)| number as u32).collect()
    }

    /// Takes the flow off its path; the assignment returned restores it.
    pub(super) fn detach(&mut self, flow: usize) -> Assignment {
        let (assignment, choice) = (self.assignments[flow], self.choice(flow));
        for (relay, number) in choice.relays().zip(assignment.relays) {
            let (supply, fleet) = (&self.table.supplies[relay], &mut self.fleets[relay]);
            self.cost -= supply.cost_of(fleet.used);
            fleet.remove(number as usize, choice.rate, supply.capacity);
            self.cost += supply.cost_of(fleet.used);
        }
        self.cost -= choice.cost;
        self.score_s -= choice.score_s;
        assignment
    }

    /// Assigns a detached flow to the fullest relays that have the capacity for this choice.
    pub(super) fn attach(&mut self, flow: usize, choice: usize) {
        let chosen = &self.table.of(flow)[choice];
        let mut relays = [0; MAX_RELAYS];
        for (number, relay) in relays.iter_mut().zip(chosen.relays()) {
            let capacity = self.table.supplies[relay].capacity;
            let place = self.fleets[relay].place(chosen.rate, capacity);
            *number = u32::try_from(place).unwrap_or(u32::MAX);
        }
        let choice = u32::try_from(choice).unwrap_or(u32::MAX);
        self.attach_at(flow, Assignment { choice, relays });
    }

    fn attach_first_fit(&mut self, flow: usize, choice: usize) {
        let chosen = &self.table.of(flow)[choice];
        let mut relays = [0; MAX_RELAYS];
        for (number, relay) in relays.iter_mut().zip(chosen.relays()) {
            let (fleet, supply) = (&self.fleets[relay], &self.table.supplies[relay]);
            let fits = |load: &u64| load + chosen.rate <= supply.capacity;
            let place = fleet.loads.iter().position(fits).unwrap_or(fleet.loads.len());
            *number = u32::try_from(place).unwrap_or(u32::MAX);
        }
        let choice = u32::try_from(choice).unwrap_or(u32::MAX);
        self.attach_at(flow, Assignment { choice, relays });
    }

    /// Assigns a detached flow to this assignment's relays.
    pub(super) fn attach_at(&mut self, flow: usize, assignment: Assignment) {
        let choice = &self.table.of(flow)[assignment.choice as usize];
        for (relay, number) in choice.relays().zip(assignment.relays) {
            let (supply, fleet) = (&self.table.supplies[relay], &mut self.fleets[relay]);
            self.cost -= supply.cost_of(fleet.used);
            fleet.add(number as usize, choice.rate, supply.capacity);
            self.cost += supply.cost_of(fleet.used);
        }
        self.cost += choice.cost;
        self.score_s += choice.score_s;
        self.assignments[flow] = assignment;
    }

    /// Returns the lexicographic objective: money above the budget, then score, then money.
    pub(super) fn key(&self) -> ObjectiveKey {
        let over_budget = (self.cost - self.table.budget).max(0);
        ObjectiveKey { over_budget, score_s: self.score_s, cost: self.cost }
    }
}

/// The lexicographic objective of an assignment: less is better.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectiveKey {
    /// Money above the budget, in nano-dollars.
    pub(super) over_budget: i64,
    score_s: f64,
    cost: i64,
}

impl ObjectiveKey {
    /// Returns whether it is below another; scores that differ by rounding are equal.
    pub(super) fn is_below(self, other: Self) -> bool {
        if self.over_budget != other.over_budget {
            return self.over_budget < other.over_budget;
        }
        let rounding = 1e-12 * self.score_s.abs().max(other.score_s.abs());
        if (self.score_s - other.score_s).abs() <= rounding {
            self.cost < other.cost
        } else {
            self.score_s < other.score_s
        }
    }
}
