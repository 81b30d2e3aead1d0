//! The controller's state as the API shows it.

use std::collections::BTreeMap;

use tradewind_control::history::History;
use tradewind_control::message::{CONFIG_VERSION, TELLS_SESSIONS};
use tradewind_control::path_now::PathsNow;
use tradewind_control::prediction_error::PredictionError;
use tradewind_control::record::{FlowRecord, Host, Role};
use tradewind_control::relayed::Compared;
use tradewind_control::{
    Controller, Refusal, State, awaited_relays, billed, forecast, gain, jumpstart, learned,
    machine_of_day, relayed, sessions, transfers,
};
use tradewind_grant::PublicIdentity;
use tradewind_stream::clock::unix_now;
use tradewind_units::{Bytes, FlowId, HostId, Money, SiteId, UnitError, one_line};

use crate::engine::{DAY_MS, millis};
use crate::host_state::host_state;
use crate::links::Links;
use crate::view::{
    Explained, FlowView, Flows, Gain, GainOfFlow, HostState, HostView, Hosts, InviteView,
    Jumpstart, LearnedView, PathsOfFlow, PlanView, SCHEMA_VERSION, SettingsView, Status,
    StatusProblem, Usage,
};

/// Returns what became of the invite of this name.
pub(super) fn invite(controller: &Controller, id: &str) -> Result<InviteView, Refusal> {
    let state = controller.state();
    let none = || Refusal::NotFound("there is no such invite".to_owned());
    let invite = state.invites.get(id).ok_or_else(none)?;
    let host = invite.used_by.and_then(|identity| state.host_of(&identity));
    Ok(InviteView {
        schema_version: SCHEMA_VERSION,
        role: invite.role.clone(),
        expires_unix_ms: invite.expires_unix_ms,
        host: host.map(|host| host.id.clone()),
    })
}

pub(super) fn hosts(controller: &Controller, links: &Links) -> Hosts {
    let now_ms = millis(unix_now());
    let state = controller.state();
    let mut carried: BTreeMap<&str, u64> = BTreeMap::new();
    for row in state.relayed.since(now_ms / DAY_MS) {
        let bytes = carried.entry(row.relay.as_str()).or_default();
        *bytes = bytes.saturating_add(row.counted.bytes);
    }
    let view = |host: &Host| HostView {
        bytes_today: carried.get(host.id.as_str()).copied(),
        ..host_view(state, links, host, now_ms)
    };
    let hosts = state.hosts.values().map(view).collect();
    Hosts { schema_version: SCHEMA_VERSION, hosts }
}

fn host_view(state: &State, links: &Links, host: &Host, now_ms: u64) -> HostView {
    let seen = state.seen.get(&host.id);
    let document = state.documents.get(&host.id).map(|document| document.version);
    HostView {
        id: host.id.clone(),
        role: host.role.clone(),
        address: host.address,
        identity: host.identity,
        state: host_state(state, links, host, now_ms),
        seen_unix_ms: seen.map(|seen| seen.unix_ms),
        document,
        applied: seen.and_then(|seen| seen.applied),
        refused: seen.and_then(|seen| seen.refused.clone()),
        processes: seen.map(|seen| seen.processes.clone()).unwrap_or_default(),
        sessions: seen.and_then(|seen| {
            let mut sessions = seen.processes.iter().map(|one| one.sessions);
            sessions.try_fold(0, |sum: u64, one| Some(sum.saturating_add(one?)))
        }),
        agent_version: seen.map(|seen| seen.agent_version.clone()),
        shown: seen.map(|seen| seen.shown.clone()).unwrap_or_default(),
        bytes_today: None,
        bounds: seen.and_then(|seen| seen.bounds),
    }
}

pub(super) fn flows(controller: &Controller, links: &Links) -> Flows {
    let view = FlowViews::new(controller, links);
    let flows = controller.state().flows.values().map(|flow| view.of(flow)).collect();
    Flows { schema_version: SCHEMA_VERSION, flows }
}

