//! A chain from a client to a server: direct, or over relays that forward packets or split the
//! connection `[CDD II]`.

use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;
use tradewind_desired::{Hop, Route, RouteTable};
use tradewind_grant::{Destination, DestinationRule, OperatorKey};
use tradewind_lab::LabError;
use tradewind_net::sysctl;
use tradewind_units::{FlowId, HostId, RelayId};

use super::process::Service;
use super::service::{self, LegText, NewGateway, NewRelay};
use super::{LabContext, ProcessError, forwarders, unusable};

/// The port of the relays of the first chain; each further chain of a lab takes the next port.
const FIRST_PORT: u16 = 7001;

/// The forwarding method of relays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Carriage {
    /// Rewrite addresses; the connection stays end to end.
    Forward,
    /// Terminate the connection and open another one.
    Split,
    /// The same with HAProxy in `mode tcp` on each relay's host; the client dials the first one
    /// itself.
    Haproxy,
}

/// The method by which the client's connections enter a chain of splitting relays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ClientAttachment {
    /// The client dials a port of the gateway on its host.
    #[default]
    Forward,
    /// It dials the server, and the gateway intercepts the connection.
    Tproxy,
}

/// A chain to start.
pub(crate) struct NewChain<'a> {
    /// Its number among the chains of this lab, from 0; numbers are unique.
    pub(crate) slot: u16,
    /// The host that dials.
    pub(crate) client: &'a HostId,
    /// The server's address.
    pub(crate) server: SocketAddr,
    /// The relays, from the client on; empty for direct.
    pub(crate) relays: &'a [HostId],
    /// Their forwarding method.
    pub(crate) carriage: Carriage,
    /// The attachment of the client to splitting relays.
    pub(crate) attachment: ClientAttachment,
    /// The settings of splitting relays' connections.
    pub(crate) leg: &'a LegText,
    /// The settings of the connections of the gateway on the client's host.
    pub(crate) gateway: &'a LegText,
}

/// A running chain; its processes end when it is dropped.
pub(crate) struct Chain {
    /// The address that the client dials.
    pub(crate) dial_address: SocketAddr,
    _services: Vec<Service>,
}

