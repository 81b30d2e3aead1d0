//! The handlers of the API's routes.

use std::net::SocketAddr;

use axum::Extension;
use axum::extract::{Path, Request, State};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tradewind_control::proxies::Proxies;
use tradewind_control::record::FlowRecord;
use tradewind_control::what_if::WhatIf;
use tradewind_control::{Answer, Controller, Event, Refusal, operator};
use tradewind_units::{Duration, FlowId, SiteId};

use super::guard::Rights;
use super::{Shared, places, show, tenants};
use crate::answer::{self, Answered, Problem};
use crate::asking;
use crate::view::{
    AccessView, AdoptRequest, Audit, BillRequest, FlowRequest, InviteAnswer, InviteRequest,
    ProxiesRequest, SCHEMA_VERSION, SettingsRequest,
};

/// Most bytes of a request's body. Chosen: a flow takes less than one.
pub(super) const MAX_BYTES: usize = 64 * 1024;
/// The same of an import. Chosen: 1000 measurements with names of the greatest length.
pub(super) const MAX_IMPORT_BYTES: usize = 512 * 1024;
/// Most days of which the gain is told. Chosen: a month.
pub(super) const MAX_DAYS: u64 = 31;

pub(super) async fn invite(State(shared): State<Shared>, request: Request) -> Answered {
    let InviteRequest { role, ttl_ms } = answer::body(request, MAX_BYTES).await?;
    let ttl = Duration::from_millis(ttl_ms);
    let event = Event::Invite { role, ttl, controller: shared.advertise };
    match shared.engine.handle(event).await? {
        Answer::Invite(invite) => answer::ok(&InviteAnswer {
            schema_version: SCHEMA_VERSION,
            id: invite.secret.hash().to_string(),
            invite: invite.to_string(),
        }),
        other => Err(answer::unexpected(&other)),
    }
}

pub(super) async fn show_invite(
    State(shared): State<Shared>,
    Path(invite): Path<String>,
) -> Answered {
    answer::ok(&shared.engine.read(move |controller| show::invite(controller, &invite)).await?)
}

pub(super) async fn hosts(State(shared): State<Shared>) -> Answered {
    answer::ok(&{
        let links = shared.engine.links().clone();
        shared.engine.read(move |controller| show::hosts(controller, &links)).await
    })
}

pub(super) async fn drain(State(shared): State<Shared>, Path(id): Path<String>) -> Answered {
    done(&shared, Event::Drain { host: named(&id)?, is_drained: true }).await
}

pub(super) async fn undrain(State(shared): State<Shared>, Path(id): Path<String>) -> Answered {
    done(&shared, Event::Drain { host: named(&id)?, is_drained: false }).await
}

pub(super) async fn revoke(State(shared): State<Shared>, Path(id): Path<String>) -> Answered {
    done(&shared, Event::Revoke(named(&id)?)).await
}

pub(super) async fn flows(
    State(shared): State<Shared>,
    Extension(rights): Extension<Rights>,
) -> Answered {
    let links = shared.engine.links().clone();
    let seen = move |controller: &Controller| {
        let mut flows = show::flows(controller, &links);
        flows.flows.retain(|view| tenants::sees(controller, &rights, &view.flow.id));
        flows
    };
    answer::ok(&shared.engine.read(seen).await)
}

pub(super) async fn flow(
    State(shared): State<Shared>,
    Extension(rights): Extension<Rights>,
    Path(id): Path<String>,
) -> Answered {
    let links = shared.engine.links().clone();
    of_flow(&shared, rights, &id, move |controller, id| show::flow(controller, &links, id)).await
}

/// Answers with what `shown` returns of a flow that the token sees.
async fn of_flow<T: Serialize + Send + 'static>(
    shared: &Shared,
    rights: Rights,
    id: &str,
    shown: impl FnOnce(&Controller, &FlowId) -> Result<T, Refusal> + Send + 'static,
) -> Answered {
    let id: FlowId = named(id)?;
    let seen = move |controller: &Controller| {
        tenants::check_seen(controller, &rights, &id)?;
        shown(controller, &id)
    };
    answer::ok(&shared.engine.read(seen).await?)
}

pub(super) async fn usage(
    State(shared): State<Shared>,
    Extension(rights): Extension<Rights>,
    Path(id): Path<String>,
) -> Answered {
    of_flow(&shared, rights, &id, show::usage).await
}

pub(super) async fn flow_gain(
    State(shared): State<Shared>,
    Extension(rights): Extension<Rights>,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let days = days(request.uri().query())?;
    let reader = rights.clone();
    let shown = move |controller: &Controller, id: &FlowId| {
        let error = tenants::prediction_error(controller, &reader);
        let mut gain = show::flow_gain(controller, id, days, error)?;
        if let Some(own) = reader.tenant.and_then(|own| controller.state().tenants.get(&own)) {
            gain.gain.retain(|row| own.had(&row.flow, row.day));
            gain.relayed.retain(|row| own.had(&row.flow, row.day));
        }
        Ok(gain)
    };
    of_flow(&shared, rights, &id, shown).await
}

