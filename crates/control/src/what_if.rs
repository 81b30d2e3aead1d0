//! Plans that are only asked about: of changes that are supposed. The state stays as it is.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_model::catalogue::Egress;
use tradewind_model::cost::Prices;
use tradewind_plan::{Inputs, PacketPlan, Plan, Problem};
use tradewind_units::{Bytes, Duration, FlowId, Money, PricePerGb, RegionId, Timestamp};

use crate::draft::unix_ms;
use crate::event::Refusal;
use crate::joint::JointPlan;
use crate::money;
use crate::planning;
use crate::prices;
use crate::record::{Host, PlanRecord, Role};
use crate::state::State;

/// Most entries of each list of changes. Chosen: more than a person types.
pub const MAX_CHANGES: usize = 100;
/// The least factor of a volume. Chosen: below what anybody expects.
pub const MIN_FACTOR: f64 = 0.001;
/// The greatest factor of a price or volume. Chosen: beyond what anybody expects.
pub const MAX_FACTOR: f64 = 1000.0;
/// Most flows with another path that an answer lists. Chosen: as many as a person looks through.
pub const MAX_MOVES: usize = 1000;

/// Changes that are supposed; none of them is made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WhatIf {
    /// Regions without relays: `gcp:us-east4`, or all of a cloud, `gcp:*`.
    #[serde(default)]
    #[schemars(length(max = MAX_CHANGES))]
    pub without: Vec<String>,
    /// Prices that are others.
    #[serde(default)]
    #[schemars(length(max = MAX_CHANGES))]
    pub prices: Vec<PriceChange>,
    /// Volumes that are others.
    #[serde(default)]
    #[schemars(length(max = MAX_CHANGES))]
    pub volumes: Vec<VolumeChange>,
    /// The most that a day may cost, in dollars; the budget as it is set when absent.
    #[serde(default)]
    pub budget_usd_per_day: Option<Money>,
}

/// Another price of traffic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PriceChange {
    /// The regions whose relays send it: `aws:us-east-1`, all of a cloud, `aws:*`, or all, `*`.
    pub from: String,
    /// The factor of its price.
    #[schemars(range(min = 0, max = 1000))]
    pub times: f64,
}

/// Another volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeChange {
    /// The flow; all flows when absent.
    #[serde(default)]
    pub flow: Option<FlowId>,
    /// The factor of its volume.
    #[schemars(range(min = 0.001, max = 1000))]
    pub times: f64,
}

/// The money and the time of all flows' volumes of a day.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Worth {
    /// The cost of relays and traffic, that of packet flows included.
    pub usd_per_day: Money,
    /// The sum of the flows' completion times.
    pub seconds: f64,
    /// The seconds that they take less than on direct paths.
    pub seconds_saved: f64,
    /// Relays that run, for streams and packet flows.
    pub relays: usize,
    /// Flows over relays, packet flows included.
    pub flows_over_relays: usize,
}

/// The plan that would be made, beside what is in effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Supposed {
    /// The paths in effect, by what is measured and expected now.
    pub present: Worth,
    /// The plan under the changes.
    pub plan: Worth,
    /// The dollars a day that the plan costs more; below zero: less.
    pub usd_more: f64,
    /// The seconds a day that it saves more; below zero: fewer.
    pub seconds_saved_more: f64,
    /// The regions in which it runs more or fewer relays.
    pub regions: Vec<RegionChange>,
    /// The number of flows with another path.
    pub moves: usize,
    /// Those flows, at most [`MAX_MOVES`].
    pub flows: Vec<Move>,
}

/// A region in which more or fewer relays would run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegionChange {
    /// The region.
    pub region: RegionId,
    /// Relays in effect.
    pub present: usize,
    /// Relays of the plan.
    pub plan: usize,
}

/// A flow that would take another path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Move {
    /// The flow.
    pub flow: FlowId,
    /// The regions of its path in effect; empty: direct.
    pub from: Vec<RegionId>,
    /// The regions of its path in the plan.
    pub to: Vec<RegionId>,
    /// Its completion time now.
    pub seconds_before: f64,
    /// Its completion time in the plan, of its volume there.
    pub seconds_after: f64,
}

