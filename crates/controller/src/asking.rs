//! Plans that are only asked about: the front of several budgets, and those under changes that are
//! supposed. Nothing of them is stored.
//!
//! One is computed at a time, on a thread that may wait, and gives way to the planner: that waits
//! for none of them. Whoever asks meanwhile waits a while, and is then refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use hyper::StatusCode;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout;
use tradewind_control::front::{self, MAX_PLANS};
use tradewind_control::packet_flow::PacketFlowRecord;
use tradewind_control::record::{FlowRecord, Settings};
use tradewind_control::what_if::{self, Present, WhatIf, Worth};
use tradewind_control::{Controller, Refusal, State};
use tradewind_plan::Plan;
use tradewind_stream::clock::unix_now;
use tradewind_units::{Duration, FlowId, HostId, Money};

use crate::answer::Problem;
use crate::engine::{Engine, millis};
use crate::planning::Planner;
use crate::view::{Front, SCHEMA_VERSION, SupposedView};

/// Longest time of a plan that is asked about. Chosen: as the planner's.
const ONE_PLAN: Duration = Duration::from_secs(2);
/// Longest time of all plans of a front. Chosen: below what clients wait for.
const ALL_PLANS: Duration = Duration::from_secs(10);
/// Longest wait for those who asked before. Chosen: a front, or some plans.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Time after which a front is computed again in any case. Chosen: what is measured drifts by less
/// than what makes a plan stale.
const FRONT_LASTS: Duration = Duration::from_secs(600);

/// The answers to what is asked about plans; clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Asking {
    planner: Planner,
    /// Held while something is computed; the front that was computed last.
    kept: Arc<Mutex<Option<Kept>>>,
}

/// A front, and that which it was computed of.
#[derive(Debug)]
struct Kept {
    basis: FrontKey,
    made: Instant,
    front: Front,
}

/// That which a front is computed of. What is measured otherwise leads to another plan, and with
/// that to another front.
#[derive(Debug, PartialEq)]
struct FrontKey {
    flows: Arc<BTreeMap<FlowId, FlowRecord>>,
    packet_flows: Arc<BTreeMap<FlowId, PacketFlowRecord>>,
    settings: Settings,
    relays: Vec<HostId>,
    newest_plan: Option<u64>,
    plan_in_effect: Option<u64>,
}

impl FrontKey {
    fn of(state: &State) -> Self {
        let relays = state.relay_hosts(millis(unix_now()));
        Self {
            flows: Arc::clone(&state.flows),
            packet_flows: Arc::clone(&state.packet_flows),
            settings: state.settings.clone(),
            relays: relays.map(|host| host.id.clone()).collect(),
            newest_plan: state.newest_plan().map(|plan| plan.number),
            plan_in_effect: state.plan_in_effect().map(|plan| plan.number),
        }
    }
}

impl Asking {
    pub(crate) fn new(planner: Planner) -> Self {
        Self { planner, kept: Arc::default() }
    }

    /// Waits for those who asked before, no longer than `longest`.
    async fn turn(&self, longest: Duration) -> Result<OwnedMutexGuard<Option<Kept>>, Problem> {
        let turn = timeout(longest, Arc::clone(&self.kept).lock_owned()).await;
        turn.map_err(|_| {
            let error = "other plans are being computed for someone; ask again in some seconds";
            Problem::new(StatusCode::TOO_MANY_REQUESTS, error)
        })
    }

    /// Returns the plans of several budgets; those of before if nothing has changed.
    pub(crate) async fn front(&self, engine: &Engine) -> Result<Front, Problem> {
        let mut kept = self.turn(MAX_WAIT).await?;
        let state = engine.read(|controller| controller.state().clone()).await;
        let basis = FrontKey::of(&state);
        let is_good = |kept: &&Kept| kept.basis == basis && kept.made.elapsed() < FRONT_LASTS;
        if let Some(kept) = kept.as_ref().filter(is_good) {
            return Ok(kept.front.clone());
        }
        let planner = self.planner.clone();
        // It goes on when the one who asked is gone, and keeps its turn.
        computed(move || {
            let made = Instant::now();
            let front = front_of(&planner, &state)?;
            *kept = Some(Kept { basis, made, front: front.clone() });
            Ok(front)
        })
        .await
    }

    /// Returns the plan under changes that are supposed, beside what is in effect.
    pub(crate) async fn what_if(
        &self,
        engine: &Engine,
        asked: WhatIf,
    ) -> Result<SupposedView, Problem> {
        let turn = self.turn(MAX_WAIT).await?;
        let state = engine.read(|controller| controller.state().clone()).await;
        let planner = self.planner.clone();
        computed(move || {
            let _turn = turn;
            let now = unix_now();
            let problem = what_if::problem(&state, now, &asked)?;
            let plan = planner.solve(&problem, ONE_PLAN).map_err(Refusal::Conflict)?;
            let joint = what_if::joint(&state, now, &asked, plan)?;
            let present = Present::new(&state, now, &Controller::problem_of(&state, now)?);
            let supposed = present.beside(&joint);
            Ok(SupposedView { schema_version: SCHEMA_VERSION, supposed })
        })
        .await
    }
}

fn front_of(planner: &Planner, state: &State) -> Result<Front, Refusal> {
    let now = unix_now();
    let problem = Controller::problem_of(state, now)?;
    let present = Present::new(state, now, &problem).worth;
    let budget = state.settings.budget_usd_per_day;
    let solve = |problem: &_| planner.solve(problem, ALL_PLANS / MAX_PLANS);
    let reserved = Controller::reserved_of(state, now);
    let of_streams = budget.checked_sub(reserved).unwrap_or_default();
    let worth = |plan: &Plan, of_streams: Money| {
        let budget_usd_per_day = Some(of_streams + reserved);
        let asked = WhatIf { budget_usd_per_day, ..WhatIf::default() };
        let joint = what_if::joint(state, now, &asked, plan.clone());
        joint.map(|joint| Worth::of_joint(&joint)).map_err(|refusal| refusal.to_string())
    };
    let points = front::points(problem, of_streams, solve, worth);
    let mut points = points.map_err(Refusal::Conflict)?;
    points.iter_mut().for_each(|point| {
        point.budget_usd_per_day = point.budget_usd_per_day + reserved;
    });
    Ok(Front {
        schema_version: SCHEMA_VERSION,
        made_unix_ms: millis(now),
        budget_usd_per_day: budget,
        present,
        points,
    })
}

/// Computes something on a thread that may wait.
pub(crate) async fn computed<T: Send + 'static>(
    compute: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Problem> {
    let computed = tokio::task::spawn_blocking(compute).await;
    Ok(computed.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_who_wait_too_long_are_refused() {
        let executor = Arc::new(tradewind_plan::solver::OneByOne);
        let asking = Asking::new(Planner::new(executor));
        let first = asking.turn(MAX_WAIT).await.unwrap();
        let wait = Duration::from_millis(50);
        let refused = asking.turn(wait).await.unwrap_err();
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        drop(first);
        assert!(asking.turn(wait).await.is_ok());
    }
}
