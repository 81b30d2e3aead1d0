//! The configuration of a relay and of a gateway, in TOML. An error is one line that names the key.

mod checks;
mod forward;
mod limits;
pub mod users;

pub(crate) use checks::check_twice;
use checks::*;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tradewind_desired::{BufferNeeds, Encryption, LegProfile, LegTo, Route, RouteTable};
use tradewind_grant::{
    DestinationRule, GrantError, IdentityKey, OperatorPublicKey, Policy, SignedGrant,
};
use tradewind_telemetry as telemetry;
use tradewind_units::{FlowId, address, in_plain_words};

use crate::RelayError;
use crate::access_log::{AccessLogConfig, AuditLogConfig};
use crate::rights::HeldKeys;

pub use forward::{Forward, ProxyVersion};
pub use limits::{Limits, Share, Timeouts};
use users::User;

/// A relay's configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayConfig {
    /// The addresses that it listens on for gateways and relays; for port 0 the system chooses one.
    #[serde(deserialize_with = "address::list")]
    pub listen: Vec<SocketAddr>,
    /// A file that holds its secret identity.
    pub identity_file: Option<PathBuf>,
    /// The secret identity itself, instead of the file: for tests.
    #[serde(default, deserialize_with = "identity_text")]
    pub identity: Option<IdentityKey>,
    /// A file that holds its previous identity, which is still accepted during a rotation.
    pub previous_identity_file: Option<PathBuf>,
    /// The previous identity itself, instead of the file: for tests.
    #[serde(default, deserialize_with = "identity_text")]
    pub previous_identity: Option<IdentityKey>,
    /// Keys that were read at the start of the process.
    #[serde(skip)]
    pub held: HeldKeys,
    /// The user that it switches to if root has started it; when absent `tradewind`, if there is
    /// such a user.
    pub run_as: Option<String>,
    /// The operators whose grants it trusts.
    pub operators: Vec<OperatorPublicKey>,
    /// A file of their revocations; it is read again when it changes.
    pub revocations: Option<PathBuf>,
    /// The destinations and relays that it may dial; none by default.
    #[serde(default)]
    pub policy: PolicyConfig,
    /// Limits on sessions, connections, rates and memory.
    #[serde(default)]
    pub limits: Limits,
    /// Timeouts.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Profiles of its connections.
    #[serde(default)]
    pub leg: LegProfiles,
    /// The address that serves metrics and health; none when absent.
    #[serde(default, deserialize_with = "address::option")]
    pub metrics: Option<SocketAddr>,
    /// True if that may be another than a loopback address.
    #[serde(default)]
    pub metrics_expose: bool,
    /// Host names accepted in requests for metrics and health, beside addresses and `localhost`.
    #[serde(default)]
    pub metrics_hosts: Vec<String>,
    /// Threads that carry sessions; one for each core when absent.
    pub workers: Option<usize>,
    /// The configuration of the packet plane, which `tradewind-node` reads.
    pub packet: Option<toml::Value>,
    /// The learning of its legs' initial windows, which `tradewind-jumpstart-daemon` reads; none
    /// when absent.
    pub jumpstart: Option<toml::Value>,
    /// The access log, which records sessions at their end; none when absent.
    pub access_log: Option<AccessLogConfig>,
    /// The audit log, which records sessions when they are admitted; none when absent.
    pub audit_log: Option<AuditLogConfig>,
}

