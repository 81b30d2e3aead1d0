//! A gateway's packet plane.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use tradewind_grant::{DestinationRule, OperatorPublicKey, PublicIdentity};

use super::clashes::{check_devices, check_listeners};
use super::sections::{DeliverySection, PacketSection};
use super::{
    Copying, DeliveryPolicy, EndpointSection, Group, LegSeal, MemberReferences, Path, Placed,
    Rendezvous, SectionKeys, TrafficSource, Tunnel,
};
use crate::ConfigError;
use crate::checks::check_ranges;

/// A gateway's packet plane, from its `[[packet]]`, `[packet_endpoint]` and `[socks5_udp]`.
#[derive(Debug, Clone)]
pub struct GatewayPackets {
    /// The UDP address for neighbours.
    pub listen: SocketAddr,
    /// The operators whose grants it trusts.
    pub operators: Vec<OperatorPublicKey>,
    /// Relays before it on paths.
    pub relays: Vec<PublicIdentity>,
    /// Destinations that it delivers to.
    pub destinations: Vec<DestinationRule>,
    /// True if these rules may cover loopback addresses.
    pub allow_loopback: bool,
    /// Its paths.
    pub paths: Vec<Path>,
    /// Its groups.
    pub groups: Vec<Group>,
    /// Its deposits at relays, and the relays where packets wait for it.
    pub rendezvous: Rendezvous,
    /// The delivery of the datagrams of SOCKS5 clients; none when absent.
    pub socks5_udp: Option<DeliveryPolicy>,
    /// Further addresses of relays and remote endpoints, by identity.
    pub further_addresses: BTreeMap<PublicIdentity, Vec<SocketAddr>>,
    /// True if copies that are lost on the path to their first relay are sent again.
    pub repeats_copies: bool,
    /// Sources whose datagrams are delivered under their own address and port.
    pub preserve_source: Vec<DestinationRule>,
    /// The device to which it delivers whole IP packets.
    pub tunnel: Option<Tunnel>,
    /// The file that lists relays and endpoints.
    pub members: Option<PathBuf>,
    /// The copying of packets to relays.
    pub copying: Copying,
    /// The part of packets on overlay paths that it seals.
    pub leg_seal: LegSeal,
    /// The sections of its paths, groups and deposits.
    pub sections: SectionKeys,
}

/// The key of a gateway's settings as an end point.
const ENDPOINT: &str = "packet_endpoint";
/// The key of the delivery of SOCKS5 clients' datagrams.
const SOCKS5_UDP: &str = "socks5_udp";

