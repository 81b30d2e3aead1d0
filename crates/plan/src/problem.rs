//! The cloud-proxy placement problem [CP V], for paths of any number of relays of several types.
//!
//! Given flows with volumes, regions that may hold relays, the legs between them, prices and a
//! budget: choose relays and paths that minimize the objective, with the cost within the budget and
//! no relay loaded above its capacity. Set-up is paid once for each relay, egress by each flow at
//! each hop.
//!
//! Solvers see numbers only: [`Problem::offers`] are relay types in regions, and
//! [`Problem::candidates`] are each flow's paths over them, with times, costs and rates.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tradewind_model::catalogue::Egress;
use tradewind_model::cost::{FLAT_SET_UP_USD, Prices, path_egress};
use tradewind_model::fct::{Completion, path_completion};
use tradewind_model::leg::{RELAY_CAPACITY_MBPS, RELAY_FLOW_MBPS};
use tradewind_model::{Leg, ModelError, StartUp};
use tradewind_units::{Bandwidth, Bytes, Duration, FlowId, Money, RegionId, RelayTypeId, SiteId};

use crate::candidates::{Candidate, FlowCandidates, all_candidates};

mod check;
mod hours;
mod offers;

pub use check::ProblemError;

/// Most relays that a path may have. Chosen: CDD tried four; more never paid off.
pub const MAX_RELAYS: usize = 4;

/// Margin by which a relay that must not be set up costs more than the budget: this fraction of it
/// plus as many dollars. Chosen: above solvers' rounding, and small beside the costs.
const NEVER_ABOVE: f64 = 0.01;

/// A transfer that an application requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Its name.
    pub id: FlowId,
    /// The site it starts at.
    pub source: SiteId,
    /// The site it ends at.
    pub destination: SiteId,
    /// The volume to transfer.
    pub volume: Bytes,
    /// Weight of its completion time in the objective; at least 1.
    pub weight: u32,
    /// Latest completion time, if there is one: no plan exceeds it.
    pub deadline: Option<Duration>,
}

impl Flow {
    /// Returns a flow of weight 1 without deadline.
    #[must_use]
    pub const fn new(id: FlowId, source: SiteId, destination: SiteId, volume: Bytes) -> Self {
        Self { id, source, destination, volume, weight: 1, deadline: None }
    }
}

/// One end of a leg. A host in a region and a relay in the same region are two places: their
/// windows and caps differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LegEnd {
    /// The source or destination of a flow.
    Site(SiteId),
    /// A relay.
    Relay(RegionId),
}

impl std::fmt::Display for LegEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Site(site) => write!(f, "site {site}"),
            Self::Relay(region) => write!(f, "relay {region}"),
        }
    }
}

/// Legs by their ends, in order; a pair without an entry cannot be used.
pub type Legs = BTreeMap<(LegEnd, LegEnd), Leg>;

/// The capacity and set-up cost of one relay machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayType {
    /// Its name.
    pub id: RelayTypeId,
    /// The total rate of all its flows, each counted once [CP V-B].
    pub capacity: Bandwidth,
    /// The rate of one connection, if that is lower.
    pub per_connection: Option<Bandwidth>,
    /// The cost to set one up.
    pub set_up: Money,
}

impl RelayType {
    /// Returns CP's relay type: 2 Gbit/s, 1.75 Gbit/s a flow, 50 cents [CP IV-C, VII-A].
    #[must_use]
    pub fn cloudpilot() -> Self {
        let mbps = |rate| Bandwidth::from_mbps(rate).expect("the paper's rates are rates");
        Self {
            id: RelayTypeId::new("standard").expect("a short word"),
            capacity: mbps(RELAY_CAPACITY_MBPS),
            per_connection: Some(mbps(RELAY_FLOW_MBPS)),
            set_up: Money::from_usd(FLAT_SET_UP_USD).expect("half a dollar is money"),
        }
    }

