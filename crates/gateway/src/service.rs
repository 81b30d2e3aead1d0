//! The service of a gateway: its listeners, and what all sessions share.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use tradewind_config::{GatewayConfig, Share, Tproxy};
use tradewind_grant::{Destination, DestinationRule};
use tradewind_net::interception::OWN_MARK;
use tradewind_stream::StreamError;
use tradewind_stream::dial::Dialler;
use tradewind_stream::dial::local_host::LocalHost;
use tradewind_stream::dial::local_ports::LocalPorts;
use tradewind_stream::dial::pool::{Greeter, Pools};
use tradewind_stream::dial::profile::Legs;
use tradewind_stream::keys::own_identities::OwnIdentities;
use tradewind_stream::keys::{self, HeldKeys};
use tradewind_stream::limits::live::LiveLimits;
use tradewind_stream::limits::quota::{Members, Slot};
use tradewind_stream::limits::timeouts::LiveTimeouts;
use tradewind_stream::process::live::Live;
use tradewind_stream::resolver::{Lookups, Resolver};
use tradewind_stream::session::SessionSettings;
use tradewind_units::{FlowId, Source};

use super::attempt::PathOpener;
use super::datagrams::Plane;
use super::paths::Routes;
use super::sealer;
use super::users::Users;

/// A listener: its protocol, and the flow that its connections belong to.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) kind: Kind,
    /// Its index among all listeners.
    pub(super) number: usize,
    /// The lookups that names from programs of this host are counted among.
    pub(super) own_lookups: Lookups,
    pub(super) flow: FlowId,
    /// True if a PROXY header is sent to destinations.
    pub(super) tells_client: bool,
    /// Sources whose connections begin with a PROXY header.
    pub(super) accept_proxy: Vec<DestinationRule>,
}

/// The protocol of a listener.
#[derive(Debug)]
pub(super) enum Kind {
    Forward { to: Destination },
    Tproxy { destinations: Vec<DestinationRule> },
    Socks5(Answer),
    Connect(Answer),
}

/// The time at which a client is sent the reply that its path is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// At once, before the path is open.
    Optimistic,
    /// Once the path is open.
    Open,
}

impl Listener {
    /// Returns the addresses that its configuration names as destinations, which may be private.
    pub(super) fn named(&self) -> Cow<'_, [DestinationRule]> {
        match &self.kind {
            Kind::Forward { to: to @ Destination::Address(_) } => vec![to.as_rule()].into(),
            Kind::Tproxy { destinations } => destinations.into(),
            Kind::Forward { .. } | Kind::Socks5(_) | Kind::Connect(_) => Cow::Borrowed(&[]),
        }
    }

    /// Returns the lookups that a client's names are counted among, and the client's place among
    /// the clients that resolve names. Clients are distinguished by listener and source; programs
    /// of this host have one source, so those of a listener share one limit, which is larger.
    pub(super) fn lookups_of(
        &self,
        askers: &Arc<Members<Asker>>,
        source: Source,
    ) -> (Lookups, Option<Slot<Asker>>) {
        if source.is_loopback() {
            return (self.own_lookups.clone(), None);
        }
        let place = askers.enter((self.number, source), None);
        let lookups = place.as_ref().map_or_else(Lookups::of_one, |place| place.lookups.clone());
        (lookups, place)
    }
}

/// A client on another host whose names are looked up: the number of its listener, and its source.
pub(super) type Asker = (usize, Source);

/// The gateway's handling of connections.
pub(super) struct GatewayService {
    pub(super) listeners: Vec<Listener>,
    /// The flows of port forwards, by destination.
    pub(super) flows: BTreeMap<Destination, FlowId>,
    pub(super) opener: PathOpener,
    /// Lookups of relays' names: separate, so that slow lookups of applications' names do not delay
    /// them.
    pub(super) relay_lookups: Lookups,
    /// The users of the proxies.
    pub(super) users: Users,
    /// True if a proxy is open to other hosts and none may be used without a password.
    pub(super) needs_users: bool,
    /// Keys that were read at the start.
    pub(super) held: HeldKeys,
    /// The connections to intercept.
    pub(super) tproxy: Vec<Tproxy>,
    /// The packet plane for the datagrams of SOCKS5 clients, if there is one.
    pub(super) plane: OnceLock<Arc<Plane>>,
    pub(super) session_settings: SessionSettings,
    /// Limits that a reload changes; absent if nothing is served.
    pub(super) limits: Option<LiveLimits>,
}

