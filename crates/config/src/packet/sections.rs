//! The sections of the packet plane as files give them; `service` says which keys one has.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use tradewind_grant::{DestinationRule, OperatorPublicKey, PublicIdentity};
use tradewind_units::time::as_text;
use tradewind_units::{Bandwidth, Bytes, Duration, PricePerGb, Ratio, address};

use super::neighbours::{Placed, RemoteSection, ViaSection};
use super::{ANY_PORT, Intercepted, LegSeal, ServiceCosts, Tunnel};

/// The packet plane of a relay.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RelaySection {
    /// The UDP address for packets.
    #[serde(deserialize_with = "address::one")]
    #[schemars(with = "tradewind_units::address::Written")]
    pub listen: SocketAddr,
    /// Threads, from 1 to 1024; when absent one for each core, or one alone with
    /// `coding.across_gateways`.
    #[schemars(range(min = 1, max = 1024))]
    pub workers: Option<usize>,
    /// Relays before it on paths; they need no grant here.
    #[serde(default)]
    pub relays: Vec<PublicIdentity>,
    /// Relays and remote gateways that it may send to; none by default.
    #[serde(default)]
    pub next_hops: Vec<DestinationRule>,
    /// True if `next_hops` may cover loopback addresses: for tests and labs.
    #[serde(default)]
    pub allow_loopback: bool,
    /// Its coding.
    #[serde(default)]
    pub coding: RelayCodingSection,
    /// The cloud's prices for traffic that leaves it.
    #[serde(default)]
    pub usd_per_gb: PricesSection,
    /// True if it keeps the registry of the endpoints' addresses.
    #[serde(default)]
    pub registry: bool,
    /// The storage for receivers that are offline; none when absent.
    pub rendezvous: Option<MessageStoreSection>,
    /// The part that it seals of packets that it passes on.
    #[serde(default)]
    pub leg_seal: LegSeal,
}

/// The storage for receivers that are offline.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MessageStoreSection {
    /// Most bytes of all senders; 256 MB when absent.
    pub bytes: Option<Bytes>,
    /// Most bytes of one sender, from 100 kB to `bytes`; 32 MB when absent.
    pub per_sender: Option<Bytes>,
    /// Longest storage of a packet, from 1 s to 24 h; 1 h when absent.
    #[serde(with = "as_text::option")]
    #[schemars(with = "Option<tradewind_units::time::Written>")]
    pub keep: Option<Duration>,
}

/// The cloud's prices for traffic that leaves a relay.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PricesSection {
    /// Dollars for each GB to other relays.
    pub to_relays: PricePerGb,
    /// Dollars for each GB to endpoints.
    pub to_endpoints: PricePerGb,
}

/// A relay's coding: the numbers of repair packets and of the packets that they protect.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RelayCodingSection {
    /// Repair packets, 1 to 8, and packets, 1 to 32, of a block of several flows; `[2, 10]` when
    /// absent.
    pub cross_stream: Option<[u8; 2]>,
    /// The same of a block of one flow; `[1, 5]` when absent, off with 0 repair packets.
    pub in_stream: Option<[u8; 2]>,
    /// Longest time that a block of several flows stays open, at most 10 s; 30 ms when absent.
    #[serde(with = "as_text::option")]
    #[schemars(with = "Option<tradewind_units::time::Written>")]
    pub within: Option<Duration>,
    /// True if packets of several gateways are coded together, which takes one worker.
    pub across_gateways: bool,
}

/// The coding of relays as a flow assumes it, until they report it.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CodingSection {
    /// Repair packets, 1 to 8, and packets, 1 to 32, of a block of several flows; `[2, 10]` when
    /// absent.
    pub cross_stream: Option<[u8; 2]>,
    /// The same of a block of one flow; `[1, 5]` when absent, off with 0 repair packets.
    pub in_stream: Option<[u8; 2]>,
    /// Longest time that a block of several flows stays open, at most 10 s; 30 ms when absent.
    #[serde(with = "as_text::option")]
    #[schemars(with = "Option<tradewind_units::time::Written>")]
    pub within: Option<Duration>,
}

/// The device to which whole IP packets are delivered.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TunnelEndSection {
    /// The device's name, which no other device has.
    pub name: String,
    /// Ranges of addresses, with all ports: the sources of packets that are delivered there.
    pub sources: Vec<DestinationRule>,
    /// Most bytes of a packet, from 576 to 65280.
    #[schemars(range(min = 576, max = 65280))]
    pub mtu: Option<u16>,
}

