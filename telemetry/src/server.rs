//! `/metrics`, `/healthz`, `/readyz` and the process's own pages on a port and a thread of their own.
//!
//! Everything a caller can spend is bounded: connections, header bytes, header count, time. There
//! is no authentication, so the default address is loopback; bind elsewhere only behind a network
//! policy.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, oneshot};

use crate::{Health, Registry, TelemetryError};

/// Where a process serves its telemetry unless told otherwise: loopback, port 9464, the one that
/// OpenTelemetry gives to Prometheus exporters.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// Connections served at once; more wait in the kernel's queue. Chosen: several scrapers and probes.
const MAX_CONNECTIONS: usize = 32;
/// Most bytes of a request's head. Chosen: the least that hyper allows.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Most headers of a request. Chosen: scrapers send about ten.
const MAX_HEADERS: usize = 32;
/// Longest wait for a request's head. Chosen.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest life of a connection, however slow its reader. Chosen: Prometheus' usual scrape limit.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept (e.g. no descriptors left), so that it does not spin. Chosen.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A running telemetry server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    local_addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// The address it listens on, with the port the system chose when 0 was asked for.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Stops the server: the port is free when this returns. Answers under way are cut.
    pub fn shutdown(mut self) {
        self.stop_and_join();
    }

    fn stop_and_join(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the telemetry thread had panicked");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_and_join();
    }
}

/// Serves `registry` and `health` on `address` from a thread of its own.
///
/// # Errors
/// When the address cannot be bound or the thread cannot be started.
pub fn serve(
    address: SocketAddr,
    registry: Registry,
    health: Health,
) -> Result<Server, TelemetryError> {
    let listener =
        TcpListener::bind(address).map_err(|cause| TelemetryError::Listen { address, cause })?;
    serve_on(listener, registry, health)
}

/// As [`serve`], on a listener that is open already.
///
/// # Errors
/// When it is no listener, or the thread cannot be started.
pub fn serve_on(
    listener: TcpListener,
    registry: Registry,
    health: Health,
) -> Result<Server, TelemetryError> {
    let address = listener.local_addr().unwrap_or(DEFAULT_ADDRESS);
    let listen = |cause| TelemetryError::Listen { address, cause };
    listener.set_nonblocking(true).map_err(listen)?;
    let local_addr = listener.local_addr().map_err(listen)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(TelemetryError::Thread)?;
    let (stop, stopped) = oneshot::channel();
    let state = Arc::new(State { registry, health });
    let run = move || {
        runtime.block_on(async {
            tokio::select! {
                () = accept_all(listener, state) => {}
                _ = stopped => {}
            }
        });
    };
    let thread = std::thread::Builder::new()
        .name("telemetry".to_owned())
        .spawn(run)
        .map_err(TelemetryError::Thread)?;
    Ok(Server { local_addr, stop: Some(stop), thread: Some(thread) })
}

struct State {
    registry: Registry,
    health: Health,
}

async fn accept_all(listener: TcpListener, state: Arc<State>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "telemetry cannot watch its listener"),
    };
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let state = Arc::clone(&state);
                tokio::spawn(async move {
                    serve_connection(stream, state).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "telemetry cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Answers one request; its errors are the caller's and not worth more than a debug line.
async fn serve_connection(stream: tokio::net::TcpStream, state: Arc<State>) {
    let service = service_fn(move |request| {
        let response = answer(&request, &state);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "telemetry request failed"),
        Err(_) => tracing::debug!("telemetry request took too long"),
    }
}

fn answer(request: &Request<Incoming>, state: &State) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_owned());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => metrics(&state.registry),
        "/healthz" => verdict("alive", state.health.live()),
        "/readyz" => verdict("ready", state.health.ready()),
        path => page(state.registry.page(path, request.uri().query())),
    }
}

fn page(page: Option<Result<String, String>>) -> Response<Full<Bytes>> {
    match page {
        None => text(StatusCode::NOT_FOUND, "try /metrics, /healthz or /readyz\n".to_owned()),
        Some(Err(problem)) => text(StatusCode::BAD_REQUEST, format!("{problem}\n")),
        Some(Ok(json)) => {
            let mut response = text(StatusCode::OK, json);
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            response
        }
    }
}

fn metrics(registry: &Registry) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::OK, registry.encode());
    let open_metrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(open_metrics));
    response
}

fn verdict(good: &str, verdict: Result<(), String>) -> Response<Full<Bytes>> {
    match verdict {
        Ok(()) => text(StatusCode::OK, format!("{good}\n")),
        Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("not {good}: {reason}\n")),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}