pub(super) async fn path_history(
    State(shared): State<Shared>,
    Extension(rights): Extension<Rights>,
    Path(id): Path<String>,
) -> Answered {
    of_flow(&shared, rights, &id, show::path_history).await
}

pub(super) async fn explain(State(shared): State<Shared>, Path(id): Path<String>) -> Answered {
    let id: FlowId = named(&id)?;
    let state = shared.engine.read(|controller| controller.state().clone()).await;
    answer::ok(&asking::computed(move || show::explained(&state, &id)).await?)
}

pub(super) async fn gain(
    State(shared): State<Shared>,
    Extension(rights): Extension<Rights>,
    request: Request,
) -> Answered {
    let days = days(request.uri().query())?;
    let seen = move |controller: &Controller| {
        let error = tenants::prediction_error(controller, &rights);
        tenants::own_gain(controller, &rights, show::gain(controller, days, error))
    };
    answer::ok(&shared.engine.read(seen).await)
}

pub(super) async fn jumpstart(State(shared): State<Shared>, request: Request) -> Answered {
    let days = days(request.uri().query())?;
    answer::ok(&shared.engine.read(move |controller| show::jumpstart(controller, days)).await)
}

/// Reads `days=N` of a query; today alone when absent.
pub(super) fn days(query: Option<&str>) -> Result<u64, Problem> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(1) };
    let days = query.strip_prefix("days=").and_then(|days| days.parse().ok());
    let refused = || Problem::invalid(format!("days: expected a number from 1 to {MAX_DAYS}"));
    days.filter(|days| (1..=MAX_DAYS).contains(days)).ok_or_else(refused)
}

pub(super) async fn add_flow(
    State(shared): State<Shared>,
    Extension(rights): Extension<Rights>,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let id: FlowId = named(&id)?;
    let query = request.uri().query().map(str::to_owned);
    let request: FlowRequest = answer::body(request, MAX_BYTES).await?;
    check_listen(&rights, request.listen)?;
    let name = id.clone();
    let flow = shared.engine.read(move |controller| record_of(controller, name, request)).await?;
    let event = tenants::of_tenant(&rights, query.as_deref(), Event::AddFlow(flow))?;
    shared.engine.handle(event).await?;
    let links = shared.engine.links().clone();
    answer::ok(&shared.engine.read(move |controller| show::flow(controller, &links, &id)).await?)
}

/// Refuses an address that a tenant chooses, by which it would learn those of others.
pub(super) fn check_listen(rights: &Rights, listen: Option<SocketAddr>) -> Result<(), Problem> {
    match listen.filter(|_| rights.tenant.is_some()) {
        Some(_) => Err(Problem::invalid("listen: a tenant's flow gets a free port")),
        None => Ok(()),
    }
}

/// Fills in what the request for a flow leaves out.
fn record_of(
    controller: &Controller,
    id: FlowId,
    request: FlowRequest,
) -> Result<FlowRecord, Problem> {
    let FlowRequest { from, to, to_site, per_day, weight, listen } = request;
    let to_site = match to_site {
        Some(site) => site,
        None => operator::site_of(&to)?,
    };
    let state = controller.state();
    let listen = match (listen, state.flows.get(&id)) {
        (Some(listen), _) => listen,
        (None, Some(same)) if same.from == from => same.listen,
        (None, _) => operator::free_listen(state, &from)?,
    };
    Ok(FlowRecord { id, from, to, to_site, per_day, weight: weight.unwrap_or(1), listen })
}

pub(super) async fn learned(State(shared): State<Shared>) -> Answered {
    answer::ok(&shared.engine.read(show::learned).await)
}

pub(super) async fn adopt(
    State(shared): State<Shared>,
    Extension(rights): Extension<Rights>,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let flow: FlowId = named(&id)?;
    let query = request.uri().query().map(str::to_owned);
    let AdoptRequest { per_day, weight } = answer::body(request, MAX_BYTES).await?;
    let event = Event::Adopt { flow: flow.clone(), per_day, weight };
    shared.engine.handle(tenants::of_tenant(&rights, query.as_deref(), event)?).await?;
    let links = shared.engine.links().clone();
    answer::ok(&shared.engine.read(move |controller| show::flow(controller, &links, &flow)).await?)
}

