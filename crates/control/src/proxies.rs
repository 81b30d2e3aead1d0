//! The proxies of a site's gateways, and the destinations that are learned from them.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_grant::{Destination, DestinationRule};
use tradewind_units::{Bytes, FlowId, SiteId};

/// Returns rules that cover all public addresses, and no others.
fn public() -> impl Iterator<Item = DestinationRule> {
    ["0.0.0.0/0:*", "[::]/0:*"].into_iter().filter_map(|rule| rule.parse().ok())
}

/// The proxies of a site's gateways. Sessions through them to destinations of flows take the paths
/// of those; others go direct, and are learned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Proxies {
    /// The site.
    pub site: SiteId,
    /// The address that accepts SOCKS5, on loopback.
    pub socks5: Option<SocketAddr>,
    /// The address that accepts HTTP proxy requests, on loopback.
    pub connect: Option<SocketAddr>,
    /// The destinations that sessions may go to; all public addresses and names when empty, or with
    /// a rule of all addresses and ports.
    pub destinations: Vec<DestinationRule>,
    /// The volume of a day from which on the controller makes a learned destination a flow; the
    /// operator alone does when absent.
    pub adopt_above: Option<Bytes>,
}

impl Proxies {
    /// Returns whether sessions may go to all public addresses and names.
    #[must_use]
    pub fn reach_all(&self) -> bool {
        let is_of_all = |rule: &DestinationRule| {
            let is_everywhere = rule.range().is_some_and(|(_, prefix_bits)| prefix_bits == 0);
            is_everywhere && rule.ports() == (1..=u16::MAX)
        };
        self.destinations.is_empty() || self.destinations.iter().any(is_of_all)
    }

    /// Returns whether sessions may go to a destination.
    #[must_use]
    pub fn reach(&self, to: &Destination) -> bool {
        let is_ruled = match to {
            Destination::Address(at) => self.destinations.iter().any(|it| it.covers_address(*at)),
            Destination::Name { name, port } => {
                self.destinations.iter().any(|it| it.covers_name(name, *port))
            }
        };
        let is_public = match to {
            Destination::Address(at) => public().any(|rule| rule.covers_address(*at)),
            Destination::Name { .. } => true,
        };
        is_ruled || self.reach_all() && is_public
    }

    /// Returns the addresses, each with the name of what it accepts.
    pub fn addresses(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        let socks5 = self.socks5.map(|at| ("SOCKS5", at));
        socks5.into_iter().chain(self.connect.map(|at| ("HTTP", at)))
    }
}

/// A destination that programs reach through the proxies of a site's gateways.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearnedFlow {
    /// The name that it has as a flow once it is adopted, and in the usage by hour.
    pub id: FlowId,
    /// The site.
    pub from: SiteId,
    /// The destination.
    pub to: Destination,
    /// Time when it was first reported, in milliseconds since the Unix epoch.
    pub first_unix_ms: u64,
    /// Time when it was last reported, in milliseconds since the Unix epoch.
    pub last_unix_ms: u64,
    /// Sessions that ended, whether or not in order.
    pub sessions: u64,
    /// Those that did not end in order.
    pub failed: u64,
    /// Bytes of all of them, both ways.
    pub bytes: u64,
    /// Sum of the completion times of those that ended in order, in seconds.
    pub seconds: f64,
}
