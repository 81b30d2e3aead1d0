//! What a relay and a gateway are told, in TOML. An error is one line that names the key.

mod checks;
mod forward;
pub mod users;

use checks::*;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tradewind_desired::{BufferNeeds, Encryption, LegProfile, LegTo, Route, RouteTable};
use tradewind_grant::{DestinationRule, IdentityKey, OperatorPublicKey, Policy, SignedGrant};
use tradewind_telemetry as telemetry;
use tradewind_units::time::{as_text, or_off};
use tradewind_units::{Bandwidth, Bytes, FlowId, address, in_plain_words};

use crate::RelayError;
use crate::access_log::{AccessLogConfig, AuditLogConfig};

pub use forward::{Forward, ProxyVersion};
use users::User;

/// A relay's configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayConfig {
    /// Where gateways and relays reach it; port 0 lets the system choose.
    #[serde(deserialize_with = "address::list")]
    pub listen: Vec<SocketAddr>,
    /// A file that holds its secret identity.
    pub identity_file: Option<PathBuf>,
    /// The secret identity itself, instead of the file: for tests.
    #[serde(default, deserialize_with = "identity_text")]
    pub identity: Option<IdentityKey>,
    /// The user that it goes on as when root has started it: `tradewind`, if there is one, when
    /// absent.
    pub run_as: Option<String>,
    /// Whose grants it trusts.
    pub operators: Vec<OperatorPublicKey>,
    /// A file of what they have revoked; it is read again when it changes.
    pub revocations: Option<PathBuf>,
    /// What it agrees to dial; nothing unless told.
    #[serde(default)]
    pub policy: PolicyConfig,
    /// How much it takes on.
    #[serde(default)]
    pub limits: Limits,
    /// How long it waits.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// How its connections are set up.
    #[serde(default)]
    pub leg: LegProfiles,
    /// Where metrics and health are served; nowhere when absent.
    #[serde(default, deserialize_with = "address::option")]
    pub metrics: Option<SocketAddr>,
    /// Whether that may be another than a loopback address.
    #[serde(default)]
    pub metrics_expose: bool,
    /// Names under which metrics and health are asked for, beside addresses and `localhost`.
    #[serde(default)]
    pub metrics_hosts: Vec<String>,
    /// Threads that carry sessions; one for each core when absent.
    pub workers: Option<usize>,
    /// The packet plane's part, which `tradewind-node` reads.
    pub packet: Option<toml::Value>,
    /// How its legs' first windows are learned, which `tradewind-tuner` reads; not at all when absent.
    pub jumpstart: Option<toml::Value>,
    /// Where sessions are told of at their end; nowhere when absent.
    pub access_log: Option<AccessLogConfig>,
    /// Where sessions are told of that are admitted; nowhere when absent.
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
    /// The user that it goes on as when root has started it: `tradewind`, if there is one, when
    /// absent.
    pub run_as: Option<String>,
    /// What it may do; not needed when every route is direct.
    pub grant: Option<SignedGrant>,
    /// A file that holds the grant, as `tradewind grant issue` printed it, instead of `grant`.
    pub grant_file: Option<PathBuf>,
    /// A file of what the operators of `[packet_endpoint]` have revoked; it is read again when it changes.
    pub revocations: Option<PathBuf>,
    /// Ports whose connections all go to one destination.
    #[serde(default, deserialize_with = "forward::list")]
    pub forward: Vec<Forward>,
    /// Connections that are taken off their way to where they went.
    #[serde(default)]
    pub tproxy: Vec<Tproxy>,
    /// Where SOCKS5 is spoken. Who reaches it uses the grant, so loopback unless `expose` is set.
    #[serde(default, deserialize_with = "address::list")]
    pub socks5: Vec<SocketAddr>,
    /// Where HTTP CONNECT is spoken; as `socks5`.
    #[serde(default, deserialize_with = "address::list")]
    pub connect: Vec<SocketAddr>,
    /// Whether `socks5` and `connect` may listen on other than loopback addresses; it takes users
    /// as well.
    #[serde(default)]
    pub expose: bool,
    /// Whether they may even where there are no users: whoever reaches them uses the grant.
    #[serde(default)]
    pub expose_without_password: bool,
    /// Who may use `socks5` and `connect`; everybody who reaches them when absent.
    #[serde(default)]
    pub user: Vec<User>,
    /// Whether `socks5` and `connect` clients hear that their path is open before it is: they save a round trip of
    /// the path, and a failure shows as a reset.
    #[serde(default)]
    pub optimistic: bool,
    /// Whether routes may be `direct`: this host then dials destinations itself.
    #[serde(default)]
    pub direct: bool,
    /// Whether direct routes may lead to this host itself: for tests and laboratories.
    #[serde(default)]
    pub allow_loopback: bool,
    /// How flows are carried.
    #[serde(default)]
    pub routes: RouteTable,
    /// How much it takes on.
    #[serde(default)]
    pub limits: Limits,
    /// How long it waits.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// How its connections are set up.
    #[serde(default)]
    pub leg: LegProfiles,
    /// Where metrics and health are served; nowhere when absent.
    #[serde(default, deserialize_with = "address::option")]
    pub metrics: Option<SocketAddr>,
    /// Whether that may be another than a loopback address.
    #[serde(default)]
    pub metrics_expose: bool,
    /// Names under which metrics and health are asked for, beside addresses and `localhost`.
    #[serde(default)]
    pub metrics_hosts: Vec<String>,
    /// Threads that carry sessions; one for each core when absent.
    pub workers: Option<usize>,
    /// UDP ports whose datagrams go to one destination: the packet plane's part, which `tradewind-node` reads.
    #[serde(default)]
    pub packet: Vec<toml::Value>,
    /// What this gateway is as an end of packets' paths: likewise.
    pub packet_endpoint: Option<toml::Value>,
    /// Over which packets' paths the datagrams of SOCKS5 clients go: likewise; UDP is refused when absent.
    pub socks5_udp: Option<toml::Value>,
    /// How its legs' first windows are learned, which `tradewind-tuner` reads; not at all when absent.
    pub jumpstart: Option<toml::Value>,
    /// Where sessions are told of at their end; nowhere when absent.
    pub access_log: Option<AccessLogConfig>,
}

