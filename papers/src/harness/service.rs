//! Relays and gateways on hosts of the lab: processes of the binary that any user runs, with the
//! keys and grants that they need.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use serde::Serialize;
use tradewind_desired::{Encryption, Hop, LegProfile, LegTo, ProcessLegs, RouteTable};
use tradewind_grant::{
    Destination, DestinationRule, Extensions, Grant, IdentityKey, OperatorKey, PublicIdentity,
    Relays, SignedGrant, SourceRange,
};
use tradewind_units::{Duration, FlowId, HostId, RelayId, Timestamp};

use super::process::{Ready, Service};
use super::{LabContext, ProcessError, unusable};

/// The next hops that relays may dial: the lab's own range, the relays' ports.
const NEXT_HOPS: &str = "10.200.0.0/16:7001-7999";
/// The port number from which the metrics port of the first gateway is derived, as the gateway
/// itself listens at any port. Each further gateway takes the next number.
pub(crate) const FIRST_GATEWAY: u16 = 6001;
/// The distance from a process's port to the port of its metrics.
const METRICS_ABOVE: u16 = 2000;
/// The lifetime of grants: longer than any run.
const GRANT_LASTS: Duration = Duration::from_secs(24 * 3600);
/// The time by which grants are backdated, so that relays whose clocks are behind accept them at
/// once.
const GRANT_BACKDATED: Duration = Duration::from_secs(60);

/// Returns the metrics' address, on its own host alone, of a process that listens at `port`.
pub(crate) fn metrics_at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], METRICS_ABOVE + port))
}

/// Creates the operator of a set of relays.
///
/// # Errors
/// When the system has no entropy.
pub(crate) fn operator() -> Result<OperatorKey, ProcessError> {
    Ok(OperatorKey::from_entropy(tradewind_net::entropy::bytes()?))
}

/// The settings of a process's connections, both accepted and dialled; `None` means the host's own
/// settings.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct LegText {
    /// Connections from upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) accept: Option<LegProfile>,
    /// Connections to downstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dial: Option<LegProfile>,
    /// Legs to neighbours with settings of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) to: Vec<LegTo>,
}

impl LegText {
    /// Returns the settings of a planned relay.
    pub(crate) fn of_relay(legs: &ProcessLegs) -> Self {
        Self { accept: Some(legs.accept.clone()), ..Self::of_gateway(legs) }
    }

    /// Returns the settings of a planned gateway.
    pub(crate) fn of_gateway(legs: &ProcessLegs) -> Self {
        Self { accept: None, dial: Some(legs.dial.clone()), to: legs.to.clone() }
    }

    /// Returns encrypted legs of relays, with the dial settings of `dial`; a gateway uses the same
    /// without `accept`.
    pub(crate) fn encrypted(dial: Option<LegProfile>) -> Self {
        let tls = |profile| LegProfile { encryption: Some(Encryption::Tls), ..profile };
        let accept = tls(LegProfile::default());
        Self { accept: Some(accept), dial: Some(tls(dial.unwrap_or_default())), to: Vec::new() }
    }

    /// Returns the same legs, without encryption unless one is named: the papers' relays carry
    /// plain bytes, and all hosts of the lab share the cores of one machine. A gateway's
    /// connections from applications stay as they are.
    fn plain(&self, is_relay: bool) -> Self {
        let plain = |profile: &Option<LegProfile>| {
            let profile = profile.clone().unwrap_or_default();
            LegProfile { encryption: profile.encryption.or(Some(Encryption::None)), ..profile }
        };
        let accept = if is_relay { Some(plain(&self.accept)) } else { self.accept.clone() };
        Self { accept, dial: Some(plain(&self.dial)), to: self.to.clone() }
    }

    /// Returns whether one of its connections may carry data in its SYN.
    pub(crate) fn wants_fast_open(&self) -> bool {
        self.accept.iter().chain(&self.dial).any(|profile| profile.fast_open)
    }
}

/// A relay's configuration, as docs/reference/relay.md describes it.
#[derive(Serialize)]
struct RelayText<'a> {
    listen: [SocketAddr; 1],
    identity_file: &'a Path,
    operators: [String; 1],
    metrics: SocketAddr,
    policy: PolicyText<'a>,
    leg: LegText,
}

#[derive(Serialize)]
struct PolicyText<'a> {
    destinations: &'a [DestinationRule],
    next_hops: [&'static str; 1],
}

/// A gateway's configuration.
#[derive(Serialize)]
struct GatewayText<'a> {
    identity_file: &'a Path,
    grant: SignedGrant,
    direct: bool,
    metrics: SocketAddr,
    forward: Vec<ForwardText<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tproxy: Vec<TproxyText>,
    routes: &'a RouteTable,
    leg: LegText,
}

#[derive(Serialize)]
struct ForwardText<'a> {
    listen: &'static str,
    to: &'a Destination,
    flow: &'a FlowId,
}

#[derive(Serialize)]
struct TproxyText {
    destinations: Vec<DestinationRule>,
    local_output: bool,
}

/// A relay to start, with its secret key.
pub(crate) struct NewRelay {
    /// Its name, address and public identity.
    pub(crate) hop: Hop,
    /// The host on which it runs.
    pub(crate) host: HostId,
    key: IdentityKey,
}