impl NewChain<'_> {
    /// Starts the relays and, for splitting ones, a gateway on the client's host.
    ///
    /// # Errors
    /// When a host does not exist or a process cannot be started.
    pub(crate) fn start(&self, context: &LabContext) -> Result<Chain, ProcessError> {
        if self.relays.is_empty() {
            return Ok(Chain { dial_address: self.server, _services: Vec::new() });
        }
        match self.carriage {
            Carriage::Forward => self.one_by_one(context, forwarders::start_forwarder),
            Carriage::Haproxy => self.one_by_one(context, forwarders::start_haproxy),
            Carriage::Split => {
                let SplitChain { dial_address, gateway, relays, .. } = self.split(context)?;
                let relays = relays.into_iter().filter_map(|relay| relay.service);
                Ok(Chain { dial_address, _services: relays.chain([gateway]).collect() })
            }
        }
    }

    /// Starts a program on each relay's host that knows only the next hop.
    fn one_by_one(
        &self,
        context: &LabContext,
        start: fn(&LabContext, &HostId, SocketAddr, SocketAddr) -> Result<Service, ProcessError>,
    ) -> Result<Chain, ProcessError> {
        let mut services = Vec::new();
        let mut next = self.server;
        for host in self.relays.iter().rev() {
            context.stop.check()?;
            let ip = IpAddr::V4(context.lab.address_v4(host)?);
            let listen = SocketAddr::new(ip, FIRST_PORT + self.slot);
            services.push(start(context, host, listen, next)?);
            next = listen;
        }
        Ok(Chain { dial_address: next, _services: services })
    }

    /// Starts splitting relays and a gateway on the client's host.
    ///
    /// # Errors
    /// When a host does not exist or a process cannot be started.
    pub(crate) fn split(&self, context: &LabContext) -> Result<SplitChain, ProcessError> {
        self.prepare_hosts(context)?;
        let operator = service::operator()?;
        let destination = Destination::address(self.server)?;
        let rule = destination.as_rule();
        let mut relays = Vec::new();
        for (place, host) in self.relays.iter().enumerate() {
            context.stop.check()?;
            let name = RelayId::new(format!("relay-{}-{}", self.slot, place + 1))?;
            let relay = NewRelay::new(context, name, host.clone(), FIRST_PORT + self.slot)?;
            let service = relay.start(context, &operator, std::slice::from_ref(&rule), self.leg)?;
            relays.push(SplitRelay { relay, service: Some(service) });
        }
        let hops: Vec<Hop> = relays.iter().map(|relay| relay.relay.hop.clone()).collect();
        let identities = hops.iter().map(|hop| hop.identity).collect();
        let routes = RouteTable::new(vec![(rule.clone(), Route::Relays(hops))], Route::Refuse);
        let routes = routes.map_err(|error| unusable("routes", &error))?;
        let flow = FlowId::new(format!("chain-{}", self.slot))?;
        let metrics = service::metrics_at(service::FIRST_GATEWAY + self.slot);
        let gateway = NewGateway {
            name: &format!("gateway-{}", self.slot),
            host: self.client,
            forwards: vec![(&flow, &destination)],
            relays: identities,
            routes: &routes,
            intercepts: self.attachment == ClientAttachment::Tproxy,
            leg: self.gateway,
            metrics,
        };
        let (service, listening) = gateway.start(context, &operator)?;
        let port = listening.first().copied().expect("one port for one flow");
        let dial_address = match self.attachment {
            ClientAttachment::Forward => port,
            ClientAttachment::Tproxy => self.server,
        };
        let leg = self.leg.clone();
        Ok(SplitChain { dial_address, gateway: service, metrics, relays, operator, rule, leg })
    }

    fn prepare_hosts(&self, context: &LabContext) -> Result<(), ProcessError> {
        for host in self.relays.iter().chain([self.client]) {
            // A relay of an earlier chain with warm connections has left this setting at 0.
            let name = "net.ipv4.tcp_slow_start_after_idle";
            let set = context.lab.enter(host, || sysctl::set(name, "1"))?;
            set.map_err(LabError::from)?;
        }
        if [self.leg, self.gateway].iter().any(|leg| leg.wants_fast_open()) {
            for host in self.relays.iter().chain([self.client]) {
                // 3 enables both sending and accepting data in a SYN.
                let set = context.lab.enter(host, || sysctl::set("net.ipv4.tcp_fastopen", "3"))?;
                set.map_err(LabError::from)?;
            }
        }
        Ok(())
    }
}

/// A chain of splitting relays with access to all of its processes, which end when it is dropped.
pub(crate) struct SplitChain {
    /// The address that the client dials.
    pub(crate) dial_address: SocketAddr,
    /// The gateway.
    pub(crate) gateway: Service,
    /// The address of the gateway's metrics.
    pub(crate) metrics: SocketAddr,
    /// The relays, from the client on.
    pub(crate) relays: Vec<SplitRelay>,
    operator: OperatorKey,
    rule: DestinationRule,
    leg: LegText,
}

/// A relay of a split chain.
pub(crate) struct SplitRelay {
    /// Its name, host and key.
    pub(crate) relay: NewRelay,
    /// Its process, unless it was killed.
    pub(crate) service: Option<Service>,
}

impl SplitChain {
    /// Kills a relay (SIGKILL).
    pub(crate) fn kill(&mut self, place: usize) {
        self.relays[place].service = None;
    }

    /// Restarts a relay that was killed, with the same settings.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn revive(
        &mut self,
        context: &LabContext,
        place: usize,
    ) -> Result<(), ProcessError> {
        let SplitRelay { relay, service } = &mut self.relays[place];
        let rules = std::slice::from_ref(&self.rule);
        *service = Some(relay.start(context, &self.operator, rules, &self.leg)?);
        Ok(())
    }
}
