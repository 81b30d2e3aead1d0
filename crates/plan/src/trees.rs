//! Distribution trees: flows of one source and one content whose paths begin alike share those
//! legs.
//!
//! The paths of such flows form a tree that is rooted at the source. A leg is told by the relays on
//! the way to its end; flows that come over the same relays carry the content over that leg once,
//! and the relay at its end keeps it and sends it on to each of its next hops. The last leg, to a
//! flow's destination, is the flow's own.
//!
//! - **Cost.** Egress is paid once for each leg of the tree: the plan's cost is what each flow
//!   costs by itself, less what each shared leg saves.
//! - **Capacity.** What a relay carries is what it sends, for it never receives more: each next hop
//!   counts once, at the rate of the fastest flow over it. A relay that only passes the content on
//!   carries it once; one that fans out carries as many copies as it sends, as its machine's
//!   network does.
//! - **Time.** A flow completes as if it were alone on its path: relays keep the content until the
//!   slowest next hop has it, so a slow destination does not hold back the others. What a source's
//!   own cap would gain by sending once is left out: times are those of flows that do not share, or
//!   better.

use std::collections::BTreeMap;

use tradewind_units::Money;

use crate::packing;
use crate::problem::Problem;

/// The number, within its offer, of the relay at each hop of each flow.
pub(crate) type Numbers = Vec<Vec<usize>>;

/// Relays in order: offers, and numbers within them.
pub(crate) type Relays = Vec<(usize, usize)>;

/// The paths that flows take over offers, and the rate of each in bit/s.
#[derive(Clone, Copy)]
pub(crate) struct Paths<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) paths: &'a [&'a [usize]],
    pub(crate) rates: &'a [u64],
}

/// A leg that several flows share.
pub(crate) struct SharedEdge {
    /// The relays from the source to the leg's end.
    pub(crate) prefix: Relays,
    /// Who shares it.
    pub(crate) flows: Vec<usize>,
    /// Egress that is not paid again.
    pub(crate) saved: Money,
}

/// Relays for all flows.
pub(crate) struct Laid {
    pub(crate) numbers: Numbers,
    pub(crate) shared: Vec<SharedEdge>,
    /// Setting the relays up.
    pub(crate) set_up: Money,
    /// How many there are.
    pub(crate) relays: usize,
}

impl Laid {
    /// What the shared legs save together.
    pub(crate) fn saved(&self) -> Money {
        self.shared.iter().map(|edge| edge.saved).sum()
    }

    /// What it costs, where each flow pays its part of `carrying` by itself.
    pub(crate) fn cost(&self, carrying: Money) -> Money {
        (carrying + self.set_up).checked_sub(self.saved()).unwrap_or_default()
    }
}

/// One stream out of a relay: to a next relay, or to a flow's destination.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Stream<'a> {
    /// Of a tree, over these offers, to the relay of this number.
    Shared(usize, &'a [usize], usize),
    /// Of one flow.
    Own(usize),
}

impl<'a> Paths<'a> {
    /// Relays for all flows, at the least cost of the ways known here; `None` when a relay cannot
    /// carry one of them.
    ///
    /// `own` is one more way to number them.
    pub(crate) fn lay(self, own: Option<Numbers>) -> Option<Laid> {
        let ways = own.into_iter().chain(self.packed_flow_by_flow()).chain(self.packed_as_trees());
        let laid = ways.map(|numbers| self.laid(numbers));
        // Carrying costs all of them the same: what counts is set-up less savings.
        let most: Money = Money::from_usd(1e9).unwrap_or_default();
        laid.min_by_key(|laid| laid.cost(most))
    }

    fn laid(self, numbers: Numbers) -> Laid {
        let mut counts = vec![0; self.problem.offers().len()];
        for (path, numbers) in self.paths.iter().zip(&numbers) {
            for (offer, number) in path.iter().zip(numbers) {
                counts[*offer] = counts[*offer].max(number + 1);
            }
        }
        let fct = |(flow, path): (usize, &&[usize])| self.problem.fct(flow, path);
        let last = || self.paths.iter().enumerate().filter_map(fct).max().unwrap_or_default();
        let set_up = self.problem.set_up(&counts, last);
        Laid { set_up, relays: counts.iter().sum(), shared: self.shared(&numbers), numbers }
    }