pub(super) fn flow(
    controller: &Controller,
    links: &Links,
    id: &FlowId,
) -> Result<FlowView, Refusal> {
    let flow = controller.state().flows.get(id);
    let none = || Refusal::NotFound(format!("there is no flow `{id}`"));
    flow.map(|flow| FlowViews::new(controller, links).of(flow)).ok_or_else(none)
}

pub(super) fn learned(controller: &Controller) -> LearnedView {
    let state = controller.state();
    LearnedView {
        schema_version: SCHEMA_VERSION,
        proxies: state.proxies.values().cloned().collect(),
        learned: learned::learned(state, millis(unix_now())),
    }
}

fn check_flow(state: &State, id: &FlowId) -> Result<(), Refusal> {
    let none = || Refusal::NotFound(format!("there is no flow `{id}`"));
    state.flows.contains_key(id).then_some(()).ok_or_else(none)
}

pub(super) fn usage(controller: &Controller, id: &FlowId) -> Result<Usage, Refusal> {
    let state = controller.state();
    check_flow(state, id)?;
    let days = state.usage.get(id).into_iter().flat_map(History::hours);
    let hours = days.copied().collect();
    Ok(Usage { schema_version: SCHEMA_VERSION, flow: id.clone(), hours })
}

/// The views of flows.
struct FlowViews<'a> {
    state: &'a State,
    links: &'a Links,
    now_ms: u64,
    paths: PathsNow<'a>,
}

impl<'a> FlowViews<'a> {
    fn new(controller: &'a Controller, links: &'a Links) -> Self {
        let (state, now) = (controller.state(), unix_now());
        Self { state, links, now_ms: millis(now), paths: PathsNow::new(state, now) }
    }

    fn of(&self, flow: &FlowRecord) -> FlowView {
        let planned = self.paths.planned(&flow.id);
        let direct = planned.and_then(|planned| planned.fct_direct);
        let path: Vec<HostId> = self.paths.path(&flow.id).iter().copied().cloned().collect();
        let on_path = planned.filter(|planned| planned.path.is_empty() == path.is_empty());
        let over_path = planned.map(|planned| planned.fct);
        let seconds = if path.is_empty() { direct } else { over_path };
        let (mut why, since_unix_ms) = self.paths.why(&flow.id);
        let states = path.iter().filter_map(|host| Some((host, self.unwell(host)?)));
        let unwell: Vec<(&HostId, HostState)> = states.collect();
        for (host, state) in &unwell {
            why += &format!("; {host} is {}", state.as_str());
        }
        FlowView {
            flow: flow.clone(),
            demand: forecast::demand(self.state, self.now_ms, flow),
            seconds: seconds.map(|fct| fct.as_secs_f64()),
            seconds_direct: direct.map(|fct| fct.as_secs_f64()),
            usd_per_day: on_path.map(|planned| planned.egress),
            why,
            unwell: unwell.into_iter().map(|(host, _)| host.clone()).collect(),
            path,
            tenant: self.paths.tenant(&flow.id).map(|tenant| tenant.id.clone()),
            is_stopped: self.paths.stopped(&flow.id).is_some(),
            since_unix_ms,
        }
    }

    /// Returns the state of a host that may carry nothing: sessions go another way then.
    fn unwell(&self, host: &HostId) -> Option<HostState> {
        let host = self.state.hosts.get(host)?;
        let state = host_state(self.state, self.links, host, self.now_ms);
        let is_unwell = matches!(state, HostState::Away | HostState::Failing | HostState::Revoked);
        is_unwell.then_some(state)
    }
}

pub(super) fn path_history(controller: &Controller, id: &FlowId) -> Result<PathsOfFlow, Refusal> {
    let state = controller.state();
    check_flow(state, id)?;
    let known = state.path_histories.get(id);
    let changes = known.map(|known| known.changes.clone()).unwrap_or_default();
    Ok(PathsOfFlow { schema_version: SCHEMA_VERSION, flow: id.clone(), changes })
}

