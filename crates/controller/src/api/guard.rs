//! Checks of requests to the API: their token, their host, their rights.

use std::net::IpAddr;

use axum::Extension;
use axum::extract::{Request, State};
use axum::middleware::Next;
use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, HOST, HeaderMap, HeaderValue, ORIGIN, X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::uri::Authority;
use hyper::{Method, StatusCode};
use tradewind_control::Controller;
use tradewind_control::tenants::TenantId;

use crate::answer::{Answered, Problem};
use crate::engine::Engine;
use crate::folder::Token;

/// The path of a question that is too long for an address: it changes nothing, so readers may ask.
pub(super) const WHAT_IF: &str = "/v1/what-if";

/// The tokens that open the API, as hashes: these are compared in constant time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tokens {
    operator: blake3::Hash,
    reader: blake3::Hash,
}

impl Tokens {
    pub(crate) fn new(operator: &Token, reader: &Token) -> Self {
        let hash = |token: &Token| blake3::hash(token.secret().as_bytes());
        Self { operator: hash(operator), reader: hash(reader) }
    }
}

/// The rights of the one who asks.
#[derive(Debug, Clone)]
pub(super) struct Rights {
    pub(super) may_write: bool,
    /// The tenant whose flows alone they see.
    pub(super) tenant: Option<TenantId>,
}

/// Passes on a request that names the API by an address or `localhost`, and that no page of another
/// site makes.
pub(super) async fn check_source(request: Request, next: Next) -> Answered {
    let headers = request.headers();
    let refused = |error: &str| Err(Problem::new(StatusCode::FORBIDDEN, error));
    if !is_addressed(headers, request.uri().authority()) {
        return refused("`Host`: expected an IP address or localhost");
    }
    if !is_of_own_page(headers) {
        return refused("requests of other sites' pages (`Origin`) are refused");
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Passes on a request of one who may make it, with their [`Rights`].
pub(super) async fn check_token(
    State((tokens, engine)): State<(Tokens, Engine)>,
    mut request: Request,
    next: Next,
) -> Answered {
    let shown = shown_token(request.headers());
    let Some(shown) = shown.map(blake3::hash) else {
        let error = "no token: expected `Authorization: Bearer` with the token in admin.toml";
        return Err(Problem::new(StatusCode::UNAUTHORIZED, error));
    };
    let rights = if shown == tokens.operator || shown == tokens.reader {
        Some(Rights { may_write: shown == tokens.operator, tenant: None })
    } else {
        engine.read(move |controller| rights_of_tenant(controller, shown)).await
    };
    let Some(rights) = rights else {
        let error = "the token is not this controller's: admin.toml holds it";
        return Err(Problem::new(StatusCode::UNAUTHORIZED, error));
    };
    let may_write = rights.may_write;
    let only_asks =
        [Method::GET, Method::HEAD].contains(request.method()) || request.uri().path() == WHAT_IF;
    if !may_write && !only_asks {
        let error = "this token only reads; the one in admin.toml may change things";
        return Err(Problem::new(StatusCode::FORBIDDEN, error));
    }
    request.extensions_mut().insert(rights);
    Ok(next.run(request).await)
}

/// Refuses the token of a tenant, at a route that is not for tenants.
pub(super) async fn refuse_tenants(
    Extension(rights): Extension<Rights>,
    request: Request,
    next: Next,
) -> Answered {
    if rights.tenant.is_some() {
        let error = "a tenant's token sees and changes its own flows alone";
        return Err(Problem::new(StatusCode::FORBIDDEN, error));
    }
    Ok(next.run(request).await)
}

/// Returns the rights of a tenant's token, if it is one.
fn rights_of_tenant(controller: &Controller, shown: blake3::Hash) -> Option<Rights> {
    let tenants = controller.state().tenants.values();
    let mut tokens = tenants.flat_map(|it| it.tokens.iter().map(|token| (&it.id, token)));
    let is_shown = |hash: &str| blake3::Hash::from_hex(hash).is_ok_and(|hash| hash == shown);
    let (tenant, token) = tokens.find(|(_, token)| is_shown(&token.hash))?;
    Some(Rights { may_write: token.may_write, tenant: Some(tenant.clone()) })
}

fn shown_token(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ")
}

/// Returns whether a request names no origin, or that of the page which this listener serves: the
/// host that it names itself. Browsers send one with writes.
fn is_of_own_page(headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else { return true };
    let page = origin.as_bytes().strip_prefix(b"http://");
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    origins.next().is_none() && page.is_some() && page == host
}

/// Returns whether a request names one host, in each place where it does, and that is an address or
/// `localhost`.
fn is_addressed(headers: &HeaderMap, target: Option<&Authority>) -> bool {
    let named: Vec<_> = headers.get_all(HOST).iter().collect();
    let [host] = named[..] else { return false };
    // A name before `@` is no host, but what a careless reader would take for one.
    if host.as_bytes().contains(&b'@') {
        return false;
    }
    let host = Authority::try_from(host.as_bytes());
    host.is_ok_and(|host| is_own(host.host())) && target.is_none_or(|host| is_own(host.host()))
}

fn is_own(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|v6| v6.strip_suffix(']')).unwrap_or(host);
    address.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}