/// Connections that are taken off their way (TPROXY); they go to where they went.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tproxy {
    /// Where they go: ranges of addresses with ports.
    pub destinations: Vec<DestinationRule>,
    /// Whether connections that this host itself opens are taken as well as those that pass it.
    #[serde(default)]
    pub own_host: bool,
    /// The port on loopback that they are led to; the system chooses one when absent.
    #[serde(default)]
    pub port: u16,
    /// The flow that they belong to, for logs.
    #[serde(default = "tproxy_flow")]
    pub flow: FlowId,
    /// The version of the PROXY protocol that tells the destination whose connection it is; none when absent.
    #[serde(default)]
    pub send_proxy: Option<ProxyVersion>,
    /// Sources whose connections begin with a PROXY header, always; ports do not count. Others'
    /// begin
    /// with data.
    #[serde(default)]
    pub accept_proxy: Vec<DestinationRule>,
}

fn tproxy_flow() -> FlowId {
    FlowId::new("tproxy").expect("a short word")
}

fn identity_text<'de, D: serde::Deserializer<'de>>(
    text: D,
) -> Result<Option<IdentityKey>, D::Error> {
    String::deserialize(text)?.parse().map(Some).map_err(serde::de::Error::custom)
}

/// The identity that the configuration gives or points to.
fn load_identity(
    file: Option<&PathBuf>,
    inline: Option<&IdentityKey>,
) -> Result<Option<IdentityKey>, RelayError> {
    match (file, inline) {
        (None, inline) => Ok(inline.cloned()),
        (Some(_), Some(_)) => Err(refused("identity", "give either `identity_file` or `identity`")),
        (Some(path), None) => crate::rights::read_identity(path).map(Some),
    }
}