pub(super) fn settings(controller: &Controller) -> SettingsView {
    let settings = &controller.state().settings;
    SettingsView {
        schema_version: SCHEMA_VERSION,
        budget_usd_per_day: settings.budget_usd_per_day,
        alarm_share: settings.alarm_share,
        mode: settings.mode,
        control_share: settings.control_share,
        jumpstart: settings.jumpstart.clone(),
        terms: settings.terms.clone(),
        tests_share: Some(settings.tests_share),
        relay_setup: settings.relay_setup,
    }
}

pub(super) fn jumpstart(controller: &Controller, days: u64) -> Jumpstart {
    let now = unix_now();
    let (hosts, arms) = jumpstart::hosts(controller.state(), now, days);
    let transfers = transfers::quantiles(controller.state(), now, days);
    let settings = controller.state().settings.jumpstart.clone();
    Jumpstart { schema_version: SCHEMA_VERSION, days, settings, hosts, arms, transfers }
}

pub(super) fn flow_gain(
    controller: &Controller,
    id: &FlowId,
    days: u64,
    error: Option<PredictionError>,
) -> Result<GainOfFlow, Refusal> {
    let (state, now) = (controller.state(), unix_now());
    check_flow(state, id)?;
    let mut relayed = relayed::compared(state, now, days);
    relayed.retain(|row| row.flow == *id);
    Ok(GainOfFlow {
        schema_version: SCHEMA_VERSION,
        flow: id.clone(),
        days,
        control_share: state.settings.control_share,
        prediction_error: error,
        gain: gain::of_flow(state, now, days, error, id),
        open_sessions: state.flows.get(id).and_then(|flow| sessions::open_of(state, now, flow)),
        relayed,
    })
}

pub(super) fn gain(controller: &Controller, days: u64, error: Option<PredictionError>) -> Gain {
    let (state, now) = (controller.state(), unix_now());
    Gain {
        schema_version: SCHEMA_VERSION,
        days,
        control_share: state.settings.control_share,
        prediction_error: error,
        flows: gain::flows(state, now, days, error),
        open_sessions: sessions::open(state, now),
        relays: gain::relays(state, now, days),
        relayed: relayed::compared(state, now, days),
        spent: gain::spent(state, now, days),
        billed: billed::of_days(state, now, days),
        spending: gain::spending(state, now),
    }
}

pub(super) fn explained(state: &State, id: &FlowId) -> Result<Explained, Refusal> {
    let explanation = Controller::explain_of(state, unix_now(), id)?;
    Ok(Explained { schema_version: SCHEMA_VERSION, explanation })
}

/// Returns the number that `text` names: a number, or `newest`.
pub(super) fn plan_number(controller: &Controller, text: &str) -> Result<u64, Refusal> {
    if text == "newest" {
        let newest = controller.state().plans.keys().next_back().copied();
        let none = "there is no plan yet: `tradewind plan` makes one";
        return newest.ok_or_else(|| Refusal::NotFound(none.to_owned()));
    }
    let expected = UnitError::new("plan", "a number or `newest`", text);
    text.parse().map_err(|_| Refusal::Invalid(expected.to_string()))
}

pub(super) fn plan(controller: &Controller, number: &str) -> Result<PlanView, Refusal> {
    let state = controller.state();
    let number = plan_number(controller, number)?;
    let none = || Refusal::NotFound(format!("there is no plan {number}, or it is kept no longer"));
    let record = state.plans.get(&number).ok_or_else(none)?.clone();
    let is_applied = state.rollout.to == Some(number);
    let price = |host: &HostId| Some((host.clone(), machine_of_day(state, host)?));
    let machines_usd_per_day = record.hosts.values().filter_map(price).collect();
    Ok(PlanView { schema_version: SCHEMA_VERSION, is_applied, machines_usd_per_day, record })
}

