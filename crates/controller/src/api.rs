//! The operators' API, on loopback: its routes are in `routes`, their bodies in [`crate::view`].
//!
//! A request shows a token, and names the API by an address or `localhost`: no page of a foreign
//! site reaches it under its own name (DNS rebinding), and none that a browser sends for a page of
//! another site (with its `Origin`) is answered. The files of the dashboard need no token.

mod events;
mod guard;
mod handlers;
mod measurements;
mod packets;
mod page;
mod places;
mod routes;
mod show;
mod tenants;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::middleware;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tradewind_grant::PublicIdentity;

use crate::answer;
use crate::asking::Asking;
use crate::engine::Engine;
use crate::listener;
use crate::planning::Planner;

pub(crate) use guard::Tokens;
pub use routes::document;

/// Most connections at once. Chosen: several people and their tools.
const MAX_CONNECTIONS: usize = 256;

/// The state that all requests share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    engine: Engine,
    planner: Planner,
    asking: Asking,
    identity: PublicIdentity,
    /// The address that invites name.
    advertise: SocketAddr,
    /// The places of listeners for events.
    listeners: Arc<Semaphore>,
    /// True at the end.
    stop: watch::Receiver<bool>,
}

impl Shared {
    pub(crate) fn new(
        engine: Engine,
        planner: Planner,
        identity: PublicIdentity,
        advertise: SocketAddr,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let (asking, listeners) = (Asking::new(planner.clone()), events::places());
        Self { engine, planner, asking, identity, advertise, listeners, stop }
    }
}

/// Serves operators on `listener` until `stop` is true.
pub(crate) async fn serve(listener: TcpListener, shared: Shared, tokens: Tokens) {
    let stop = shared.stop.clone();
    let router = router(shared, tokens);
    let one = move |stream, _from, stop| listener::serve(stream, router.clone(), stop);
    listener::accept(listener, MAX_CONNECTIONS, stop, one).await;
}

fn router(shared: Shared, tokens: Tokens) -> Router {
    let keys = (tokens, shared.engine.clone());
    routes::router()
        .fallback(answer::not_found)
        .method_not_allowed_fallback(answer::not_allowed)
        .layer(middleware::from_fn_with_state(keys, guard::check_token))
        .layer(middleware::from_fn(page::serve))
        .layer(middleware::from_fn(guard::check_source))
        .with_state(shared)
}
