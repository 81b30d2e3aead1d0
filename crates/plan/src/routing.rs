//! Min-max-latency routing \[CDD\]: the paths whose largest leg RTT is least.
//!
//! If connections are split and each leg is bound by its window, a path is as fast as its longest
//! leg. So [`Router::best`] ranks the simple paths over a number of relays by their largest
//! leg, then by their total RTT, then by the relays' indexes; [`Router::ranking`] ranks the paths
//! over all numbers of relays.
//!
//! The algorithm is a bottleneck-path dynamic programme: for each relay and number of relays to go
//! it computes the least largest leg of the rest of the path, and, once the largest leg is known,
//! the least sum of RTTs without a longer leg. Both may visit a relay twice, so they are lower
//! bounds, and a best-first search over partial paths finds the simple paths in their order.
//!
//! [`Router::cloudified`] follows CDD's own rule: the first relay is the nearest to the source, the
//! last one the nearest to the destination, and between them the largest leg is least; the legs to
//! the ends do not count. RTTs choose the path, and [`Router::gain_over_two`] estimates from them
//! how much more relays gain over two. They do not show whether any relay is worth it: see
//! [`advice`].

use serde::Serialize;
use tradewind_model::estimator::gain_of_third_relay;
use tradewind_units::Duration;

pub mod advice;
mod search;
pub mod table;

/// A path by the RTTs of its legs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MinMaxPath {
    /// The relays' indexes in the list given to [`Router::new`], in the path's order; empty:
    /// direct.
    pub relays: Vec<usize>,
    /// RTT of each leg, source to destination.
    pub rtts: Vec<Duration>,
}

impl MinMaxPath {
    /// Returns the RTT of the longest leg.
    #[must_use]
    pub fn largest_leg(&self) -> Duration {
        largest(&self.rtts)
    }

    /// Returns the RTT of all legs together: that of a packet forwarded end to end.
    #[must_use]
    pub fn total_rtt(&self) -> Duration {
        total(&self.rtts)
    }

    /// Returns the sort key of rankings.
    fn key(&self) -> (Duration, Duration, usize, &[usize]) {
        (self.largest_leg(), self.total_rtt(), self.relays.len(), &self.relays)
    }
}

fn largest(rtts: &[Duration]) -> Duration {
    rtts.iter().copied().max().unwrap_or_default()
}

fn total(rtts: &[Duration]) -> Duration {
    rtts.iter().fold(Duration::ZERO, |sum, rtt| sum.saturating_add(*rtt))
}

/// The RTTs among a source, a destination and the relays between them.
#[derive(Debug, Clone)]
pub struct Router {
    direct: Option<Duration>,
    /// From the source to each relay.
    first: Vec<Option<Duration>>,
    /// From each relay to the destination.
    last: Vec<Option<Duration>>,
    /// From each relay to each other, row by row.
    between: Vec<Option<Duration>>,
}

impl Router {
    /// Looks up all RTTs; `rtt` returns `None` for a pair that cannot be used.
    ///
    /// Calls `rtt` once for each ordered pair of places.
    #[must_use]
    pub fn new<P>(
        source: &P,
        destination: &P,
        relays: &[P],
        rtt: impl Fn(&P, &P) -> Option<Duration>,
    ) -> Self {
        let pairs = relays.iter().flat_map(|from| relays.iter().map(move |to| (from, to)));
        let places = relays.len();
        let between = pairs.enumerate().map(|(index, (from, to))| {
            let same = index / places == index % places;
            if same { None } else { rtt(from, to) }
        });
        Self {
            direct: rtt(source, destination),
            first: relays.iter().map(|relay| rtt(source, relay)).collect(),
            last: relays.iter().map(|relay| rtt(relay, destination)).collect(),
            between: between.collect(),
        }
    }

    /// Returns the number of relays.
    #[must_use]
    pub fn relays(&self) -> usize {
        self.first.len()
    }

    /// Returns the RTT between two relays.
    #[must_use]
    pub fn between(&self, from: usize, to: usize) -> Option<Duration> {
        self.between[from * self.relays() + to]
    }

