//! Gateways, beside applications: a [`Gateway`] accepts an application's connection, looks its path
//! up in the route table, and carries the flow over that path.
//!
//! `tproxy` intercepts connections transparently. There and at port forwards, `proxy_header` passes
//! the client's address on to the destination if configured.
//!
//! A port forward sends the hop header and the application's data at once. SOCKS5 and CONNECT
//! clients wait for a reply before they send data.
//!
//! If a route has fallbacks, all its paths are probed (`prober`), their health is tracked
//! (`health`), and sessions choose by it (`paths`). A session whose path does not open tries the
//! next one (`attempt`).

mod attempt;
mod datagrams;
mod health;
mod http;
#[cfg(test)]
mod in_pieces;
mod loops;
mod names;
mod paths;
mod prober;
mod proxy_header;
pub mod reload;
pub mod report;
mod service;
mod session;
mod slots;
mod socks5;
mod survey;
mod tproxy;
mod udp_associate;
mod unreached;
mod users;

pub use datagrams::{DatagramFlow, Datagrams};
pub use reload::{GatewayReloader, LIVE_KEYS};
pub use report::PathsReport;
pub use survey::survey;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;
use tradewind_config::{GatewayConfig, Tproxy};
use tradewind_desired::Route;
use tradewind_grant::{Destination, GrantError, IdentityKey, PublicIdentity, Sealer, SignedGrant};
use tradewind_net::NetError;
use tradewind_net::interception::{Interception, Keeper};
use tradewind_stream::access_log::AccessLog;
use tradewind_stream::clock::unix_now;
use tradewind_stream::dial::local_ports::LocalPorts;
use tradewind_stream::dial::pool_metrics::PoolCollector;
use tradewind_stream::dial::profile::Legs;
use tradewind_stream::dial::{Dialler, try_options};
use tradewind_stream::keys::{self, HeldKeys};
use tradewind_stream::limits::timeouts::LiveTimeouts;
use tradewind_stream::process::server::{Server, Setup};
use tradewind_stream::process::shutdown::Phase;
use tradewind_stream::process::upgrade::Handover;
use tradewind_stream::resolver::{Lookups, Resolver};
use tradewind_stream::{Additions, Handle, Shutdown, StreamError};
use tradewind_telemetry::Registry;
use tradewind_units::FlowId;

use datagrams::Plane;
use paths::Routes;
use service::{Answer, GatewayService, Host, Kind, Listener};

/// A gateway whose listeners are open.
pub struct Gateway {
    server: Server,
    service: Arc<GatewayService>,
    identity: Option<PublicIdentity>,
    tproxy: Vec<Tproxy>,
    interceptions: Option<ActiveInterceptions>,
}

/// The interception rules in force, with the keeper that sends their heartbeats, and a watch on the
/// shutdown, by which a signal does not end the process before the rules are removed.
struct ActiveInterceptions {
    _rules: Vec<Interception>,
    _keeper: Option<Keeper>,
    _watch: watch::Receiver<Phase>,
}

impl Gateway {
    /// Opens the listeners and the metrics port.
    ///
    /// # Errors
    /// When the identity cannot be read, the grant is another gateway's or has expired, or an
    /// address cannot be listened on.
    pub fn bind(config: &GatewayConfig) -> Result<Self, StreamError> {
        Self::bind_with(config, Handover::take()?, &Additions::default())
    }