pub(super) fn status(
    controller: &Controller,
    links: &Links,
    identity: PublicIdentity,
    plan_problem: Option<String>,
) -> Status {
    let state = controller.state();
    let hosts = hosts(controller, links).hosts;
    let wanted = |host: &&HostView| !matches!(host.state, HostState::Drained | HostState::Revoked);
    let paths = controller.paths_in_effect(unix_now());
    let mut problems: Vec<StatusProblem> = hosts.iter().filter_map(problem_of_host).collect();
    problems.extend(problems_of_flows(state));
    problems.extend(differing(state));
    // What is wrong with hosts and flows explains most of what plans lack.
    if let Some(what) = plan_problem.filter(|_| problems.is_empty() && !state.flows.is_empty()) {
        problems.push(StatusProblem {
            what: format!("no new plan: {}", one_line(&what, 300)),
            remedy: "right after the start hosts still measure; later, `tradewind hosts`"
                .to_owned(),
        });
    }
    problems.extend(state.hosts.values().filter_map(|host| problem_of_program(state, host)));
    let usd_per_day = state.plan_in_effect().map_or(Money::ZERO, |plan| plan.usd_per_day);
    problems.extend(alarm(state, usd_per_day));
    problems.extend(problems_of_tenants(state));
    Status {
        schema_version: SCHEMA_VERSION,
        identity,
        problems,
        hosts_well: hosts.iter().filter(|host| host.state == HostState::Well).count(),
        hosts: hosts.iter().filter(wanted).count(),
        flows: state.flows.len(),
        flows_over_relays: paths.values().filter(|path| !path.is_empty()).count(),
        settings: settings(controller),
        plan: state.plan_in_effect().map(|plan| plan.number),
        rollout_to: state.rollout.to,
        usd_per_day,
        step: state.rollout.step,
        step_since_unix_ms: state.rollout.since_unix_ms,
        awaited: awaited_relays(state, millis(unix_now())).cloned().collect(),
        newest_plan: state.plans.keys().next_back().copied(),
    }
}

/// Returns what is wrong with a host.
fn problem_of_host(host: &HostView) -> Option<StatusProblem> {
    let id = &host.id;
    let (what, remedy) = match host.state {
        HostState::Well
        | HostState::Awaited
        | HostState::Behind
        | HostState::Drained
        | HostState::Revoked => return None,
        HostState::Away => (
            format!("{id} is not heard; whether its relay or gateway works is not known"),
            format!(
                "look at the agent on {}, and the way there; if the host is gone: \
                 `tradewind host revoke {id}`",
                host.address
            ),
        ),
        HostState::Refuses => {
            let reason = host.refused.as_ref().map_or("", |refused| &refused.reason);
            (
                format!("{id} refuses its configuration: {reason}"),
                "widen ceiling.toml of that agent, or change the flow".to_owned(),
            )
        }
        HostState::Failing => {
            let failed = host.processes.iter().find(|one| one.fails());
            let (name, reason) = failed.map_or(("a process", "no reason known"), |failed| {
                (&failed.name, failed.failure.as_deref().unwrap_or("no reason known"))
            });
            (
                format!("{name} on {id} fails: {reason}"),
                format!("look at the log of the agent on {}", host.address),
            )
        }
    };
    Some(StatusProblem { what, remedy })
}

/// Returns which tenants' budgets of today are spent.
fn problems_of_tenants(state: &State) -> impl Iterator<Item = StatusProblem> {
    let day = millis(unix_now()) / DAY_MS;
    let spent = state.tenants.values().filter(move |tenant| tenant.stopped_day == Some(day));
    spent.map(|tenant| StatusProblem {
        what: format!("today's budget of tenant {} is spent: its flows go direct", tenant.id),
        remedy: format!("`tradewind tenant add {} --budget AMOUNT` raises it", tenant.id),
    })
}

