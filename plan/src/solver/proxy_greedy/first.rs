//! Which path each flow would start with on a set of relays, for all sets that have one or two relays more
//! than another.
//!
//! A flow's first path on the larger set is the earliest of four: on the smaller set, over the one offer added, over
//! the other, and over both. What lies behind the first path on the smaller set is no set's first.

use crate::solver::flow_greedy::{Lists, Rank};

/// No path.
const NONE: Rank = Rank::MAX;

/// First paths on a set of relays, and those that additions to it make possible.
#[derive(Debug)]
pub(super) struct FirstPaths<'a> {
    lists: &'a Lists,
    offers: usize,
    /// Flow by flow, on the set itself.
    base: Vec<Rank>,
    /// By the one offer that a path needs and the set lacks: where it comes before the base's.
    with_one: Vec<Vec<Rank>>,
    /// By the two offers, the lower in the row.
    with_two: Vec<Vec<Rank>>,
    /// Scratch: the first paths that are asked for.
    asked: Vec<Rank>,
}

impl<'a> FirstPaths<'a> {
    pub(super) fn new(lists: &'a Lists, offers: usize) -> Self {
        Self {
            lists,
            offers,
            base: Vec::new(),
            with_one: vec![Vec::new(); offers],
            with_two: vec![Vec::new(); offers * offers],
            asked: Vec::new(),
        }
    }

    /// Looks the paths up for this set.
    pub(super) fn prepare(&mut self, set: &[usize]) {
        self.base.clear();
        self.with_one.iter_mut().chain(&mut self.with_two).for_each(Vec::clear);
        for flow in 0..self.lists.flows.len() {
            let first = self.prepare_flow(flow, set);
            self.base.push(first);
        }
    }

    fn prepare_flow(&mut self, flow: usize, set: &[usize]) -> Rank {
        let is_known = |firsts: &[Rank]| {
            firsts.last().is_some_and(|known| self.lists.entry(*known).flow as usize == flow)
        };
        for rank in self.lists.flows[flow].ranks.iter().copied() {
            let entry = self.lists.entry(rank);
            let mut lacking = entry.relays().iter().map(|o| *o as usize).filter(|o| set[*o] == 0);
            match (lacking.next(), lacking.next(), lacking.next()) {
                (None, ..) => return rank,
                (Some(one), None, _) => {
                    if !is_known(&self.with_one[one]) {
                        self.with_one[one].push(rank);
                    }
                }
                (Some(one), Some(two), None) => {
                    let pair = one.min(two) * self.offers + one.max(two);
                    let known = is_known(&self.with_one[one])
                        || is_known(&self.with_one[two])
                        || is_known(&self.with_two[pair]);
                    if !known {
                        self.with_two[pair].push(rank);
                    }
                }
                (Some(_), Some(_), Some(_)) => {}
            }
        }
        NONE
    }

    /// The heads of all flows that have a path on the set.
    pub(super) fn base(&self) -> impl Iterator<Item = Rank> {
        self.base.iter().copied().filter(|head| *head != NONE)
    }

    /// The heads of all flows that have a path on the set with a relay of `one` and, if given, of `two` added.
    pub(super) fn heads(&mut self, one: usize, two: Option<usize>) -> impl Iterator<Item = Rank> {
        self.asked.clone_from(&self.base);
        let pair = two.map(|two| &self.with_two[one.min(two) * self.offers + one.max(two)]);
        let added = [Some(&self.with_one[one]), two.map(|two| &self.with_one[two]), pair];
        for head in added.into_iter().flatten().flatten() {
            let asked = &mut self.asked[self.lists.entry(*head).flow as usize];
            *asked = (*head).min(*asked);
        }
        self.asked.iter().copied().filter(|head| *head != NONE)
    }
}