/// A gateway's configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// A file that holds its secret identity; not needed when no route goes over relays.
    pub identity_file: Option<PathBuf>,
    /// The secret identity itself, instead of the file: for tests.
    #[serde(default, deserialize_with = "identity_text")]
    pub identity: Option<IdentityKey>,
    /// A file that holds its previous identity, which is still accepted during a rotation.
    pub previous_identity_file: Option<PathBuf>,
    /// The previous identity itself, instead of the file: for tests.
    #[serde(default, deserialize_with = "identity_text")]
    pub previous_identity: Option<IdentityKey>,
    /// Keys that were read at the start of the process.
    #[serde(skip)]
    pub held: HeldKeys,
    /// The user that it switches to if root has started it; when absent `tradewind`, if there is
    /// such a user.
    pub run_as: Option<String>,
    /// Its grant; not needed when every route is direct.
    pub grant: Option<SignedGrant>,
    /// A file that holds the grant, as `tradewind grant issue` printed it, instead of `grant`.
    pub grant_file: Option<PathBuf>,
    /// A file of the revocations of the operators of `[packet_endpoint]`; it is read again when it
    /// changes.
    pub revocations: Option<PathBuf>,
    /// Ports whose connections all go to one destination.
    #[serde(default, deserialize_with = "forward::list")]
    pub forward: Vec<Forward>,
    /// Connections that are intercepted and carried to their original destinations.
    #[serde(default)]
    pub tproxy: Vec<Tproxy>,
    /// The addresses that accept SOCKS5. Any client that reaches them uses the grant, so they must
    /// be loopback addresses unless `expose` is set.
    #[serde(default, deserialize_with = "address::list")]
    pub socks5: Vec<SocketAddr>,
    /// The addresses that accept HTTP proxy requests; as for `socks5`.
    #[serde(default, deserialize_with = "address::list")]
    pub connect: Vec<SocketAddr>,
    /// True if `socks5` and `connect` may listen on other than loopback addresses, which takes
    /// users as well.
    #[serde(default)]
    pub expose: bool,
    /// True if they may even without users: any client that reaches them uses the grant.
    #[serde(default)]
    pub expose_without_password: bool,
    /// The users of `socks5` and `connect`; when absent, any client that reaches them.
    #[serde(default)]
    pub user: Vec<User>,
    /// True if `socks5` and `connect` clients are sent the success reply before their path is open:
    /// that saves a round trip of the path, and a failure shows as a reset.
    #[serde(default)]
    pub optimistic: bool,
    /// True if routes may be `direct`: this host then dials destinations itself.
    #[serde(default)]
    pub direct: bool,
    /// True if direct routes may lead to this host itself: for tests and labs.
    #[serde(default)]
    pub allow_loopback: bool,
    /// The routes of flows.
    #[serde(default)]
    pub routes: RouteTable,
    /// Limits on sessions, connections, rates and memory.
    #[serde(default)]
    pub limits: Limits,
    /// Timeouts.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Profiles of its connections.
    #[serde(default)]
    pub leg: LegProfiles,
    /// The address that serves metrics and health; none when absent.
    #[serde(default, deserialize_with = "address::option")]
    pub metrics: Option<SocketAddr>,
    /// True if that may be another than a loopback address.
    #[serde(default)]
    pub metrics_expose: bool,
    /// Host names accepted in requests for metrics and health, beside addresses and `localhost`.
    #[serde(default)]
    pub metrics_hosts: Vec<String>,
    /// Threads that carry sessions; one for each core when absent.
    pub workers: Option<usize>,
    /// UDP ports whose datagrams go to one destination: configuration of the packet plane, which
    /// `tradewind-node` reads.
    #[serde(default)]
    pub packet: Vec<toml::Value>,
    /// The gateway's settings as an end point of overlay paths for packets: likewise.
    pub packet_endpoint: Option<toml::Value>,
    /// The overlay paths for the datagrams of SOCKS5 clients: likewise; UDP is refused when absent.
    pub socks5_udp: Option<toml::Value>,
    /// The learning of its legs' initial windows, which `tradewind-jumpstart-daemon` reads; none
    /// when absent.
    pub jumpstart: Option<toml::Value>,
    /// The access log, which records sessions at their end; none when absent.
    pub access_log: Option<AccessLogConfig>,
}

