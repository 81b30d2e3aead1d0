//! The routes of the API: one table, of which both its router and its OpenAPI document are made.

use axum::routing::{MethodRouter, delete, get, post, put};
use axum::{Router, middleware};
use hyper::Method;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};
use tradewind_control::message::ErrorAnswer;
use tradewind_control::what_if::WhatIf;
use tradewind_units::SiteId;

use super::{Shared, events, guard, handlers, measurements, packets, tenants};
use crate::answer::{self, Answered};
use crate::view::{
    AccessView, AdoptRequest, Audit, BillRequest, Change, Explained, FlowRequest, FlowView, Flows,
    Front, Gain, GainOfFlow, History, Hosts, ImportRequest, InviteAnswer, InviteRequest,
    InviteView, Jumpstart, LearnedView, MeasurementColumns, Measurements, PacketFlowRequest,
    PacketFlowView, PacketFlows, PathsOfFlow, Places, PlanView, ProxiesRequest, SettingsRequest,
    SettingsView, Status, SupposedView, TenantRequest, Tenants, TokenAnswer, TokenRequest, Usage,
};

/// The place of schemas in the document.
const SCHEMAS: &str = "/components/schemas";

type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// The body of an answer.
enum Body {
    /// None: 204.
    Nothing,
    /// JSON of this schema.
    Json(MakeSchema),
    /// Server-sent events whose data is JSON of this schema.
    Events(MakeSchema),
}

/// A route.
struct Route {
    method: Method,
    path: &'static str,
    summary: &'static str,
    /// Name, meaning and schema of what may follow `?`.
    query: Option<(&'static str, &'static str, Value)>,
    request: Option<MakeSchema>,
    answer: Body,
    /// True if the tokens of tenants may ask: it tells them of their own flows alone.
    is_for_tenants: bool,
    handler: MethodRouter<Shared>,
}

impl Route {
    fn new(
        method: Method,
        path: &'static str,
        summary: &'static str,
        handler: MethodRouter<Shared>,
    ) -> Self {
        let (query, request, answer) = (None, None, Body::Nothing);
        let is_for_tenants = false;
        Self { method, path, summary, query, request, answer, is_for_tenants, handler }
    }

    fn takes<T: JsonSchema>(self) -> Self {
        Self { request: Some(SchemaGenerator::subschema_for::<T>), ..self }
    }

    fn for_tenants(self) -> Self {
        Self { is_for_tenants: true, ..self }
    }

    /// Lets the operator name a tenant.
    fn of_tenant(self) -> Self {
        Self { query: Some(("tenant", "The tenant whose flow it is", name())), ..self }
    }

    fn answers<T: JsonSchema>(self) -> Self {
        Self { answer: Body::Json(SchemaGenerator::subschema_for::<T>), ..self }
    }
}

/// The schema of a name in a query.
fn name() -> Value {
    json!({ "type": "string" })
}

fn get_of(path: &'static str, summary: &'static str, handler: MethodRouter<Shared>) -> Route {
    Route::new(Method::GET, path, summary, handler)
}

fn post_of(path: &'static str, summary: &'static str, handler: MethodRouter<Shared>) -> Route {
    Route::new(Method::POST, path, summary, handler)
}

fn put_of(path: &'static str, summary: &'static str, handler: MethodRouter<Shared>) -> Route {
    Route::new(Method::PUT, path, summary, handler)
}

fn routes() -> impl Iterator<Item = Route> {
    hosts_and_flows()
        .into_iter()
        .chain(learned())
        .chain(overlay())
        .chain(of_tenants())
        .chain(seen())
}

/// Returns the routes of hosts and flows.
fn hosts_and_flows() -> Vec<Route> {
    vec![
        post_of("/v1/invites", "Invite a host", post(handlers::invite))
            .takes::<InviteRequest>()
            .answers::<InviteAnswer>(),
        get_of("/v1/invites/{invite_id}", "What became of an invite", get(handlers::show_invite))
            .answers::<InviteView>(),
        get_of("/v1/hosts", "All hosts", get(handlers::hosts)).answers::<Hosts>(),
        post_of("/v1/hosts/{id}/drain", "Have no plan use a host any more", post(handlers::drain)),
        post_of("/v1/hosts/{id}/undrain", "Use a host again", post(handlers::undrain)),
        post_of("/v1/hosts/{id}/revoke", "Trust a host no more", post(handlers::revoke)),
        get_of("/v1/flows", "All flows and their paths", get(handlers::flows))
            .answers::<Flows>()
            .for_tenants(),
        get_of("/v1/flows/{id}", "A flow", get(handlers::flow)).answers::<FlowView>().for_tenants(),
        put_of("/v1/flows/{id}", "Declare a flow", put(handlers::add_flow))
            .takes::<FlowRequest>()
            .answers::<FlowView>()
            .of_tenant()
            .for_tenants(),
        Route::new(
            Method::DELETE,
            "/v1/flows/{id}",
            "Remove a flow, of streams or of packets",
            delete(handlers::remove_flow),
        )
        .for_tenants(),
        get_of(
            "/v1/flows/{id}/usage",
            "What a flow carried in each hour of the last month",
            get(handlers::usage),
        )
        .answers::<Usage>()
        .for_tenants(),
        of_days(
            get_of(
                "/v1/flows/{id}/gain",
                "Gain of one flow in the last days",
                get(handlers::flow_gain),
            )
            .answers::<GainOfFlow>()
            .for_tenants(),
        ),
        get_of("/v1/flows/{id}/paths", "Paths that a flow had", get(handlers::path_history))
            .answers::<PathsOfFlow>()
            .for_tenants(),
        get_of("/v1/flows/{id}/explain", "Why a flow takes its path", get(handlers::explain))
            .answers::<Explained>(),
    ]
}

