//! Tenants in the API: what they are, and what a token of theirs sees.

use std::collections::BTreeMap;

use axum::Extension;
use axum::extract::{Path, Request, State};
use tradewind_control::prediction_error::{self, PredictionError};
use tradewind_control::tenants::{self, BudgetChange, TenantId, TenantToken, UnassignedCosts};
use tradewind_control::{Controller, Event, Refusal};
use tradewind_net::entropy;
use tradewind_stream::clock::unix_now;
use tradewind_units::{FlowId, Money};

use super::Shared;
use super::guard::Rights;
use super::handlers::{MAX_BYTES, days, done, named, queried};
use crate::answer::{self, Answered, Problem};
use crate::engine::{DAY_MS, millis};
use crate::view::{
    DayCost, Gain, SCHEMA_VERSION, TenantRequest, TenantView, Tenants, TokenAnswer, TokenRequest,
    UnassignedDay,
};

pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(rights): Extension<Rights>,
    request: Request,
) -> Answered {
    let days = days(request.uri().query())?;
    let shown = move |controller: &Controller| view(controller, &rights, days);
    answer::ok(&shared.engine.read(shown).await)
}

pub(super) async fn set(
    State(shared): State<Shared>,
    Extension(rights): Extension<Rights>,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let tenant: TenantId = named(&id)?;
    let request: TenantRequest = answer::body(request, MAX_BYTES).await?;
    let TenantRequest { budget_usd_per_day, no_budget, alarm_share: alarm } = request;
    let budget = match (budget_usd_per_day, no_budget) {
        (None, false) => BudgetChange::Keep,
        (None, true) => BudgetChange::Remove,
        (Some(most), false) => BudgetChange::Set(most),
        (Some(_), true) => {
            return Err(Problem::invalid("no_budget: expected none beside it"));
        }
    };
    let event = Event::SetTenant { tenant, budget, alarm };
    shared.engine.handle(event).await?;
    // Another budget allows another plan.
    shared.planner.wake();
    let shown = move |controller: &Controller| view(controller, &rights, 1);
    answer::ok(&shared.engine.read(shown).await)
}

pub(super) async fn remove(State(shared): State<Shared>, Path(id): Path<String>) -> Answered {
    done(&shared, Event::RemoveTenant(named(&id)?)).await
}

pub(super) async fn add_token(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let tenant: TenantId = named(&id)?;
    let TokenRequest { may_write } = answer::body(request, MAX_BYTES).await?;
    let random: [u8; 32] = entropy::bytes()
        .map_err(|_| Problem::new(hyper::StatusCode::SERVICE_UNAVAILABLE, "no entropy now"))?;
    let token = format!("twtoken_{}", blake3::Hash::from_bytes(random).to_hex());
    let hash = blake3::hash(token.as_bytes()).to_hex().to_string();
    let added = Some(TenantToken { hash, may_write });
    shared.engine.handle(Event::SetTenantTokens { tenant, added }).await?;
    answer::ok(&TokenAnswer { schema_version: SCHEMA_VERSION, token })
}

pub(super) async fn remove_tokens(
    State(shared): State<Shared>,
    Path(id): Path<String>,
) -> Answered {
    done(&shared, Event::SetTenantTokens { tenant: named(&id)?, added: None }).await
}

/// Returns an event for the tenant that the token or the query (`tenant=NAME`) names, if one does.
pub(super) fn of_tenant(
    rights: &Rights,
    query: Option<&str>,
    event: Event,
) -> Result<Event, Problem> {
    let asked: Option<TenantId> = queried(query, "tenant")?;
    let (tenant, is_own) = match (&rights.tenant, asked) {
        (None, None) => return Ok(event),
        (None, Some(asked)) => (asked, false),
        (Some(own), None) => (own.clone(), true),
        (Some(own), Some(asked)) if *own == asked => (asked, true),
        (Some(_), Some(_)) => return Err(Problem::invalid("tenant: the token is another's")),
    };
    Ok(Event::OfTenant { tenant, is_own, event: Box::new(event) })
}

/// Returns whether a token sees a flow.
pub(super) fn sees(controller: &Controller, rights: &Rights, flow: &FlowId) -> bool {
    rights.tenant.as_ref().is_none_or(|id| {
        let tenant = controller.state().tenants.get(id);
        tenant.is_some_and(|tenant| tenant.flows.contains(flow))
    })
}