pub(super) async fn set_proxies(
    State(shared): State<Shared>,
    Path(site): Path<String>,
    request: Request,
) -> Answered {
    let site: SiteId = named(&site)?;
    let ProxiesRequest { socks5, connect, destinations, adopt_above } =
        answer::body(request, MAX_BYTES).await?;
    let proxies = Proxies { site, socks5, connect, destinations, adopt_above };
    shared.engine.handle(Event::SetProxies(proxies)).await?;
    learned(State(shared)).await
}

pub(super) async fn remove_proxies(
    State(shared): State<Shared>,
    Path(site): Path<String>,
) -> Answered {
    done(&shared, Event::RemoveProxies(named(&site)?)).await
}

pub(super) async fn remove_flow(
    State(shared): State<Shared>,
    Extension(rights): Extension<Rights>,
    Path(id): Path<String>,
) -> Answered {
    let event = Event::RemoveFlow(named(&id)?);
    done(&shared, tenants::of_tenant(&rights, None, event)?).await
}

pub(super) async fn settings(State(shared): State<Shared>) -> Answered {
    answer::ok(&shared.engine.read(show::settings).await)
}

pub(super) async fn change_settings(State(shared): State<Shared>, request: Request) -> Answered {
    let asked: SettingsRequest = answer::body(request, MAX_BYTES).await?;
    shared.engine.handle(Event::ChangeSettings(asked)).await?;
    // Another budget allows another plan.
    shared.planner.wake();
    settings(State(shared)).await
}

pub(super) async fn plan(State(shared): State<Shared>) -> Answered {
    let number = shared.planner.plan(&shared.engine).await?;
    plan_of(shared, number.to_string()).await
}

pub(super) async fn show_plan(
    State(shared): State<Shared>,
    Path(number): Path<String>,
) -> Answered {
    plan_of(shared, number).await
}

async fn plan_of(shared: Shared, number: String) -> Answered {
    answer::ok(&shared.engine.read(move |controller| show::plan(controller, &number)).await?)
}

pub(super) async fn apply(State(shared): State<Shared>, Path(number): Path<String>) -> Answered {
    let number =
        shared.engine.read(move |controller| show::plan_number(controller, &number)).await?;
    done(&shared, Event::Apply { plan: number }).await
}

pub(super) async fn front(State(shared): State<Shared>) -> Answered {
    answer::ok(&shared.asking.front(&shared.engine).await?)
}

pub(super) async fn what_if(State(shared): State<Shared>, request: Request) -> Answered {
    let asked: WhatIf = answer::body(request, MAX_BYTES).await?;
    answer::ok(&shared.asking.what_if(&shared.engine, asked).await?)
}

pub(super) async fn status(State(shared): State<Shared>) -> Answered {
    let (identity, problem) = (shared.identity, shared.planner.problem());
    let links = shared.engine.links().clone();
    let status = move |controller: &Controller| show::status(controller, &links, identity, problem);
    answer::ok(&shared.engine.read(status).await)
}

pub(super) async fn bill(State(shared): State<Shared>, request: Request) -> Answered {
    let BillRequest { billed } = answer::body(request, MAX_IMPORT_BYTES).await?;
    done(&shared, Event::Bill(billed)).await
}

pub(super) async fn places(State(shared): State<Shared>) -> Answered {
    answer::ok(&shared.engine.read(places::places).await)
}

pub(super) async fn access(Extension(rights): Extension<Rights>) -> Answered {
    let Rights { may_write, tenant } = rights;
    answer::ok(&AccessView { schema_version: SCHEMA_VERSION, may_write, tenant })
}

pub(super) async fn audit(State(shared): State<Shared>) -> Answered {
    let entries = |controller: &Controller| {
        let entries = controller.state().audit.values().rev().cloned().collect();
        Audit { schema_version: SCHEMA_VERSION, entries }
    };
    answer::ok(&shared.engine.read(entries).await)
}

/// Lets an event take effect that has no answer of its own.
pub(super) async fn done(shared: &Shared, event: Event) -> Answered {
    shared.engine.handle(event).await?;
    answer::nothing()
}

/// Reads `what=NAME` of a query, if there is one.
pub(super) fn queried<T: std::str::FromStr<Err: std::fmt::Display>>(
    query: Option<&str>,
    what: &str,
) -> Result<Option<T>, Problem> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(None) };
    let name = query.strip_prefix(what).and_then(|rest| rest.strip_prefix('='));
    let refused = || Problem::invalid(format!("expected `{what}=NAME` after `?`"));
    let name = percent_decode_str(name.ok_or_else(refused)?).decode_utf8_lossy();
    named(&name).map(Some)
}

/// Reads a name in a path.
pub(super) fn named<T: std::str::FromStr<Err: std::fmt::Display>>(
    text: &str,
) -> Result<T, Problem> {
    text.parse().map_err(|error: T::Err| Problem::invalid(error.to_string()))
}