    /// Returns a leg that ends at a relay of this type, capped at the rates of the relay.
    #[must_use]
    pub fn limits(&self, leg: Leg) -> Leg {
        let leg = leg.capped_at(self.capacity);
        self.per_connection.map_or(leg, |cap| leg.capped_per_connection_at(cap))
    }
}

/// A relay type in a region, which may be set up any number of times up to `most`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The region.
    pub region: RegionId,
    /// The relay type.
    pub relay_type: RelayType,
    /// The number of such relays that run already and cost no set-up.
    pub running: usize,
    /// True if it is available; otherwise no path passes it.
    pub is_offered: bool,
    /// Greatest number of such relays in a plan, those that run included; `None` if not limited.
    pub most: Option<usize>,
    /// Extra cost of each relay beyond `most`: twice as much as any plan without one.
    beyond: Money,
}

impl Offer {
    /// Returns the set-up cost of `count` such relays. More than `most` cost more than any plan.
    #[must_use]
    pub fn set_up(&self, count: usize) -> Money {
        let set_up = self.relay_type.set_up.times(count.saturating_sub(self.running) as u64);
        set_up.saturating_add(self.beyond.times(self.excess(count) as u64))
    }

    /// Returns the extra cost of each relay beyond `most`.
    pub(crate) const fn beyond(&self) -> Money {
        self.beyond
    }

    /// Returns by how many `count` exceeds `most`.
    pub(crate) fn excess(&self, count: usize) -> usize {
        self.most.map_or(0, |most| count.saturating_sub(most))
    }

    /// Returns the capacity of one such relay, in bit/s.
    #[must_use]
    pub const fn capacity_bps(&self) -> u64 {
        self.relay_type.capacity.as_bps()
    }
}

/// The quantity that a plan minimizes. Cost breaks ties, and deadlines hold in each case.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// The sum of completion times, each times its flow's weight `[CP V]`.
    #[default]
    TotalFct,
    /// The last flow's completion time; among plans with an equal one, the cost, then the sum.
    Makespan,
    /// The cost.
    Cost,
}

/// The running deployment, which a new plan replaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Running {
    /// The relays: those that a new plan keeps cost no set-up.
    pub relays: BTreeMap<(RegionId, RelayTypeId), usize>,
    /// Paths of flows, as regions.
    pub paths: BTreeMap<FlowId, Vec<RegionId>>,
    /// The cost of moving a flow from its path to another.
    pub move_cost: Money,
}

/// All inputs of a problem, not validated.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// The flows to carry.
    pub flows: Vec<Flow>,
    /// Regions that may hold relays.
    pub regions: Vec<RegionId>,
    /// The relay types that may be set up in each of them; at least one.
    pub relay_types: Vec<RelayType>,
    /// Relay types that are not available in a region.
    pub not_offered: BTreeSet<(RegionId, RelayTypeId)>,
    /// Greatest number of relays of a type in a region, where a quota limits it.
    pub most: BTreeMap<(RegionId, RelayTypeId), usize>,
    /// The hourly price of each relay of a type, for the whole hours that the plan takes, its
    /// set-up excluded; running relays cost nothing more.
    pub hourly: BTreeMap<RelayTypeId, Money>,
    /// The properties of each leg: measured, imported or estimated.
    pub legs: Legs,
    /// Sites inside a region: the last relay's egress to them has that region's price, else the
    /// Internet's, and their own cloud charges for what they send.
    pub site_regions: BTreeMap<SiteId, RegionId>,
    /// The total rate that a site's machine may send, where limited: its flows share it \[TRN\].
    pub site_caps: BTreeMap<SiteId, Bandwidth>,
    /// The part of that rate that may leave the site's region, where the cloud limits it further:
    /// traffic to a relay inside the region does not count \[TRN\].
    pub site_caps_outside: BTreeMap<SiteId, Bandwidth>,
    /// The prices of egress.
    pub prices: Prices,
    /// The greatest cost that the plan may have.
    pub budget: Money,
    /// Most relays on a path: 2 in CP, at most [`MAX_RELAYS`].
    pub max_relays: usize,
    /// The model of TCP's start-up.
    pub start_up: StartUp,
    /// The quantity to minimize.
    pub objective: Objective,
    /// The running deployment.
    pub running: Running,
}

