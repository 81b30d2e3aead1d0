//! The best-first search behind [`Router::best`], over partial paths.
//!
//! A partial path's priority is the least largest leg of any path that extends it, then the least
//! sum of RTTs among those. The second is computed only when the partial path is first removed from
//! the queue: it depends on the first, and most partial paths are never removed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tradewind_units::Duration;

use super::{MinMaxPath, Router};

/// By number of relays to go, then by relay: the bound for the rest of the path to the destination.
type ToGo = Vec<Vec<Option<Duration>>>;

/// A partial path. The order of the fields is the order of the priority queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Beginning {
    /// A lower bound on the largest leg of the paths that extend it.
    largest: Duration,
    /// A lower bound on the sum of RTTs of those with that largest leg, once settled.
    total: Duration,
    relays: Vec<usize>,
    /// Set once `total` counts the rest of the path.
    settled: bool,
    /// The sum of RTTs up to the last relay.
    so_far: Duration,
}

/// Simple paths over an exact number of relays, the best first.
pub(super) struct Search<'a> {
    router: &'a Router,
    relays: usize,
    least_largest: ToGo,
    /// Least sums without a leg above this RTT. Partial paths are removed by increasing largest
    /// leg, so one table is enough.
    least_total: (Duration, ToGo),
    waiting: BinaryHeap<Reverse<Beginning>>,
}

impl<'a> Search<'a> {
    /// Starts a search over exactly `relays` relays, at least one.
    pub(super) fn new(router: &'a Router, relays: usize) -> Self {
        let least_largest = to_go(router, relays, Duration::max, Duration::MAX);
        let least_total = (Duration::MAX, ToGo::new());
        let mut search =
            Self { router, relays, least_largest, least_total, waiting: BinaryHeap::new() };
        let nothing = Beginning {
            largest: Duration::ZERO,
            total: Duration::ZERO,
            relays: Vec::new(),
            settled: true,
            so_far: Duration::ZERO,
        };
        for relay in 0..router.relays() {
            search.go_on(&nothing, relay, router.first[relay]);
        }
        search
    }

    /// Queues the extension of `before` to `relay`, if it can be completed.
    fn go_on(&mut self, before: &Beginning, relay: usize, leg: Option<Duration>) {
        let Some(leg) = leg.filter(|_| !before.relays.contains(&relay)) else { return };
        let left = self.relays - before.relays.len() - 1;
        let Some(rest) = self.least_largest[left][relay] else { return };
        let so_far = before.so_far.saturating_add(leg);
        let mut relays = before.relays.clone();
        relays.push(relay);
        let largest = rest.max(leg).max(self.largest_so_far(before));
        self.waiting.push(Reverse(Beginning {
            largest,
            total: so_far,
            relays,
            settled: false,
            so_far,
        }));
    }

    /// Returns the largest leg of a partial path so far.
    fn largest_so_far(&self, beginning: &Beginning) -> Duration {
        let Some(first) = beginning.relays.first() else { return Duration::ZERO };
        let between = beginning.relays.windows(2);
        let legs = between.filter_map(|pair| self.router.between(pair[0], pair[1]));
        legs.chain(self.router.first[*first]).max().unwrap_or_default()
    }

    /// Returns the partial path with the rest counted in its total.
    fn settle(&mut self, mut beginning: Beginning) -> Beginning {
        if self.least_total.1.is_empty() || self.least_total.0 != beginning.largest {
            let limit = beginning.largest;
            self.least_total =
                (limit, to_go(self.router, self.relays, Duration::saturating_add, limit));
        }
        let left = self.relays - beginning.relays.len();
        let last = beginning.relays[beginning.relays.len() - 1];
        let rest = self.least_total.1[left][last].expect("some path goes on within the limit");
        beginning.total = beginning.so_far.saturating_add(rest);
        beginning.settled = true;
        beginning
    }
}

impl Iterator for Search<'_> {
    type Item = MinMaxPath;

    fn next(&mut self) -> Option<MinMaxPath> {
        while let Some(Reverse(beginning)) = self.waiting.pop() {
            if !beginning.settled {
                let settled = self.settle(beginning);
                self.waiting.push(Reverse(settled));
            } else if beginning.relays.len() == self.relays {
                return self.router.path(&beginning.relays);
            } else {
                let last = beginning.relays[beginning.relays.len() - 1];
                for relay in 0..self.router.relays() {
                    self.go_on(&beginning, relay, self.router.between(last, relay));
                }
            }
        }
        None
    }
}

/// Returns the bound for the rest of the path from each relay over each number of further relays:
/// `join` adds a leg to the rest after it, and no leg may exceed `limit`.
fn to_go(
    router: &Router,
    relays: usize,
    join: impl Fn(Duration, Duration) -> Duration,
    limit: Duration,
) -> ToGo {
    let within = |leg: Option<Duration>| leg.filter(|leg| *leg <= limit);
    let mut rounds: ToGo = vec![router.last.iter().map(|leg| within(*leg)).collect()];
    while rounds.len() < relays {
        let rest = &rounds[rounds.len() - 1];
        let best = |from: usize| {
            let bounds = (0..router.relays())
                .filter_map(|to| Some(join(within(router.between(from, to))?, rest[to]?)));
            bounds.min()
        };
        let round = (0..router.relays()).map(best).collect();
        rounds.push(round);
    }
    rounds
}
