//! The parts of a relay's and a gateway's TOML that tell a node what to do.

mod path;

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

use super::{
    ANY_PORT, Assumed, Chosen, Consignee, Copying, Course, Deposits, Entrance, Far, Group,
    GroupMember, LegSeal, NodeConfig, Path, RelayServices, Rendezvous, ServiceCosts, Taken, Tunnel,
    Via, bearable_loss, budget_ms, rendezvous,
};
use crate::NodeError;

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
    rendezvous: Option<DepotSection>,
    #[serde(default)]
    leg_seal: LegSeal,
}

/// `rendezvous` of a relay's `[packet]`: what it keeps for receivers that are not online.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DepotSection {
    bytes: Option<Bytes>,
    per_sender: Option<Bytes>,
    #[serde(with = "as_text::option")]
    keep: Option<Duration>,
}

/// `usd_per_gb` of a relay's `[packet]`: what its cloud charges for what leaves it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PricesSection {
    to_relays: PricePerGb,
    to_endpoints: PricePerGb,
}

/// `coding` of a relay's `[packet]`: repair packets and the packets that they are for; of a `[[packet]]`: what relays are told of that.
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

    /// What a `[[packet]]` counts on whose relays code like this, and charge `costs` if that is told.
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
    bearable_loss: Option<Ratio>,
    costs: Option<ServiceCosts>,
    coding: Option<CodingSection>,
    copies: Option<CopiesSection>,
    keep: Option<Keep>,
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

/// One of a `group`.
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

/// `far` of a `[[packet]]`: an address and an identity, or the id of a member; for a rendezvous the identity will do.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "toml::Value")]
enum FarSection {
    Placed(Far),
    Named(PublicIdentity),
}

/// An identity without an address.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    identity: PublicIdentity,
}

impl TryFrom<toml::Value> for FarSection {
    type Error = toml::de::Error;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        // A table with any other key is meant to be a hop, whose errors tell of both.
        let is_named =
            value.as_table().is_some_and(|table| table.keys().all(|key| key == "identity"));
        match value {
            toml::Value::String(name) => Ok(Self::Placed(Far::Member(name))),
            table if is_named => Ok(Self::Named(table.try_into::<Named>()?.identity)),
            other => Ok(Self::Placed(Far::At(other.try_into()?))),
        }
    }
}

impl FarSection {
    fn placed(self) -> Result<Far, NodeError> {
        match self {
            Self::Placed(far) => Ok(far),
            Self::Named(_) => {
                let problem = "missing field `address`; only a rendezvous does without".to_owned();
                Err(NodeError::Config { key: "far", problem })
            }
        }
    }

    fn consignee(self) -> Consignee {
        match self {
            Self::Placed(Far::Member(name)) => match name.parse() {
                Ok(identity) => Consignee::Identity(identity),
                Err(_) => Consignee::Member(name),
            },
            Self::Placed(Far::At(hop)) => Consignee::Identity(hop.identity),
            Self::Named(identity) => Consignee::Identity(identity),
        }
    }
}

/// `relays` of a `[[packet]]`: a list, or `"nearest"`.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "toml::Value")]
struct ViaSection(Via);

impl Default for ViaSection {
    fn default() -> Self {
        Self(Via::Relays(Vec::new()))
    }
}

impl TryFrom<toml::Value> for ViaSection {
    type Error = toml::de::Error;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        match value.as_str() {
            Some("nearest") => Ok(Self(Via::Nearest)),
            Some(_) => Err(serde::de::Error::custom("expected a list of relays, or `nearest`")),
            None => Ok(Self(Via::Relays(value.try_into()?))),
        }
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

/// `keep` of a `[[packet]]`: how long its packets are worth keeping.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Keep(#[serde(with = "as_text")] Duration);

/// `budget` of a `[[packet]]`.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Budget(#[serde(with = "as_text")] Duration);

/// `ways` of a `[[packet]]`: over which paths a forwarded flow goes.
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
    keep_sources: Vec<DestinationRule>,
    tun: Option<TunnelEndSection>,
    allow_loopback: bool,
    repeat_copies: bool,
    copies: Option<CopiesSection>,
    uplink: Option<Bandwidth>,
    members: Option<PathBuf>,
    rendezvous: Vec<Hop>,
    leg_seal: LegSeal,
}

