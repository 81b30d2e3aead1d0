//! The parts of a relay's and a gateway's TOML that configure a node.

mod neighbours;
mod path;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tradewind_grant::{
    DestinationRule, Hop, IdentityKey, OperatorPublicKey, Policy, PublicIdentity, SignedGrant,
};
use tradewind_packet::ingress::{Coding, InStream, Sharing};
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;
use tradewind_packet::sender::select::Rules;
use tradewind_units::time::as_text;
use tradewind_units::{Bandwidth, Bytes, Duration, PricePerGb, Ratio, address, in_plain_words};

use super::clashes::check_listeners;
use super::{
    ANY_PORT, Assumed, Chosen, Copying, DeliveryPolicy, Deposits, Far, Group, GroupMember, LegSeal,
    NodeConfig, Path, Recipient, RelayServices, Rendezvous, Section, Sections, ServiceCosts, Taken,
    TrafficSource, Tunnel, Via, budget_ms, max_loss, rendezvous,
};
use crate::NodeError;
pub(crate) use neighbours::{Addresses, Placed};
use neighbours::{FarSection, ViaSection};

/// `[packet]` of a relay.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RelaySection {
    #[serde(deserialize_with = "address::one")]
    listen: SocketAddr,
    workers: Option<usize>,
    #[serde(default)]
    relays: Vec<PublicIdentity>,
    #[serde(default)]
    next_hops: Vec<DestinationRule>,
    #[serde(default)]
    allow_loopback: bool,
    #[serde(default)]
    coding: CodingSection,
    #[serde(default)]
    usd_per_gb: PricesSection,
    #[serde(default)]
    registry: bool,
    rendezvous: Option<MessageStoreSection>,
    #[serde(default)]
    leg_seal: LegSeal,
}

/// `rendezvous` of a relay's `[packet]`: the storage for receivers that are offline.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MessageStoreSection {
    bytes: Option<Bytes>,
    per_sender: Option<Bytes>,
    #[serde(with = "as_text::option")]
    keep: Option<Duration>,
}

/// `usd_per_gb` of a relay's `[packet]`: the cloud's prices for traffic that leaves it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PricesSection {
    to_relays: PricePerGb,
    to_endpoints: PricePerGb,
}

/// `coding` of a relay's `[packet]`: the numbers of repair packets and of the packets that they
/// protect; of a `[[packet]]`: the same as assumed of relays.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CodingSection {
    cross_stream: Option<[u8; 2]>,
    in_stream: Option<[u8; 2]>,
    #[serde(with = "as_text::option")]
    within: Option<Duration>,
    across_gateways: bool,
}

impl CodingSection {
    fn resolve(&self) -> RelayServices {
        let mut services = RelayServices::default();
        if let Some([repairs, packets]) = self.cross_stream {
            services.coding = Coding { repairs, packets, ..services.coding };
        }
        if let Some([repairs, packets]) = self.in_stream {
            services.in_stream = (repairs > 0).then_some(InStream { packets, repairs });
        }
        if let Some(within) = self.within {
            services.coding.cross_stream_within = within;
        }
        if self.across_gateways {
            services.sharing = Sharing::Any;
        }
        services
    }

    /// Returns the assumptions of a `[[packet]]` whose relays code like this, and charge `costs` if
    /// that is set.
    fn assumed(&self, costs: Option<ServiceCosts>) -> Result<Assumed, NodeError> {
        let services = self.resolve();
        if self.across_gateways {
            let problem = "expected `across_gateways` only at relays".to_owned();
            return Err(NodeError::Config { key: "coding", problem });
        }
        services.check()?;
        Ok(Assumed { costs, ..services.assumed() })
    }
}

/// `tun` of `[packet_endpoint]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct TunnelEndSection {
    name: String,
    sources: Vec<DestinationRule>,
    mtu: Option<u16>,
}

impl TunnelEndSection {
    fn resolve(self) -> Tunnel {
        Tunnel { name: self.name, destinations: self.sources, mtu: self.mtu }
    }
}

/// `[[packet]]` of a gateway.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathSection {
    #[serde(default, deserialize_with = "address::option")]
    listen: Option<SocketAddr>,
    #[serde(default, deserialize_with = "address::option")]
    to: Option<SocketAddr>,
    tproxy: Option<Taken>,
    tun: Option<Tunnel>,
    far: FarSection,
    #[serde(default)]
    relays: ViaSection,
    service: Option<Wanted>,
    ways: Option<Ways>,
    #[serde(default)]
    budget: Option<Budget>,
    max_loss: Option<Ratio>,
    costs: Option<ServiceCosts>,
    coding: Option<CodingSection>,
    copies: Option<CopiesSection>,
    keep: Option<Keep>,
    #[serde(default)]
    in_order: bool,
    #[serde(default)]
    fragment: bool,
}