/// Refuses a flow that a token does not see, as one that is not there.
pub(super) fn check_seen(
    controller: &Controller,
    rights: &Rights,
    flow: &FlowId,
) -> Result<(), Refusal> {
    let none = || Refusal::NotFound(format!("no flow `{flow}`"));
    sees(controller, rights, flow).then_some(()).ok_or_else(none)
}

/// Returns the error of predictions before today, of the flows that a token sees.
pub(super) fn prediction_error(
    controller: &Controller,
    rights: &Rights,
) -> Option<PredictionError> {
    let state = controller.state();
    let today = millis(unix_now()) / DAY_MS;
    let Some(id) = &rights.tenant else {
        return prediction_error::before(state, today, |_, _| true);
    };
    let tenant = state.tenants.get(id)?;
    prediction_error::before(state, today, |flow, day| tenant.had(flow, day))
}

/// Leaves in a gain what a tenant's token sees: its own flows, and its own money.
pub(super) fn own_gain(controller: &Controller, rights: &Rights, mut gain: Gain) -> Gain {
    let Some(id) = &rights.tenant else { return gain };
    let state = controller.state();
    // One that was removed meanwhile sees nothing.
    let none = tenants::Tenant::new(id.clone());
    let tenant = state.tenants.get(id).unwrap_or(&none);
    let now = unix_now();
    // Those that it had are part of its costs.
    gain.flows.retain(|row| tenant.had(&row.flow, row.day));
    gain.open_sessions.retain(|flow, _| tenant.flows.contains(flow));
    gain.relayed.retain(|row| tenant.had(&row.flow, row.day));
    gain.relays.clear();
    gain.spent.clear();
    gain.billed.clear();
    let costs = tenants::costs(controller.state(), now, 1).remove(&tenant.id).unwrap_or_default();
    let planned = state.plan_in_effect().map(|plan| tenants::planned(state, plan, tenant));
    let spending = &mut gain.spending;
    spending.estimated = planned.unwrap_or_default();
    spending.machines = Money::ZERO;
    spending.tests = Money::ZERO;
    spending.traffic = costs.get(&spending.day).copied().unwrap_or_default();
    spending.budget = tenant.budget_usd_per_day.unwrap_or_default();
    spending.is_alarmed = tenant.alarmed_day == Some(spending.day);
    spending.is_exhausted = tenants::goes_direct(tenant, millis(now));
    gain
}

fn view(controller: &Controller, rights: &Rights, days: u64) -> Tenants {
    let (state, now) = (controller.state(), unix_now());
    let mut costs = tenants::costs(state, now, days);
    let rest = match rights.tenant {
        None => tenants::rest(state, now, days, &costs).into_iter().map(unassigned).collect(),
        Some(_) => Vec::new(),
    };
    let is_seen = |id: &TenantId| rights.tenant.as_ref().is_none_or(|own| own == id);
    let plan = state.plan_in_effect();
    let one = |tenant: &tenants::Tenant| TenantView {
        id: tenant.id.clone(),
        budget_usd_per_day: tenant.budget_usd_per_day,
        alarm_share: tenant.alarm_share,
        is_stopped: tenants::goes_direct(tenant, millis(now)),
        flows: tenant.flows.iter().cloned().collect(),
        planned_usd_per_day: plan
            .filter(|_| !tenants::goes_direct(tenant, millis(now)))
            .map(|plan| tenants::planned(state, plan, tenant))
            .unwrap_or_default(),
        costs: of_days(costs.remove(&tenant.id).unwrap_or_default()),
        tokens: tenant.tokens.len(),
    };
    let tenants = state.tenants.values().filter(|tenant| is_seen(&tenant.id)).map(one).collect();
    Tenants { schema_version: SCHEMA_VERSION, days, tenants, rest }
}

fn unassigned((day, costs): (u64, UnassignedCosts)) -> UnassignedDay {
    let usd = costs.total();
    let UnassignedCosts { flows, machines, tests, unknown, excess } = costs;
    UnassignedDay {
        day,
        usd,
        flows_usd: flows,
        machines_usd: machines,
        tests_usd: tests,
        unknown_usd: unknown,
        excess_usd: excess,
    }
}

fn of_days(costs: BTreeMap<u64, Money>) -> Vec<DayCost> {
    costs.into_iter().map(|(day, usd)| DayCost { day, usd }).collect()
}
