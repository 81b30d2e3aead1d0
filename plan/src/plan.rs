//! The answer: relays to run, a path for each flow, its cost and its predicted effect.

use serde::{Deserialize, Serialize};
use tradewind_units::{Duration, FlowId, Money, RegionId, RelayId, time};

use crate::packing::{pack, relays_used};
use crate::problem::Problem;

/// Version of the plan's text form; grows when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// A relay to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedRelay {
    /// Its name: the region's and a number.
    pub id: RelayId,
    /// Where it runs.
    pub region: RegionId,
}

/// How a flow is carried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFlow {
    /// The flow.
    pub id: FlowId,
    /// Its relays, in order; empty: direct.
    pub path: Vec<RelayId>,
    /// Predicted completion time over this path.
    #[serde(rename = "fct_s", with = "time::as_seconds")]
    pub fct: Duration,
    /// Predicted completion time on the direct path, if there is one.
    #[serde(rename = "fct_direct_s", with = "optional_seconds")]
    pub fct_direct: Option<Duration>,
    /// What it pays for egress.
    #[serde(rename = "egress_usd")]
    pub egress: Money,
}

/// Relays to run and the paths over them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Who made it, e.g. `exhaustive`.
    pub solver: String,
    /// Relays to run, by region and number.
    pub relays: Vec<PlannedRelay>,
    /// Flows, in the problem's order.
    pub flows: Vec<PlannedFlow>,
    /// Set-up of all relays and egress of all flows.
    #[serde(rename = "cost_usd")]
    pub cost: Money,
    /// Sum of all completion times, the objective.
    #[serde(rename = "total_fct_s", with = "time::as_seconds")]
    pub total_fct: Duration,
    /// No plan within the budget has a smaller sum, as far as the solver could prove; equal to
    /// `total_fct` when this plan is optimal.
    #[serde(rename = "bound_fct_s", with = "time::as_seconds")]
    pub bound: Duration,
}

impl Plan {
    /// The plan in which flow `f` takes candidate `choice[f]`, with as few relays as carry that;
    /// `None` when a relay cannot carry one of them.
    pub(crate) fn from_choice(
        problem: &Problem,
        choice: &[usize],
        solver: &str,
        bound: Duration,
    ) -> Option<Self> {
        let chosen = |flow: usize| &problem.candidates(flow)[choice[flow]];
        let mut paths: Vec<Vec<RelayId>> = vec![Vec::new(); choice.len()];
        for (flow, path) in paths.iter_mut().enumerate() {
            let regions = &chosen(flow).regions;
            path.extend(regions.iter().map(|region| relay_id(&problem.regions()[*region], 0)));
        }
        let mut relays = Vec::new();
        for (index, region) in problem.regions().iter().enumerate() {
            let passes = |flow: &usize| chosen(*flow).regions.contains(&index);
            let users: Vec<usize> = (0..choice.len()).filter(passes).collect();
            let rates: Vec<u64> = users.iter().map(|flow| chosen(*flow).rate.as_bps()).collect();
            let packing = pack(&rates, problem.relay_capacity().as_bps())?;
            for (flow, number) in users.iter().zip(&packing) {
                let at = chosen(*flow).regions.iter().position(|r| *r == index);
                paths[*flow][at.expect("a user passes the region")] = relay_id(region, *number);
            }
            let numbers = 0..relays_used(&packing);
            relays.extend(numbers.map(|number| PlannedRelay {
                id: relay_id(region, number),
                region: region.clone(),
            }));
        }
        let set_up = problem.set_up().times(relays.len() as u64);
        let flows: Vec<PlannedFlow> = (problem.flows().iter().zip(paths).enumerate())
            .map(|(index, (flow, path))| PlannedFlow {
                id: flow.id.clone(),
                path,
                fct: chosen(index).fct,
                fct_direct: problem.fct(flow, &[]),
                egress: chosen(index).egress,
            })
            .collect();
        let egress: Money = flows.iter().map(|flow| flow.egress).sum();
        Some(Self {
            schema_version: SCHEMA_VERSION,
            solver: solver.to_owned(),
            relays,
            cost: set_up + egress,
            total_fct: flows.iter().map(|flow| flow.fct).sum(),
            flows,
            bound,
        })
    }

    /// Sum of all direct completion times; `None` when a flow has no direct path.
    #[must_use]
    pub fn total_fct_direct(&self) -> Option<Duration> {
        self.flows.iter().map(|flow| flow.fct_direct).sum()
    }

    /// Sum of direct completion times over the sum of planned ones; `None` when a flow has no direct path.
    #[must_use]
    pub fn acceleration(&self) -> Option<f64> {
        let direct = self.total_fct_direct()?.as_secs_f64();
        let ratio = direct / self.total_fct.as_secs_f64();
        ratio.is_finite().then_some(ratio)
    }

    /// Regions of a flow's path, in order; `None` for a relay that the plan does not run.
    #[must_use]
    pub fn regions_of(&self, flow: &PlannedFlow) -> Option<Vec<RegionId>> {
        let region = |id: &RelayId| self.relays.iter().find(|relay| relay.id == *id);
        flow.path.iter().map(|id| region(id).map(|relay| relay.region.clone())).collect()
    }
}

/// The name of the relay with this number in a region: `gcp:europe-north1.1` is the first.
fn relay_id(region: &RegionId, number: usize) -> RelayId {
    RelayId::new(format!("{region}.{}", number + 1)).expect("a problem's regions leave room")
}

mod optional_seconds {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tradewind_units::{Duration, time};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Seconds(#[serde(with = "time::as_seconds")] Duration);

    pub(super) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(Seconds).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Seconds>::deserialize(deserializer)?.map(|seconds| seconds.0))
    }
}