/// What a relay agrees to dial.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// Destinations that it dials as the last of a route.
    pub destinations: Vec<DestinationRule>,
    /// Relays that it dials as the next of a route.
    pub next_hops: Vec<DestinationRule>,
    /// Whether these rules may cover loopback addresses: for tests and laboratories.
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

/// How much a process takes on.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Sessions at a time; a connection beyond is reset. Chosen: 8,000, two descriptors each and some
    /// for pipes, which fit into 20,000.
    pub sessions: usize,
    /// Connections besides that have not shown a valid header or request yet; where there are more,
    /// the source that holds most of them pays with its oldest. Chosen: 1,000.
    pub unauthenticated: usize,
    /// Of these, warm connections that each neighbour keeps at rest here; a hello beyond is refused. Chosen: 1,000,
    /// an eighth of all.
    pub resting: u32,
    /// Connections that wait in the kernel to be accepted. Chosen: what Linux allows, 4096.
    pub backlog: u16,
    /// What all sessions together may move a second, both directions added up; no limit when absent.
    pub rate: Option<Bandwidth>,
    /// What sessions may hold of what one side has given and the other has not taken, with their own
    /// memory; sockets' buffers come on top. No limit but that of the sessions when absent.
    pub memory: Option<Bytes>,
    /// What the sessions of each gateway may take, at relays. While `sessions` is absent a gateway
    /// may have as many as are still free: one alone half of all, n of them 1/(n+1) each.
    pub each_gateway: Share,
    /// What the sessions of each grant may take, at relays.
    pub each_grant: Share,
    /// What each source address may take; of IPv6 each /56.
    pub each_source: Share,
    /// Sources that `each_source` does not bind, such as other relays; ports do not count.
    pub trusted_sources: Vec<DestinationRule>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 8000,
            unauthenticated: 1000,
            resting: 1000,
            backlog: 4096,
            rate: None,
            memory: None,
            each_gateway: Share::default(),
            each_grant: Share::default(),
            each_source: Share::default(),
            trusted_sources: Vec::new(),
        }
    }
}

/// What one grant or source may take; what is absent is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Share {
    /// Sessions at a time.
    pub sessions: Option<NonZeroU32>,
    /// What they may move a second, both directions added up.
    pub rate: Option<Bandwidth>,
    /// What they may hold of what one side has given and the other has not taken, with their own memory; it may lower their
    /// number.
    pub memory: Option<Bytes>,
}

/// How long a process waits.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// For a header or proxy request after the connection opened.
    #[serde(with = "as_text")]
    pub header: Duration,
    /// For each connection of a path to open; a name's addresses share it.
    #[serde(with = "as_text")]
    pub dial: Duration,
    /// For the next byte of a session with both directions open; `off` is for ever.
    #[serde(deserialize_with = "or_off::deserialize")]
    pub idle: Option<Duration>,
    /// For the next byte of a session once one direction has ended; `off` is for ever.
    #[serde(deserialize_with = "or_off::deserialize")]
    pub half_closed: Option<Duration>,
    /// For a peer to acknowledge, or to open its window again (`TCP_USER_TIMEOUT`); `off` leaves it
    /// to the kernel.
    #[serde(deserialize_with = "or_off::deserialize")]
    pub user: Option<Duration>,
    /// Silence after which the kernel asks whether the peer is there; with `off` it never does.
    #[serde(deserialize_with = "or_off::deserialize")]
    pub keepalive: Option<Duration>,
    /// For open sessions to end when draining; the rest is reset then.
    #[serde(with = "as_text")]
    pub drain: Duration,
    /// For open sessions to end after an upgrade, when the next process has taken over; the rest is reset
    /// then.
    #[serde(with = "as_text")]
    pub retire: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(5),
            dial: Duration::from_secs(10),
            idle: Some(Duration::from_secs(3600)),
            half_closed: Some(Duration::from_secs(300)),
            user: Some(Duration::from_secs(120)),
            keepalive: Some(Duration::from_secs(60)),
            drain: Duration::from_secs(30),
            retire: Duration::from_secs(3600),
        }
    }
}