/// Connections that are intercepted (TPROXY) and carried to their original destinations.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tproxy {
    /// Their destinations: ranges of addresses with ports.
    pub destinations: Vec<DestinationRule>,
    /// True if connections that this host itself opens are intercepted as well as forwarded ones.
    #[serde(default)]
    pub local_output: bool,
    /// The loopback port that they are redirected to; the system chooses one when absent.
    #[serde(default)]
    pub port: u16,
    /// The flow that they belong to, for logs.
    #[serde(default = "tproxy_flow")]
    pub flow: FlowId,
    /// The version of the PROXY header that is sent to the destination; none is sent when absent.
    #[serde(default)]
    pub send_proxy: Option<ProxyVersion>,
    /// Sources whose connections always begin with a PROXY header; their ports do not count.
    /// Connections of other sources begin with data.
    #[serde(default)]
    pub accept_proxy: Vec<DestinationRule>,
}

impl Tproxy {
    /// Returns the listeners for its connections: on loopback, one for each address family of its
    /// destinations.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = SocketAddr> {
        let ranges = || self.destinations.iter().filter_map(|rule| rule.range());
        let v4 = ranges().any(|(base, _)| base.is_ipv4()).then_some(Ipv4Addr::LOCALHOST.into());
        let v6 = ranges().any(|(base, _)| base.is_ipv6()).then_some(Ipv6Addr::LOCALHOST.into());
        [v4, v6].into_iter().flatten().map(|ip: IpAddr| SocketAddr::new(ip, self.port))
    }
}

fn tproxy_flow() -> FlowId {
    FlowId::new("tproxy").expect("a short word")
}

fn identity_text<'de, D: serde::Deserializer<'de>>(
    text: D,
) -> Result<Option<IdentityKey>, D::Error> {
    String::deserialize(text)?.parse().map(Some).map_err(serde::de::Error::custom)
}

/// Loads the identities that a configuration holds or points to, the present one first.
fn load_identities(
    present: (Option<&PathBuf>, Option<&IdentityKey>),
    previous: (Option<&PathBuf>, Option<&IdentityKey>),
    held: &HeldKeys,
) -> Result<Vec<IdentityKey>, RelayError> {
    let present = load_identity("identity", present, held)?;
    let previous = load_identity("previous_identity", previous, held)?;
    if let Some(previous) = &previous {
        let is_same = |present: &IdentityKey| present.public() == previous.public();
        match &present {
            None => {
                return Err(refused("identity_file", "missing beside `previous_identity_file`"));
            }
            Some(present) if is_same(present) => {
                let problem = "holds the same identity as `identity_file`; expected the one before";
                return Err(refused("previous_identity_file", problem));
            }
            Some(_) => {}
        }
    }
    Ok(present.into_iter().chain(previous).collect())
}

/// Loads the identity that the configuration holds under `key` or points to.
fn load_identity(
    key: &str,
    (file, inline): (Option<&PathBuf>, Option<&IdentityKey>),
    held: &HeldKeys,
) -> Result<Option<IdentityKey>, RelayError> {
    match (file, inline) {
        (None, inline) => Ok(inline.cloned()),
        (Some(_), Some(_)) => Err(refused(key, format!("give either `{key}_file` or `{key}`"))),
        (Some(path), None) => held.read(path).map(Some),
    }
}

/// The destinations and relays that a relay may dial.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// Destinations that it may dial as the last relay of a route.
    pub destinations: Vec<DestinationRule>,
    /// Relays that it may dial as the next ones of a route.
    pub next_hops: Vec<DestinationRule>,
    /// True if these rules may cover loopback addresses: for tests and labs.
    pub allow_loopback: bool,
    /// Addresses that are never dialled, beside its own listeners.
    #[serde(deserialize_with = "address::list")]
    pub never: Vec<SocketAddr>,
}

impl PolicyConfig {
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            destinations: self.destinations.clone(),
            next_hops: self.next_hops.clone(),
            allow_loopback: self.allow_loopback,
            never: self.never.clone(),
            relays: Vec::new(),
        }
    }
}

