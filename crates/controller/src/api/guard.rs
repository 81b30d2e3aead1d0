//! Checks of requests to the API: their token, their host, their rights.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::middleware::Next;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{Method, StatusCode};

use crate::answer::{Answered, Problem};
use crate::folder::Token;

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

/// Passes on a request of one who may make it.
pub(super) async fn check(State(tokens): State<Tokens>, request: Request, next: Next) -> Answered {
    let headers = request.headers();
    let refused = |error: &str| Err(Problem::new(StatusCode::FORBIDDEN, error));
    if headers.contains_key(ORIGIN) {
        return refused("requests of web pages (`Origin`) are refused");
    }
    if !is_addressed(headers, request.uri().authority()) {
        return refused("`Host`: expected an IP address or localhost");
    }
    let shown = shown_token(headers);
    let Some(shown) = shown.map(blake3::hash) else {
        let error = "no token: expected `Authorization: Bearer` with the token in admin.toml";
        return Err(Problem::new(StatusCode::UNAUTHORIZED, error));
    };
    let is_operator = shown == tokens.operator;
    if !is_operator && shown != tokens.reader {
        let error = "the token is not this controller's: admin.toml holds it";
        return Err(Problem::new(StatusCode::UNAUTHORIZED, error));
    }
    if !is_operator && request.method() != Method::GET {
        return refused("this token only reads; the one in admin.toml may change things");
    }
    Ok(next.run(request).await)
}

fn shown_token(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ")
}

/// Returns whether a request names one host, in each place where it does, and that is an address or
/// `localhost`.
fn is_addressed(headers: &HeaderMap, target: Option<&Authority>) -> bool {
    let named: Vec<_> = headers.get_all(HOST).iter().collect();
    let [host] = named[..] else { return false };
    let host = Authority::try_from(host.as_bytes());
    host.is_ok_and(|host| is_own(host.host())) && target.is_none_or(|host| is_own(host.host()))
}

fn is_own(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|v6| v6.strip_suffix(']')).unwrap_or(host);
    address.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}