/// The resources of the process that a gateway's service uses.
pub(super) struct Host {
    pub(super) own_listeners: Vec<SocketAddr>,
    pub(super) timeouts: LiveTimeouts,
    pub(super) local_ports: LocalPorts,
    pub(super) limits: Option<LiveLimits>,
    pub(super) held: HeldKeys,
}

/// Returns the flows of port forwards, by destination; of two to one, the first.
fn flows(listeners: &[Listener]) -> BTreeMap<Destination, FlowId> {
    let forwards = listeners.iter().rev().filter_map(|listener| match &listener.kind {
        Kind::Forward { to } => Some((to.clone(), listener.flow.clone())),
        Kind::Tproxy { .. } | Kind::Socks5(_) | Kind::Connect(_) => None,
    });
    forwards.collect()
}

impl GatewayService {
    /// Returns the flow of a session: of those through a proxy to the destination of a port
    /// forward, that one's, so that gateway and relays call it the same however it came.
    pub(super) fn flow_of<'a>(&'a self, listener: &'a Listener, to: &Destination) -> &'a FlowId {
        let of_forward = match &listener.kind {
            Kind::Socks5(_) | Kind::Connect(_) => self.flows.get(to),
            Kind::Forward { .. } | Kind::Tproxy { .. } => None,
        };
        of_forward.unwrap_or(&listener.flow)
    }

    /// Returns the timeouts in force.
    pub(super) const fn timeouts(&self) -> &LiveTimeouts {
        &self.session_settings.timeouts
    }

    /// Creates a gateway's service, which dials with the profiles of `legs`.
    pub(super) fn new(
        config: &GatewayConfig,
        listeners: Vec<Listener>,
        routes: Arc<Routes>,
        legs: Arc<Legs>,
        host: Host,
    ) -> Result<Self, StreamError> {
        let Host { own_listeners, timeouts, local_ports, limits, held } = host;
        let key = tradewind_net::entropy::bytes().map_err(StreamError::Runtime)?;
        let takes_own = config.tproxy.iter().any(|tproxy| tproxy.local_output);
        let sealer = sealer(config, &held)?.map(|sealer| Arc::new(Mutex::new(sealer)));
        let session_settings =
            SessionSettings { timeouts: timeouts.clone(), legs: Arc::clone(&legs) };
        let dialler = Arc::new(Dialler {
            legs,
            timeouts,
            own_listeners,
            resolver: Resolver::default(),
            mark: takes_own.then_some(OWN_MARK),
            local_ports,
            own: Arc::new(OwnIdentities::new(&keys::of_gateway(config, &held)?)?),
        });
        let greeter = sealer.clone().map(Greeter::Gateway);
        let pools = greeter.map(|greeter| Arc::new(Pools::new(Arc::clone(&dialler), greeter)));
        Ok(Self {
            flows: flows(&listeners),
            listeners,
            opener: PathOpener {
                routes,
                control_share: Live::new(config.control_share),
                local_host: LocalHost::open()?,
                sealer,
                dialler,
                pools,
                askers: Members::new(Share::default()),
            },
            session_settings,
            limits,
            relay_lookups: Lookups::of_one(),
            tproxy: config.tproxy.clone(),
            held,
            users: Users::new(&config.user, key),
            needs_users: config.has_open_proxies() && !config.expose_without_password,
            plane: OnceLock::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_of_two_forwards_has_the_flow_of_the_first() {
        let text = "direct = true
            socks5 = ['127.0.0.1:3']
            forward = [{ listen = '127.0.0.1:1', to = 'db.example.com:5432', flow = 'orders' },
                       { listen = '127.0.0.1:2', to = 'db.example.com:5432', flow = 'again' }]
            [routes]
            default = 'direct'";
        let config = GatewayConfig::parse(text).unwrap();
        let listeners: Vec<Listener> =
            crate::listeners(&config).into_iter().map(|(_, listener)| listener).collect();
        let found = flows(&listeners);
        let flow = FlowId::new("orders").unwrap();
        assert_eq!(found, [("db.example.com:5432".parse().unwrap(), flow)].into());
    }
}