/// Leg profiles, by the side that opens the connection and for single legs.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LegProfiles {
    /// Connections from upstream, which this process accepts.
    pub accept: LegProfile,
    /// Connections to downstream, which this process dials.
    pub dial: LegProfile,
    /// Legs to single neighbours with profiles of their own.
    pub to: Vec<LegTo>,
    /// Listeners with settings of their own, at relays.
    pub at: Vec<LegAt>,
}

/// A listener's own settings.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LegAt {
    /// Its address, as in `listen`.
    #[serde(deserialize_with = "address::one")]
    pub address: SocketAddr,
    /// The encryption that it requires of dialling peers.
    pub encryption: Encryption,
}

impl LegProfiles {
    /// Returns the socket buffers that these legs need from the host's kernel.
    #[must_use]
    pub fn buffer_needs(&self) -> BufferNeeds {
        let to = self.to.iter().map(|to| &to.dial);
        BufferNeeds::of([&self.accept, &self.dial].into_iter().chain(to))
    }

    /// Returns the encryption that the listener of `address` requires of dialling peers.
    pub(crate) fn encryption_at(&self, address: SocketAddr) -> Encryption {
        let told = self.at.iter().find(|at| at.address == address).map(|at| at.encryption);
        told.or(self.accept.encryption).unwrap_or_default()
    }

    /// Checks that dialled legs choose one encryption, and that no neighbour or listener is listed
    /// twice.
    fn check(&self) -> Result<(), RelayError> {
        let refuse = |key| {
            let problem = "`either` is for who accepts; expected `tls` or `none`";
            Err(refused(key, problem))
        };
        if self.dial.encryption == Some(Encryption::Either) {
            return refuse("leg.dial.encryption");
        }
        if self.to.iter().any(|to| to.dial.encryption == Some(Encryption::Either)) {
            return refuse("leg.to.dial.encryption");
        }
        let to = self.to.iter().map(|to| ("leg.to.address", to.address));
        let at = self.at.iter().map(|at| ("leg.at.address", at.address));
        let mut seen = BTreeSet::new();
        match to.chain(at).find(|one| !seen.insert(*one)) {
            Some((key, address)) => Err(refused(key, format!("{address} is there twice"))),
            None => Ok(()),
        }
    }
}

impl RelayConfig {
    /// Parses and checks a relay's configuration.
    ///
    /// # Errors
    /// [`RelayError::Config`] with the key and the expected value.
    pub fn parse(text: &str) -> Result<Self, RelayError> {
        let config: Self = parse(text)?;
        check_common(&config.limits, &config.timeouts, config.workers)?;
        check_exposed(config.metrics, config.metrics_expose)?;
        if config.listen.is_empty() {
            return Err(refused("listen", "expected at least one address such as `0.0.0.0:7000`"));
        }
        let metrics = config.metrics.map(|metrics| ("metrics", metrics));
        check_twice(config.listen.iter().map(|at| ("listen", *at)).chain(metrics))?;
        if config.identity_file.is_none() && config.identity.is_none() {
            return Err(refused(
                "identity_file",
                "missing: the file of the relay's secret identity",
            ));
        }
        if config.operators.is_empty() {
            return Err(refused("operators", "expected at least one operator's public key"));
        }
        config.leg.check()?;
        config.access_log.iter().try_for_each(AccessLogConfig::check)?;
        check_ranges("policy.next_hops", &config.policy.next_hops)?;
        if let Some(at) = config.leg.at.iter().find(|at| !config.listen.contains(&at.address)) {
            let problem = format!("{} is not among `listen`", at.address);
            return Err(refused("leg.at.address", problem));
        }
        Ok(config)
    }

