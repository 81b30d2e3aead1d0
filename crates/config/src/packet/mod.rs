//! The packet plane of relays and gateways: what their files say of it.
//!
//! | module | holds |
//! |---|---|
//! | [`copying`] | which packets are copied to relays |
//! | [`gateway`] | a gateway's packet plane |
//! | [`group`] | one port to several remote endpoints |
//! | [`members`] | names that only a members file explains |
//! | [`neighbours`] | relays and remote endpoints as files give them |
//! | [`relay`] | a relay's packet plane |
//! | [`relay_services`] | a relay's caching and coding |
//! | [`rendezvous`] | packets that wait for receivers |
//! | [`sections`] | the sections as files give them |
//! | `resolve` | sections as settings |
//! | `schema` | JSON schemas that follow from no type |
//! | `shape` | sections with a tag, for the parser |

mod clashes;
pub mod copying;
pub mod gateway;
pub mod group;
pub mod members;
pub mod neighbours;
pub mod relay;
pub mod relay_services;
pub mod rendezvous;
mod resolve;
mod schema;
pub mod sections;
pub(crate) mod shape;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use schemars::JsonSchema;
use serde::Deserialize;
use tradewind_grant::{DestinationRule, Hop, Route};
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;
use tradewind_plan::packets::BlockCoding;
use tradewind_units::{Duration, Money, Ratio};

use crate::ConfigError;

pub use clashes::check_devices;
pub use copying::{Chosen, Copying};
pub use gateway::GatewayPackets;
pub use group::{Group, GroupMember};
pub use members::{MemberReferences, SectionKeys};
pub use neighbours::{Addresses, Placed};
pub use relay::RelayPackets;
pub use relay_services::RelayServices;
pub use rendezvous::{Deposits, Recipient, Rendezvous};
pub use sections::{EndpointSection, PacketSection, RelaySection};

/// The default listening address: every address of both families, at a port that the system
/// chooses.
pub const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

/// Datagrams of unmodified applications, and their delivery to a remote endpoint.
#[derive(Debug, Clone)]
pub struct Path {
    /// The source of the datagrams.
    pub source: TrafficSource,
    /// The delivery to the remote endpoint.
    pub delivery: DeliveryPolicy,
}

/// The ingress by which datagrams of unmodified applications enter a node.
#[derive(Debug, Clone)]
pub enum TrafficSource {
    /// Datagrams written to a local port, which all go to one destination.
    Port {
        /// The address that applications write to; with port 0 the system chooses a port.
        listen: SocketAddr,
        /// The address to which the remote endpoint delivers.
        to: SocketAddr,
    },
    /// Intercepted datagrams (TPROXY), which go to their own destinations.
    Intercepted(Intercepted),
    /// Whole IP packets of any protocol, which the kernel routes into a TUN device.
    Tunnel(Tunnel),
}

/// A TUN device, and the ranges whose IP packets are routed into it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tunnel {
    /// The device's name, of 1 to 15 letters, digits, `-` or `_`, which no other device has.
    pub name: String,
    /// Ranges of addresses, with all ports: the destinations of packets that the remote endpoint
    /// delivers, or the sources of packets that are delivered here.
    pub destinations: Vec<DestinationRule>,
    /// Most bytes of a packet, from 576 to 65280; no more than the path takes in any case.
    #[schemars(range(min = 576, max = 65280))]
    pub mtu: Option<u16>,
}

/// The datagrams to intercept.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Intercepted {
    /// Their destinations: ranges of addresses with ports.
    pub destinations: Vec<DestinationRule>,
    /// True if datagrams that this host itself sends are intercepted as well as those it forwards.
    #[serde(default)]
    pub local_output: bool,
    /// The port on loopback to which they are redirected; the system chooses one when absent.
    #[serde(default)]
    pub port: u16,
}

/// The delivery to a remote endpoint: relays and service.
#[derive(Debug, Clone)]
pub struct DeliveryPolicy {
    /// The remote endpoint.
    pub remote: Remote,
    /// The relays before it; may be none when the service is direct.
    pub relays: Via,
    /// The service, paths and budget of its packets.
    pub carriage: Carriage,
    /// Share of packets that may be late or lost. With it, the service is chosen while the flow
    /// runs, by this share and the budget.
    pub max_loss: Option<Ratio>,
    /// The packets that are copied to the relays; `None`: all.
    pub copies: Option<Chosen>,
    /// The assumptions under which its service is chosen.
    pub assumed: Assumed,
}

impl DeliveryPolicy {
    /// Returns the relays and the remote endpoint that are given by address.
    pub fn named(&self) -> impl Iterator<Item = &Hop> {
        let relays = match &self.relays {
            Via::Relays(relays) => relays.as_slice(),
            Via::Nearest => &[],
        };
        let remote = match &self.remote {
            Remote::At(hop) => Some(hop),
            Remote::Member(_) => None,
        };
        relays.iter().chain(remote)
    }
}

/// The assumptions for the choice of a service before relays have reported their prices and their
/// coding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assumed {
    /// The cost of each service; `None`: in proportion to the bytes that leave relays.
    pub costs: Option<ServiceCosts>,
    /// The relays' coding rates.
    pub coding: BlockCoding,
}

impl Default for Assumed {
    /// The coding of relays with default settings.
    fn default() -> Self {
        RelayServices::default().assumed()
    }
}

/// The cost of each service: dollars for each GB of the flow, or any other unit where relays report
/// no prices; the Internet alone costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceCosts {
    /// The cost of coding.
    pub coding: Money,
    /// The cost of caching.
    pub caching: Money,
    /// The cost of forwarding.
    pub forwarding: Money,
    /// The Internet's loss for which these costs hold.
    #[serde(default)]
    pub loss: Ratio,
}

