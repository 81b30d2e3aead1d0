//! The path that each flow has now, the reason for it, and the paths that it had before.

use std::collections::BTreeMap;

use tradewind_plan::PlannedFlow;
use tradewind_units::{FlowId, HostId, Money, Timestamp};

use crate::draft::{Draft, unix_ms};
use crate::gain;
use crate::planning;
use crate::record::{
    FlowRecord, Host, PathChange, PathHistory, PlanRecord, Record, Role, Step, TakenPath,
};
use crate::state::State;
use crate::tenant::Tenant;
use crate::tenants;

/// Most changes of path that are kept of a flow. Chosen: weeks of an overlay that moves flows twice
/// a day.
const MAX_CHANGES: usize = 50;

/// The paths that flows have now.
pub struct PathsNow<'a> {
    state: &'a State,
    now_ms: u64,
    plan: Option<&'a PlanRecord>,
    is_spent: bool,
    paths: BTreeMap<&'a FlowId, Vec<&'a HostId>>,
    planned: BTreeMap<&'a FlowId, &'a PlannedFlow>,
    tenants: BTreeMap<&'a FlowId, &'a Tenant>,
}

impl<'a> PathsNow<'a> {
    /// Returns the paths of `state` at a time.
    #[must_use]
    pub fn new(state: &'a State, now: Timestamp) -> Self {
        let plan = state.plan_in_effect();
        let planned = plan.into_iter().flat_map(|plan| &plan.plan.flows);
        let flows_of = |tenant: &'a Tenant| tenant.flows.iter().map(move |flow| (flow, tenant));
        Self {
            state,
            now_ms: unix_ms(now),
            tenants: state.tenants.values().flat_map(flows_of).collect(),
            plan,
            is_spent: gain::spending(state, now).is_exhausted,
            paths: planning::paths_in_effect(state, unix_ms(now)),
            planned: planned.map(|planned| (&planned.id, planned)).collect(),
        }
    }

    /// Returns the hosts that a flow passes; none if it goes direct.
    #[must_use]
    pub fn path(&self, flow: &FlowId) -> &[&'a HostId] {
        self.paths.get(flow).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns what the plan in effect says of a flow.
    #[must_use]
    pub fn planned(&self, flow: &FlowId) -> Option<&'a PlannedFlow> {
        self.planned.get(flow).copied()
    }

    /// Returns the tenant whose flow it is.
    #[must_use]
    pub fn tenant(&self, flow: &FlowId) -> Option<&'a Tenant> {
        self.tenants.get(flow).copied()
    }

    /// Returns why a flow goes direct, if it does by its tenant's budget.
    #[must_use]
    pub fn stopped(&self, flow: &FlowId) -> Option<String> {
        tenants::why_direct(self.tenants.get(flow)?, self.now_ms)
    }

    /// Returns why a flow has its path, and the time from which on it had, in milliseconds since
    /// the Unix epoch, if that is known.
    #[must_use]
    pub fn why(&self, flow: &FlowId) -> (String, Option<u64>) {
        let rollout = &self.state.rollout;
        let planned = self.planned(flow);
        let is_relayed = !self.path(flow).is_empty();
        let in_effect = (rollout.step == Step::Done && rollout.since_unix_ms > 0)
            .then(|| self.since(flow, planned));
        let is_open = |taken: &&TakenPath| {
            let is_planned = planned.is_some_and(|planned| planned.path == taken.path);
            is_planned && (taken.since_unix_ms..taken.end_unix_ms()).contains(&self.now_ms)
        };
        let taken_back = self.state.taken_back.get(flow);
        let taken_back = taken_back.and_then(|taken| taken.paths.iter().rev().find(is_open));
        let record = self.state.flows.get(flow).filter(|_| !is_relayed);
        if let Some(why) = record.and_then(|flow| without_gateway(self.state, flow)) {
            return (why, in_effect.filter(|_| planned.is_some()));
        }
        let why = match (self.plan, planned, taken_back) {
            (_, _, _) if self.is_spent => "the budget of today is spent".to_owned(),
            (_, _, _) if self.state.settings.budget_usd_per_day == Money::ZERO => {
                "there is no budget".to_owned()
            }
            (_, _, _) if self.stopped(flow).is_some() => self.stopped(flow).unwrap_or_default(),
            (None, _, _) => "no plan is in effect".to_owned(),
            (Some(plan), None, _) => {
                let why = format!("plan {}: made before it was known", plan.number);
                return (why, None);
            }
            (Some(plan), Some(_), _) if is_relayed => {
                format!("plan {}: faster than direct", plan.number)
            }
            (Some(_), Some(planned), Some(taken)) if !planned.path.is_empty() => {
                return (format!("taken back: {}", taken.finding), Some(taken.since_unix_ms));
            }
            (Some(plan), Some(_), _) => {
                format!("plan {}: nothing faster within the budget", plan.number)
            }
        };
        (why, in_effect)
    }

    /// Returns the time since when a flow has the path of the plan in effect.
    fn since(&self, flow: &FlowId, planned: Option<&PlannedFlow>) -> u64 {
        let rollout = self.state.rollout.since_unix_ms;
        let known = self.plan.and_then(|plan| plan.paths_since.get(flow)).copied();
        let is_its_own = |taken: &&TakenPath| planned.is_some_and(|it| it.path == taken.path);
        let taken = self.state.taken_back.get(flow).into_iter().flat_map(|it| &it.paths);
        // It came back when it was taken back no more.
        let ends = taken.filter(is_its_own).map(TakenPath::end_unix_ms);
        let since = known.unwrap_or(rollout);
        ends.filter(|end| *end <= self.now_ms).max().map_or(since, |end| since.max(end))
    }
}