/// `[[packet]]` of a gateway: what `service`, or `group`, makes of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacketSection {
    /// Datagrams to one remote endpoint.
    Path(PathSection),
    /// Datagrams of one port to several remote endpoints.
    Group(GroupSection),
    /// Datagrams that wait at a relay for their receiver: `service = "rendezvous"`.
    Rendezvous(RendezvousSection),
}

/// Datagrams to one remote endpoint.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathSection {
    /// Their source.
    #[serde(rename = "<source>")]
    pub source: SourceSection,
    /// Their delivery to the remote endpoint.
    #[serde(rename = "<delivery>")]
    pub delivery: DeliverySection,
}

/// The source of a path's datagrams: `listen` and `to`, or `tproxy`, or `tun`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceSection {
    /// A local port.
    Port(PortSection),
    /// Intercepted datagrams.
    Tproxy(Intercepted),
    /// Whole IP packets that are routed into a device.
    Tun(Tunnel),
}

/// A local port whose datagrams all go to one destination.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortSection {
    /// The address that applications write to.
    #[serde(deserialize_with = "address::one")]
    #[schemars(with = "tradewind_units::address::Written")]
    pub listen: SocketAddr,
    /// The address to which the remote endpoint delivers.
    #[serde(deserialize_with = "address::one")]
    #[schemars(with = "tradewind_units::address::Written")]
    pub to: SocketAddr,
}

/// The delivery of datagrams to a remote endpoint, by `service`: `direct` when absent without
/// relays, else `forwarding`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeliverySection {
    /// Over the Internet alone.
    Direct(DirectSection),
    /// Over relays, or over both paths.
    Forwarding(ForwardingSection),
    /// Over the Internet; the egress relay keeps copies.
    Caching(RecoverySection),
    /// Over the Internet; the relays keep repair packets.
    Coding(RecoverySection),
    /// The cheapest of these that keeps the budget, chosen while the flow runs.
    Auto(AutoSection),
}

/// A `[[packet]]` with `service = "direct"`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DirectSection {
    /// The remote endpoint.
    pub remote: RemoteSection,
    /// Relays, of which it makes no use.
    #[serde(default)]
    pub relays: ViaSection,
    /// The latency budget, from 1 ms to 65 s.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<tradewind_units::time::Written>")]
    pub budget: Option<Duration>,
    /// True if datagrams, and replies, that are too long for every path are cut into pieces.
    #[serde(default)]
    pub fragment: bool,
}

/// A `[[packet]]` with `service = "forwarding"`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForwardingSection {
    /// The remote endpoint.
    pub remote: RemoteSection,
    /// The relays before it.
    #[serde(default)]
    pub relays: ViaSection,
    /// The paths; both when absent.
    pub paths: Option<ForwardingPaths>,
    /// The latency budget, from 1 ms to 65 s.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<tradewind_units::time::Written>")]
    pub budget: Option<Duration>,
    /// The packets that are copied to relays; all when absent.
    pub copies: Option<CopiesSection>,
    /// True if packets, and those of replies, are put in order where they leave, within the budget.
    #[serde(default)]
    pub in_order: bool,
    /// True if datagrams, and replies, that are too long for every path are cut into pieces.
    #[serde(default)]
    pub fragment: bool,
}

/// A `[[packet]]` with `service = "caching"` or `"coding"`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverySection {
    /// The remote endpoint.
    pub remote: RemoteSection,
    /// The relays before it: one or two.
    #[serde(default)]
    pub relays: ViaSection,
    /// The latency budget, from 1 ms to 65 s; when absent one round trip and 5 ms more than the
    /// path takes.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<tradewind_units::time::Written>")]
    pub budget: Option<Duration>,
    /// The packets that are copied to relays; all when absent.
    pub copies: Option<CopiesSection>,
    /// True if packets, and those of replies, are put in order where they leave, within the budget.
    #[serde(default)]
    pub in_order: bool,
    /// True if datagrams, and replies, that are too long for every path are cut into pieces.
    #[serde(default)]
    pub fragment: bool,
}

/// A `[[packet]]` with `service = "auto"`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AutoSection {
    /// The remote endpoint.
    pub remote: RemoteSection,
    /// The relays before it: one or two.
    #[serde(default)]
    pub relays: ViaSection,
    /// The latency budget, from 1 ms to 65 s, by which the service is chosen; required.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<tradewind_units::time::Written>")]
    pub budget: Option<Duration>,
    /// Share of packets that may be late or lost; 0.1 % when absent.
    pub max_loss: Option<Ratio>,
    /// The cost of each service; in proportion to the bytes that leave relays when absent.
    pub costs: Option<ServiceCosts>,
    /// The coding of relays, until they report it.
    pub coding: Option<CodingSection>,
    /// The packets that are copied to relays; all when absent.
    pub copies: Option<CopiesSection>,
    /// True if packets, and those of replies, are put in order where they leave, within the budget.
    #[serde(default)]
    pub in_order: bool,
    /// True if datagrams, and replies, that are too long for every path are cut into pieces.
    #[serde(default)]
    pub fragment: bool,
}