impl Inputs {
    /// Returns CP's problem: its relay type and prices, at most two relays on a path, nothing
    /// running.
    #[must_use]
    pub fn cloudpilot(flows: Vec<Flow>, regions: Vec<RegionId>, legs: Legs, budget: Money) -> Self {
        Self {
            flows,
            regions,
            relay_types: vec![RelayType::cloudpilot()],
            not_offered: BTreeSet::new(),
            most: BTreeMap::new(),
            hourly: BTreeMap::new(),
            legs,
            site_regions: BTreeMap::new(),
            site_caps: BTreeMap::new(),
            site_caps_outside: BTreeMap::new(),
            prices: Prices::cloudpilot(),
            budget,
            max_relays: 2,
            start_up: StartUp::default(),
            objective: Objective::default(),
            running: Running::default(),
        }
    }
}

/// A validated problem.
#[derive(Debug, Clone)]
pub struct Problem {
    inputs: Inputs,
    offers: Vec<Offer>,
    /// Each flow's share of its source's caps.
    shares: Vec<check::Share>,
    candidates: Vec<Vec<Candidate>>,
    /// A lower bound on the completion time of a flow's paths that are not among its candidates;
    /// `None` if all are.
    left_out: Vec<Option<Duration>>,
}

impl Problem {
    /// Validates the inputs and computes the paths worth considering.
    ///
    /// Evaluates the completion-time model once for each path that the rates do not rule out.
    ///
    /// # Errors
    /// When a name is used twice, a flow is invalid or has no path, a price is missing, or costs
    /// could overflow.
    pub fn new(inputs: Inputs) -> Result<Self, ProblemError> {
        check::inputs(&inputs)?;
        let offers = offers::all(&inputs);
        let shares = vec![check::Share::default(); inputs.flows.len()];
        let (candidates, left_out) = (Vec::new(), Vec::new());
        let mut problem = Self { inputs, offers, shares, candidates, left_out };
        problem.find_candidates()?;
        let capped = [&problem.inputs.site_caps, &problem.inputs.site_caps_outside];
        if capped.iter().any(|caps| !caps.is_empty()) {
            problem.shares = check::shares(&problem);
            problem.find_candidates()?;
        }
        check::money(&problem)?;
        problem.price_excess()?;
        Ok(problem)
    }

    /// Creates a problem that has packet flows ([`crate::packets`]) only: it has no streams, and
    /// [`Plan::nothing`] is its plan.
    ///
    /// # Errors
    /// Those of [`Problem::new`], except that no flows are needed.
    ///
    /// [`Plan::nothing`]: crate::Plan::nothing
    pub fn without_streams(inputs: Inputs) -> Result<Self, ProblemError> {
        check::places(&inputs)?;
        let offers = offers::all(&inputs);
        let (shares, candidates) = (Vec::new(), Vec::new());
        let inputs = Inputs { flows: Vec::new(), ..inputs };
        Ok(Self { inputs, offers, shares, candidates, left_out: Vec::new() })
    }

