//! What a node is told, and the parts of a relay's and a gateway's TOML that tell it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tradewind_grant::{
    DestinationRule, Hop, IdentityKey, OperatorPublicKey, PublicIdentity, RelayPolicy, SignedGrant,
};

use crate::NodeError;

/// Which ways a flow's packets take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Ways {
    /// The Internet alone.
    Direct = 1,
    /// The relays, and the Internet while they do not answer.
    Relays = 2,
    /// Both; the first copy counts.
    Both = 3,
}

impl Ways {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Direct, Self::Relays, Self::Both].into_iter().find(|ways| *ways as u8 == byte)
    }
}

/// One local port whose datagrams go to one destination behind a far endpoint.
#[derive(Debug, Clone)]
pub struct Path {
    /// Where applications write to; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Where the far endpoint delivers.
    pub to: SocketAddr,
    /// The far endpoint.
    pub far: Hop,
    /// The relays before it, in order; may be empty when `ways` is direct.
    pub relays: Vec<Hop>,
    /// Which ways the packets take.
    pub ways: Ways,
}

/// A node's configuration.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Where neighbours reach it; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Who it is.
    pub identity: IdentityKey,
    /// Threads. An endpoint has one.
    pub workers: usize,
    /// Whose grants it trusts.
    pub operators: Vec<OperatorPublicKey>,
    /// Relays that open sessions here without a grant.
    pub neighbours: BTreeSet<PublicIdentity>,
    /// What it delivers to, and which next hops it sends to; nothing unless told.
    pub policy: RelayPolicy,
    /// The grant that its own paths use.
    pub grant: Option<SignedGrant>,
    /// Its own paths.
    pub paths: Vec<Path>,
}

/// More threads than any machine that this is meant for has cores.
const MOST_WORKERS: usize = 1024;

impl NodeConfig {
    pub(crate) fn check(&self) -> Result<(), NodeError> {
        let refused = |key, problem: &str| Err(NodeError::Config { key, problem: problem.into() });
        if !(1..=MOST_WORKERS).contains(&self.workers) {
            return refused("workers", "expected 1 to 1024 threads");
        }
        if self.paths.is_empty() {
            return Ok(());
        }
        if self.workers != 1 {
            return refused("workers", "a node with paths of its own has one worker");
        }
        if self.grant.is_none() {
            return refused("grant", "missing, and there are paths");
        }
        if self.paths.iter().any(|path| path.ways != Ways::Direct && path.relays.is_empty()) {
            return refused("relays", "missing; expected at least one, or `ways = \"direct\"`");
        }
        Ok(())
    }
}

/// `[packet]` of a relay.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RelaySection {
    listen: SocketAddr,
    workers: Option<usize>,
    #[serde(default)]
    relays: Vec<PublicIdentity>,
    #[serde(default)]
    next_hops: Vec<DestinationRule>,
    #[serde(default)]
    allow_loopback: bool,
}

/// `[[packet]]` of a gateway.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathSection {
    listen: SocketAddr,
    to: SocketAddr,
    far: Hop,
    #[serde(default)]
    relays: Vec<Hop>,
    ways: Option<Ways>,
}

/// `[packet_endpoint]` of a gateway.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EndpointSection {
    listen: SocketAddr,
    operators: Vec<OperatorPublicKey>,
    relays: Vec<PublicIdentity>,
    destinations: Vec<DestinationRule>,
    allow_loopback: bool,
}

impl Default for EndpointSection {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            operators: Vec::new(),
            relays: Vec::new(),
            destinations: Vec::new(),
            allow_loopback: false,
        }
    }
}

/// Reads one part; the error is one line.
fn section<T: DeserializeOwned>(key: &'static str, value: &toml::Value) -> Result<T, NodeError> {
    let refused = |error: toml::de::Error| {
        let problem = error.message().lines().collect::<Vec<_>>().join(" ");
        NodeError::Config { key, problem }
    };
    value.clone().try_into().map_err(refused)
}

impl NodeConfig {
    /// A relay's node from its `[packet]`, with the relay's identity and operators.
    ///
    /// # Errors
    /// [`NodeError::Config`] with what is wrong.
    pub fn of_relay(
        packet: &toml::Value,
        identity: IdentityKey,
        operators: Vec<OperatorPublicKey>,
    ) -> Result<Self, NodeError> {
        let section: RelaySection = section("packet", packet)?;
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            listen: section.listen,
            identity,
            workers: section.workers.unwrap_or_else(cores),
            operators,
            neighbours: section.relays.into_iter().collect(),
            policy: RelayPolicy {
                destinations: Vec::new(),
                next_hops: section.next_hops,
                allow_loopback: section.allow_loopback,
                never: vec![section.listen],
            },
            grant: None,
            paths: Vec::new(),
        })
    }

    /// A gateway's node from its `[[packet]]` and `[packet_endpoint]`, with the gateway's identity and grant.
    ///
    /// # Errors
    /// [`NodeError::Config`] with what is wrong.
    pub fn of_gateway(
        packets: &[toml::Value],
        endpoint: Option<&toml::Value>,
        identity: IdentityKey,
        grant: Option<SignedGrant>,
    ) -> Result<Self, NodeError> {
        let endpoint: EndpointSection = match endpoint {
            Some(value) => section("packet_endpoint", value)?,
            None => EndpointSection::default(),
        };
        let path = |value| section("packet", value).map(PathSection::resolve);
        Ok(Self {
            listen: endpoint.listen,
            identity,
            workers: 1,
            operators: endpoint.operators,
            neighbours: endpoint.relays.into_iter().collect(),
            policy: RelayPolicy {
                destinations: endpoint.destinations,
                next_hops: Vec::new(),
                allow_loopback: endpoint.allow_loopback,
                never: vec![endpoint.listen],
            },
            grant,
            paths: packets.iter().map(path).collect::<Result<_, _>>()?,
        })
    }
}

impl PathSection {
    fn resolve(self) -> Path {
        let default = if self.relays.is_empty() { Ways::Direct } else { Ways::Both };
        let ways = self.ways.unwrap_or(default);
        Path { listen: self.listen, to: self.to, far: self.far, relays: self.relays, ways }
    }
}