/// `[[packet]]` of a gateway with a `group`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupSection {
    #[serde(deserialize_with = "address::one")]
    listen: SocketAddr,
    group: Vec<MemberSection>,
    service: Option<Wanted>,
    ways: Option<Ways>,
    #[serde(default)]
    budget: Option<Budget>,
}

/// One member of a `group`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberSection {
    far: FarSection,
    #[serde(deserialize_with = "address::one")]
    to: SocketAddr,
    #[serde(default)]
    relays: ViaSection,
}

/// `copies` of a `[[packet]]` or `[packet_endpoint]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CopiesSection {
    rtp_key_frames: bool,
    tcp_syn: bool,
    dscp: Vec<u8>,
    ports: Vec<u16>,
    #[serde(with = "as_text::option")]
    last_after: Option<Duration>,
}

impl CopiesSection {
    fn resolve(self) -> Chosen {
        let Self { rtp_key_frames, tcp_syn, dscp, ports, last_after } = self;
        let rules = Rules { marked: false, tcp_syn, rtp_key_frames, dscp, ports };
        Chosen { rules, last_after }
    }
}

/// `service` of a `[[packet]]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Wanted {
    Direct,
    Forwarding,
    Caching,
    Coding,
    Auto,
    Rendezvous,
}

/// `keep` of a `[[packet]]`: the time for which its packets are worth storing.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Keep(#[serde(with = "as_text")] Duration);

/// `budget` of a `[[packet]]`.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Budget(#[serde(with = "as_text")] Duration);

/// `ways` of a `[[packet]]`: the paths of a forwarded flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Ways {
    Relays,
    Both,
}

/// `[packet_endpoint]` of a gateway.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EndpointSection {
    #[serde(deserialize_with = "address::one")]
    listen: SocketAddr,
    operators: Vec<OperatorPublicKey>,
    relays: Vec<PublicIdentity>,
    destinations: Vec<DestinationRule>,
    preserve_source: Vec<DestinationRule>,
    tun: Option<TunnelEndSection>,
    allow_loopback: bool,
    repeat_copies: bool,
    copies: Option<CopiesSection>,
    uplink: Option<Bandwidth>,
    members: Option<PathBuf>,
    rendezvous: Vec<Placed>,
    leg_seal: LegSeal,
}

impl Default for EndpointSection {
    fn default() -> Self {
        Self {
            listen: ANY_PORT,
            operators: Vec::new(),
            relays: Vec::new(),
            destinations: Vec::new(),
            preserve_source: Vec::new(),
            tun: None,
            allow_loopback: false,
            repeat_copies: true,
            copies: None,
            uplink: None,
            members: None,
            rendezvous: Vec::new(),
            leg_seal: LegSeal::default(),
        }
    }
}

/// Parses one part; the error is one line that names the wrong key.
fn section<T: DeserializeOwned>(key: &'static str, value: &toml::Value) -> Result<T, NodeError> {
    serde_path_to_error::deserialize(value.clone()).map_err(|error| {
        let message = error.inner().message().lines().collect::<Vec<_>>().join(" ");
        // The message names the unknown field itself.
        let is_named = message.starts_with("unknown field");
        let place = error.path().to_string();
        let place = if is_named || place == "." { String::new() } else { format!("{place}: ") };
        NodeError::Config { key, problem: format!("{place}{}", in_plain_words(&message)) }
    })
}

/// Refuses names: packets go to addresses, and no name is looked up.
fn check_ranges(key: &'static str, rules: &[DestinationRule]) -> Result<(), NodeError> {
    let Some(name) = rules.iter().find(|rule| rule.range().is_none()) else { return Ok(()) };
    let problem = format!("`{name}`: expected ranges of addresses");
    Err(NodeError::Config { key, problem })
}

/// Adds the section's name to an error.
fn in_section(name: &'static str) -> impl Fn(NodeError) -> NodeError {
    move |error| NodeError::Section { section: Section::of(name), error: error.into() }
}

/// Neighbours with several addresses, and the addresses after the first.
type Further = Vec<(PublicIdentity, Vec<SocketAddr>)>;

/// The result of one `[[packet]]` of a gateway.
enum Ordered {
    Path(Path),
    Group(Group),
    Deposits(Deposits),
}

impl Ordered {
    /// Returns the port that applications write to, if there is one.
    fn listen(&self) -> Option<SocketAddr> {
        match self {
            Self::Path(Path { source: TrafficSource::Port { listen, .. }, .. }) => Some(*listen),
            Self::Path(_) => None,
            Self::Group(group) => Some(group.listen),
            Self::Deposits(deposits) => Some(deposits.listen),
        }
    }

