//! Listeners for HTTP/1.1: bounds on connections, heads and time; an end in order.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tradewind_net::tcp::SocketOptions;
use tradewind_units::Duration;

use crate::error::ControllerError;

/// Most bytes of a request's head. Chosen: the least that hyper allows.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Most headers of a request. Chosen.
const MAX_HEADERS: usize = 32;
/// Longest wait for a request's head, which is also how long a connection may be idle. Chosen:
/// above the time between two reports.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for requests under way at the end. Chosen: they take milliseconds; long polls are
/// answered at once.
const LAST_REQUESTS: Duration = Duration::from_secs(5);
/// Longest time for which a peer takes none of what was sent to it. Chosen: as at relays.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after a failed accept, so that it does not spin. Chosen.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Waits until `stop` is true.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // That the sender is gone means the same.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Opens a listener.
pub(crate) async fn bind(key: &str, address: SocketAddr) -> Result<TcpListener, ControllerError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| ControllerError::Failed(format!("{key}: listen on {address}: {error}")))
}

/// Takes over a listener that is open.
pub(crate) fn adopt(listener: std::net::TcpListener) -> Result<TcpListener, ControllerError> {
    let adopted = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
    adopted.map_err(|error| ControllerError::Failed(format!("agents: {error}")))
}

/// Takes connections and has each served by `serve`, at most `most` at once, until `stop` is true;
/// then waits for requests under way.
pub(crate) async fn accept<Served: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    most: usize,
    mut stop: watch::Receiver<bool>,
    serve: impl Fn(TcpStream, SocketAddr, watch::Receiver<bool>) -> Served,
) {
    let places = Arc::new(Semaphore::new(most));
    let mut tasks = JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = stopped(&mut stop) => break,
        };
        match accepted {
            Ok((stream, from)) => {
                let options = SocketOptions {
                    user_timeout: Some(UNREAD_TIMEOUT),
                    ..SocketOptions::default()
                };
                if let Err(error) = options.apply(&stream) {
                    tracing::warn!("{error}");
                }
                let served = serve(stream, from, stop.clone());
                tasks.spawn(async move {
                    served.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let all = async { while tasks.join_next().await.is_some() {} };
    let _cut = timeout(LAST_REQUESTS, all).await;
}

/// Serves the requests of one connection. Its errors are the client's, and worth no more than a
/// debug line.
pub(crate) async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(io), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a request failed");
    }
}