/// Leg profiles by the side that opens the connection, and of single legs.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LegProfiles {
    /// Connections from upstream, which this process accepts.
    pub accept: LegProfile,
    /// Connections to downstream, which this process dials.
    pub dial: LegProfile,
    /// Legs to neighbours that are told apart from the others.
    pub to: Vec<LegTo>,
    /// Listeners that are told apart from the others, at relays.
    pub at: Vec<LegAt>,
}

/// A listener.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LegAt {
    /// Its address, as in `listen`.
    #[serde(deserialize_with = "address::one")]
    pub address: SocketAddr,
    /// What it asks of who dials.
    pub encryption: Encryption,
}

impl LegProfiles {
    /// Returns what these legs need of the host's kernel.
    #[must_use]
    pub fn buffer_needs(&self) -> BufferNeeds {
        let to = self.to.iter().map(|to| &to.dial);
        BufferNeeds::of([&self.accept, &self.dial].into_iter().chain(to))
    }

    /// What the listener of `address` asks of who dials.
    pub(crate) fn encryption_at(&self, address: SocketAddr) -> Encryption {
        let told = self.at.iter().find(|at| at.address == address).map(|at| at.encryption);
        told.or(self.accept.encryption).unwrap_or_default()
    }

    /// Who dials decides on encryption, and one neighbour has one profile.
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
    /// Reads a relay's configuration.
    ///
    /// # Errors
    /// [`RelayError::Config`] with the key and what would be right there.
    pub fn parse(text: &str) -> Result<Self, RelayError> {
        let config: Self = parse(text)?;
        check_common(&config.limits, &config.timeouts, config.workers)?;
        check_exposed(config.metrics, config.metrics_expose)?;
        if config.listen.is_empty() {
            return Err(refused("listen", "expected at least one address such as `0.0.0.0:7000`"));
        }
        check_zones("listen", &config.listen)?;
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

    /// The relay's secret identity.
    ///
    /// # Errors
    /// When its file cannot be read or holds no identity.
    pub fn identity(&self) -> Result<IdentityKey, RelayError> {
        load_identity(self.identity_file.as_ref(), self.identity.as_ref())?
            .ok_or_else(|| refused("identity_file", "missing"))
    }
}

impl GatewayConfig {
    /// Reads a gateway's configuration.
    ///
    /// # Errors
    /// [`RelayError::Config`] with the key and what would be right there.
    pub fn parse(text: &str) -> Result<Self, RelayError> {
        let config: Self = parse(text)?;
        config.check()?;
        Ok(config)
    }

    /// The gateway's secret identity, if it has one.
    ///
    /// # Errors
    /// When its file cannot be read or holds no identity.
    pub fn identity(&self) -> Result<Option<IdentityKey>, RelayError> {
        load_identity(self.identity_file.as_ref(), self.identity.as_ref())
    }

    /// Returns the gateway's grant, if it has one.
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
            let problem = "a gateway accepts applications, which speak as they like; expected `leg.dial.encryption`";
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
        let is_open = self.expose && (self.expose_without_password || !self.user.is_empty());
        for (index, forward) in self.forward.iter().enumerate() {
            check_zones(&format!("forward[{index}].listen"), [&forward.listen])?;
        }
        for (key, addresses) in [("socks5", &self.socks5), ("connect", &self.connect)] {
            check_zones(key, addresses)?;
            let outside = addresses.iter().find(|address| !address.ip().is_loopback());
            if let Some(address) = outside.filter(|_| !is_open) {
                let problem = format!(
                    "{address} is no loopback address: whoever reaches it could use the grant; \
                     if that is wanted, set `expose = true`, and add users (`[[user]]`) or set \
                     `expose_without_password = true`"
                );
                return Err(refused(key, problem));
            }
        }
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

/// Reads TOML; an error names line and key.
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
mod tests {
    use super::*;
    use tradewind_grant::{Grant, OperatorKey, Relays};
    use tradewind_units::Timestamp;