/// Returns the routes of destinations that gateways learn.
fn learned() -> Vec<Route> {
    vec![
        get_of("/v1/learned", "Destinations that gateways have learned", get(handlers::learned))
            .answers::<LearnedView>(),
        post_of(
            "/v1/learned/{id}/adopt",
            "Make a learned destination a flow",
            post(handlers::adopt),
        )
        .takes::<AdoptRequest>()
        .answers::<FlowView>()
        .of_tenant(),
        put_of(
            "/v1/proxies/{site}",
            "Have the gateways of a site offer proxies, and learn flows from them",
            put(handlers::set_proxies),
        )
        .takes::<ProxiesRequest>()
        .answers::<LearnedView>(),
        Route::new(
            Method::DELETE,
            "/v1/proxies/{site}",
            "End the proxies of a site",
            delete(handlers::remove_proxies),
        ),
    ]
}

/// Lets a route be asked of a number of days.
fn of_days(route: Route) -> Route {
    let days = json!({ "type": "integer", "minimum": 1, "maximum": handlers::MAX_DAYS });
    let meaning = "Number of days, today included; 1 when absent";
    Route { query: Some(("days", meaning, days)), ..route }
}

/// Returns the routes of tenants.
fn of_tenants() -> Vec<Route> {
    vec![
        of_days(
            get_of("/v1/tenants", "All tenants, and what their flows cost", get(tenants::list))
                .answers::<Tenants>()
                .for_tenants(),
        ),
        put_of("/v1/tenants/{id}", "Add or change a tenant", put(tenants::set))
            .takes::<TenantRequest>()
            .answers::<Tenants>(),
        Route::new(
            Method::DELETE,
            "/v1/tenants/{id}",
            "Remove a tenant, whose flows are the overlay's own then",
            delete(tenants::remove),
        ),
        post_of("/v1/tenants/{id}/tokens", "Make a token of a tenant", post(tenants::add_token))
            .takes::<TokenRequest>()
            .answers::<TokenAnswer>(),
        Route::new(
            Method::DELETE,
            "/v1/tenants/{id}/tokens",
            "Remove all tokens of a tenant",
            delete(tenants::remove_tokens),
        ),
    ]
}

/// Returns the routes of what the overlay costs and gains, and of its plans.
fn overlay() -> Vec<Route> {
    vec![
        of_days(
            get_of("/v1/gain", "Gain and money of the last days", get(handlers::gain))
                .answers::<Gain>()
                .for_tenants(),
        ),
        of_days(
            get_of(
                "/v1/packets",
                "All packet flows, and what became of their packets",
                get(packets::list),
            )
            .answers::<PacketFlows>()
            .for_tenants(),
        ),
        put_of("/v1/packets/{id}", "Declare a packet flow", put(packets::add))
            .takes::<PacketFlowRequest>()
            .answers::<PacketFlowView>()
            .of_tenant()
            .for_tenants(),
        post_of("/v1/bills", "Take bills of clouds in", post(handlers::bill))
            .takes::<BillRequest>(),
        of_days(
            get_of(
                "/v1/jumpstart",
                "Jump-start of the hosts, and what it gains",
                get(handlers::jumpstart),
            )
            .answers::<Jumpstart>(),
        ),
        get_of("/v1/settings", "The settings", get(handlers::settings)).answers::<SettingsView>(),
        put_of("/v1/settings", "Change settings", put(handlers::change_settings))
            .takes::<SettingsRequest>()
            .answers::<SettingsView>(),
        post_of("/v1/plans", "Make a plan", post(handlers::plan)).answers::<PlanView>(),
        get_of("/v1/plans/{number}", "A plan by its number, or `newest`", get(handlers::show_plan))
            .answers::<PlanView>(),
        post_of("/v1/plans/{number}/apply", "Put a plan into effect", post(handlers::apply)),
        get_of("/v1/front", "The plans of several budgets", get(handlers::front))
            .answers::<Front>(),
        post_of(
            guard::WHAT_IF,
            "The plan under changes that are supposed; changes nothing",
            post(handlers::what_if),
        )
        .takes::<WhatIf>()
        .answers::<SupposedView>(),
    ]
}