impl Worth {
    /// Returns that of a plan of streams and packet flows.
    #[must_use]
    pub fn of_joint(joint: &JointPlan) -> Self {
        let (streams, packets) = (Self::of(&joint.record.plan), &joint.record.packets.plan);
        Self {
            usd_per_day: joint.cost(),
            relays: streams.relays + packets.relays.len(),
            flows_over_relays: streams.flows_over_relays + over_relays(packets),
            ..streams
        }
    }

    /// Returns that of a plan of streams.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let saved = |direct: Duration, fct: Duration| direct.as_secs_f64() - fct.as_secs_f64();
        let flows = plan.flows.iter();
        Self {
            usd_per_day: plan.cost,
            seconds: plan.total_fct.as_secs_f64(),
            seconds_saved: flows.filter_map(|it| Some(saved(it.fct_direct?, it.fct))).sum(),
            relays: plan.relays.len(),
            flows_over_relays: plan.flows.iter().filter(|flow| !flow.path.is_empty()).count(),
        }
    }
}

fn over_relays(packets: &PacketPlan) -> usize {
    packets.flows.iter().filter(|flow| !flow.path.is_empty()).count()
}

/// The paths in effect, by what is measured and expected now.
#[derive(Debug)]
pub struct Present {
    /// Their money and time.
    pub worth: Worth,
    relays: BTreeMap<RegionId, usize>,
    flows: BTreeMap<FlowId, (Vec<RegionId>, f64)>,
}

impl Present {
    /// Returns those of the state; `problem` is the planning problem of it.
    #[must_use]
    pub fn new(state: &State, now: Timestamp, problem: &Problem) -> Self {
        let in_effect = planning::paths_in_effect(state, unix_ms(now));
        let plan = state.plan_in_effect().filter(|_| !in_effect.is_empty()).map(|it| &it.plan);
        let planned: BTreeMap<_, _> =
            plan.into_iter().flat_map(|plan| &plan.flows).map(|it| (&it.id, it)).collect();
        let relays = plan.map(|plan| plan.relays.as_slice()).unwrap_or_default();
        let terms = &state.settings.terms;
        let types = relays.iter().filter_map(|it| prices::offered_type(terms, &it.relay_type).ok());
        let is_paid = |plan: &&PlanRecord| !money::is_unpaid(state, unix_ms(now), plan);
        let packets = state.plan_in_effect().filter(is_paid).map(|plan| &plan.packets.plan);
        let of_packets = packets.map_or(&[][..], |packets| &packets.relays);
        let machines: Money = types.map(|relay_type| relay_type.set_up).sum();
        let mut usd_per_day = machines + packets.map_or(Money::ZERO, |packets| packets.cost);
        let (mut seconds, mut direct_seconds) = (0.0, 0.0);
        let mut flows = BTreeMap::new();
        for (index, flow) in problem.flows().iter().enumerate() {
            let over = planned.get(&flow.id).filter(|_| in_effect.contains_key(&flow.id));
            let offers = over.zip(plan).and_then(|(flow, plan)| plan.offers_of(problem, flow));
            let known = offers.and_then(|path| Some((problem.fct(index, &path)?, path)));
            let Some(direct) = problem.fct(index, &[]) else { continue };
            let (fct, path) = known.unwrap_or((direct, Vec::new()));
            usd_per_day = usd_per_day + problem.egress_cost(index, &path).unwrap_or_default();
            seconds += fct.as_secs_f64();
            direct_seconds += direct.as_secs_f64();
            let region = |offer: &usize| problem.offers()[*offer].region.clone();
            let regions: Vec<RegionId> = path.iter().map(region).collect();
            flows.insert(flow.id.clone(), (regions, fct.as_secs_f64()));
        }
        let worth = Worth {
            usd_per_day,
            seconds,
            seconds_saved: direct_seconds - seconds,
            relays: relays.len() + of_packets.len(),
            flows_over_relays: flows.values().filter(|(path, _)| !path.is_empty()).count()
                + packets.map_or(0, over_relays),
        };
        let regions = relays.iter().map(|relay| &relay.region);
        let regions = regions.chain(of_packets.iter().map(|relay| &relay.region));
        Self { worth, relays: by_region(regions), flows }
    }

