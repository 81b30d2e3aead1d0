//! A way from a client to a server: direct, or over relays that forward packets or split the connection `[CDD II]`.

use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;
use tradewind_desired::{Hop, Route, RouteTable};
use tradewind_grant::{Destination, DestinationRule, OperatorKey};
use tradewind_lab::LabError;
use tradewind_net::sysctl;
use tradewind_units::{FlowId, HostId, RelayId};

use super::Ground;
use super::process::Service;
use super::service::{self, LegText, NewGateway, NewRelay};
use crate::demo::DemoError;

/// Where the relays of the first chain listen; each further chain of a lab takes the next port.
const FIRST_PORT: u16 = 7001;

/// What relays do with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Carriage {
    /// Rewrite addresses; the connection stays one from end to end.
    Forward,
    /// End it and open another one.
    Split,
    /// The same by HAProxy in `mode tcp` on each relay's host, which the client dials itself.
    Haproxy,
}

/// How connections of the client come to a chain of splitting relays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Entrance {
    /// The client dials a port of the gateway on its host.
    #[default]
    Forward,
    /// It dials the server, and the gateway takes that off its way.
    Tproxy,
}

/// A chain to start.
pub(crate) struct NewChain<'a> {
    /// Its number among the chains of this lab, from 0: no two have the same.
    pub(crate) slot: u16,
    /// Who dials.
    pub(crate) client: &'a HostId,
    /// Where the server listens.
    pub(crate) server: SocketAddr,
    /// Relays on the way, from the client on; none: direct.
    pub(crate) relays: &'a [HostId],
    /// What they do.
    pub(crate) carriage: Carriage,
    /// How the client comes to splitting ones.
    pub(crate) entrance: Entrance,
    /// How splitting relays set up their connections.
    pub(crate) leg: &'a LegText,
    /// How the gateway on the client's host does.
    pub(crate) gateway: &'a LegText,
}

/// A chain that runs; ended when dropped.
pub(crate) struct Chain {
    /// Where the client dials.
    pub(crate) entrance: SocketAddr,
    _services: Vec<Service>,
}