/// Returns the routes of what is seen of it.
fn seen() -> Vec<Route> {
    vec![
        get_of("/v1/status", "Whether all is well", get(handlers::status)).answers::<Status>(),
        Route {
            answer: Body::Events(SchemaGenerator::subschema_for::<Change>),
            ..get_of("/v1/events", "Changes as they happen", get(events::events))
        },
        get_of("/v1/measurements", "The newest measurement of each leg", get(measurements::list))
            .answers::<Measurements>(),
        Route {
            query: Some((
                "place",
                "One end of measured legs; all legs, modelled ones included, when absent",
                name(),
            )),
            ..get_of(
                "/v1/measurements/columns",
                "The newest measurement of each leg, or the model's estimate, in columns",
                get(measurements::columns),
            )
        }
        .answers::<MeasurementColumns>(),
        post_of("/v1/measurements", "Take measurements of others in", post(measurements::import))
            .takes::<ImportRequest>(),
        get_of(
            "/v1/measurements/{from}/{to}",
            "The measurements of a leg in the last week",
            get(measurements::history),
        )
        .answers::<History>(),
        get_of("/v1/places", "Where sites and regions are, as far as known", get(handlers::places))
            .answers::<Places>(),
        get_of("/v1/access", "The rights of the token shown", get(handlers::access))
            .answers::<AccessView>()
            .for_tenants(),
        get_of("/v1/audit", "The newest entries of the audit log", get(handlers::audit))
            .answers::<Audit>(),
        get_of("/v1/openapi.json", "This document", get(openapi)).answers::<Map<String, Value>>(),
    ]
}

/// Returns the router of all routes.
pub(super) fn router() -> Router<Shared> {
    let add = |router: Router<Shared>, route: Route| {
        let handler = if route.is_for_tenants {
            route.handler
        } else {
            route.handler.layer(middleware::from_fn(guard::refuse_tenants))
        };
        router.route(route.path, handler)
    };
    routes().fold(Router::new(), add)
}

async fn openapi() -> Answered {
    answer::ok(&document())
}

/// Returns the OpenAPI document of the API.
#[must_use]
pub fn document() -> Value {
    let settings = || {
        let mut settings = SchemaSettings::draft2020_12();
        settings.definitions_path = SCHEMAS.into();
        settings
    };
    // What a request may leave out, an answer always has.
    let mut requests = settings().into_generator();
    let mut answers = settings().for_serialize().into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes() {
        let method = route.method.as_str().to_ascii_lowercase();
        let path = route.path;
        let operation = operation(route, &mut requests, &mut answers);
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[method] = operation;
    }
    let mut schemas = requests.take_definitions(true);
    schemas.extend(answers.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tradewind's controller",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn operation(route: Route, requests: &mut SchemaGenerator, answers: &mut SchemaGenerator) -> Value {
    let in_json = |schema: Schema| json!({ "application/json": { "schema": schema } });
    let mut parameters: Vec<Value> = names_in(route.path)
        .map(|name| {
            let schema = match name {
                "number" => json!({ "type": "string", "pattern": "^([0-9]{1,19}|newest)$" }),
                "invite_id" => json!({ "type": "string", "pattern": "^[A-Za-z0-9_-]{43}$" }),
                // Names of hosts and flows have the same form.
                _ => json!(requests.subschema_for::<SiteId>()),
            };
            json!({ "name": name, "in": "path", "required": true, "schema": schema })
        })
        .collect();
    if let Some((name, meaning, schema)) = route.query {
        parameters
            .push(json!({ "name": name, "in": "query", "description": meaning, "schema": schema }));
    }
    let (status, done) = match route.answer {
        Body::Nothing => ("204", json!({ "description": "Done" })),
        Body::Json(make) => {
            ("200", json!({ "description": "The answer", "content": in_json(make(answers)) }))
        }
        Body::Events(make) => {
            let description = "Events `change`; the schema is that of their data";
            let content = json!({ "text/event-stream": { "schema": make(answers) } });
            ("200", json!({ "description": description, "content": content }))
        }
    };
    let error = in_json(answers.subschema_for::<ErrorAnswer>());
    let mut operation = json!({
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            status: done,
            "default": { "description": "The problem", "content": error },
        },
    });
    if let Some(make) = route.request {
        operation["requestBody"] = json!({ "required": true, "content": in_json(make(requests)) });
    }
    operation
}

/// Returns the names in braces of a path.
fn names_in(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}