/// The place of a remote endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// This address and identity.
    At(Hop),
    /// The place that the members list for this id or identity.
    Member(String),
}

impl From<Hop> for Remote {
    fn from(hop: Hop) -> Self {
        Self::At(hop)
    }
}

/// The relays that packets go over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Via {
    /// These, in order.
    Relays(Vec<Hop>),
    /// The relay nearest to this node, as it measures itself, and the one nearest to the remote
    /// endpoint, as the members list it.
    Nearest,
}

impl From<Vec<Hop>> for Via {
    fn from(relays: Vec<Hop>) -> Self {
        Self::Relays(relays)
    }
}

impl Via {
    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Relays(relays) if relays.is_empty())
    }
}

/// The part that is sealed, on a leg, of packets on overlay paths, whose ends have sealed them
/// already. Packets that arrive sealed either way are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LegSeal {
    /// The headers: nobody can have more packets forwarded than were sent, nor to another place.
    /// For a relay this takes a third of the time.
    Headers,
    /// The whole packet: in addition, nobody can put other bytes in a packet's place, or see that
    /// packets on two legs are the same.
    #[default]
    Whole,
}

/// Least and most bytes of a packet: what every host accepts (RFC 791), and what a UDP datagram
/// carries besides all headers.
const MIN_MTU: u16 = 576;
const MAX_MTU: u16 = 65_280;

impl Path {
    /// Checks the path by itself.
    ///
    /// # Errors
    /// The first key that is wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.delivery.check()?;
        if let Some(chosen) = &self.delivery.copies {
            chosen.check(matches!(self.source, TrafficSource::Tunnel(_)))?;
        }
        let refused = |key, problem: &str| Err(ConfigError::new(key, problem));
        match &self.source {
            TrafficSource::Intercepted(Intercepted { destinations, .. })
                if destinations.is_empty()
                    || destinations.iter().any(|rule| rule.range().is_none()) =>
            {
                refused("tproxy.destinations", "expected ranges of addresses")
            }
            TrafficSource::Port { to, .. } if to.port() == 0 => {
                refused("to", "expected a port from 1 to 65535")
            }
            TrafficSource::Tunnel(tunnel) => tunnel.check(),
            TrafficSource::Intercepted(_) | TrafficSource::Port { .. } => Ok(()),
        }
    }
}

impl Tunnel {
    /// Checks the device by itself.
    ///
    /// # Errors
    /// The mistake in `tun`.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refused = |problem: &str| Err(ConfigError::new("tun", problem));
        let is_everything =
            |rule: &DestinationRule| rule.range().is_some_and(|(_, bits)| bits == 0);
        if let Some(rule) = self.destinations.iter().find(|rule| is_everything(rule)) {
            return refused(&format!(
                "`{rule}` would take all that this host sends, to its neighbours and name servers, \
                 too; expected the networks behind the other gateway, as `10.2.0.0/16:*`"
            ));
        }
        let is_whole =
            |rule: &DestinationRule| rule.range().is_some() && rule.ports() == (1..=u16::MAX);
        if self.destinations.is_empty() || !self.destinations.iter().all(is_whole) {
            return refused("expected ranges of addresses with all ports, as `10.2.0.0/16:*`");
        }
        if self.mtu.is_some_and(|mtu| !(MIN_MTU..=MAX_MTU).contains(&mtu)) {
            return refused("expected an `mtu` of 576 to 65280");
        }
        // The kernel's rules for names.
        let is_of_name = |c: char| c.is_ascii_graphic() && !"/:%".contains(c);
        if !(1..=15).contains(&self.name.len()) || !self.name.chars().all(is_of_name) {
            let problem = "expected a `name` of 1 to 15 letters, digits, `-` or `_`, not ";
            return refused(&format!("{problem}`{}`", self.name));
        }
        Ok(())
    }
}

impl DeliveryPolicy {
    /// Checks the policy by itself.
    ///
    /// # Errors
    /// The first key that is wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refused = |key, problem: &str| Err(ConfigError::new(key, problem));
        let Self { relays, carriage, max_loss, copies, .. } = self;
        let is_auto = max_loss.is_some();
        let is_over_relays = carriage.paths == Paths::Overlay;
        let has_copies = is_auto || (carriage.service != Service::Direct && !is_over_relays);
        if copies.is_some() && (relays.is_empty() || !has_copies) {
            return refused("copies", "expected only with relays beside the Internet");
        }
        if relays.is_empty() && (is_auto || carriage.service != Service::Direct) {
            return refused("relays", "missing; expected at least one, or `service = \"direct\"`");
        }
        if is_auto && carriage.budget_ms == 0 {
            return refused("budget", "missing; `service = \"auto\"` chooses by it");
        }
        let recovers = is_auto || matches!(carriage.service, Service::Caching | Service::Coding);
        if recovers && matches!(relays, Via::Relays(relays) if relays.len() > 2) {
            return refused("relays", "caching, coding and auto take one relay or two");
        }
        let hops: Vec<Hop> = self.named().cloned().collect();
        if hops.is_empty() {
            return Ok(());
        }
        Route::new(hops).map(drop).or_else(|error| refused("relays", &error.to_string()))
    }
}

/// Returns a latency budget as it is sent to the remote endpoint.
///
/// # Errors
/// When it is too long for that.
pub fn budget_ms(budget: Duration) -> Result<u16, ConfigError> {
    u16::try_from(budget.as_millis())
        .map_err(|_| ConfigError::new("budget", "expected at most 65 s"))
}

/// Returns the default share of packets that may be late or lost: 0.1 %, above which paths count as
/// lossy [JQ 5.2].
#[must_use]
pub fn max_loss() -> Ratio {
    Ratio::new(0.001).expect("a share")
}