impl NewChain<'_> {
    /// Starts its relays and, for splitting ones, a gateway on the client's host.
    ///
    /// # Errors
    /// When a host is not there or a process cannot be started.
    pub(crate) fn start(&self, ground: &Ground) -> Result<Chain, DemoError> {
        if self.relays.is_empty() {
            return Ok(Chain { entrance: self.server, _services: Vec::new() });
        }
        match self.carriage {
            Carriage::Forward => self.one_by_one(ground, service::start_forwarder),
            Carriage::Haproxy => self.one_by_one(ground, service::start_haproxy),
            Carriage::Split => {
                let SplitChain { entrance, gateway, relays, .. } = self.split(ground)?;
                let relays = relays.into_iter().filter_map(|relay| relay.service);
                Ok(Chain { entrance, _services: relays.chain([gateway]).collect() })
            }
        }
    }

    /// Starts a program on each relay's host that knows the next one and nothing more.
    fn one_by_one(
        &self,
        ground: &Ground,
        start: fn(&Ground, &HostId, SocketAddr, SocketAddr) -> Result<Service, DemoError>,
    ) -> Result<Chain, DemoError> {
        let mut services = Vec::new();
        let mut next = self.server;
        for host in self.relays.iter().rev() {
            ground.stop.check()?;
            let ip = IpAddr::V4(ground.lab.address_v4(host)?);
            let listen = SocketAddr::new(ip, FIRST_PORT + self.slot);
            services.push(start(ground, host, listen, next)?);
            next = listen;
        }
        Ok(Chain { entrance: next, _services: services })
    }

    /// Starts its relays, which split, and a gateway on the client's host.
    ///
    /// # Errors
    /// When a host is not there or a process cannot be started.
    pub(crate) fn split(&self, ground: &Ground) -> Result<SplitChain, DemoError> {
        self.prepare_hosts(ground)?;
        let operator = service::operator()?;
        let destination = Destination::address(self.server)?;
        let rule = destination.as_rule();
        let mut relays = Vec::new();
        for (place, host) in self.relays.iter().enumerate() {
            ground.stop.check()?;
            let name = RelayId::new(format!("relay-{}-{}", self.slot, place + 1))?;
            let relay = NewRelay::new(ground, name, host.clone(), FIRST_PORT + self.slot)?;
            let service = relay.start(ground, &operator, std::slice::from_ref(&rule), self.leg)?;
            relays.push(SplitRelay { relay, service: Some(service) });
        }
        let hops: Vec<Hop> = relays.iter().map(|relay| relay.relay.hop.clone()).collect();
        let identities = hops.iter().map(|hop| hop.identity).collect();
        let routes = RouteTable::new(vec![(rule.clone(), Route::Relays(hops))], Route::Refuse)?;
        let flow = FlowId::new(format!("chain-{}", self.slot))?;
        let metrics = service::metrics_at(service::FIRST_GATEWAY + self.slot);
        let gateway = NewGateway {
            name: &format!("gateway-{}", self.slot),
            host: self.client,
            forwards: vec![(&flow, &destination)],
            relays: identities,
            routes: &routes,
            intercepts: self.entrance == Entrance::Tproxy,
            leg: self.gateway,
            metrics,
        };
        let (service, listening) = gateway.start(ground, &operator)?;
        let port = listening.first().copied().expect("one port for one flow");
        let entrance = match self.entrance {
            Entrance::Forward => port,
            Entrance::Tproxy => self.server,
        };
        let leg = self.leg.clone();
        Ok(SplitChain { entrance, gateway: service, metrics, relays, operator, rule, leg })
    }

    fn prepare_hosts(&self, ground: &Ground) -> Result<(), DemoError> {
        for host in self.relays.iter().chain([self.client]) {
            // A relay of an earlier chain that kept warm connections has left the other way behind.
            let name = "net.ipv4.tcp_slow_start_after_idle";
            let set = ground.lab.enter(host, || sysctl::set(name, "1"))?;
            set.map_err(LabError::from)?;
        }
        if [self.leg, self.gateway].iter().any(|leg| leg.wants_fast_open()) {
            for host in self.relays.iter().chain([self.client]) {
                // Both to send data in a SYN and to take it.
                let set = ground.lab.enter(host, || sysctl::set("net.ipv4.tcp_fastopen", "3"))?;
                set.map_err(LabError::from)?;
            }
        }
        Ok(())
    }
}

/// A chain of splitting relays with all of its processes at hand; ended when dropped.
pub(crate) struct SplitChain {
    /// Where the client dials.
    pub(crate) entrance: SocketAddr,
    /// The gateway.
    pub(crate) gateway: Service,
    /// Where the gateway tells of itself.
    pub(crate) metrics: SocketAddr,
    /// The relays, from the client on.
    pub(crate) relays: Vec<SplitRelay>,
    operator: OperatorKey,
    rule: DestinationRule,
    leg: LegText,
}

/// A relay of such a chain.
pub(crate) struct SplitRelay {
    /// What it is.
    pub(crate) relay: NewRelay,
    /// Its process, unless it was killed.
    pub(crate) service: Option<Service>,
}

impl SplitChain {
    /// Kills a relay (SIGKILL).
    pub(crate) fn kill(&mut self, place: usize) {
        self.relays[place].service = None;
    }

    /// Starts a relay that was killed again, as it was.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn revive(&mut self, ground: &Ground, place: usize) -> Result<(), DemoError> {
        let SplitRelay { relay, service } = &mut self.relays[place];
        let rules = std::slice::from_ref(&self.rule);
        *service = Some(relay.start(ground, &self.operator, rules, &self.leg)?);
        Ok(())
    }
}