    /// Opens them likewise, with the descriptors inherited from the previous process and the
    /// program's additions.
    ///
    /// # Errors
    /// As [`Gateway::bind`].
    pub fn bind_with(
        config: &GatewayConfig,
        handover: Handover,
        additions: &Additions<'_>,
    ) -> Result<Self, StreamError> {
        let held = additions.held.cloned().unwrap_or_default();
        let public = keys::opening(config, &held)?.as_ref().map(IdentityKey::public);
        let routes = config.routes.clone();
        let routes = Arc::new(Routes::with_loopback(routes, false, config.allow_loopback)?);
        loops::check_local_output(&config.tproxy, &config.routes)?;
        unroutable_forwards(config).for_each(|line| tracing::warn!("{line}"));
        let legs = Arc::new(Legs::new(&config.leg, &config.timeouts, additions.learned));
        try_options(&legs)?;
        let (addresses, listeners): (Vec<_>, Vec<_>) = listeners(config).into_iter().unzip();
        let (timeouts, local_ports) = (LiveTimeouts::new(&config.timeouts), LocalPorts::default());
        let warm = PoolCollector { program: "gateway", pools: Arc::default() };
        let setup = Setup {
            program: "gateway",
            addresses: &addresses,
            workers: config.workers,
            limits: &config.limits,
            accept: &legs.accept,
            timeouts: &timeouts,
            metrics: config.metrics,
            access_log: config.access_log.as_ref(),
            traces: config.traces.as_ref(),
            identity: public,
            metrics_hosts: &config.metrics_hosts,
            register: &|registry| {
                show(registry, &routes);
                let collector = Box::new(warm.clone());
                registry.register(|inner| inner.register_collector(collector));
                let collector = Box::new(local_ports.collector("gateway"));
                registry.register(|inner| inner.register_collector(collector));
                (additions.register)(registry);
            },
        };
        let server = Server::bind(&setup, handover)?;
        let own_listeners = server.handle().own_listeners();
        let limits = Some(server.limits());
        let host = Host { own_listeners, timeouts, local_ports, limits, held };
        let service = Arc::new(GatewayService::new(config, listeners, routes, legs, host)?);
        if let Some(pools) = &service.opener.pools {
            let _first = warm.pools.set(Arc::clone(pools));
        }
        let tproxy = config.tproxy.clone();
        Ok(Self { server, service, identity: public, tproxy, interceptions: None })
    }

    /// Returns the same gateway, which resolves names by `resolver`.
    ///
    /// # Panics
    /// Never: before the gateway runs, nothing else refers to the service.
    #[must_use]
    pub fn with_resolver(mut self, resolver: Resolver) -> Self {
        let service = Arc::get_mut(&mut self.service).expect("no worker has started");
        // Pools dial relays by address and never use the resolver.
        let dialler = &mut service.opener.dialler;
        *dialler = Arc::new(Dialler { resolver, ..(**dialler).clone() });
        self
    }

    /// Carries the UDP datagrams of SOCKS5 clients over `datagrams` from now on; before that UDP is
    /// refused.
    pub fn carry_datagrams(&self, datagrams: Arc<dyn Datagrams>) {
        let _first = self.service.plane.set(Arc::new(Plane::new(datagrams)));
    }

    /// Returns the gateway's public identity, if it has one.
    #[must_use]
    pub const fn identity(&self) -> Option<PublicIdentity> {
        self.identity
    }

    /// Returns the access log, for the other parts of this process to write to.
    #[must_use]
    pub fn access_log(&self) -> Option<Arc<AccessLog>> {
        self.server.access_log().cloned()
    }

    /// Returns a handle by which the gateway is observed while it runs.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.server.handle().clone()
    }

    /// Returns a reloader, which replaces the gateway's routes while it runs.
    #[must_use]
    pub fn reloader(&self) -> GatewayReloader {
        GatewayReloader(Arc::clone(&self.service))
    }

    /// Sets the interception rules of `tproxy`, until the gateway ends; from now on `shutdown` ends
    /// it gracefully, so that the rules are removed. [`Gateway::run`] does it if it has not been
    /// done.
    ///
    /// # Errors
    /// When the rules cannot be set.
    pub fn intercept(&mut self, shutdown: &Shutdown) -> Result<(), StreamError> {
        if self.interceptions.is_none() {
            let watch = shutdown.watch();
            let rules = tproxy::intercept(&self.tproxy, &self.server)?;
            let keep = || {
                // Once this one retires or drains, the next process intercepts new connections, or
                // nobody does.
                let (phase, health) = (watch.clone(), self.server.health().clone());
                let takes_more = move || *phase.borrow() == Phase::Running && health.live().is_ok();
                let fails =
                    |error: &_| tracing::warn!(%error, "new connections take their original path");
                let keeper = Keeper::start(takes_more, fails)?;
                rules.iter().for_each(|rules| keeper.keep(rules.watchdog()));
                Ok::<_, NetError>(keeper)
            };
            let keeper = (!self.tproxy.is_empty()).then(keep).transpose()?;
            self.interceptions =
                Some(ActiveInterceptions { _rules: rules, _keeper: keeper, _watch: watch });
        }
        Ok(())
    }

    /// Makes the previous process, if there is one, hand new connections over to this one and
    /// retire: for a program that has more to take over from it. Blocks until the headers that it
    /// has seen are received. [`Gateway::run`] does it if it has not been done.
    ///
    /// # Errors
    /// When the other process breaks off.
    pub fn take_over(&mut self) -> Result<(), StreamError> {
        self.server.take_over(&self.service)
    }

    /// Serves until `shutdown` ends it. Blocks.
    ///
    /// # Errors
    /// When a thread cannot be started, or ends by a bug; or as [`Gateway::intercept`].
    pub fn run(mut self, shutdown: &Shutdown) -> Result<(), StreamError> {
        self.intercept(shutdown)?;
        let _prober = prober::start(Arc::clone(&self.service), shutdown.watch())?;
        self.server.run(&self.service, shutdown)
    }
}