    /// Returns the same problem restricted to the relays that run: its budget is cut to the cost of
    /// the most expensive paths, and any further relay costs more than that.
    ///
    /// # Errors
    /// When costs could overflow.
    pub(crate) fn over_running_relays(mut self) -> Result<Self, ProblemError> {
        let dearest = |candidates: &Vec<Candidate>| candidates.iter().map(|c| c.cost).max();
        let most: Money = self.candidates.iter().filter_map(dearest).sum();
        self.inputs.budget = self.inputs.budget.min(most);
        let never = self.inputs.budget.as_usd() * (1.0 + NEVER_ABOVE) + NEVER_ABOVE;
        let never = Money::from_usd(never).map_err(|_| ProblemError::TooMuchMoney)?;
        for relay_type in &mut self.inputs.relay_types {
            relay_type.set_up = never;
        }
        self.inputs.hourly.clear();
        self.offers = offers::all(&self.inputs);
        check::money(&self)?;
        self.price_excess()?;
        Ok(self)
    }

    /// Prices relays beyond a quota above the cost of any plan, so that no solver takes them.
    fn price_excess(&mut self) -> Result<(), ProblemError> {
        if self.inputs.most.is_empty() {
            return Ok(());
        }
        let beyond = check::beyond(self)?;
        self.offers.iter_mut().for_each(|offer| offer.beyond = beyond);
        Ok(())
    }

    fn find_candidates(&mut self) -> Result<(), ProblemError> {
        let flows = all_candidates(self)?.into_iter();
        let parts = |flow: FlowCandidates| (flow.candidates, flow.left_out);
        (self.candidates, self.left_out) = flows.map(parts).unzip();
        Ok(())
    }

    /// Returns the flows, in the order given.
    #[must_use]
    pub fn flows(&self) -> &[Flow] {
        &self.inputs.flows
    }

    /// Returns all offers: each relay type in each region, in the order given.
    #[must_use]
    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// Returns the greatest cost that a plan may have.
    #[must_use]
    pub const fn budget(&self) -> Money {
        self.inputs.budget
    }

    /// Returns the budget, or an upper bound on the cost of all plans within the quotas, if that is
    /// lower.
    pub(crate) fn budget_within(&self) -> Money {
        let limited = self.offers.iter().filter(|offer| offer.most.is_some());
        // Half of it exceeds the cost of any plan.
        let below = limited.map(|offer| offer.beyond.shared_by(2)).max();
        below.map_or(self.budget(), |below| below.min(self.budget()))
    }

    /// Returns the greatest number of relays on a path.
    #[must_use]
    pub const fn max_relays(&self) -> usize {
        self.inputs.max_relays
    }

    /// Returns the quantity to minimize.
    #[must_use]
    pub const fn objective(&self) -> Objective {
        self.inputs.objective
    }

    /// Returns the inputs of the problem.
    #[must_use]
    pub const fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// Returns the paths worth considering for the flow at this index of [`Problem::flows`]; the
    /// direct one first, if it is among them.
    #[must_use]
    pub fn candidates(&self, flow: usize) -> &[Candidate] {
        &self.candidates[flow]
    }

    /// Returns a lower bound on the completion time of the flow's useful paths that are not among
    /// its candidates; `None` if none is left out. Only problems with very many paths leave any
    /// out.
    #[must_use]
    pub fn left_out(&self, flow: usize) -> Option<Duration> {
        self.left_out[flow]
    }

    /// Returns whether useful paths of some flow are left out of its candidates.
    #[must_use]
    pub fn leaves_out(&self) -> bool {
        self.left_out.iter().any(Option::is_some)
    }

    /// Returns the same problem with another objective, in which no flow may take longer than
    /// `limit`; `None` when a flow has no such path.
    #[must_use]
    pub fn within(&self, limit: Duration, objective: Objective) -> Option<Self> {
        let mut problem = self.clone();
        problem.inputs.objective = objective;
        for (flow, candidates) in self.inputs.flows.iter().zip(&mut problem.candidates) {
            candidates.retain(|candidate| candidate.fct <= limit);
            for candidate in candidates.iter_mut() {
                candidate.score = score(flow, candidate.fct, objective);
            }
        }
        problem.candidates.iter().all(|candidates| !candidates.is_empty()).then_some(problem)
    }