    /// Returns a plan beside it.
    #[must_use]
    pub fn beside(self, joint: &JointPlan) -> Supposed {
        let (after, plan) = (Worth::of_joint(joint), &joint.record.plan);
        let regions = plan.relays.iter().map(|relay| &relay.region);
        let of_packets = joint.record.packets.plan.relays.iter().map(|relay| &relay.region);
        let relays = by_region(regions.chain(of_packets));
        let regions: BTreeSet<&RegionId> = self.relays.keys().chain(relays.keys()).collect();
        let change = |region: &&RegionId| RegionChange {
            region: (*region).clone(),
            present: self.relays.get(*region).copied().unwrap_or(0),
            plan: relays.get(*region).copied().unwrap_or(0),
        };
        let regions = regions.iter().map(change).filter(|it| it.present != it.plan).collect();
        let mut flows: Vec<Move> = Vec::new();
        for planned in &plan.flows {
            let Some((from, seconds_before)) = self.flows.get(&planned.id) else { continue };
            let Some(to) = plan.regions_of(planned) else { continue };
            if to != *from {
                let (flow, from) = (planned.id.clone(), from.clone());
                let seconds_after = planned.fct.as_secs_f64();
                flows.push(Move { flow, from, to, seconds_before: *seconds_before, seconds_after });
            }
        }
        let moves = flows.len();
        flows.truncate(MAX_MOVES);
        Supposed {
            present: self.worth,
            plan: after,
            usd_more: after.usd_per_day.as_usd() - self.worth.usd_per_day.as_usd(),
            seconds_saved_more: after.seconds_saved - self.worth.seconds_saved,
            regions,
            moves,
            flows,
        }
    }
}

fn by_region<'a>(regions: impl Iterator<Item = &'a RegionId>) -> BTreeMap<RegionId, usize> {
    let mut counts = BTreeMap::new();
    regions.for_each(|region| *counts.entry(region.clone()).or_default() += 1);
    counts
}

/// Returns the planning problem under changes that are supposed.
///
/// # Errors
/// When a change is not possible, or names what is not there; or nothing can be planned.
pub fn problem(state: &State, now: Timestamp, asked: &WhatIf) -> Result<Problem, Refusal> {
    let lengths = [asked.without.len(), asked.prices.len(), asked.volumes.len()];
    if lengths.iter().any(|length| *length > MAX_CHANGES) {
        return Err(Refusal::Invalid(format!("at most {MAX_CHANGES} changes of a kind")));
    }
    let named = asked.without.iter().chain(asked.prices.iter().map(|price| &price.from));
    for named in named {
        let is_there = |host: &Host| match &host.role {
            Role::Relay { region, .. } => fits(named, region),
            Role::Gateway { .. } | Role::Probe { .. } => false,
        };
        if !state.hosts.values().any(is_there) {
            let named = tradewind_units::shown(named);
            return Err(Refusal::Invalid(format!("no relay host is in region `{named}`")));
        }
    }
    planning::supposed(
        state,
        now,
        |host| is_used(asked, host),
        |inputs| change(state, asked, inputs),
    )
}

/// Returns the plan of packet flows beside one of the streams, under the same changes.
///
/// # Errors
/// As [`problem`], and when no hosts are left for the streams' relays.
pub fn joint(
    state: &State,
    now: Timestamp,
    asked: &WhatIf,
    streams: Plan,
) -> Result<JointPlan, Refusal> {
    let is_used = |host: &Host| is_used(asked, host);
    let mut inputs = planning::inputs_now(state, now, is_used);
    change(state, asked, &mut inputs)?;
    JointPlan::supposed(state, now, streams, &inputs, is_used)
}

/// Returns whether a host is in no region that is left out.
fn is_used(asked: &WhatIf, host: &Host) -> bool {
    match &host.role {
        Role::Relay { region, .. } => !asked.without.iter().any(|it| fits(it, region)),
        Role::Gateway { .. } | Role::Probe { .. } => true,
    }
}

/// Makes the changes in the planner's inputs.
fn change(state: &State, asked: &WhatIf, inputs: &mut Inputs) -> Result<(), Refusal> {
    let budget = asked.budget_usd_per_day;
    inputs.budget = budget.unwrap_or(state.settings.budget_usd_per_day);
    change_volumes(state, inputs, &asked.volumes)?;
    change_prices(inputs, &asked.prices)
}