    /// Parses a section and checks it by itself.
    fn checked(packet: &toml::Value) -> Result<(Self, Further), NodeError> {
        let (ordered, further) = Self::of(packet)?;
        match &ordered {
            Self::Path(path) => path.check()?,
            Self::Group(group) => group.check()?,
            Self::Deposits(deposits) => rendezvous::check_keep(deposits.keep)?,
        }
        Ok((ordered, further))
    }

    fn of(packet: &toml::Value) -> Result<(Self, Further), NodeError> {
        if packet.get("group").is_some() {
            let section: GroupSection = section("packet", packet)?;
            let further = section.group.iter().flat_map(MemberSection::several).collect();
            return Ok((Self::Group(section.resolve()?), further));
        }
        let section: PathSection = section("packet", packet)?;
        let further = section.relays.several().chain(section.far.several()).collect();
        let ordered = match section.service {
            Some(Wanted::Rendezvous) => section.resolve_deposits().map(Self::Deposits),
            _ => section.resolve().map(Self::Path),
        };
        Ok((ordered?, further))
    }
}

impl NodeConfig {
    /// Returns a relay's node from its `[packet]`, with the relay's identity and operators.
    ///
    /// # Errors
    /// [`NodeError::Config`] with the key and the problem.
    pub fn of_relay(
        packet: &toml::Value,
        identity: IdentityKey,
        operators: Vec<OperatorPublicKey>,
    ) -> Result<Self, NodeError> {
        let node = Self::relay_of(packet, identity, operators).map_err(in_section("packet"))?;
        node.services.check().map_err(in_section("packet"))?;
        Ok(node)
    }

    fn relay_of(
        packet: &toml::Value,
        identity: IdentityKey,
        operators: Vec<OperatorPublicKey>,
    ) -> Result<Self, NodeError> {
        let section: RelaySection = section("packet", packet)?;
        check_ranges("next_hops", &section.next_hops)?;
        // Flows can only be coded together on one thread.
        let usual = || {
            if section.coding.across_gateways {
                1
            } else {
                std::thread::available_parallelism().map_or(1, usize::from)
            }
        };
        let bare = Self::bare(section.listen, identity);
        Ok(Self {
            workers: section.workers.unwrap_or_else(usual),
            operators,
            neighbours: section.relays.into_iter().collect(),
            policy: Policy {
                next_hops: section.next_hops,
                allow_loopback: section.allow_loopback,
                ..bare.policy.clone()
            },
            sections: Sections::of("packet"),
            repeats_copies: false,
            leg_seal: section.leg_seal,
            services: RelayServices {
                to_relays: section.usd_per_gb.to_relays,
                to_endpoints: section.usd_per_gb.to_endpoints,
                is_registry: section.registry,
                rendezvous: section.rendezvous.map(|message_store| {
                    rendezvous::message_store(
                        message_store.bytes,
                        message_store.per_sender,
                        message_store.keep,
                    )
                }),
                ..section.coding.resolve()
            },
            ..bare
        })
    }

    /// Returns the delivery policy of SOCKS5 clients' UDP, from a gateway's `[socks5_udp]`.
    ///
    /// # Errors
    /// [`NodeError::Config`] with the key and the problem.
    pub fn delivery(socks5_udp: &toml::Value) -> Result<DeliveryPolicy, NodeError> {
        Self::delivery_of(socks5_udp).map_err(in_section("socks5_udp"))
    }

    fn delivery_of(socks5_udp: &toml::Value) -> Result<DeliveryPolicy, NodeError> {
        let key = "socks5_udp";
        let told: PathSection = section(key, socks5_udp)?;
        let has_port = told.listen.is_some() || told.to.is_some();
        if has_port || told.tproxy.is_some() || told.tun.is_some() {
            let problem = "expected no `listen`, `to`, `tproxy` or `tun`: clients say where to";
            return Err(NodeError::Config { key, problem: problem.to_owned() });
        }
        if told.service == Some(Wanted::Rendezvous) {
            let problem = "expected another service than `rendezvous`: answers are waited for";
            return Err(NodeError::Config { key, problem: problem.to_owned() });
        }
        if told.far.several().is_some() || !told.relays.1.is_empty() {
            let problem = "expected one address of each relay and far gateway here".to_owned();
            return Err(NodeError::Config { key, problem });
        }
        let delivery = told.delivery()?;
        delivery.check()?;
        Ok(delivery)
    }