    /// Returns the same problem with another budget, which the candidates do not depend on.
    #[must_use]
    pub fn with_budget(mut self, budget: Money) -> Self {
        self.inputs.budget = budget;
        self
    }

    /// Returns the legs of the flow at this index over these offers; `None` if one of them is not
    /// known.
    ///
    /// A leg that ends at a relay is capped at the relay's rates, and the first leg at the flow's
    /// share of its source's cap.
    #[must_use]
    pub fn legs(&self, flow: usize, relays: &[usize]) -> Option<Vec<Leg>> {
        let (Some(first), Some(last)) = (relays.first(), relays.last()) else {
            let ends = &self.inputs.flows[flow];
            let leg = self
                .leg(LegEnd::Site(ends.source.clone()), LegEnd::Site(ends.destination.clone()))?;
            return Some(vec![self.shared(flow, relays, leg)]);
        };
        let between = relays.windows(2).map(|pair| self.leg_between(pair[0], pair[1]));
        std::iter::once(self.first_leg(flow, *first))
            .chain(between)
            .chain(std::iter::once(self.last_leg(flow, *last)))
            .collect()
    }

    /// Returns the leg from the flow's source to a relay.
    fn first_leg(&self, flow: usize, relay: usize) -> Option<Leg> {
        Some(self.shared(flow, &[relay], self.unshared_first_leg(flow, relay)?))
    }

    /// Returns the same leg, not capped at the flow's share of its source's cap.
    pub(crate) fn unshared_first_leg(&self, flow: usize, relay: usize) -> Option<Leg> {
        let (source, offer) = (&self.inputs.flows[flow].source, &self.offers[relay]);
        let leg = self.leg(LegEnd::Site(source.clone()), LegEnd::Relay(offer.region.clone()))?;
        offer.is_offered.then(|| offer.relay_type.limits(leg))
    }

    /// Returns the leg from a relay to the flow's destination.
    pub(crate) fn last_leg(&self, flow: usize, relay: usize) -> Option<Leg> {
        let (destination, offer) = (&self.inputs.flows[flow].destination, &self.offers[relay]);
        let leg =
            self.leg(LegEnd::Relay(offer.region.clone()), LegEnd::Site(destination.clone()))?;
        offer.is_offered.then(|| offer.relay_type.limits(leg))
    }

    /// Returns the leg from one relay to another.
    pub(crate) fn leg_between(&self, from: usize, to: usize) -> Option<Leg> {
        let (from, to) = (&self.offers[from], &self.offers[to]);
        let leg = self.leg(LegEnd::Relay(from.region.clone()), LegEnd::Relay(to.region.clone()))?;
        let are_offered = from.is_offered && to.is_offered;
        are_offered.then(|| to.relay_type.limits(from.relay_type.limits(leg)))
    }

    fn leg(&self, from: LegEnd, to: LegEnd) -> Option<Leg> {
        self.inputs.legs.get(&(from, to)).copied()
    }

    fn shared(&self, flow: usize, relays: &[usize], leg: Leg) -> Leg {
        self.share(flow, relays).map_or(leg, |share| leg.capped_at(share))
    }

    /// Returns the share of its source's caps that the flow at this index gets on a path over these
    /// offers; `None` if it is not limited.
    #[must_use]
    pub fn share(&self, flow: usize, relays: &[usize]) -> Option<Bandwidth> {
        let share = self.shares[flow];
        let outside = share.outside.filter(|_| self.leaves_region(flow, relays));
        share.all.into_iter().chain(outside).min()
    }

    /// Returns whether the first hop of a path over these offers ends outside the region of the
    /// flow's source.
    fn leaves_region(&self, flow: usize, relays: &[usize]) -> bool {
        let ends = &self.inputs.flows[flow];
        let region = |site| self.inputs.site_regions.get(site);
        let first = relays.first().map(|relay| &self.offers[*relay].region);
        let to = first.or_else(|| region(&ends.destination));
        to.is_none() || region(&ends.source) != to
    }