    const OPERATOR: [u8; 32] = [9; 32];

    fn relay_text(rest: &str) -> String {
        let operator = OperatorKey::from_entropy(OPERATOR).public();
        format!(
            "listen = ['127.0.0.1:0']\nidentity_file = 'key'\noperators = ['{operator}']\n{rest}"
        )
    }

    fn line(result: Result<impl Sized, RelayError>) -> String {
        let line = result.err().expect("refused").to_string();
        assert!(!line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn what_is_not_said_has_its_default() {
        let config = RelayConfig::parse(&relay_text("[timeouts]\nidle = '2 h'")).unwrap();
        assert_eq!(config.timeouts.idle, Some(Duration::from_secs(7200)));
        assert_eq!(config.timeouts.header, Duration::from_secs(5));
        assert!(config.policy.destinations.is_empty(), "default deny");
        assert_eq!(config.metrics, None);
    }

    #[test]
    fn timeouts_that_may_be_missing_are_turned_off() {
        let off = "idle = 'off'\nhalf_closed = 'off'\nuser = 'off'\nkeepalive = 'off'";
        let timeouts =
            RelayConfig::parse(&relay_text(&format!("[timeouts]\n{off}"))).unwrap().timeouts;
        let Timeouts { idle, half_closed, user, keepalive, .. } = timeouts;
        assert_eq!([idle, half_closed, user, keepalive], [None; 4]);
        for key in ["header", "dial", "drain", "retire"] {
            let line = line(RelayConfig::parse(&relay_text(&format!("[timeouts]\n{key} = 'off'"))));
            assert!(line.contains(&format!("`timeouts.{key}`")), "{line}");
        }
    }

    #[test]
    fn errors_of_a_relays_configuration_name_the_key() {
        for (rest, expected) in [
            ("foo = 1", "configuration, `foo` (line 4): unknown field `foo`"),
            ("[limits]\nsessions = 'x'", "configuration, `limits.sessions` (line 5): invalid type"),
            ("[timeouts]\nidle = '5'", "configuration, `timeouts.idle` (line 5): duration: a span"),
            ("[timeouts]\nidle = '0 s'", "configuration, timeouts.idle: expected a span above"),
            (
                "[policy]\ndestinations = ['10.0.0.1/8:1']",
                "configuration, `policy.destinations[0]` (line 5): destination rule `10.0.0.1/8:1`",
            ),
            (
                "workers = -1",
                "configuration, `workers` (line 4): invalid value: integer `-1`, expected a whole number",
            ),
            ("workers = 0", "configuration, workers: expected 1 to 1024"),
            ("[limits]\nmemory = '1 kB'", "configuration, limits.memory: expected at least 1 MB"),
            (
                "[limits.each_source]\nmemory = '1 kB'",
                "configuration, limits.each_source.memory: expected at least 1 MB",
            ),
            ("[limits]\nrate = '5'", "configuration, `limits.rate` (line 5): bandwidth"),
            (
                "[limits.each_source]\nsessions = 0",
                "configuration, `limits.each_source.sessions` (line 5): invalid value",
            ),
            ("[limits", "configuration, line 4: "),
            ("metrics = '[::]:9464'", "configuration, metrics: [::]:9464 is no loopback address"),
            (
                "[leg.dial]\nencryption = 'either'",
                "configuration, leg.dial.encryption: `either` is for who accepts",
            ),
            (
                "[leg.dial]\nencryption = 'ssl'",
                "configuration, `leg.dial.encryption` (line 5): unknown variant `ssl`, expected one of",
            ),
            (
                "[[leg.at]]\naddress = '127.0.0.1:1'\nencryption = 'none'",
                "configuration, leg.at.address: 127.0.0.1:1 is not among `listen`",
            ),
            (
                "[[leg.to]]\naddress = '192.0.2.2:1'\ndial = {}\n[[leg.to]]\naddress = '192.0.2.2:1'\ndial = { connections = 4 }",
                "configuration, leg.to.address: 192.0.2.2:1 is there twice",
            ),
            (
                "[leg.dial]\nwarm = 0",
                "configuration, `leg.dial.warm` (line 5): invalid value: integer `0`, expected a whole number from 1 to 65535",
            ),
            (
                "[policy]\nnext_hops = ['*.example.com:7000']",
                "configuration, policy.next_hops: `*.example.com:7000`: expected ranges of addresses",
            ),
            (
                "metrics = '[fe80::1]:9000'",
                "configuration, metrics: [fe80::1]:9000 is link-local: say on which interface, by its number, as in `[fe80::1%2]:9000`",
            ),
            (
                "metrics = '[fe80::1%eth0]:9000'",
                "configuration, `metrics` (line 4): socket address: IP:PORT whose zone is the number",
            ),
            (
                "[limits]\ntrusted_sources = ['relay.example.com:*']",
                "configuration, limits.trusted_sources: `relay.example.com:*`: expected ranges",
            ),
        ] {
            let line = line(RelayConfig::parse(&relay_text(rest)));
            assert!(line.starts_with(expected), "{line}");
        }
        let line = line(RelayConfig::parse("listen = []\noperators = []"));
        assert!(line.starts_with("configuration, listen: expected at least one"), "{line}");
    }

    #[test]
    fn where_only_addresses_make_sense_names_are_refused() {
        for (rest, key) in [
            ("metrics = 'relay.example.com:7000'", "`metrics` (line 4)"),
            ("[policy]\nnever = ['relay.example.com:7000']", "`policy.never[0]` (line 5)"),
            ("[[leg.at]]\naddress = 'relay.example.com:7000'", "`leg.at[0].address` (line 5)"),
            ("[[leg.to]]\naddress = 'relay.example.com:7000'", "`leg.to[0].address` (line 5)"),
        ] {
            let line = line(RelayConfig::parse(&relay_text(rest)));
            let expected = format!("configuration, {key}: socket address: IP:PORT such as");
            assert!(line.starts_with(&expected), "{line}");
            assert!(line.ends_with("not `relay.example.com:7000`"), "{line}");
        }
    }

    #[test]
    fn a_secret_never_shows_in_an_error() {
        let secret = IdentityKey::from_entropy([7; 32]).to_secret_text();
        let cut = &secret[..secret.len() - 3];
        let text = format!("listen = ['127.0.0.1:0']\noperators = []\nidentity = '{cut}'");
        let line = line(RelayConfig::parse(&text));
        assert!(line.contains("identity") && !line.contains(&cut[10..30]), "{line}");
    }

    #[test]
    fn a_gateway_must_mean_what_opens_it_to_others() {
        for (text, expected) in [
            (
                "",
                "configuration, forward: expected at least one of forward, tproxy, socks5, connect and packet",
            ),
            (
                "[[tproxy]]\ndestinations = ['*.example.com:443']",
                "configuration, tproxy[0].destinations: `*.example.com:443`: expected ranges of addresses",
            ),
            (
                "[[forward]]\nlisten = '127.0.0.1:1'\nto = '192.0.2.1:1'\naccept_proxy = ['lb.example.com:*']",
                "configuration, `forward[0]` (line 1): accept_proxy: `lb.example.com:*`: expected ranges of addresses",
            ),
            (
                "socks5 = ['127.0.0.1:0']\n[limits.each_grant]\nsessions = 3",
                "configuration, limits.each_grant: for relays",
            ),
            (
                "socks5 = ['127.0.0.1:0']\n[limits.each_gateway]\nsessions = 3",
                "configuration, limits.each_gateway: for relays",
            ),
            (
                "[[tproxy]]\ndestinations = ['10.0.0.0/8:443']\nfoo = 1",
                "configuration, `tproxy[0].foo` (line 3): unknown field `foo`",
            ),
            (
                "[[forward]]\nlisten = '127.0.0.1:1'\nto = '192.0.2.1:1'\nsend_proxy = 'v1'",
                "configuration, `forward[0].send_proxy`",
            ),
            (
                "socks5 = ['localhost:1080']",
                "configuration, `socks5[0]` (line 1): socket address: IP:PORT such as",
            ),
            (
                "connect = [3128]",
                "configuration, `connect[0]` (line 1): invalid type: integer `3128`, expected text: IP:PORT",
            ),
            (
                "[[forward]]\nlisten = 'localhost:1'\nto = '192.0.2.1:1'",
                "configuration, `forward[0].listen` (line 2): socket address: IP:PORT such as",
            ),
            ("socks5 = ['0.0.0.0:1080']", "configuration, socks5: 0.0.0.0:1080 is no loopback"),
            (
                "socks5 = ['127.0.0.1:0']\nmetrics = '0.0.0.0:9464'",
                "configuration, metrics: 0.0.0.0:9464 is no loopback address",
            ),
            (
                "connect = ['127.0.0.1:0']\n[routes]\ndefault = 'direct'",
                "configuration, routes: a route is `direct`, which needs `direct = true`",
            ),
            (
                "connect = ['127.0.0.1:0']\n[routes]\ndefault = ['lima']",
                "configuration, `routes` (line 2): default: relay `lima` is not listed",
            ),
            (
                "socks5 = ['127.0.0.1:0']\n[leg.accept]\nencryption = 'none'",
                "configuration, leg.accept.encryption: a gateway accepts applications",
            ),
        ] {
            let line = line(GatewayConfig::parse(text));
            assert!(line.starts_with(expected), "{line}");
        }
    }

    #[test]
    fn a_missing_identity_file_is_named() {
        let mut config = RelayConfig::parse(&relay_text("")).unwrap();
        config.identity_file = Some("/nonexistent/relay.key".into());
        let line = line(crate::Relay::bind(&config));
        let expected = "identity file /nonexistent/relay.key: no such file or directory";
        assert_eq!(line, expected);
    }

    #[test]
    fn the_manuals_examples_are_valid() {
        let manual = include_str!("../../docs/relay.md");
        let gateway = IdentityKey::from_entropy([1; 32]).public();
        let grant = Grant {
            gateway,
            not_before: Timestamp::ZERO,
            expires: Timestamp::FAR_FUTURE,
            sessions: None,
            extensions: tradewind_grant::Extensions::default(),
            relays: Relays::Any,
            destinations: vec!["10.0.0.0/8:*".parse().unwrap()],
        };
        let grant = grant.sign(&OperatorKey::from_entropy(OPERATOR)).unwrap().to_string();
        let relay = |seed| IdentityKey::from_entropy([seed; 32]).public().to_string();
        let manual = manual
            .replace("GRANT", &grant)
            .replace("OPERATOR", &OperatorKey::from_entropy(OPERATOR).public().to_string())
            .replace("RELAY-1", &relay(2))
            .replace("RELAY-2", &relay(3));
        let example = |name: &str| {
            let start = format!("```toml\n# {name}\n");
            let (_, rest) = manual.split_once(&start).expect("the example is there");
            rest.split("```").next().unwrap_or_default().to_owned()
        };
        RelayConfig::parse(&example("relay")).unwrap();
        GatewayConfig::parse(&example("gateway")).unwrap();
    }
}