    /// Loads the relay's secret identities: the present one, and during a rotation the previous
    /// one.
    ///
    /// # Errors
    /// When a file cannot be read or holds no identity, or there is none.
    pub fn identities(&self) -> Result<Vec<IdentityKey>, RelayError> {
        let present = (self.identity_file.as_ref(), self.identity.as_ref());
        let previous = (self.previous_identity_file.as_ref(), self.previous_identity.as_ref());
        let identities = load_identities(present, previous, &self.held)?;
        if identities.is_empty() {
            Err(refused("identity_file", "missing"))
        } else {
            Ok(identities)
        }
    }
}

impl GatewayConfig {
    /// Parses and checks a gateway's configuration.
    ///
    /// # Errors
    /// [`RelayError::Config`] with the key and the expected value.
    pub fn parse(text: &str) -> Result<Self, RelayError> {
        let config: Self = parse(text)?;
        config.check()?;
        Ok(config)
    }

    /// Returns whether other hosts can reach one of its proxies.
    pub(crate) fn has_open_proxies(&self) -> bool {
        self.socks5.iter().chain(&self.connect).any(|address| !address.ip().is_loopback())
    }

    /// Returns the addresses that it listens on, and their keys.
    fn listeners(&self) -> impl Iterator<Item = (String, SocketAddr)> {
        let forwards = self.forward.iter().map(|forward| (forward.key(), forward.listen));
        let one = |key: &'static str| move |at: &SocketAddr| (key.to_owned(), *at);
        let socks5 = self.socks5.iter().map(one("socks5"));
        let connect = self.connect.iter().map(one("connect"));
        let tproxy = self.tproxy.iter().enumerate().flat_map(|(index, tproxy)| {
            tproxy.listeners().map(move |at| (format!("tproxy[{index}].port"), at))
        });
        let metrics = self.metrics.iter().map(one("metrics"));
        forwards.chain(socks5).chain(connect).chain(tproxy).chain(metrics)
    }

    /// Loads the gateway's secret identities, if it has any: the present one, and during a rotation
    /// the previous one.
    ///
    /// # Errors
    /// When a file cannot be read or holds no identity.
    pub fn identities(&self) -> Result<Vec<IdentityKey>, RelayError> {
        let present = (self.identity_file.as_ref(), self.identity.as_ref());
        let previous = (self.previous_identity_file.as_ref(), self.previous_identity.as_ref());
        load_identities(present, previous, &self.held)
    }

    /// Loads the one of these identities that the grant names, which opens sessions; without a
    /// grant, the present one.
    ///
    /// # Errors
    /// As [`GatewayConfig::identities`] and [`GatewayConfig::grant`], and when the grant names none
    /// of them.
    pub fn identity(&self) -> Result<Option<IdentityKey>, RelayError> {
        let (identities, grant) = (self.identities()?, self.grant()?);
        let Some(own) = identities.first().map(IdentityKey::public) else { return Ok(None) };
        let named = grant.map_or(own, |grant| grant.unverified().gateway);
        let found = identities.into_iter().find(|identity| identity.public() == named);
        found.map(Some).ok_or(GrantError::WrongGateway { granted: named, found: own }.into())
    }

    /// Loads the gateway's grant, if it has one.
    ///
    /// # Errors
    /// When its file cannot be read or holds no grant.
    pub fn grant(&self) -> Result<Option<SignedGrant>, RelayError> {
        let Some(path) = &self.grant_file else { return Ok(self.grant.clone()) };
        let place = || format!("grant_file, {}", path.display());
        let text =
            crate::revocations::read_text(path).map_err(|problem| refused(&place(), problem))?;
        let grant = text.trim().parse::<SignedGrant>();
        grant.map(Some).map_err(|error| refused(&place(), error.to_string()))
    }