    /// Returns the predicted completion of the flow at this index over these offers; `None` if a
    /// leg is not known.
    #[must_use]
    pub fn completion(&self, flow: usize, relays: &[usize]) -> Option<Completion> {
        let legs = self.legs(flow, relays)?;
        Some(path_completion(&legs, self.inputs.flows[flow].volume, self.inputs.start_up))
    }

    /// Returns the predicted completion time of the flow at this index over these offers; `None` if
    /// a leg is not known.
    #[must_use]
    pub fn fct(&self, flow: usize, relays: &[usize]) -> Option<Duration> {
        self.completion(flow, relays).map(|completion| completion.total())
    }

    /// Returns the predicted completion time of the flow at this index on its direct path, if there
    /// is one: that of [`Problem::fct`], looked up if the path is a candidate.
    pub(crate) fn direct_fct(&self, flow: usize) -> Option<Duration> {
        let first = self.candidates.get(flow).and_then(|candidates| candidates.first());
        let direct = first.filter(|candidate| candidate.relays.is_empty());
        direct.map(|candidate| candidate.fct).or_else(|| self.fct(flow, &[]))
    }

    /// Returns the egress cost of the flow at this index over these offers.
    ///
    /// # Errors
    /// When a price is missing.
    pub fn egress_cost(&self, flow: usize, relays: &[usize]) -> Result<Money, ModelError> {
        let ends = &self.inputs.flows[flow];
        let inside = self.inputs.site_regions.get(&ends.destination);
        let destination = inside.map_or(Egress::Internet, Egress::Region);
        let regions: Vec<RegionId> =
            relays.iter().map(|offer| self.offers[*offer].region.clone()).collect();
        let source = self.inputs.site_regions.get(&ends.source);
        path_egress(&self.inputs.prices, source, &regions, destination, ends.volume)
    }

    /// Returns the cost of moving the flow at this index from its running path to these offers.
    #[must_use]
    pub fn move_cost(&self, flow: usize, relays: &[usize]) -> Money {
        let running = &self.inputs.running;
        let Some(before) = running.paths.get(&self.inputs.flows[flow].id) else {
            return Money::ZERO;
        };
        let now = relays.iter().map(|offer| &self.offers[*offer].region);
        if before.iter().eq(now) { Money::ZERO } else { running.move_cost }
    }

    /// Returns the capacity that the flow at this index uses at each of its relays: its mean rate
    /// [CP V-B].
    #[must_use]
    pub fn rate_used(&self, flow: usize, fct: Duration) -> Bandwidth {
        let volume = self.inputs.flows[flow].volume;
        Bandwidth::from_transfer(volume, fct).unwrap_or(Bandwidth::MAX)
    }

    /// Returns the objective of these completion times and this cost, in seconds or dollars.
    #[must_use]
    pub fn value(&self, fcts: impl Iterator<Item = Duration>, cost: Money) -> f64 {
        let weighted = |(flow, fct): (&Flow, Duration)| fct.as_secs_f64() * f64::from(flow.weight);
        match self.inputs.objective {
            Objective::TotalFct => self.inputs.flows.iter().zip(fcts).map(weighted).sum(),
            Objective::Makespan => fcts.max().unwrap_or_default().as_secs_f64(),
            Objective::Cost => cost.as_usd(),
        }
    }

    /// Returns the contribution of this completion time of the flow at this index to the objective.
    #[must_use]
    pub fn score(&self, flow: usize, fct: Duration) -> Duration {
        score(&self.inputs.flows[flow], fct, self.inputs.objective)
    }
}

fn score(flow: &Flow, fct: Duration, objective: Objective) -> Duration {
    match objective {
        Objective::TotalFct | Objective::Makespan => fct.saturating_mul(flow.weight),
        Objective::Cost => Duration::ZERO,
    }
}