/// Adds the paths to the metrics and the page `/paths` to the metrics port.
fn show(registry: &Registry, routes: &Arc<Routes>) {
    let collector = Box::new(report::PathsCollector(Arc::clone(routes)));
    registry.register(|inner| inner.register_collector(collector));
    let routes = Arc::clone(routes);
    registry.add_page("/paths", move |query| report::page(&routes, query));
}

/// Returns the sealer of this gateway's headers, if it has an identity and a grant.
fn sealer(config: &GatewayConfig, held: &HeldKeys) -> Result<Option<Sealer>, StreamError> {
    let (Some(identity), Some(grant)) = (keys::opening(config, held)?, keys::grant(config)?) else {
        return Ok(None);
    };
    check_not_over(&grant)?;
    Ok(Some(Sealer::new(identity, grant)?))
}

/// Refuses a grant that has expired. One that is not yet in force is accepted.
fn check_not_over(grant: &SignedGrant) -> Result<(), GrantError> {
    match grant.unverified().check_expiry(unix_now()) {
        Err(over @ GrantError::Expired { .. }) => Err(over),
        _ => Ok(()),
    }
}

/// Returns one warning for each port forward whose connections can only be refused: its
/// applications would see nothing but resets.
fn unroutable_forwards(config: &GatewayConfig) -> impl Iterator<Item = String> {
    // An unreadable file has been reported already.
    let grant = keys::grant(config).ok().flatten();
    let why = move |to: &Destination| match config.routes.routes_to(to).1.first() {
        None | Some(Route::Refuse) => Some("no route of `routes` covers it"),
        Some(Route::Relays(_)) => {
            let covered = grant.as_ref().is_none_or(|grant| grant.unverified().may_cover(to));
            (!covered).then_some("the grant does not cover it")
        }
        Some(Route::Direct) => None,
    };
    config.forward.iter().filter_map(move |forward| {
        let why = why(&forward.to)?;
        Some(format!("forward to {}: {why}; its connections will be reset", forward.to))
    })
}

fn listeners(config: &GatewayConfig) -> Vec<(SocketAddr, Listener)> {
    let word = |word| FlowId::new(word).expect("a short word");
    let answer = if config.optimistic { Answer::Optimistic } else { Answer::Open };
    let plain = |kind, name| Listener {
        kind,
        number: 0,
        own_lookups: Lookups::of_many(),
        flow: word(name),
        tells_client: false,
        accept_proxy: Vec::new(),
    };
    let forwards = config.forward.iter().map(|forward| {
        let listener = Listener {
            kind: Kind::Forward { to: forward.to.clone() },
            number: 0,
            own_lookups: Lookups::of_many(),
            flow: forward.flow.clone(),
            tells_client: forward.send_proxy.is_some(),
            accept_proxy: forward.accept_proxy.clone(),
        };
        (forward.listen, listener)
    });
    let socks5 = config.socks5.iter().map(|at| (*at, plain(Kind::Socks5(answer), "socks5")));
    let connect = config.connect.iter().map(|at| (*at, plain(Kind::Connect(answer), "connect")));
    let all = forwards.chain(socks5).chain(connect).chain(tproxy::listeners(config)).enumerate();
    all.map(|(number, (listen, listener))| (listen, Listener { number, ..listener })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forward_without_route_is_reported_at_start() {
        let text = "direct = true
            forward = [{ listen = '127.0.0.1:1', to = 'db.example.com:5432' },
                       { listen = '127.0.0.1:2', to = '192.0.2.7:80' }]
            [routes]
            route = [{ destination = '192.0.2.0/24:*', via = 'direct' }]";
        let config = GatewayConfig::parse(text).unwrap();
        let lines: Vec<_> = unroutable_forwards(&config).collect();
        let expected = "forward to db.example.com:5432: no route of `routes` covers it; its \
            connections will be reset";
        assert_eq!(lines, [expected]);
    }
}
