//! The listener for agents: TLS 1.3 by identities, and the routes of
//! [`tradewind_control::message`].
//!
//! Sends nothing to a peer that has not proved that it knows the controller's identity, which only
//! invites tell.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::routing::{get, post};
use axum::{Extension, Router};
use hyper::StatusCode;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tradewind_control::message::{DocumentVersion, LONG_POLL, MAX_BYTES};
use tradewind_control::{Answer, Controller, Event};
use tradewind_grant::first_flight::{HELLO_LIMIT, PROOF_BYTES};
use tradewind_grant::{IdentityKey, PublicIdentity};
use tradewind_net::tcp::SocketOptions;
use tradewind_stream::connection::Connection;
use tradewind_stream::keys::own_identities::OwnIdentities;
use tradewind_units::Duration;

use crate::answer::{self, Answered, Problem};
use crate::engine::Engine;
use crate::error::ControllerError;
use crate::links::PROBE_EVERY;
use crate::listener::{self, stopped};

/// Most connections at once. Chosen: two for each of 2,000 hosts.
const MAX_CONNECTIONS: usize = 4096;
/// Longest time for a handshake. Chosen: as at relays.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a request to join: it comes from a host that is not trusted yet. Chosen.
const MAX_JOIN_BYTES: usize = 16 * 1024;

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
struct Peer {
    identity: PublicIdentity,
    from: IpAddr,
}

/// The state that all requests share.
#[derive(Debug, Clone)]
struct Shared {
    engine: Engine,
    stop: watch::Receiver<bool>,
}

/// Serves agents on `listener` until `stop` is true.
///
/// # Errors
/// When the identity cannot be prepared: a bug.
pub(crate) async fn serve(
    listener: TcpListener,
    identity: &IdentityKey,
    engine: Engine,
    stop: watch::Receiver<bool>,
) -> Result<(), ControllerError> {
    let own = Arc::new(OwnIdentities::new(std::slice::from_ref(identity))?);
    let router = router(Shared { engine: engine.clone(), stop: stop.clone() });
    let one = move |stream: TcpStream, from: std::net::SocketAddr, stop| {
        let (own, router, engine) = (Arc::clone(&own), router.clone(), engine.clone());
        async move {
            let probed = SocketOptions { keepalive: Some(PROBE_EVERY), ..SocketOptions::default() };
            if let Err(error) = probed.apply(&stream) {
                tracing::warn!("{error}");
            }
            let socket = stream.as_fd().try_clone_to_owned().ok();
            let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
            let welcomed = timeout_at(deadline, welcome(&own, stream)).await;
            let Ok(Ok((connection, identity))) = welcomed else {
                return tracing::debug!("refused: {from}: no first flight to this controller");
            };
            // Strangers are not watched; a host that joins here is from its next connection on.
            let is_trusted = move |controller: &Controller| {
                controller.state().host_of(&identity).is_some_and(|host| host.is_trusted)
            };
            let is_trusted = engine.read(is_trusted).await;
            let socket = socket.filter(|_| is_trusted);
            let _open = socket.map(|socket| engine.links().open(identity, socket));
            let peer = Peer { identity, from: from.ip().to_canonical() };
            listener::serve(connection, router.layer(Extension(peer)), stop).await;
        }
    };
    listener::accept(listener, MAX_CONNECTIONS, stop, one).await;
    Ok(())
}

/// Encrypts a connection whose peer proves that it knows the controller.
async fn welcome(
    own: &OwnIdentities,
    stream: TcpStream,
) -> io::Result<(Connection, PublicIdentity)> {
    let mut bytes = Vec::with_capacity(PROOF_BYTES + HELLO_LIMIT);
    let other = |what: String| io::Error::other(what);
    let identity = loop {
        let found = own.find_addressed(&bytes).map_err(|error| other(error.to_string()))?;
        if let Some(found) = found {
            break found;
        }
        stream.readable().await?;
        match stream.try_read_buf(&mut bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    };
    let sealed = identity.tls.seal_accepted(stream, &bytes[PROOF_BYTES..]).await;
    let connection = sealed.map_err(|error| other(error.to_string()))?;
    let peer = connection.peer().ok_or_else(|| other("it proved no identity".to_owned()))?;
    Ok((connection, peer))
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/v1/desired", get(desired))
        .route("/v1/report", post(report))
        // What stands above is for hosts that have joined.
        .route_layer(middleware::from_fn_with_state(shared.clone(), only_hosts))
        .route("/v1/join", post(join))
        .fallback(answer::not_found)
        .method_not_allowed_fallback(answer::not_allowed)
        .with_state(shared)
}

/// Refuses peers that are no trusted host, before their body is read.
async fn only_hosts(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Answered {
    let trusted = shared.engine.read(move |controller| {
        let host = controller.state().host_of(&peer.identity)?;
        Some(host.is_trusted)
    });
    match trusted.await {
        Some(true) => Ok(next.run(request).await),
        Some(false) => Err(Problem::new(StatusCode::FORBIDDEN, "this host was revoked")),
        None => {
            let error = "this host has not joined: `tradewind agent join INVITE`";
            Err(Problem::new(StatusCode::FORBIDDEN, error))
        }
    }
}

async fn join(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Answered {
    let request = answer::message(request, MAX_JOIN_BYTES).await?;
    let event = Event::Join { identity: peer.identity, from: peer.from, request };
    match shared.engine.handle(event).await? {
        Answer::Joined(joined) => answer::ok(&joined),
        other => Err(answer::unexpected(&other)),
    }
}

async fn report(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Answered {
    let report = answer::message(request, MAX_BYTES).await?;
    let event = Event::Report { identity: peer.identity, report };
    match shared.engine.handle(event).await? {
        Answer::Reported(reported) => answer::ok(&reported),
        other => Err(answer::unexpected(&other)),
    }
}

/// Answers with the host's document once there is one that it does not have.
async fn desired(
    State(mut shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Answered {
    let have = have(request.uri().query())?;
    let deadline = Instant::now() + LONG_POLL;
    let mut documents = shared.engine.documents();
    loop {
        // Before the look, so that no change between is missed.
        documents.borrow_and_update();
        let find = move |controller: &Controller| controller.document(&peer.identity, have);
        if let Some(document) = shared.engine.read(find).await {
            return answer::ok(&document);
        }
        let is_over = tokio::select! {
            changed = timeout_at(deadline, documents.changed()) => !matches!(changed, Ok(Ok(()))),
            () = stopped(&mut shared.stop) => true,
        };
        if is_over {
            return answer::nothing();
        }
    }
}

/// Reads the version that the agent has from `have=EPOCH.VERSION`.
fn have(query: Option<&str>) -> Result<Option<DocumentVersion>, Problem> {
    let mut pairs = query.unwrap_or_default().split('&');
    let version = pairs.find_map(|pair| pair.strip_prefix("have="));
    let version = version.map(str::parse).transpose();
    version.map_err(|error| Problem::invalid(format!("have: {error}")))
}