/// Returns what is not known of a host because its agent is an older program.
fn problem_of_program(state: &State, host: &Host) -> Option<StatusProblem> {
    let seen = state.seen.get(&host.id)?;
    if !host.is_trusted || host.config_version >= CONFIG_VERSION {
        return None;
    }
    let lacks = match &host.role {
        Role::Gateway { .. } if host.config_version < TELLS_SESSIONS => {
            "does not tell its sessions: their gain and the cost of their traffic are not known"
        }
        Role::Gateway { site } if has_packets(state, site) => "carries no packet flows",
        Role::Gateway { site } if state.proxies.contains_key(site) => {
            "offers no proxies and learns no flows"
        }
        Role::Relay { .. } => "does not tell what it carried: gateways alone do",
        Role::Gateway { .. } | Role::Probe { .. } => return None,
    };
    Some(StatusProblem {
        what: format!("{} runs tradewind {}, which {lacks}", host.id, seen.agent_version),
        remedy: format!("upgrade tradewind on {}, and restart its agent", host.address),
    })
}

/// Returns the flows of which gateways tell today what relays did not carry.
fn differing(state: &State) -> impl Iterator<Item = StatusProblem> {
    let differing = relayed::compared(state, unix_now(), 1).into_iter().filter(|it| it.differs);
    differing.map(|Compared { flow, relay, told_bytes, counted_bytes, .. }| {
        let [told, counted] = [told_bytes, counted_bytes].map(Bytes::new);
        StatusProblem {
            what: format!(
                "flow {flow}: gateways told {told} over {relay} today, which counted {counted}"
            ),
            remedy: "`tradewind cost` compares them; look at the agents of both".to_owned(),
        }
    })
}

/// Returns whether a packet flow begins or ends at a site.
fn has_packets(state: &State, site: &SiteId) -> bool {
    state.packet_flows.values().any(|flow| flow.from == *site || flow.to_site == *site)
}

/// Returns flows without a gateway: at their sources, those of packets also at their destinations.
fn problems_of_flows(state: &State) -> impl Iterator<Item = StatusProblem> {
    let has_gateway = |at: &SiteId| {
        state.hosts.values().filter(|host| host.is_trusted).any(|host| {
            let Role::Gateway { site } = &host.role else { return false };
            site == at
        })
    };
    let streams = state.flows.values().map(|flow| (&flow.id, &flow.from));
    let packets = state.packet_flows.values();
    let packets = packets.flat_map(|it| [(&it.id, &it.from), (&it.id, &it.to_site)]);
    let all = streams.chain(packets).filter(move |(_, site)| !has_gateway(site));
    all.map(|(flow, site)| StatusProblem {
        what: format!("flow {flow} has no gateway at {site}"),
        remedy: format!("`tradewind invite --role gateway --site {site}`"),
    })
}

/// Returns the alarm of the budget: of what is spent, or of what the plan costs in a day.
fn alarm(state: &State, usd_per_day: Money) -> Option<StatusProblem> {
    let spending = gain::spending(state, unix_now());
    if spending.is_exhausted {
        return Some(StatusProblem {
            what: format!(
                "today's budget of {} is spent: all flows go direct until the next day (UTC)",
                spending.budget
            ),
            remedy: "`tradewind budget` raises it".to_owned(),
        });
    }
    if spending.is_alarmed {
        let spent = spending.machines + spending.traffic + spending.tests;
        return Some(StatusProblem {
            what: format!("{spent} of today's budget of {} are spent", spending.budget),
            remedy: "`tradewind budget` raises it, `tradewind gain` shows what for".to_owned(),
        });
    }
    let (share, budget) = (state.settings.alarm_share?, state.settings.budget_usd_per_day);
    (usd_per_day.as_usd() >= share * budget.as_usd() && usd_per_day > Money::ZERO).then(|| {
        StatusProblem {
            what: format!("a day costs {usd_per_day} of a budget of {budget}"),
            remedy: "`tradewind budget` raises it, `tradewind flow remove` costs less".to_owned(),
        }
    })
}
