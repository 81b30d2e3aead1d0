//! The operators' API ([`crate::view`]), on loopback.
//!
//! A request shows a token, and names the API by an address or `localhost`: no page of a foreign
//! site reaches it under its own name (DNS rebinding), and none that a browser sends for a page
//! (with `Origin`) is answered.

mod guard;
mod show;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::middleware;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tradewind_control::record::FlowRecord;
use tradewind_control::{Answer, Controller, Event};
use tradewind_grant::{Destination, PublicIdentity};
use tradewind_units::{Duration, FlowId, SiteId};

use crate::answer::{self, Answered, Problem};
use crate::engine::Engine;
use crate::listener;
use crate::planning::Planner;
use crate::view::{
    Audit, FlowRequest, History, InviteAnswer, InviteRequest, Measurements, SCHEMA_VERSION,
    SettingsRequest,
};

pub(crate) use guard::Tokens;

/// Most connections at once. Chosen: several people and their tools.
const MOST_CONNECTIONS: usize = 256;
/// Most bytes of a request's body. Chosen: a flow takes less than one.
const MOST_BYTES: usize = 64 * 1024;
/// The first port that is given to a flow which names none. Chosen: below the ports that Linux
/// gives to connections.
const FIRST_PORT: u16 = 15_000;

/// The state that all requests share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) planner: Planner,
    pub(crate) identity: PublicIdentity,
    /// The address that invites name.
    pub(crate) advertise: SocketAddr,
}

/// Serves operators on `listener` until `stop` is true.
pub(crate) async fn serve(
    listener: TcpListener,
    shared: Shared,
    tokens: Tokens,
    stop: watch::Receiver<bool>,
) {
    let router = router(shared, tokens);
    let one = move |stream, _from, stop| listener::serve(stream, router.clone(), stop);
    listener::accept(listener, MOST_CONNECTIONS, stop, one).await;
}

fn router(shared: Shared, tokens: Tokens) -> Router {
    Router::new()
        .route("/v1/invites", post(invite))
        .route("/v1/hosts", get(hosts))
        .route("/v1/hosts/{id}/drain", post(drain))
        .route("/v1/hosts/{id}/undrain", post(undrain))
        .route("/v1/hosts/{id}/revoke", post(revoke))
        .route("/v1/flows", get(flows))
        .route("/v1/flows/{id}", get(flow).put(add_flow).delete(remove_flow))
        .route("/v1/settings", get(settings).put(change_settings))
        .route("/v1/plans", post(plan))
        .route("/v1/plans/{number}", get(show_plan))
        .route("/v1/plans/{number}/apply", post(apply))
        .route("/v1/status", get(status))
        .route("/v1/measurements", get(measurements))
        .route("/v1/measurements/{from}/{to}", get(history))
        .route("/v1/audit", get(audit))
        .fallback(answer::not_found)
        .method_not_allowed_fallback(answer::not_allowed)
        .layer(middleware::from_fn_with_state(tokens, guard::check))
        .with_state(shared)
}

async fn invite(State(shared): State<Shared>, request: Request) -> Answered {
    let InviteRequest { role, ttl_ms } = answer::body(request, MOST_BYTES).await?;
    let ttl = Duration::from_millis(ttl_ms);
    let event = Event::Invite { role, ttl, controller: shared.advertise };
    match shared.engine.handle(event).await? {
        Answer::Invite(invite) => {
            answer::ok(&InviteAnswer { schema_version: SCHEMA_VERSION, invite: invite.to_string() })
        }
        other => Err(answer::unexpected(&other)),
    }
}

async fn hosts(State(shared): State<Shared>) -> Answered {
    answer::ok(&shared.engine.read(show::hosts).await)
}

async fn drain(State(shared): State<Shared>, Path(id): Path<String>) -> Answered {
    done(&shared, Event::Drain { host: named(&id)?, is_drained: true }).await
}

async fn undrain(State(shared): State<Shared>, Path(id): Path<String>) -> Answered {
    done(&shared, Event::Drain { host: named(&id)?, is_drained: false }).await
}

async fn revoke(State(shared): State<Shared>, Path(id): Path<String>) -> Answered {
    done(&shared, Event::Revoke(named(&id)?)).await
}

async fn flows(State(shared): State<Shared>) -> Answered {
    answer::ok(&shared.engine.read(show::flows).await)
}

async fn flow(State(shared): State<Shared>, Path(id): Path<String>) -> Answered {
    let id: FlowId = named(&id)?;
    answer::ok(&shared.engine.read(move |controller| show::flow(controller, &id)).await?)
}