/// Returns whether a region is one of those that a text names.
fn fits(named: &str, region: &RegionId) -> bool {
    match named.strip_suffix('*') {
        Some("") => true,
        Some(cloud) => cloud.ends_with(':') && region.as_str().starts_with(cloud),
        None => named == region.as_str(),
    }
}

fn change_volumes(
    state: &State,
    inputs: &mut Inputs,
    changes: &[VolumeChange],
) -> Result<(), Refusal> {
    for VolumeChange { flow, times } in changes {
        if !(MIN_FACTOR..=MAX_FACTOR).contains(times) {
            let expected = format!("{MIN_FACTOR} to {MAX_FACTOR}");
            return Err(Refusal::Invalid(format!("the factor of a volume is {expected}")));
        }
        if let Some(flow) = flow.as_ref().filter(|flow| !state.flows.contains_key(*flow)) {
            return Err(Refusal::Invalid(format!("there is no flow `{flow}`")));
        }
        let is_meant = |id: &FlowId| flow.as_ref().is_none_or(|flow| flow == id);
        for flow in inputs.flows.iter_mut().filter(|flow| is_meant(&flow.id)) {
            let bytes = (flow.volume.as_u64() as f64 * times).ceil() as u64;
            flow.volume = Bytes::new(bytes.max(1));
        }
    }
    Ok(())
}