impl Default for EndpointSection {
    fn default() -> Self {
        Self {
            listen: ANY_PORT,
            operators: Vec::new(),
            relays: Vec::new(),
            destinations: Vec::new(),
            keep_sources: Vec::new(),
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

/// Reads one part; the error is one line, with the key in it that is wrong.
fn section<T: DeserializeOwned>(key: &'static str, value: &toml::Value) -> Result<T, NodeError> {
    serde_path_to_error::deserialize(value.clone()).map_err(|error| {
        let message = error.inner().message().lines().collect::<Vec<_>>().join(" ");
        // What is not known is named in the message.
        let is_named = message.starts_with("unknown field");
        let place = error.path().to_string();
        let place = if is_named || place == "." { String::new() } else { format!("{place}: ") };
        NodeError::Config { key, problem: format!("{place}{}", in_plain_words(&message)) }
    })
}

/// What one `[[packet]]` of a gateway orders.
enum Ordered {
    Path(Path),
    Group(Group),
    Deposits(Deposits),
}

impl Ordered {
    /// What a section orders, when it makes sense by itself.
    fn checked(packet: &toml::Value) -> Result<Self, NodeError> {
        let ordered = Self::of(packet)?;
        match &ordered {
            Self::Path(path) => path.check()?,
            Self::Group(group) => group.check()?,
            Self::Deposits(_) => {}
        }
        Ok(ordered)
    }

    fn of(packet: &toml::Value) -> Result<Self, NodeError> {
        if packet.get("group").is_some() {
            return section("packet", packet).and_then(GroupSection::resolve).map(Self::Group);
        }
        let section: PathSection = section("packet", packet)?;
        match section.service {
            Some(Wanted::Rendezvous) => section.resolve_deposits().map(Self::Deposits),
            _ => section.resolve().map(Self::Path),
        }
    }
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
        // Flows that are to help each other must be on one thread.
        let usual = || match section.coding.across_gateways {
            true => 1,
            false => std::thread::available_parallelism().map_or(1, usize::from),
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
            repeats_copies: false,
            leg_seal: section.leg_seal,
            services: RelayServices {
                to_relays: section.usd_per_gb.to_relays,
                to_endpoints: section.usd_per_gb.to_endpoints,
                is_registry: section.registry,
                rendezvous: section
                    .rendezvous
                    .map(|depot| rendezvous::depot(depot.bytes, depot.per_sender, depot.keep)),
                ..section.coding.resolve()
            },
            ..bare
        })
    }

    /// The course of what SOCKS5 clients send by UDP, from a gateway's `[socks5_udp]`.
    ///
    /// # Errors
    /// [`NodeError::Config`] with what is wrong.
    pub fn course(socks5_udp: &toml::Value) -> Result<Course, NodeError> {
        let key = "socks5_udp";
        let told: PathSection = section(key, socks5_udp)?;
        let has_entrance = told.listen.is_some() || told.to.is_some();
        if has_entrance || told.tproxy.is_some() || told.tun.is_some() {
            let problem = "expected no `listen`, `to`, `tproxy` or `tun`: clients say where to";
            return Err(NodeError::Config { key, problem: problem.to_owned() });
        }
        if told.service == Some(Wanted::Rendezvous) {
            let problem = "expected another service than `rendezvous`: answers are waited for";
            return Err(NodeError::Config { key, problem: problem.to_owned() });
        }
        let course = told.course()?;
        course.check()?;
        Ok(course)
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
        let (mut paths, mut groups, mut deposits) = (Vec::new(), Vec::new(), Vec::new());
        for (at, packet) in packets.iter().enumerate() {
            let of_which = |error: NodeError| match packets.len() {
                1 => error,
                _ => NodeError::Packet { number: at + 1, error: error.into() },
            };
            match Ordered::checked(packet).map_err(of_which)? {
                Ordered::Path(path) => paths.push(path),
                Ordered::Group(group) => groups.push(group),
                Ordered::Deposits(told) => deposits.push(told),
            }
        }
        let bare = Self::bare(endpoint.listen, identity);
        Ok(Self {
            operators: endpoint.operators,
            neighbours: endpoint.relays.into_iter().collect(),
            policy: Policy {
                destinations: endpoint.destinations,
                allow_loopback: endpoint.allow_loopback,
                ..bare.policy.clone()
            },
            grant,
            paths,
            groups,
            rendezvous: Rendezvous { deposits, relays: endpoint.rendezvous },
            repeats_copies: endpoint.repeat_copies,
            leg_seal: endpoint.leg_seal,
            keep_sources: endpoint.keep_sources,
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

impl GroupSection {
    fn resolve(self) -> Result<Group, NodeError> {
        let wanted = self.service.unwrap_or(Wanted::Caching);
        if !matches!(wanted, Wanted::Caching | Wanted::Forwarding) {
            let problem = "expected `caching` or `forwarding` for a group".to_owned();
            return Err(NodeError::Config { key: "service", problem });
        }
        let carriage = carriage(wanted, self.ways, self.budget)?;
        let member = |member: MemberSection| {
            let MemberSection { far, to, relays: ViaSection(relays) } = member;
            Ok(GroupMember { far: far.placed()?, to, relays })
        };
        let members = self.group.into_iter().map(member).collect::<Result<_, NodeError>>()?;
        Ok(Group { listen: self.listen, carriage, members })
    }
}

/// How packets are carried, as `service`, `ways` and `budget` tell.
fn carriage(
    wanted: Wanted,
    ways: Option<Ways>,
    budget: Option<Budget>,
) -> Result<Carriage, NodeError> {
    let service = match wanted {
        // Until it is known better.
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
    Ok(Carriage { service, paths, budget_ms: told.unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_plan::packets::BlockCoding;

    /// A relay or far gateway, each number another.
    fn hop(number: u8) -> String {
        let identity = IdentityKey::from_entropy([number; 32]).public();
        format!("{{ address = '192.0.2.{number}:7001', identity = '{identity}' }}")
    }

    /// What the last `[[packet]]` with these keys beside its port counts on, or why it, or one before it, is refused.
    fn told(packets: &[String]) -> Result<Assumed, String> {
        let packet = |keys: &String| {
            let text = format!("listen = '127.0.0.1:1'\nto = '10.0.0.7:1'\n{keys}");
            toml::Value::Table(text.parse().unwrap())
        };
        let packets: Vec<_> = packets.iter().map(packet).collect();
        let identity = IdentityKey::from_entropy([2; 32]);
        let node = NodeConfig::of_gateway(&packets, None, identity, None);
        node.map(|node| node.paths.last().unwrap().course.assumed)
            .map_err(|error| error.to_string())
    }

    /// The same of a `[[packet]]` with one relay and these further keys.
    fn assumed(keys: &str) -> Result<Assumed, String> {
        told(&[format!("far = {}\nrelays = [{}]\n{keys}", hop(4), hop(3))])
    }

    #[test]
    fn what_can_be_no_path_is_refused_with_the_number_of_its_section() {
        let section =
            |relays: &[String]| format!("far = {}\nrelays = [{}]", hop(4), relays.join(", "));
        assert!(told(&[section(&[hop(3), hop(5)])]).is_ok());
        let twice = told(&[section(&[hop(3)]), section(&[hop(3), hop(3)])]).unwrap_err();
        assert!(twice.starts_with("the 2. [[packet]]: relays: route"), "{twice}");
        assert!(twice.contains("expected no relay twice"), "{twice}");
        let is_far = told(&[section(&[hop(4)])]).unwrap_err();
        assert!(is_far.contains("expected no relay twice"), "{is_far}");
        let nowhere = told(&[section(&[hop(3).replace(":7001", ":0")])]).unwrap_err();
        assert!(nowhere.contains("expected a port from 1 to 65535"), "{nowhere}");
        let many: Vec<String> = (10..18).map(hop).collect();
        let many = told(&[section(&many)]).unwrap_err();
        assert!(many.contains("expected 1 to 8 relays"), "{many}");
        let without = told(&[section(&[hop(3)]), format!("far = {}\nservice = 'caching'", hop(4))]);
        let without = without.unwrap_err();
        assert!(without.starts_with("the 2. [[packet]]: relays: missing"), "{without}");
    }

    #[test]
    fn a_far_gateway_that_is_miswritten_is_told_what_it_may_have() {
        let identity = IdentityKey::from_entropy([4; 32]).public();
        let refused = |far: &str| told(&[format!("far = {far}")]).unwrap_err();
        let miswritten =
            refused(&format!("{{ adress = '192.0.2.4:7001', identity = '{identity}' }}"));
        assert!(
            miswritten.contains("unknown field `adress`, expected `address` or"),
            "{miswritten}"
        );
        let nowhere = refused(&format!("{{ identity = '{identity}' }}"));
        assert!(nowhere.contains("missing field `address`"), "{nowhere}");
        let nobody = refused("{ address = '192.0.2.4:7001' }");
        assert!(nobody.contains("missing field `identity`"), "{nobody}");
    }

    #[test]
    fn a_course_of_socks5_clients_has_no_entrance_of_its_own() {
        let course = |keys: &str| {
            let text = format!("far = {}\nrelays = [{}]\n{keys}", hop(4), hop(3));
            let told = NodeConfig::course(&toml::Value::Table(text.parse().unwrap()));
            told.map_err(|error| error.to_string())
        };
        let told = course("service = 'caching'\nbudget = '150 ms'").unwrap();
        assert_eq!(told.carriage.service, Service::Caching);
        assert_eq!(told.carriage.budget_ms, 150);
        for (keys, expected) in [
            ("to = '10.0.0.7:1'", "socks5_udp: expected no `listen`, `to`"),
            ("service = 'rendezvous'", "socks5_udp: expected another service"),
            ("keep = '1 h'", "keep: expected only with"),
            ("foo = 1", "socks5_udp: unknown field `foo`"),
        ] {
            let line = course(keys).unwrap_err();
            assert!(line.starts_with(expected), "{line}");
        }
    }

    #[test]
    fn two_sections_cannot_have_one_device() {
        let section = |to: &str| {
            let text =
                format!("far = {}\ntun = {{ name = 'tw0', destinations = ['{to}:*'] }}", hop(4));
            toml::Value::Table(text.parse().unwrap())
        };
        let packets = [section("10.1.0.0/16"), section("10.2.0.0/16")];
        let key = IdentityKey::from_entropy([2; 32]);
        let node = NodeConfig::of_gateway(&packets, None, key, None).unwrap();
        let refused = node.check_devices().unwrap_err().to_string();
        assert_eq!(refused, "tun.name: `tw0` is there twice; expected a device for each section");
    }

    #[test]
    fn a_device_for_everything_is_refused_and_half_of_it_is_not() {
        let check = |destinations: &str| {
            let text = format!(
                "far = {}\ntun = {{ name = 'tw0', destinations = [{destinations}] }}",
                hop(4)
            );
            let packet = toml::Value::Table(text.parse().unwrap());
            let key = IdentityKey::from_entropy([2; 32]);
            let node = NodeConfig::of_gateway(&[packet], None, key, None);
            node.map(drop).map_err(|error| error.to_string())
        };
        let refused = check("'0.0.0.0/0:*'").unwrap_err();
        assert!(refused.contains("all that this host sends"), "{refused}");
        assert_eq!(check("'0.0.0.0/1:*', '128.0.0.0/1:*'"), Ok(()));
    }

    #[test]
    fn what_relays_charge_and_how_they_code_is_told_to_auto_alone() {
        let auto = "service = 'auto'\nbudget = '150 ms'\n";
        assert_eq!(assumed(auto), Ok(Assumed::default()));
        let coding = "coding = { cross_stream = [1, 4], in_stream = [0, 1], within = '50 ms' }\n";
        let told = assumed(&format!("{auto}{coding}")).unwrap();
        let within = Duration::from_millis(50);
        let coded = BlockCoding { cross_stream: [1, 4], in_stream: [0, 1], within };
        assert_eq!(told, Assumed { costs: None, coding: coded });
        let costs = "costs = { coding = 0.03, caching = 0.01, forwarding = 0.2 }\n";
        let told = assumed(&format!("{auto}{coding}{costs}")).unwrap();
        let told = (told.costs.map(|told| (told.coding.as_usd(), told.loss)), told.coding);
        assert_eq!(told, (Some((0.03, Ratio::ZERO)), coded));
        let at_loss = costs.replace('}', ", loss = '2 %' }");
        let told = assumed(&format!("{auto}{at_loss}")).unwrap();
        assert_eq!(told.costs.map(|told| told.loss.as_f64()), Some(0.02));
        for (keys, expected) in [
            (format!("service = 'caching'\n{costs}"), "costs: expected only with"),
            (format!("service = 'coding'\n{coding}"), "coding: expected only with"),
            (format!("{auto}coding = {{ across_gateways = true }}"), "only at relays"),
            (format!("{auto}coding = {{ within = '0 s' }}"), "expected `within` above 0"),
            (format!("{auto}costs = {{ coding = 1 }}"), "missing field `caching`"),
        ] {
            let refused = assumed(&keys).unwrap_err();
            assert!(refused.contains(expected), "{keys}: {refused}");
        }
    }
}