async fn add_flow(
    State(shared): State<Shared>,
    Path(id): Path<String>,
    request: Request,
) -> Answered {
    let id: FlowId = named(&id)?;
    let request: FlowRequest = answer::body(request, MOST_BYTES).await?;
    let name = id.clone();
    let flow = shared.engine.read(move |controller| record_of(controller, name, request)).await?;
    shared.engine.handle(Event::AddFlow(flow)).await?;
    answer::ok(&shared.engine.read(move |controller| show::flow(controller, &id)).await?)
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
        None => site_of(&to)?,
    };
    let flows = &controller.state().flows;
    let listen = match (listen, flows.get(&id)) {
        (Some(listen), _) => listen,
        (None, Some(same)) if same.from == from => same.listen,
        (None, _) => {
            let is_taken = |port: u16| {
                flows.values().any(|flow| flow.from == from && flow.listen.port() == port)
            };
            let free = (FIRST_PORT..=u16::MAX).find(|port| !is_taken(*port));
            let none = || Problem::invalid("listen: no port is left at this site; name one");
            SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), free.ok_or_else(none)?)
        }
    };
    Ok(FlowRecord { id, from, to, to_site, per_day, weight: weight.unwrap_or(1), listen })
}

/// Returns a site that is named after the host of a destination.
fn site_of(to: &Destination) -> Result<SiteId, Problem> {
    let host = match to {
        Destination::Address(address) => address.ip().to_string(),
        Destination::Name { name, .. } => name.to_string(),
    };
    let named = host.parse();
    named.map_err(|_| Problem::invalid(format!("to_site: expected a name for the place of {to}")))
}

async fn remove_flow(State(shared): State<Shared>, Path(id): Path<String>) -> Answered {
    done(&shared, Event::RemoveFlow(named(&id)?)).await
}

async fn settings(State(shared): State<Shared>) -> Answered {
    answer::ok(&shared.engine.read(show::settings).await)
}

async fn change_settings(State(shared): State<Shared>, request: Request) -> Answered {
    let asked: SettingsRequest = answer::body(request, MOST_BYTES).await?;
    let SettingsRequest { budget_usd_per_day, alarm_share, mode } = asked;
    if budget_usd_per_day.is_some() || alarm_share.is_some() {
        let known = shared.engine.read(show::settings).await;
        let usd_per_day = budget_usd_per_day.unwrap_or(known.budget_usd_per_day);
        let alarm_share = alarm_share.or(known.alarm_share);
        shared.engine.handle(Event::SetBudget { usd_per_day, alarm_share }).await?;
    }
    if let Some(mode) = mode {
        shared.engine.handle(Event::SetMode(mode)).await?;
    }
    // Another budget allows another plan.
    shared.planner.wake();
    settings(State(shared)).await
}

async fn plan(State(shared): State<Shared>) -> Answered {
    let number = shared.planner.plan(&shared.engine).await?;
    show(shared, number.to_string()).await
}

async fn show_plan(State(shared): State<Shared>, Path(number): Path<String>) -> Answered {
    show(shared, number).await
}

async fn show(shared: Shared, number: String) -> Answered {
    answer::ok(&shared.engine.read(move |controller| show::plan(controller, &number)).await?)
}

async fn apply(State(shared): State<Shared>, Path(number): Path<String>) -> Answered {
    let number =
        shared.engine.read(move |controller| show::plan_number(controller, &number)).await?;
    done(&shared, Event::Apply { plan: number }).await
}

async fn status(State(shared): State<Shared>) -> Answered {
    let (identity, problem) = (shared.identity, shared.planner.problem());
    let status = move |controller: &Controller| show::status(controller, identity, problem);
    answer::ok(&shared.engine.read(status).await)
}

async fn measurements(State(shared): State<Shared>) -> Answered {
    let legs = |controller: &Controller| {
        let legs = controller.state().measurements.values().cloned().collect();
        Measurements { schema_version: SCHEMA_VERSION, legs }
    };
    answer::ok(&shared.engine.read(legs).await)
}

async fn history(
    State(shared): State<Shared>,
    Path((from, to)): Path<(String, String)>,
) -> Answered {
    let (from, to): (SiteId, SiteId) = (named(&from)?, named(&to)?);
    let measured = shared.engine.history(from.to_string(), to.to_string()).await?;
    answer::ok(&History { schema_version: SCHEMA_VERSION, from, to, measured })
}

async fn audit(State(shared): State<Shared>) -> Answered {
    let entries = |controller: &Controller| {
        let entries = controller.state().audit.values().rev().cloned().collect();
        Audit { schema_version: SCHEMA_VERSION, entries }
    };
    answer::ok(&shared.engine.read(entries).await)
}

/// Lets an event take effect that has no answer of its own.
async fn done(shared: &Shared, event: Event) -> Answered {
    shared.engine.handle(event).await?;
    answer::nothing()
}

/// Reads a name in a path.
fn named<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, Problem> {
    text.parse().map_err(|error: T::Err| Problem::invalid(error.to_string()))
}