    /// As if nothing were shared.
    fn packed_flow_by_flow(self) -> Option<Numbers> {
        let mut numbers: Numbers = self.paths.iter().map(|path| vec![0; path.len()]).collect();
        for (index, offer) in self.problem.offers().iter().enumerate() {
            let at = |flow: usize| self.paths[flow].iter().position(|relay| *relay == index);
            let users: Vec<(usize, usize)> =
                (0..self.paths.len()).filter_map(|flow| Some((flow, at(flow)?))).collect();
            let rates: Vec<u64> = users.iter().map(|(flow, _)| self.rates[*flow]).collect();
            let packed = packing::pack(&rates, offer.capacity_bps())?;
            for ((flow, at), number) in users.into_iter().zip(packed) {
                numbers[flow][at] = number;
            }
        }
        Some(numbers)
    }

    /// Stream by stream, the last relays of paths first: a stream goes where its tree is already if
    /// there is room, else to the first relay that has some.
    ///
    /// All flows of a stream take the same relay, and so they arrive there as one stream: what is
    /// added up here is what each relay sends.
    fn packed_as_trees(self) -> Option<Numbers> {
        let mut numbers: Numbers = self.paths.iter().map(|path| vec![0; path.len()]).collect();
        let mut loads: Vec<Vec<u64>> = vec![Vec::new(); self.problem.offers().len()];
        let longest = self.paths.iter().map(|path| path.len()).max().unwrap_or(0);
        for at in (0..longest).rev() {
            let mut streams: BTreeMap<Stream<'_>, Vec<usize>> = BTreeMap::new();
            for flow in (0..self.paths.len()).filter(|flow| self.paths[*flow].len() > at) {
                streams.entry(self.stream(flow, at, &numbers)).or_default().push(flow);
            }
            let rate = |flows: &[usize]| flows.iter().map(|flow| self.rates[*flow]).max();
            let mut sized: Vec<(u64, Vec<usize>)> =
                streams.into_values().filter_map(|flows| Some((rate(&flows)?, flows))).collect();
            sized.sort_by_key(|(rate, flows)| (std::cmp::Reverse(*rate), flows[0]));
            let mut homes: BTreeMap<(usize, &[usize]), Vec<usize>> = BTreeMap::new();
            for (rate, flows) in sized {
                let path = self.paths[flows[0]];
                let capacity = self.problem.offers()[path[at]].capacity_bps();
                if rate > capacity {
                    return None;
                }
                let loads = &mut loads[path[at]];
                let tree = self.problem.tree(flows[0]).map(|tree| (tree, &path[..=at]));
                let home = tree.and_then(|tree| homes.get(&tree)).into_iter().flatten().copied();
                let number = home.chain(0..loads.len()).find(|n| loads[*n] + rate <= capacity);
                let number = number.unwrap_or_else(|| {
                    loads.push(0);
                    loads.len() - 1
                });
                loads[number] += rate;
                if let Some(tree) = tree {
                    homes.entry(tree).or_default().push(number);
                }
                for flow in flows {
                    numbers[flow][at] = number;
                }
            }
        }
        Some(numbers)
    }

    /// What a flow is part of when it leaves the relay at this place of its path; `numbers` are
    /// known behind it.
    fn stream(self, flow: usize, at: usize, numbers: &Numbers) -> Stream<'a> {
        let path = self.paths[flow];
        match (self.problem.tree(flow), numbers[flow].get(at + 1)) {
            (Some(tree), Some(next)) => Stream::Shared(tree, &path[..=at + 1], *next),
            _ => Stream::Own(flow),
        }
    }

    /// The legs that several flows share when relays are numbered so.
    fn shared(self, numbers: &Numbers) -> Vec<SharedEdge> {
        let mut edges: BTreeMap<(usize, Relays), Vec<usize>> = BTreeMap::new();
        for (flow, (path, numbers)) in self.paths.iter().zip(numbers).enumerate() {
            let Some(tree) = self.problem.tree(flow) else { continue };
            let whole: Relays = path.iter().copied().zip(numbers.iter().copied()).collect();
            for end in 1..=whole.len() {
                edges.entry((tree, whole[..end].to_vec())).or_default().push(flow);
            }
        }
        let mut shared = Vec::new();
        for ((_, prefix), flows) in edges {
            if flows.len() < 2 {
                continue;
            }
            let once = match prefix[..] {
                [.., (from, _), (to, _)] => self.problem.egress_between(flows[0], from, to),
                [(first, _)] => self.problem.egress_to_first(flows[0], first),
                [] => Ok(Money::ZERO),
            };
            // A path without price is no candidate.
            let saved = once.unwrap_or_default().times(flows.len() as u64 - 1);
            shared.push(SharedEdge { prefix, flows, saved });
        }
        shared
    }
}