impl GatewayPackets {
    /// Returns the packet plane of these sections, checked.
    pub(crate) fn of(
        packets: &[PacketSection],
        endpoint: Option<&EndpointSection>,
        socks5_udp: Option<&DeliverySection>,
    ) -> Result<Self, ConfigError> {
        let endpoint = endpoint.cloned().unwrap_or_default();
        let (mut ports, mut devices) = (Vec::new(), Vec::new());
        let (mut paths, mut groups) = (Vec::new(), Vec::new());
        let (mut rendezvous, mut sections) = (Rendezvous::default(), SectionKeys::default());
        let mut further_addresses = BTreeMap::new();
        for (index, packet) in packets.iter().enumerate() {
            let key = format!("packet[{index}]");
            further_addresses.extend(packet.further());
            let listen = match packet.clone() {
                PacketSection::Path(section) => {
                    let path = section.resolve().map_err(|error| error.within(&key))?;
                    if let TrafficSource::Tunnel(tunnel) = &path.source {
                        devices.push((format!("{key}.tun"), tunnel.clone()));
                    }
                    let listen = match path.source {
                        TrafficSource::Port { listen, .. } => Some(listen),
                        TrafficSource::Intercepted(_) | TrafficSource::Tunnel(_) => None,
                    };
                    sections.paths.push(key.clone());
                    paths.push(path);
                    listen
                }
                PacketSection::Group(section) => {
                    let group = section.resolve().map_err(|error| error.within(&key))?;
                    sections.groups.push(key.clone());
                    groups.push(group);
                    groups.last().map(|group| group.listen)
                }
                PacketSection::Rendezvous(section) => {
                    let deposits = section.resolve().map_err(|error| error.within(&key))?;
                    sections.deposits.push(key.clone());
                    rendezvous.deposits.push(deposits);
                    rendezvous.deposits.last().map(|deposits| deposits.listen)
                }
            };
            ports.extend(listen.map(|listen| (format!("{key}.listen"), listen)));
        }
        check_listeners((format!("{ENDPOINT}.listen"), endpoint.listen), ports)?;
        further_addresses.extend(endpoint.rendezvous.iter().filter_map(Placed::several));
        rendezvous.relays = endpoint.rendezvous.iter().map(|placed| placed.hop).collect();
        let gateway = Self {
            paths,
            groups,
            rendezvous,
            further_addresses,
            sections,
            socks5_udp: socks5_udp.map(delivery_of_socks5).transpose()?,
            ..Self::bare(endpoint)
        };
        gateway.check()?;
        let own = gateway.tunnel.iter().map(|tunnel| (format!("{ENDPOINT}.tun"), tunnel));
        check_devices(devices.iter().map(|(key, tunnel)| (key.clone(), tunnel)).chain(own))?;
        Ok(gateway)
    }

    /// Returns the settings of `[packet_endpoint]` alone.
    fn bare(endpoint: EndpointSection) -> Self {
        Self {
            listen: endpoint.listen,
            operators: endpoint.operators,
            relays: endpoint.relays,
            destinations: endpoint.destinations,
            allow_loopback: endpoint.allow_loopback,
            paths: Vec::new(),
            groups: Vec::new(),
            rendezvous: Rendezvous::default(),
            socks5_udp: None,
            further_addresses: BTreeMap::new(),
            repeats_copies: endpoint.repeat_copies,
            preserve_source: endpoint.preserve_source,
            tunnel: endpoint.tun.map(|tun| tun.resolve()),
            members: endpoint.members,
            copying: Copying {
                replies: endpoint.copies.map(|copies| copies.resolve()),
                uplink: endpoint.uplink,
            },
            leg_seal: endpoint.leg_seal,
            sections: SectionKeys::default(),
        }
    }

    /// Checks what is of no section alone, and the settings of `[packet_endpoint]`.
    fn check(&self) -> Result<(), ConfigError> {
        let within = |error: ConfigError| error.within(ENDPOINT);
        check_ranges("preserve_source", &self.preserve_source).map_err(within)?;
        check_ranges("destinations", &self.destinations).map_err(within)?;
        self.tunnel.as_ref().map_or(Ok(()), Tunnel::check).map_err(within)?;
        if let Some(chosen) = &self.copying.replies {
            chosen.check(self.tunnel.is_some()).map_err(within)?;
        }
        self.rendezvous.check()?;
        let any = |_: &str| true;
        let has = self.members.as_ref().map(|_| &any as &dyn Fn(&str) -> bool);
        if let Some(policy) = &self.socks5_udp {
            policy.check_members(has).map_err(|error| error.within(SOCKS5_UDP))?;
        }
        let references = MemberReferences {
            paths: &self.paths,
            groups: &self.groups,
            rendezvous: &self.rendezvous,
        };
        self.sections.check_members(references, has)
    }
}

/// Returns the delivery policy of the datagrams of SOCKS5 clients.
fn delivery_of_socks5(section: &DeliverySection) -> Result<DeliveryPolicy, ConfigError> {
    if !section.further().is_empty() {
        let problem = "expected one address of each relay and remote gateway here";
        return Err(ConfigError::new(SOCKS5_UDP, problem));
    }
    section.clone().resolve().map_err(|error| error.within(SOCKS5_UDP))
}
