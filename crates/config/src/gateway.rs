//! A gateway's configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use tradewind_desired::{Route, RouteTable};
use tradewind_grant::{DestinationRule, IdentityKey, SignedGrant};
use tradewind_units::{FlowId, Ratio, address};

use crate::checks::{check_common, check_exposed, check_ranges, check_twice};
use crate::forward::{self, Forward, ProxyVersion};
use crate::jumpstart::{self, JumpstartConfig};
use crate::keys::{Keys, identity_text};
use crate::packet::sections::DeliverySection;
use crate::packet::shape::shape;
use crate::packet::{EndpointSection, GatewayPackets, PacketSection};
use crate::users::{self, User};
use crate::{
    AccessLogConfig, ConfigError, LegProfiles, Limits, Share, Timeouts, TracesConfig, document,
};

/// A gateway's configuration.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
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
    #[schemars(with = "Vec<forward::Text>")]
    pub forward: Vec<Forward>,
    /// Connections that are intercepted and carried to their original destinations.
    #[serde(default)]
    pub tproxy: Vec<Tproxy>,
    /// The addresses that accept SOCKS5. Any client that reaches them uses the grant, so they must
    /// be loopback addresses unless `expose` is set.
    #[serde(default, deserialize_with = "address::list")]
    #[schemars(with = "Vec<tradewind_units::address::Written>")]
    pub socks5: Vec<SocketAddr>,
    /// The addresses that accept HTTP proxy requests; as for `socks5`.
    #[serde(default, deserialize_with = "address::list")]
    #[schemars(with = "Vec<tradewind_units::address::Written>")]
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
    #[serde(default, deserialize_with = "document::table")]
    pub leg: LegProfiles,
    /// The address that serves metrics and health; none when absent.
    #[serde(default, deserialize_with = "address::option")]
    #[schemars(with = "Option<tradewind_units::address::Written>")]
    pub metrics: Option<SocketAddr>,
    /// True if that may be another than a loopback address.
    #[serde(default)]
    pub metrics_expose: bool,
    /// Host names accepted in requests for metrics and health, beside addresses and `localhost`.
    #[serde(default)]
    pub metrics_hosts: Vec<String>,
    /// Threads that carry sessions, from 1 to 1024; one for each core when absent.
    #[schemars(range(min = 1, max = 1024))]
    pub workers: Option<usize>,
    /// UDP ports, intercepted datagrams or devices whose packets go to remote endpoints.
    #[serde(default)]
    pub packet: Vec<PacketSection>,
    /// The gateway's settings as an end point of paths for packets.
    pub packet_endpoint: Option<EndpointSection>,
    /// The delivery of the datagrams of SOCKS5 clients; UDP is refused when absent.
    pub socks5_udp: Option<DeliverySection>,
    /// The learning of its legs' initial windows; none when absent.
    #[serde(default, deserialize_with = "jumpstart::section")]
    #[schemars(with = "Option<jumpstart::Section>")]
    pub jumpstart: Option<JumpstartConfig>,
    /// The access log, which records sessions at their end; none when absent.
    pub access_log: Option<AccessLogConfig>,
    /// The traces of sessions, which go to a collector of OpenTelemetry; none when absent.
    pub traces: Option<TracesConfig>,
    /// Share of sessions that take the direct path by lot, where that is one of a route's paths
    /// and relays come before it: the control arm, which shows what the relays gain. At most 0.5.
    #[serde(default)]
    pub control_share: Ratio,
}

/// Connections that are intercepted (TPROXY) and carried to their original destinations.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
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
    pub fn listeners(&self) -> impl Iterator<Item = SocketAddr> {
        let ranges = || self.destinations.iter().filter_map(|rule| rule.range());
        let v4 = ranges().any(|(base, _)| base.is_ipv4()).then_some(Ipv4Addr::LOCALHOST.into());
        let v6 = ranges().any(|(base, _)| base.is_ipv6()).then_some(Ipv6Addr::LOCALHOST.into());
        [v4, v6].into_iter().flatten().map(|ip: IpAddr| SocketAddr::new(ip, self.port))
    }
}

fn tproxy_flow() -> FlowId {
    FlowId::new("tproxy").expect("a short word")
}