    /// Returns a gateway's node from its `[[packet]]` and `[packet_endpoint]`, with the gateway's
    /// identity and grant.
    ///
    /// # Errors
    /// [`NodeError::Config`] with the key and the problem.
    pub fn of_gateway(
        packets: &[toml::Value],
        endpoint: Option<&toml::Value>,
        identity: IdentityKey,
        grant: Option<SignedGrant>,
    ) -> Result<Self, NodeError> {
        let endpoint: EndpointSection = match endpoint {
            Some(value) => {
                section("packet_endpoint", value).map_err(in_section("packet_endpoint"))?
            }
            None => EndpointSection::default(),
        };
        check_ranges("destinations", &endpoint.destinations)
            .map_err(in_section("packet_endpoint"))?;
        let (mut paths, mut groups, mut deposits) = (Vec::new(), Vec::new(), Vec::new());
        let (mut further_addresses, mut ports) = (BTreeMap::new(), Vec::new());
        let mut sections = Sections::of("packet_endpoint");
        for (at, packet) in packets.iter().enumerate() {
            let (number, is_only) = (Some(at + 1), packets.len() == 1);
            let section = Section { name: "packet", number, is_only };
            let of_which = |error: NodeError| NodeError::Section { section, error: error.into() };
            let (ordered, further) = Ordered::checked(packet).map_err(of_which)?;
            ports.extend(ordered.listen().map(|listen| (section, listen)));
            further_addresses.extend(further);
            match ordered {
                Ordered::Path(path) => {
                    sections.paths.push(section);
                    paths.push(path);
                }
                Ordered::Group(group) => {
                    sections.groups.push(section);
                    groups.push(group);
                }
                Ordered::Deposits(told) => {
                    sections.deposits.push(section);
                    deposits.push(told);
                }
            }
        }
        check_listeners((Section::of("packet_endpoint"), endpoint.listen), ports)?;
        further_addresses.extend(endpoint.rendezvous.iter().filter_map(Placed::several));
        let relays = endpoint.rendezvous.into_iter().map(|placed| placed.hop).collect();
        let bare = Self::bare(endpoint.listen, identity);
        Ok(Self {
            operators: endpoint.operators,
            neighbours: endpoint.relays.into_iter().collect(),
            policy: Policy {
                destinations: endpoint.destinations,
                allow_loopback: endpoint.allow_loopback,
                ..bare.policy.clone()
            },
            sections,
            grant,
            paths,
            groups,
            further_addresses,
            rendezvous: Rendezvous { deposits, relays },
            repeats_copies: endpoint.repeat_copies,
            leg_seal: endpoint.leg_seal,
            preserve_source: endpoint.preserve_source,
            tunnel: endpoint.tun.map(TunnelEndSection::resolve),
            members: endpoint.members,
            copying: Copying {
                replies: endpoint.copies.map(CopiesSection::resolve),
                uplink: endpoint.uplink,
            },
            ..bare
        })
    }
}

impl MemberSection {
    /// Returns those of its relays and its far gateway that have several addresses.
    fn several(&self) -> impl Iterator<Item = (PublicIdentity, Vec<SocketAddr>)> + '_ {
        self.relays.several().chain(self.far.several())
    }
}

impl GroupSection {
    fn resolve(self) -> Result<Group, NodeError> {
        let wanted = self.service.unwrap_or(Wanted::Caching);
        if !matches!(wanted, Wanted::Caching | Wanted::Forwarding) {
            let problem = "expected `caching` or `forwarding` for a group".to_owned();
            return Err(NodeError::Config { key: "service", problem });
        }
        let carriage = carriage(wanted, self.ways, self.budget)?;
        let member = |member: MemberSection| {
            let MemberSection { far, to, relays: ViaSection(relays, _) } = member;
            Ok(GroupMember { far: far.placed()?, to, relays })
        };
        let members = self.group.into_iter().map(member).collect::<Result<_, NodeError>>()?;
        Ok(Group { listen: self.listen, carriage, members })
    }
}

/// Returns the carriage that `service`, `ways` and `budget` order.
fn carriage(
    wanted: Wanted,
    ways: Option<Ways>,
    budget: Option<Budget>,
) -> Result<Carriage, NodeError> {
    let service = match wanted {
        // For `auto`, until measurements tell more.
        Wanted::Auto | Wanted::Direct | Wanted::Rendezvous => Service::Direct,
        Wanted::Forwarding => Service::Forwarding,
        Wanted::Caching => Service::Caching,
        Wanted::Coding => Service::Coding,
    };
    let paths = match ways {
        Some(_) if service != Service::Forwarding => {
            let problem = "expected only with `service = \"forwarding\"`".to_owned();
            return Err(NodeError::Config { key: "ways", problem });
        }
        Some(Ways::Relays) => Paths::Overlay,
        Some(Ways::Both) | None => Paths::Both,
    };
    let told = budget.map(|Budget(budget)| budget_ms(budget)).transpose()?;
    if told == Some(0) {
        let problem = "expected at least 1 ms".to_owned();
        return Err(NodeError::Config { key: "budget", problem });
    }
    Ok(Carriage { service, paths, budget_ms: told.unwrap_or(0), in_order: false, fragment: false })
}

#[cfg(test)]
mod tests;
