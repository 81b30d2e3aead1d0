//! Flows that carry the same from the same source, and what of their cost is surely theirs alone.

use std::collections::BTreeMap;

use tradewind_model::ModelError;
use tradewind_model::catalogue::Egress;
use tradewind_units::{Bandwidth, ContentId, Money, SiteId};

use super::{Flow, Problem};

/// The tree that each flow is part of: flows of one source and content, two at least.
pub(super) fn trees(flows: &[Flow]) -> Vec<Option<usize>> {
    let mut groups: BTreeMap<(&SiteId, &ContentId), Vec<usize>> = BTreeMap::new();
    for (index, flow) in flows.iter().enumerate() {
        if let Some(content) = &flow.content {
            groups.entry((&flow.source, content)).or_default().push(index);
        }
    }
    let mut trees = vec![None; flows.len()];
    let shared = groups.into_values().filter(|members| members.len() > 1);
    for (tree, members) in shared.enumerate() {
        for flow in members {
            trees[flow] = Some(tree);
        }
    }
    trees
}

impl Problem {
    /// The distribution tree, counted from 0, that the flow at this place is part of; `None` when
    /// no other flow of its source has its content.
    #[must_use]
    pub fn tree(&self, flow: usize) -> Option<usize> {
        self.trees[flow]
    }

    /// Whether some flows may share legs.
    #[must_use]
    pub fn has_trees(&self) -> bool {
        self.trees.iter().any(Option::is_some)
    }

    /// The same problem, but each flow is carried by itself: a plan of it holds for this one, and
    /// costs no less.
    #[must_use]
    pub fn apart(&self) -> Self {
        let mut problem = self.clone();
        for flow in &mut problem.inputs.flows {
            flow.content = None;
        }
        problem.trees = vec![None; problem.trees.len()];
        problem
    }

    /// A problem without trees whose bounds hold for this one: no plan of this one costs less than
    /// the same paths there, or takes less of a relay.
    ///
    /// The last leg is a flow's own. Each leg before it counts by its share, one part for each flow
    /// of the tree: no more than all of them can share it. `None` where the problem leaves paths
    /// out, which would have to be shared out as well.
    #[must_use]
    pub fn relaxed(&self) -> Option<Self> {
        if self.leaves_out() {
            return None;
        }
        let mut sizes: BTreeMap<usize, u64> = BTreeMap::new();
        for tree in self.trees.iter().flatten() {
            *sizes.entry(*tree).or_default() += 1;
        }
        let mut problem = self.apart();
        for (flow, tree) in self.trees.iter().enumerate() {
            let Some(size) = tree.map(|tree| sizes[&tree]) else { continue };
            for candidate in &mut problem.candidates[flow] {
                let pairs = candidate.relays.windows(2);
                let between = pairs.map(|pair| self.egress_between(flow, pair[0], pair[1]));
                let first =
                    candidate.relays.first().map(|first| self.egress_to_first(flow, *first));
                let inner: Money = between.chain(first).filter_map(Result::ok).sum();
                let own = candidate.cost.checked_sub(inner).unwrap_or_default();
                candidate.cost = own + share_of(inner, size);
                if candidate.relays.len() > 1 {
                    let bps = (candidate.rate.as_bps() / size).max(1);
                    candidate.rate = Bandwidth::from_bps(bps).unwrap_or(candidate.rate);
                }
            }
        }
        Some(problem)
    }

    /// Returns what the cloud of the source of the flow at this place charges for what goes to a
    /// relay of this offer.
    ///
    /// # Errors
    /// When the price is missing.
    pub fn egress_to_first(&self, flow: usize, first: usize) -> Result<Money, ModelError> {
        let ends = &self.inputs.flows[flow];
        let source = self.inputs.site_regions.get(&ends.source);
        let to = Egress::Region(&self.offers[first].region);
        Ok(self.inputs.prices.source_egress(source, to)?.cost_of(ends.volume))
    }

    /// What the flow at this place pays for egress from a relay of one offer to a relay of another.
    ///
    /// # Errors
    /// When the price is missing.
    pub fn egress_between(&self, flow: usize, from: usize, to: usize) -> Result<Money, ModelError> {
        let (from, to) = (&self.offers[from].region, &self.offers[to].region);
        let price = self.inputs.prices.egress(from, Egress::Region(to))?;
        Ok(price.cost_of(self.inputs.flows[flow].volume))
    }
}

/// One of so many parts, rounded down to what money can be.
fn share_of(whole: Money, parts: u64) -> Money {
    let rounded = Money::from_usd(whole.as_usd() / parts as f64).unwrap_or_default();
    let nano = Money::from_usd(1e-9).unwrap_or_default();
    if rounded.times(parts) > whole {
        rounded.checked_sub(nano).unwrap_or_default()
    } else {
        rounded
    }
}