impl GatewayConfig {
    /// Parses and checks a gateway's configuration.
    ///
    /// # Errors
    /// The first mistake, with its key, its line and the expected value.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = document::parse_shaped(text, shape)?;
        config.check().map_err(|error| error.located(text))?;
        Ok(config)
    }

    /// Returns whether other hosts can reach one of its proxies.
    #[must_use]
    pub fn has_open_proxies(&self) -> bool {
        self.socks5.iter().chain(&self.connect).any(|address| !address.ip().is_loopback())
    }

    /// Returns whether it carries traffic of other hosts: they reach one of its ports, or it
    /// intercepts.
    #[must_use]
    pub fn serves_others(&self) -> bool {
        let is_open = |forward: &Forward| !forward.listen.ip().is_loopback();
        self.has_open_proxies() || !self.tproxy.is_empty() || self.forward.iter().any(is_open)
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

    /// Returns its secret identities, or where they are.
    #[must_use]
    pub fn keys(&self) -> Keys<'_> {
        Keys {
            present: (self.identity_file.as_deref(), self.identity.as_ref()),
            previous: (self.previous_identity_file.as_deref(), self.previous_identity.as_ref()),
        }
    }

    /// Returns true if it has a packet plane.
    #[must_use]
    pub const fn has_packets(&self) -> bool {
        !self.packet.is_empty() || self.packet_endpoint.is_some() || self.socks5_udp.is_some()
    }

    /// Returns its packet plane, if it has one.
    ///
    /// # Errors
    /// The first mistake in its sections.
    pub fn packets(&self) -> Result<Option<GatewayPackets>, ConfigError> {
        let (endpoint, socks5) = (self.packet_endpoint.as_ref(), self.socks5_udp.as_ref());
        if !self.has_packets() {
            return Ok(None);
        }
        GatewayPackets::of(&self.packet, endpoint, socks5).map(Some)
    }

    fn check(&self) -> Result<(), ConfigError> {
        check_common(&self.limits, &self.timeouts, self.workers)?;
        check_exposed(self.metrics, self.metrics_expose)?;
        self.keys().check()?;
        self.leg.check()?;
        self.access_log.iter().try_for_each(AccessLogConfig::check)?;
        let learner = self.jumpstart.as_ref().map_or(Ok(()), JumpstartConfig::check);
        learner.map_err(|error| error.within("jumpstart"))?;
        if self.control_share.as_f64() > 0.5 {
            return Err(ConfigError::new("control_share", "expected a share of at most 0.5"));
        }
        if self.grant.is_some() && self.grant_file.is_some() {
            return Err(ConfigError::new("grant", "give either `grant_file` or `grant`"));
        }
        for (key, share) in [
            ("limits.each_grant", self.limits.each_grant),
            ("limits.each_gateway", self.limits.each_gateway),
        ] {
            if share != Share::default() {
                let problem =
                    "for relays, which serve several; expected `limits.sessions` or `limits.rate`";
                return Err(ConfigError::new(key, problem));
            }
        }
        if self.leg.accept.encryption.is_some() || !self.leg.at.is_empty() {
            let problem = "a gateway accepts applications, which speak as they like; expected \
                `leg.dial.encryption`";
            return Err(ConfigError::new("leg.accept.encryption", problem));
        }
        let proxies = self.socks5.len() + self.connect.len();
        let carries_packets = !self.packet.is_empty() || self.packet_endpoint.is_some();
        if self.forward.is_empty() && self.tproxy.is_empty() && proxies == 0 && !carries_packets {
            let problem = "expected at least one of forward, tproxy, socks5, connect and packet";
            return Err(ConfigError::new("forward", problem));
        }
        self.check_tproxy()?;
        self.check_proxies()?;
        check_twice(self.listeners())?;
        self.packets()?;
        if !self.direct && self.routes.routes().any(|route| *route == Route::Direct) {
            return Err(ConfigError::new(
                "routes",
                "a route is `direct`, which needs `direct = true`",
            ));
        }
        if self.routes.routes().any(|route| matches!(route, Route::Relays(_))) {
            if self.identity_file.is_none() && self.identity.is_none() {
                return Err(ConfigError::new(
                    "identity_file",
                    "missing, and a route goes over relays",
                ));
            }
            if self.grant.is_none() && self.grant_file.is_none() {
                return Err(ConfigError::new("grant", "missing, and a route goes over relays"));
            }
        }
        Ok(())
    }

    fn check_tproxy(&self) -> Result<(), ConfigError> {
        for (index, tproxy) in self.tproxy.iter().enumerate() {
            let key = format!("tproxy[{index}].destinations");
            if tproxy.destinations.is_empty() {
                return Err(ConfigError::new(
                    key,
                    "expected at least one range such as `10.0.0.0/8:443`",
                ));
            }
            check_ranges(&key, &tproxy.destinations)?;
            check_ranges(&format!("tproxy[{index}].accept_proxy"), &tproxy.accept_proxy)?;
        }
        Ok(())
    }

    fn check_proxies(&self) -> Result<(), ConfigError> {
        if self.socks5_udp.is_some() && self.socks5.is_empty() {
            return Err(ConfigError::new("socks5_udp", "expected `socks5` beside it"));
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
                return Err(ConfigError::new(key, problem));
            }
        }
        Ok(())
    }
}
