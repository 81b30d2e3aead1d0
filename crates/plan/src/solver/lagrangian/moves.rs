//! Moves of the local search: one flow, one relay's flows, an offer opened; each evaluated by score
//! plus priced cost.

use super::state::{Assignment, State};
use super::table::Choice;
use crate::solver::Work;

/// The relative gain below which a difference is rounding.
const MIN_PART: f64 = 1e-11;

/// The numbers of offers and flows up to which two offers are opened at once. Chosen: some
/// milliseconds a round.
const MAX_OFFERS_PAIRED: usize = 40;
const MAX_FLOWS_PAIRED: usize = 400;

/// A change of one flow's choice.
#[derive(Debug, Clone, Copy)]
struct Change {
    worth: f64,
    flow: usize,
    choice: usize,
}

impl State<'_> {
    /// Returns score plus cost, at `lambda` seconds a dollar.
    pub(super) fn merit(&self, lambda: f64) -> f64 {
        self.score_s + lambda * (self.cost as f64 / 1e9)
    }

    fn least_gain(&self, lambda: f64) -> f64 {
        MIN_PART * self.merit(lambda).abs()
    }

    /// Returns what a choice adds to the merit of a state without the flow.
    fn merit_of(&self, choice: &Choice, lambda: f64) -> f64 {
        choice.score_s + lambda * (choice.usd + self.set_up_for(choice) as f64 / 1e9)
    }

    /// Returns the best choice of a detached flow, among those allowed.
    fn best_choice(
        &self,
        flow: usize,
        lambda: f64,
        allowed: impl Fn(&Choice) -> bool,
    ) -> Option<(f64, usize)> {
        let mut best: Option<(f64, usize)> = None;
        for (index, choice) in self.table.of(flow).iter().enumerate() {
            let bar = best.map_or(f64::INFINITY, |(merit, _)| merit);
            if choice.score_s + lambda * choice.usd < bar && allowed(choice) {
                let merit = self.merit_of(choice, lambda);
                if merit < bar {
                    best = Some((merit, index));
                }
            }
        }
        best
    }

    /// Gives each flow its best choice, in turn; returns whether any changed.
    pub(super) fn descend(&mut self, lambda: f64, work: &mut Work<'_>) -> bool {
        let least = self.least_gain(lambda) / self.assignments.len() as f64;
        let mut changed = false;
        for flow in 0..self.assignments.len() {
            if !work.step() {
                return changed;
            }
            let assignment = self.detach(flow);
            let now = self.merit_of(&self.table.of(flow)[assignment.choice as usize], lambda);
            match self.best_choice(flow, lambda, |_| true) {
                Some((merit, choice)) if merit < now - least => {
                    self.attach(flow, choice);
                    changed = true;
                }
                _ => self.attach_at(flow, assignment),
            }
        }
        changed
    }

    /// Detaches these flows and lets each choose again, without the offer `forbidden`; undone
    /// unless that improves the plan or is wanted anyway.
    pub(super) fn reseat(
        &mut self,
        flows: &[usize],
        forbidden: Option<usize>,
        lambda: f64,
        wanted: bool,
        work: &mut Work<'_>,
    ) -> bool {
        let before = self.merit(lambda);
        let assignments: Vec<Assignment> = flows.iter().map(|flow| self.detach(*flow)).collect();
        let allowed = |choice: &Choice| forbidden.is_none_or(|offer| !choice.passes(offer));
        let mut done = 0;
        for flow in flows {
            work.step();
            let Some((_, choice)) = self.best_choice(*flow, lambda, allowed) else { break };
            self.attach(*flow, choice);
            done += 1;
        }
        let complete = done == flows.len();
        if complete && (wanted || self.merit(lambda) < before - self.least_gain(lambda)) {
            return true;
        }
        for flow in &flows[..done] {
            self.detach(*flow);
        }
        for (flow, assignment) in flows.iter().zip(assignments) {
            self.attach_at(*flow, assignment);
        }
        false
    }

    /// Returns the flows through each offer.
    pub(super) fn users(&self) -> Vec<Vec<usize>> {
        let mut users = vec![Vec::new(); self.table.supplies.len()];
        for flow in 0..self.assignments.len() {
            for relay in self.choice(flow).relays() {
                users[relay].push(flow);
            }
        }
        users
    }

    /// Tries to empty each relay, and each offer of few relays; returns whether any was.
    pub(super) fn close(&mut self, lambda: f64, work: &mut Work<'_>) -> bool {
        let mut changed = false;
        for (offer, users) in self.users().into_iter().enumerate() {
            if self.used(offer) <= 3 && !users.is_empty() {
                let here: Vec<usize> =
                    users.iter().copied().filter(|flow| self.choice(*flow).passes(offer)).collect();
                if !work.stopped && self.reseat(&here, Some(offer), lambda, false, work) {
                    changed = true;
                    continue;
                }
            }
            let mut by_number: std::collections::BTreeMap<u32, Vec<usize>> = Default::default();
            for flow in users {
                if let Some(number) = self.number_at(flow, offer) {
                    by_number.entry(number).or_default().push(flow);
                }
            }
            for (number, flows) in by_number {
                let still: Vec<usize> = flows
                    .into_iter()
                    .filter(|flow| self.number_at(*flow, offer) == Some(number))
                    .collect();
                if work.stopped {
                    return changed;
                }
                changed |= !still.is_empty() && self.reseat(&still, None, lambda, false, work);
            }
        }
        changed
    }

    /// Tries one relay more of each offer and, with `pairs`, of pairs of offers where they are few;
    /// returns whether any helped.
    pub(super) fn open(&mut self, lambda: f64, pairs: bool, work: &mut Work<'_>) -> bool {
        let offers = self.table.supplies.len();
        let mut changed = false;
        for first in 0..offers {
            changed |= self.open_these(first, first, lambda, work);
        }
        if pairs && offers <= MAX_OFFERS_PAIRED && self.assignments.len() <= MAX_FLOWS_PAIRED {
            for first in 0..offers {
                for second in first + 1..offers {
                    changed |= self.open_these(first, second, lambda, work);
                }
            }
        }
        changed
    }

    /// Tries one relay more of each of two offers, or of one; retained if that helps.
    fn open_these(&mut self, a: usize, b: usize, lambda: f64, work: &mut Work<'_>) -> bool {
        if work.stopped {
            return false;
        }
        let next = |offer: usize| self.table.supplies[offer].cost_of_next(self.used(offer));
        let price = lambda * (next(a) + if a == b { 0 } else { next(b) }) as f64 / 1e9;
        let mut gains = self.gains_over(a, b, lambda);
        if !(0..=self.table.through(a).count() / 256).all(|_| work.step()) {
            return false;
        }
        if gains.iter().map(|change| change.worth).sum::<f64>() <= price {
            return false;
        }
        let rate = |change: &Change| self.table.of(change.flow)[change.choice].rate.max(1) as f64;
        gains.sort_by(|x, y| {
            (y.worth / rate(y)).total_cmp(&(x.worth / rate(x))).then(x.flow.cmp(&y.flow))
        });
        let before = self.merit(lambda);
        let mut assignments: Vec<(usize, Assignment)> = Vec::new();
        let mut best = (before - self.least_gain(lambda), 0);
        for change in gains {
            let mark = self.merit(lambda);
            let assignment = self.detach(change.flow);
            self.attach(change.flow, change.choice);
            // The first flow pays the whole set-up and may lose by the move; once the set-up has
            // paid off, each further flow must gain.
            if !assignments.is_empty() && self.merit(lambda) >= mark && best.1 > 0 {
                self.detach(change.flow);
                self.attach_at(change.flow, assignment);
                continue;
            }
            assignments.push((change.flow, assignment));
            let merit = self.merit(lambda);
            if merit < best.0 {
                best = (merit, assignments.len());
            } else if assignments.len() > best.1 + 64 {
                break;
            }
        }
        while assignments.len() > best.1 {
            if let Some((flow, assignment)) = assignments.pop() {
                self.detach(flow);
                self.attach_at(flow, assignment);
            }
        }
        best.1 > 0
    }

    /// Returns the flows' gains over new relays of both offers, their set-up left out: each flow's
    /// best change.
    fn gains_over(&self, a: usize, b: usize, lambda: f64) -> Vec<Change> {
        let mut gains: Vec<Change> = Vec::new();
        for (flow, index) in self.table.through(a) {
            let (now, choice) = (self.choice(flow), &self.table.of(flow)[index]);
            let worth = now.score_s - choice.score_s + lambda * (now.usd - choice.usd);
            let last = gains.last().filter(|last| last.flow == flow);
            let bar = last.map_or(0.0, |last| last.worth);
            if worth <= bar || (a != b && !choice.passes(b)) {
                continue;
            }
            let others = choice.relays().filter(|relay| *relay != a && *relay != b);
            let set_up: i64 = others.map(|relay| self.set_up_at(relay, choice.rate)).sum();
            let worth = worth - lambda * set_up as f64 / 1e9;
            if worth > bar {
                gains.pop_if(|last| last.flow == flow);
                gains.push(Change { worth, flow, choice: index });
            }
        }
        gains
    }

    /// Makes the plan cheaper where that costs least score, flow by flow, until it is within the
    /// budget or no flow can help.
    pub(super) fn cheapen(&mut self, work: &mut Work<'_>) {
        while self.cost > self.table.budget {
            let changes =
                self.changes(work, |score_s, usd| (usd < 0.0).then(|| usd / score_s.max(1e-12)));
            let before = self.cost;
            for change in changes {
                if self.cost <= self.table.budget {
                    return;
                }
                self.try_change(change, |before, after| after.1 < before.1);
            }
            if work.stopped || self.cost >= before {
                return;
            }
        }
    }

    /// Spends the rest of the budget where it gains most score, flow by flow.
    pub(super) fn spend(&mut self, work: &mut Work<'_>) {
        let mut changed = true;
        while changed && !work.stopped {
            changed = false;
            let changes = self.changes(work, |score_s, usd| {
                let helps = score_s < 0.0 || (score_s == 0.0 && usd < -1e-10);
                helps.then(|| if usd <= 0.0 { f64::NEG_INFINITY } else { score_s / usd })
            });
            let budget = self.table.budget.max(self.cost);
            for change in changes {
                changed |= self.try_change(change, |before, after| {
                    let least = 1e-12 * before.0;
                    let better =
                        after.0 < before.0 - least || (after.0 <= before.0 && after.1 < before.1);
                    better && after.1 <= budget
                });
            }
        }
    }

    /// Returns each flow's best change by a worth (less is better) of its change of score and cost;
    /// best first.
    fn changes(
        &mut self,
        work: &mut Work<'_>,
        worth: impl Fn(f64, f64) -> Option<f64>,
    ) -> Vec<Change> {
        let mut found = Vec::new();
        let budget = self.table.budget.max(self.cost);
        for flow in 0..self.assignments.len() {
            if !work.step() {
                break;
            }
            let (score_s, cost) = (self.score_s, self.cost);
            let assignment = self.detach(flow);
            let now = &self.table.of(flow)[assignment.choice as usize];
            let own = cost - self.cost;
            let mut best: Option<Change> = None;
            for (index, choice) in self.table.of(flow).iter().enumerate() {
                let cost = choice.cost + self.set_up_for(choice);
                if self.cost + cost > budget {
                    continue;
                }
                let Some(worth) = worth(choice.score_s - now.score_s, (cost - own) as f64 / 1e9)
                else {
                    continue;
                };
                if best.is_none_or(|best| worth < best.worth) {
                    best = Some(Change { worth, flow, choice: index });
                }
            }
            self.attach_at(flow, assignment);
            (self.score_s, self.cost) = (score_s, cost);
            found.extend(best);
        }
        found.sort_by(|a, b| a.worth.total_cmp(&b.worth).then(a.flow.cmp(&b.flow)));
        found
    }

    /// Makes the change if `wanted` accepts score and cost before and after it.
    fn try_change(
        &mut self,
        change: Change,
        wanted: impl Fn((f64, i64), (f64, i64)) -> bool,
    ) -> bool {
        let before = (self.score_s, self.cost);
        let assignment = self.detach(change.flow);
        self.attach(change.flow, change.choice);
        if wanted(before, (self.score_s, self.cost)) {
            return true;
        }
        self.detach(change.flow);
        self.attach_at(change.flow, assignment);
        (self.score_s, self.cost) = before;
        false
    }
}