fn change_prices(inputs: &mut Inputs, changes: &[PriceChange]) -> Result<(), Refusal> {
    let mut pairs: BTreeMap<(RegionId, Option<RegionId>), PricePerGb> = BTreeMap::new();
    for PriceChange { from: named, times } in changes {
        if !(0.0..=MAX_FACTOR).contains(times) {
            return Err(Refusal::Invalid(format!("the factor of a price is 0 to {MAX_FACTOR}")));
        }
        for from in inputs.regions.iter().filter(|region| fits(named, region)) {
            for to in inputs.regions.iter().map(Some).chain([None]) {
                let ends = (from.clone(), to.cloned());
                let egress = to.map_or(Egress::Internet, Egress::Region);
                let listed = || inputs.prices.egress(from, egress).ok();
                let Some(price) = pairs.get(&ends).copied().or_else(listed) else { continue };
                let price = PricePerGb::from_usd_per_gb(price.as_usd_per_gb() * times);
                pairs.insert(ends, price.map_err(|error| Refusal::Invalid(error.to_string()))?);
            }
        }
    }
    if !pairs.is_empty() {
        let otherwise = Box::new(inputs.prices.clone());
        inputs.prices = Prices::Stated { pairs, otherwise };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tradewind_plan::Limits;
    use tradewind_plan::solver::{TwoProxy, solve};

    use super::*;
    use crate::testing::{Bench, PATH};

    fn asked(bench: &Bench, asked: &WhatIf) -> Supposed {
        let (state, now) = (bench.state(), bench.time());
        let plan = |asked: &WhatIf| {
            let problem = problem(state, now, asked).unwrap();
            let plan = solve(&TwoProxy, &problem, &Limits::work(100_000)).unwrap();
            (problem, joint(state, now, asked, plan).unwrap())
        };
        let (_, supposed) = plan(asked);
        let (present, _) = plan(&WhatIf::default());
        Present::new(state, now, &present).beside(&supposed)
    }

    fn refusal(bench: &Bench, asked: &WhatIf) -> String {
        match problem(bench.state(), bench.time(), asked) {
            Err(Refusal::Invalid(problem)) => problem,
            other => panic!("{other:?}"),
        }
    }

    fn price(from: &str, times: f64) -> WhatIf {
        let from = from.to_owned();
        WhatIf { prices: vec![PriceChange { from, times }], ..WhatIf::default() }
    }

    fn volume(flow: Option<&str>, times: f64) -> WhatIf {
        let flow = flow.map(|flow| flow.parse().unwrap());
        WhatIf { volumes: vec![VolumeChange { flow, times }], ..WhatIf::default() }
    }

    fn without(region: &str) -> WhatIf {
        WhatIf { without: vec![region.to_owned()], ..WhatIf::default() }
    }

    #[test]
    fn without_a_change_the_plan_is_that_in_effect() {
        let bench = Bench::in_service();
        let nothing = asked(&bench, &WhatIf::default());
        let in_effect = &bench.state().plan_in_effect().unwrap().plan;
        assert_eq!(nothing.present.usd_per_day, in_effect.cost);
        // Rates have been measured since that plan was made.
        assert!((nothing.present.seconds - nothing.plan.seconds).abs() < 1e-6);
        assert_eq!((nothing.present.relays, nothing.present.flows_over_relays), (2, 1));
        assert!(nothing.present.seconds_saved > 0.0);
        assert!(nothing.usd_more.abs() < 1e-9 && nothing.seconds_saved_more.abs() < 1e-6);
        assert_eq!((nothing.moves, nothing.flows.len(), nothing.regions.len()), (0, 0, 0));
    }

    #[test]
    fn region_less_moves_flows() {
        let bench = Bench::in_service();
        let less = asked(&bench, &without("gcp:asia-east1"));
        assert!(less.seconds_saved_more < 0.0, "{less:?}");
        let asia = less.regions.iter().find(|it| it.region.as_str() == "gcp:asia-east1").unwrap();
        assert_eq!((asia.present, asia.plan), (1, 0));
        assert_eq!((less.moves, less.flows[0].from.len()), (1, PATH.len()));
        assert!(less.flows[0].to.iter().all(|region| region.as_str() != "gcp:asia-east1"));
        assert!(less.flows[0].seconds_after > less.flows[0].seconds_before);
        let none = asked(&bench, &without("gcp:*"));
        assert_eq!((none.plan.relays, none.plan.usd_per_day), (0, Money::ZERO));
        assert!((none.usd_more + none.present.usd_per_day.as_usd()).abs() < 1e-9);
        assert!((none.seconds_saved_more + none.present.seconds_saved).abs() < 1e-6);
    }

    #[test]
    fn prices_volumes_and_budget_are_others() {
        let bench = Bench::in_service();
        let present = asked(&bench, &WhatIf::default()).present;
        let machines = 2.0 * 0.5;
        let free = asked(&bench, &price("*", 0.0));
        assert!((free.plan.usd_per_day.as_usd() - machines).abs() < 1e-9, "{free:?}");
        assert_eq!((free.present, free.plan.seconds), (present, present.seconds));
        let half = asked(&bench, &price("gcp:europe-north1", 0.5));
        assert!(half.usd_more < 0.0 && half.usd_more > free.usd_more, "{half:?}");
        // The budget does not pay that.
        let dear = asked(&bench, &price("gcp:*", 500.0));
        assert_eq!((dear.plan.relays, dear.moves), (0, 1));
        let half = asked(&bench, &volume(Some("a"), 0.5));
        let traffic = present.usd_per_day.as_usd() - machines;
        assert!((half.usd_more + traffic / 2.0).abs() < 1e-6, "{half:?}");
        assert!(half.plan.seconds < present.seconds);
        assert_eq!(asked(&bench, &volume(None, 0.5)), half);
        let poor = WhatIf { budget_usd_per_day: Some(Money::ZERO), ..WhatIf::default() };
        assert_eq!(asked(&bench, &poor).plan.relays, 0);
    }

    #[test]
    fn impossible_changes_are_refused() {
        let bench = Bench::in_service();
        for region in ["aws:*", "gcp:us-east4", "", "gcp*", "gcp:asia-*"] {
            let expected = format!("no relay host is in region `{region}`");
            assert_eq!(refusal(&bench, &without(region)), expected);
            assert_eq!(refusal(&bench, &price(region, 2.0)), expected);
        }
        for times in [-1.0, 1001.0, f64::NAN, f64::INFINITY] {
            assert_eq!(refusal(&bench, &price("*", times)), "the factor of a price is 0 to 1000");
            let expected = "the factor of a volume is 0.001 to 1000";
            assert_eq!(refusal(&bench, &volume(None, times)), expected);
        }
        assert!(refusal(&bench, &price("*", 1000.0)).contains("dollars per GB from 0 to 100"));
        assert_eq!(refusal(&bench, &volume(Some("none"), 2.0)), "there is no flow `none`");
        let many = WhatIf { without: vec!["*".to_owned(); 101], ..WhatIf::default() };
        assert_eq!(refusal(&bench, &many), "at most 100 changes of a kind");
    }
}