    fn check(&self) -> Result<(), RelayError> {
        check_common(&self.limits, &self.timeouts, self.workers)?;
        check_exposed(self.metrics, self.metrics_expose)?;
        self.leg.check()?;
        self.access_log.iter().try_for_each(AccessLogConfig::check)?;
        if self.grant.is_some() && self.grant_file.is_some() {
            return Err(refused("grant", "give either `grant_file` or `grant`"));
        }
        for (key, share) in [
            ("limits.each_grant", self.limits.each_grant),
            ("limits.each_gateway", self.limits.each_gateway),
        ] {
            if share != Share::default() {
                let problem =
                    "for relays, which serve several; expected `limits.sessions` or `limits.rate`";
                return Err(refused(key, problem));
            }
        }
        if self.leg.accept.encryption.is_some() || !self.leg.at.is_empty() {
            let problem = "a gateway accepts applications, which speak as they like; expected \
                `leg.dial.encryption`";
            return Err(refused("leg.accept.encryption", problem));
        }
        let proxies = self.socks5.len() + self.connect.len();
        let carries_packets = !self.packet.is_empty() || self.packet_endpoint.is_some();
        if self.forward.is_empty() && self.tproxy.is_empty() && proxies == 0 && !carries_packets {
            let problem = "expected at least one of forward, tproxy, socks5, connect and packet";
            return Err(refused("forward", problem));
        }
        for (index, tproxy) in self.tproxy.iter().enumerate() {
            let key = format!("tproxy[{index}].destinations");
            if tproxy.destinations.is_empty() {
                return Err(refused(&key, "expected at least one range such as `10.0.0.0/8:443`"));
            }
            check_ranges(&key, &tproxy.destinations)?;
            check_ranges(&format!("tproxy[{index}].accept_proxy"), &tproxy.accept_proxy)?;
        }
        if self.socks5_udp.is_some() && self.socks5.is_empty() {
            return Err(refused("socks5_udp", "expected `socks5` beside it"));
        }
        users::check(&self.user)?;
        let may_be_open = self.expose && (self.expose_without_password || !self.user.is_empty());
        for (key, addresses) in [("socks5", &self.socks5), ("connect", &self.connect)] {
            let outside = addresses.iter().find(|address| !address.ip().is_loopback());
            if let Some(address) = outside.filter(|_| !may_be_open) {
                let problem = format!(
                    "{address} is no loopback address: whoever reaches it could use the grant; \
                     if that is wanted, set `expose = true`, and add users (`[[user]]`) or set \
                     `expose_without_password = true`"
                );
                return Err(refused(key, problem));
            }
        }
        check_twice(self.listeners())?;
        if !self.direct && self.routes.routes().any(|route| *route == Route::Direct) {
            return Err(refused("routes", "a route is `direct`, which needs `direct = true`"));
        }
        if self.routes.routes().any(|route| matches!(route, Route::Relays(_))) {
            if self.identity_file.is_none() && self.identity.is_none() {
                return Err(refused("identity_file", "missing, and a route goes over relays"));
            }
            if self.grant.is_none() && self.grant_file.is_none() {
                return Err(refused("grant", "missing, and a route goes over relays"));
            }
        }
        Ok(())
    }
}

pub(crate) fn refused(key: &str, problem: impl Into<String>) -> RelayError {
    RelayError::Config { place: key.to_owned(), problem: problem.into() }
}

/// Parses TOML; an error names the line and the key.
fn parse<T: DeserializeOwned>(text: &str) -> Result<T, RelayError> {
    let line_of = |error: &toml::de::Error| match error.span() {
        Some(span) => format!("line {}", text[..span.start].matches('\n').count() + 1),
        None => "the whole".to_owned(),
    };
    let source = toml::Deserializer::parse(text)
        .map_err(|error| refused(&line_of(&error), one_line(error.message())))?;
    serde_path_to_error::deserialize(source).map_err(|error| {
        let key = error.path().to_string();
        let inner = error.inner();
        let place = match key.as_str() {
            "." => line_of(inner),
            key => format!("`{key}` ({})", line_of(inner)),
        };
        refused(&place, one_line(inner.message()))
    })
}

fn one_line(message: &str) -> String {
    in_plain_words(&message.lines().map(str::trim).collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests;
