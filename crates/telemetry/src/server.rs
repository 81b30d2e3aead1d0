//! `/metrics`, `/healthz`, `/readyz` and the process's own pages on a port and a thread of their
//! own.
//!
//! Everything that a client can use is bounded: connections, header bytes, header count, time. If
//! there are too many connections, the client that holds most of them loses its oldest, so that
//! idle ones delay nobody. There is no authentication: addresses other than loopback need an
//! explicit setting, and a request is answered only if its host is an address, `localhost` or a
//! configured name, so that no page of a foreign site reads these pages under its own name (DNS
//! rebinding); one that a browser sends for another site's page (with its `Origin`) is refused.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tradewind_units::Source;
use tradewind_units::eviction::{EvictionQueue, Holder};

use crate::{Health, LogLimit, Registry, TelemetryError, limited};

/// Default telemetry address of a process: loopback, port 9464, the one that OpenTelemetry gives to
/// Prometheus exporters.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// Connections served at once; one more evicts another. Chosen: several scrapers and probes.
const MAX_CONNECTIONS: usize = 32;
/// Most bytes of a request's head. Chosen: the least that hyper allows.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Most headers of a request. Chosen: scrapers send about ten.
const MAX_HEADERS: usize = 32;
/// Longest wait for a request's head. Chosen.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
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
    /// Returns the address it listens on, with the port that the system chose if 0 was given.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Stops the server: the port is free when this returns. Responses under way are cut.
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

/// Serves `registry` and `health` on `address` from a thread of its own, to requests whose host is
/// an address, `localhost` or one of `hosts`.
///
/// # Errors
/// When the address cannot be bound or the thread cannot be started.
pub fn serve(
    address: SocketAddr,
    hosts: &[String],
    registry: Registry,
    health: Health,
) -> Result<Server, TelemetryError> {
    let listener =
        TcpListener::bind(address).map_err(|cause| TelemetryError::Listen { address, cause })?;
    serve_on(listener, hosts, registry, health)
}

/// Serves like [`serve`], on a listener that is already open.
///
/// # Errors
/// When it is no listener, or the thread cannot be started.
pub fn serve_on(
    listener: TcpListener,
    hosts: &[String],
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
    let state = Arc::new(State { hosts: hosts.to_vec(), registry, health });
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
    hosts: Vec<String>,
    registry: Registry,
    health: Health,
}

async fn accept_all(listener: TcpListener, state: Arc<State>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "telemetry cannot watch its listener"),
    };
    let connections = Arc::<Mutex<EvictionQueue<AbortHandle>>>::default();
    let lines = LogLimit::new();
    for number in 0.. {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (state, served) = (Arc::clone(&state), Arc::clone(&connections));
                let task = tokio::spawn(async move {
                    serve_connection(stream, state).await;
                    lock(&served).remove(number);
                });
                let holder = Holder { is_trusted: false, source: Source::of(peer.ip()) };
                // The task has not run yet: there is one thread.
                let mut connections = lock(&connections);
                connections.insert(number, holder, task.abort_handle());
                if connections.len() > MAX_CONNECTIONS
                    && let Some(evicted) = connections.evict()
                {
                    evicted.abort();
                }
            }
            Err(error) => {
                limited!(warn, lines, (), %error, "telemetry cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one connection; its errors are the client's and worth no more than a debug line.
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
    if !is_asked_for(request, &state.hosts) {
        let message = "answers under an address, localhost or a name in `metrics_hosts`\n";
        return text(StatusCode::MISDIRECTED_REQUEST, message.to_owned());
    }
    if !is_of_own_page(request.headers()) {
        let message = "requests of other sites' pages (`Origin`) are refused\n";
        return text(StatusCode::FORBIDDEN, message.to_owned());
    }
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

/// Returns whether every host that `request` names is this endpoint's. A request without one is not
/// from a browser.
fn is_asked_for<B>(request: &Request<B>, hosts: &[String]) -> bool {
    let target = request.uri().authority().map(Authority::host);
    let mut named = request.headers().get_all(HOST).iter();
    // A name before `@` is no host, but what a careless reader would take for one.
    named.all(|value| {
        let authority = Authority::try_from(value.as_bytes());
        !value.as_bytes().contains(&b'@')
            && authority.is_ok_and(|authority| is_own_name(authority.host(), hosts))
    }) && target.is_none_or(|host| is_own_name(host, hosts))
}

/// Returns whether a request names no origin, or that of these pages: the host that it names
/// itself.
fn is_of_own_page(headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else { return true };
    let page = origin.as_bytes().strip_prefix(b"http://");
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    origins.next().is_none() && page.is_some() && page == host
}

/// Returns whether `host` is an address, `localhost`, or one of `hosts`.
fn is_own_name(host: &str, hosts: &[String]) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let address = host.strip_prefix('[').and_then(|v6| v6.strip_suffix(']')).unwrap_or(host);
    address.parse::<IpAddr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|own| own.eq_ignore_ascii_case(host))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(target: &str, hosts: &[&str]) -> bool {
        let mut request = Request::get(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        is_asked_for(&request.body(()).unwrap(), &["relay.example".to_owned()])
    }

    #[test]
    fn foreign_host_is_not_answered() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9464",
            "[::1]:9464",
            "localhost:9464",
            "LocalHost.",
            "relay.example",
            "Relay.Example:9464",
            "192.0.2.1:80",
        ] {
            assert!(asks("/metrics", &[host]), "{host}");
        }
        for host in
            ["evil.example", "evil.example:9464", "127.0.0.1.evil.example", "relay.example.org", ""]
        {
            assert!(!asks("/metrics", &[host]), "{host}");
        }
        assert!(asks("/metrics", &[]), "no browser");
        assert!(!asks("/metrics", &["127.0.0.1", "evil.example"]), "one of two");
        assert!(!asks("http://evil.example/metrics", &["127.0.0.1"]));
        assert!(asks("http://127.0.0.1:9464/metrics", &["127.0.0.1:9464"]));
    }
}