impl NewRelay {
    /// Creates a relay of this name on a port of `host`.
    ///
    /// # Errors
    /// When the host does not exist, or the system has no entropy.
    pub(crate) fn new(
        context: &LabContext,
        name: RelayId,
        host: HostId,
        port: u16,
    ) -> Result<Self, ProcessError> {
        let key = IdentityKey::from_entropy(tradewind_net::entropy::bytes()?);
        let ip = context.lab.address_v4(&host)?;
        let address = SocketAddr::new(IpAddr::V4(ip), port);
        Ok(Self { hop: Hop { name, address, identity: key.public() }, host, key })
    }

    /// Returns the address of its metrics, on its host alone.
    pub(crate) fn metrics(&self) -> SocketAddr {
        metrics_at(self.hop.address.port())
    }

    /// Starts the relay; it dials `destinations` and other relays, nothing else.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(
        &self,
        context: &LabContext,
        operator: &OperatorKey,
        destinations: &[DestinationRule],
        leg: &LegText,
    ) -> Result<Service, ProcessError> {
        let name = &self.hop.name;
        let key = context.scratch.write(&format!("{name}.key"), &self.key.to_secret_text())?;
        let config = toml::to_string(&RelayText {
            listen: [self.hop.address],
            identity_file: &key,
            operators: [operator.public().to_string()],
            metrics: self.metrics(),
            policy: PolicyText { destinations, next_hops: [NEXT_HOPS] },
            leg: leg.plain(true),
        });
        let config = config.map_err(|error| unusable(name.as_str(), &error))?;
        let config = context.scratch.write(&format!("{name}.toml"), &config)?;
        let mut command = context.lab.command(&self.host, &context.program)?;
        command.arg("relay").arg("--config").arg(config);
        Ok(Service::start(command, name.as_str(), &context.scratch)?.0)
    }
}

/// A gateway to start: port forwards on loopback, each to one destination.
pub(crate) struct NewGateway<'a> {
    /// Its name, for files.
    pub(crate) name: &'a str,
    /// The host on which it runs.
    pub(crate) host: &'a HostId,
    /// Its destinations, each with the flow to which it belongs.
    pub(crate) forwards: Vec<(&'a FlowId, &'a Destination)>,
    /// The relays that it may use.
    pub(crate) relays: Vec<PublicIdentity>,
    /// The paths to its destinations.
    pub(crate) routes: &'a RouteTable,
    /// `true` when connections of its host to these destinations are intercepted as well (TPROXY).
    pub(crate) intercepts: bool,
    /// The settings of its connections.
    pub(crate) leg: &'a LegText,
    /// The address of its metrics.
    pub(crate) metrics: SocketAddr,
}

impl NewGateway<'_> {
    /// Starts the gateway; returns the address at which it accepts each of its flows, in their
    /// order.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(
        &self,
        context: &LabContext,
        operator: &OperatorKey,
    ) -> Result<(Service, Vec<SocketAddr>), ProcessError> {
        let name = self.name;
        let key = IdentityKey::from_entropy(tradewind_net::entropy::bytes()?);
        let key_file = context.scratch.write(&format!("{name}.key"), &key.to_secret_text())?;
        let forwards = self.forwards.iter();
        let intercepted = TproxyText { destinations: self.rules(), local_output: true };
        let config = toml::to_string(&GatewayText {
            identity_file: &key_file,
            grant: self.grant(&key, operator)?,
            direct: true,
            metrics: self.metrics,
            forward: forwards
                .map(|(flow, to)| ForwardText { listen: "127.0.0.1:0", to, flow })
                .collect(),
            tproxy: if self.intercepts { vec![intercepted] } else { Vec::new() },
            routes: self.routes,
            leg: self.leg.plain(false),
        });
        let config = config.map_err(|error| unusable(name, &error))?;
        let config = context.scratch.write(&format!("{name}.toml"), &config)?;
        let mut command = context.lab.command(self.host, &context.program)?;
        command.arg("gateway").arg("--config").arg(config);
        let (service, Ready { mut listen }) = Service::start(command, name, &context.scratch)?;
        if listen.len() != self.forwards.len() + usize::from(self.intercepts) {
            let why = format!("{} ports for {} flows", listen.len(), self.forwards.len());
            return Err(ProcessError::Program { name: name.to_owned(), why });
        }
        listen.truncate(self.forwards.len());
        Ok((service, listen))
    }

    fn rules(&self) -> Vec<DestinationRule> {
        self.forwards.iter().map(|(_, to)| to.as_rule()).collect()
    }

    /// Returns the gateway's grant: its destinations over its relays.
    fn grant(
        &self,
        key: &IdentityKey,
        operator: &OperatorKey,
    ) -> Result<SignedGrant, ProcessError> {
        grant(key, Relays::listed(&self.relays), (self.rules(), Vec::new()), operator)
    }
}

/// Returns a grant for any run, with the resources that `key` may use.
///
/// # Errors
/// When it cannot be signed.
pub(crate) fn grant(
    key: &IdentityKey,
    relays: Relays,
    (destinations, sources): (Vec<DestinationRule>, Vec<SourceRange>),
    operator: &OperatorKey,
) -> Result<SignedGrant, ProcessError> {
    let since_epoch = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    let grant = Grant {
        gateway: key.public(),
        not_before: Timestamp::ZERO + since_epoch.saturating_sub(GRANT_BACKDATED),
        expires: Timestamp::ZERO + since_epoch + GRANT_LASTS,
        sessions: None,
        extensions: Extensions { sources, ..Extensions::default() },
        relays,
        destinations,
    };
    Ok(grant.sign(operator)?)
}