    /// Returns the path over these relays; `None` when a leg is not known.
    #[must_use]
    pub fn path(&self, relays: &[usize]) -> Option<MinMaxPath> {
        let rtts: Option<Vec<Duration>> = match (relays.first(), relays.last()) {
            (Some(first), Some(last)) => std::iter::once(self.first[*first])
                .chain(relays.windows(2).map(|pair| self.between(pair[0], pair[1])))
                .chain(std::iter::once(self.last[*last]))
                .collect(),
            _ => self.direct.map(|rtt| vec![rtt]),
        };
        Some(MinMaxPath { relays: relays.to_vec(), rtts: rtts? })
    }

    /// Returns the `count` best simple paths over exactly this many relays: least largest leg
    /// first, then least sum of RTTs, then by the relays' indexes.
    #[must_use]
    pub fn best(&self, relays: usize, count: usize) -> Vec<MinMaxPath> {
        if relays == 0 {
            return self.path(&[]).into_iter().take(count).collect();
        }
        search::Search::new(self, relays).take(count).collect()
    }

    /// Returns the `count` best simple paths over at most this many relays, ranked as by
    /// [`Router::best`]; of equal ones those over fewer relays come first.
    #[must_use]
    pub fn ranking(&self, most_relays: usize, count: usize) -> Vec<MinMaxPath> {
        let mut all: Vec<MinMaxPath> =
            (0..=most_relays).flat_map(|relays| self.best(relays, count)).collect();
        all.sort_by(|a, b| a.key().cmp(&b.key()));
        all.truncate(count);
        all
    }

    /// Returns the `count` best paths by CDD's rule over exactly this many relays.
    ///
    /// The first and the last relay are the nearest to the ends and never the same one; the relays
    /// between them are ranked as by [`Router::best`], without the legs to the ends. With two
    /// relays there is one path only. For one relay CDD found no rule ("finding the best relay is
    /// hard"); here it is the one whose larger leg is least.
    #[must_use]
    pub fn cloudified(&self, relays: usize, count: usize) -> Vec<MinMaxPath> {
        if relays < 2 {
            return self.best(relays, count);
        }
        let Some((first, last)) = self.nearest() else { return Vec::new() };
        let inner: Vec<usize> =
            (0..self.relays()).filter(|relay| *relay != first && *relay != last).collect();
        let inside = Self::new(&first, &last, &inner, |from, to| self.between(*from, *to));
        let whole = |path: MinMaxPath| {
            let between = path.relays.iter().map(|index| inner[*index]);
            let relays: Vec<usize> =
                std::iter::once(first).chain(between).chain(std::iter::once(last)).collect();
            self.path(&relays).expect("every leg of it was looked up")
        };
        inside.best(relays - 2, count).into_iter().map(whole).collect()
    }

    /// Returns the relay nearest to the source and the one nearest to the destination.
    ///
    /// If one relay is nearest to both, one end takes its second nearest: the end for which that
    /// adds least. `None` with fewer than two usable relays.
    fn nearest(&self) -> Option<(usize, usize)> {
        let two_nearest = |rtts: &[Option<Duration>]| {
            let known = rtts.iter().enumerate().filter_map(|(relay, rtt)| Some(((*rtt)?, relay)));
            let mut known: Vec<(Duration, usize)> = known.collect();
            known.sort_unstable();
            known.truncate(2);
            known
        };
        let (first, last) = (two_nearest(&self.first), two_nearest(&self.last));
        let pairs = first.iter().flat_map(|a| last.iter().map(move |b| (*a, *b)));
        pairs
            .filter(|(a, b)| a.1 != b.1)
            .min_by_key(|(a, b)| (a.0.saturating_add(b.0), a.1, b.1))
            .map(|(a, b)| (a.1, b.1))
    }

    /// Returns CDD's estimate of how much faster a download is over this path than over its first
    /// and last relay alone: the RTT between those two over the largest inner leg.
    ///
    /// `None` for paths of fewer than three relays, to which the estimate does not apply: it never
    /// decides between direct and relayed.
    #[must_use]
    pub fn gain_over_two(&self, path: &MinMaxPath) -> Option<f64> {
        let [first, .., last] = path.relays[..] else { return None };
        let (slowest, others) = path.rtts[1..path.rtts.len() - 1].split_last()?;
        if others.is_empty() {
            return None;
        }
        gain_of_third_relay(self.between(first, last)?, largest(others), *slowest)
    }
}