/// Returns why a flow goes direct, if its site has no gateway.
pub(crate) fn without_gateway(state: &State, flow: &FlowRecord) -> Option<String> {
    let is_gateway = |host: &Host| host.is_trusted && matches!(host.role, Role::Gateway { .. });
    let mut hosts = state.index.hosts_of(&flow.from).filter_map(|id| state.hosts.get(id));
    (!hosts.any(is_gateway)).then(|| format!("no gateway has joined at {}", flow.from))
}

/// Keeps the paths that flows have now, of those whose path has changed. Called each minute, and
/// when a plan has come into effect.
pub(crate) fn note(draft: &mut Draft) {
    let paths = PathsNow::new(&draft.state, draft.time);
    let records: Vec<Record> = (draft.state.flows.values())
        .filter_map(|flow| noted(&draft.state, &paths, flow))
        .map(Record::PathHistory)
        .collect();
    records.into_iter().for_each(|record| draft.push(record));
}

/// Returns a flow's paths with the one that it has now; `None` if that is there already.
fn noted(state: &State, paths: &PathsNow<'_>, flow: &FlowRecord) -> Option<PathHistory> {
    let known = state.path_histories.get(&flow.id);
    let last = known.and_then(|known| known.changes.last());
    let path: Vec<HostId> = paths.path(&flow.id).iter().copied().cloned().collect();
    if last.map_or(path.is_empty(), |last| last.path == path) {
        return None;
    }
    let (why, since) = paths.why(&flow.id);
    // Where it is not known since when: since it was seen first.
    let after = last.map_or(0, |last| last.since_unix_ms);
    let is_new = |since: &u64| (after + 1..=paths.now_ms).contains(since);
    let since_unix_ms = since.filter(is_new).unwrap_or(paths.now_ms);
    let mut changes = known.map(|known| known.changes.clone()).unwrap_or_default();
    changes.push(PathChange { since_unix_ms, path, why });
    changes.drain(..changes.len().saturating_sub(MAX_CHANGES));
    Some(PathHistory { flow: flow.id.clone(), changes })
}

#[cfg(test)]
mod tests {
    use tradewind_units::Money;

    use crate::event::{Event, SettingsRequest};
    use crate::testing::Bench;

    #[test]
    fn paths_of_a_flow_are_kept() {
        let mut bench = Bench::in_service();
        bench.pass(120);
        let of = |bench: &Bench| {
            let histories = bench.state().path_histories.values();
            let changes: Vec<_> = histories.flat_map(|it| it.changes.clone()).collect();
            changes
        };
        let first = of(&bench);
        assert_eq!(first.len(), 1, "{first:?}");
        assert!(!first[0].path.is_empty() && first[0].why.contains("faster than direct"));
        bench.pass(600);
        assert_eq!(of(&bench), first, "the same path is no change");
        let none =
            SettingsRequest { budget_usd_per_day: Some(Money::ZERO), ..SettingsRequest::default() };
        bench.event(Event::ChangeSettings(none));
        bench.pass(120);
        let then = of(&bench);
        assert_eq!(then.len(), 2, "{then:?}");
        assert!(then[1].path.is_empty() && then[1].why == "there is no budget", "{then:?}");
        assert!(then[1].since_unix_ms > first[0].since_unix_ms);
        let restarted = bench.restarted();
        let kept: Vec<_> = restarted.state().path_histories.values().cloned().collect();
        assert_eq!(kept[0].changes, then);
    }
}