/// A `[[packet]]` with `service = "rendezvous"`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RendezvousSection {
    /// The address that applications write to.
    #[serde(deserialize_with = "address::one")]
    #[schemars(with = "tradewind_units::address::Written")]
    pub listen: SocketAddr,
    /// The address to which the receiver delivers.
    #[serde(deserialize_with = "address::one")]
    #[schemars(with = "tradewind_units::address::Written")]
    pub to: SocketAddr,
    /// The receiver; its identity suffices.
    #[schemars(with = "super::schema::Receiver")]
    pub remote: RemoteSection,
    /// The relay where packets wait: exactly one.
    #[serde(default)]
    pub relays: ViaSection,
    /// The time for which packets are worth storing, from 1 s to 24 h; 10 min when absent.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<tradewind_units::time::Written>")]
    pub keep: Option<Duration>,
}

/// `[[packet]]` of a gateway with a `group`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSection {
    /// The address that applications write to.
    #[serde(deserialize_with = "address::one")]
    #[schemars(with = "tradewind_units::address::Written")]
    pub listen: SocketAddr,
    /// The receivers.
    pub group: Vec<MemberSection>,
    /// The service; caching when absent.
    #[serde(default)]
    pub service: GroupService,
    /// The paths, with `service = "forwarding"`.
    pub paths: Option<ForwardingPaths>,
    /// The latency budget, from 1 ms to 65 s.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<tradewind_units::time::Written>")]
    pub budget: Option<Duration>,
}

/// The service of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GroupService {
    /// Over the Internet to each member; lost packets come from the relays.
    #[default]
    Caching,
    /// Over the relays, or over both paths.
    Forwarding,
}

/// One member of a `group`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberSection {
    /// The remote endpoint.
    pub remote: RemoteSection,
    /// The address to which it delivers.
    #[serde(deserialize_with = "address::one")]
    #[schemars(with = "tradewind_units::address::Written")]
    pub to: SocketAddr,
    /// The relays before it: one or two, of which the first is the same for all members.
    #[serde(default)]
    pub relays: ViaSection,
}

/// Rules that choose packets to copy to relays.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CopiesSection {
    /// True for key frames of video over RTP.
    pub rtp_key_frames: bool,
    /// True for TCP's SYN, with `tun`.
    pub tcp_syn: bool,
    /// Differentiated services code points, 0 to 63.
    #[schemars(inner(range(max = 63)))]
    pub dscp: Vec<u8>,
    /// Destination ports.
    pub ports: Vec<u16>,
    /// The last packet before a silence of this length.
    #[serde(with = "as_text::option")]
    #[schemars(with = "Option<tradewind_units::time::Written>")]
    pub last_after: Option<Duration>,
}

/// The paths of a forwarded flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardingPaths {
    /// The relays alone.
    Relays,
    /// The relays and the Internet.
    Both,
}

/// A gateway's settings as an end point of paths for packets.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointSection {
    /// The UDP address for neighbours; any free port when absent.
    #[serde(deserialize_with = "address::one")]
    #[schemars(with = "tradewind_units::address::Written")]
    pub listen: SocketAddr,
    /// The operators whose grants it trusts.
    pub operators: Vec<OperatorPublicKey>,
    /// Relays before it on paths; they need no grant here.
    pub relays: Vec<PublicIdentity>,
    /// Destinations that it delivers to; none by default.
    pub destinations: Vec<DestinationRule>,
    /// Sources whose datagrams are delivered under their own address and port.
    pub preserve_source: Vec<DestinationRule>,
    /// The device to which it delivers whole IP packets.
    pub tun: Option<TunnelEndSection>,
    /// True if these rules may cover loopback addresses: for tests and labs.
    pub allow_loopback: bool,
    /// True if copies that are lost on the path to their first relay are sent again.
    pub repeat_copies: bool,
    /// The packets of replies that are copied to relays; all when absent.
    pub copies: Option<CopiesSection>,
    /// The rate of the uplink; copies take what other traffic leaves. Unlimited when absent.
    pub uplink: Option<Bandwidth>,
    /// The file that lists relays and endpoints; it is read again when it changes.
    pub members: Option<PathBuf>,
    /// Relays where packets for this gateway may wait.
    pub rendezvous: Vec<Placed>,
    /// The part of packets on overlay paths that it seals.
    pub leg_seal: LegSeal,
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
