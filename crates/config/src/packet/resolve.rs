//! Sections as settings: paths, groups and deposits, each checked by itself.

use std::net::SocketAddr;

use tradewind_grant::PublicIdentity;
use tradewind_packet::ingress::{Coding, InStream};
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;
use tradewind_packet::sender::select::Rules;
use tradewind_units::{Duration, Ratio};

use super::neighbours::{Further, RemoteSection, ViaSection};
use super::sections::*;
use super::{
    Assumed, Chosen, DeliveryPolicy, Deposits, Group, GroupMember, Path, RelayServices,
    ServiceCosts, TrafficSource, Tunnel, Via, budget_ms, max_loss, rendezvous,
};
use crate::ConfigError;

impl CopiesSection {
    pub(super) fn resolve(self) -> Chosen {
        let Self { rtp_key_frames, tcp_syn, dscp, ports, last_after } = self;
        let rules = Rules { marked: false, tcp_syn, rtp_key_frames, dscp, ports };
        Chosen { rules, last_after }
    }
}

impl TunnelEndSection {
    pub(super) fn resolve(self) -> Tunnel {
        Tunnel { name: self.name, destinations: self.sources, mtu: self.mtu }
    }
}

impl CodingSection {
    pub(super) fn resolve(&self) -> RelayServices {
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
        services
    }

    /// Returns the assumptions of a flow whose relays code like this, and charge `costs` if that is
    /// set.
    fn assumed(&self, costs: Option<ServiceCosts>) -> Result<Assumed, ConfigError> {
        let services = self.resolve();
        services.check()?;
        Ok(Assumed { costs, ..services.assumed() })
    }
}

impl RelayCodingSection {
    /// Returns its numbers, without `across_gateways`.
    pub(super) const fn numbers(&self) -> CodingSection {
        let Self { cross_stream, in_stream, within, .. } = *self;
        CodingSection { cross_stream, in_stream, within }
    }
}

impl PacketSection {
    /// Returns neighbours with several addresses, and the addresses after the first.
    pub(super) fn further(&self) -> Further {
        match self {
            Self::Path(path) => path.delivery.further(),
            Self::Group(group) => group.group.iter().flat_map(MemberSection::several).collect(),
            Self::Rendezvous(section) => {
                section.relays.several().chain(section.remote.several()).collect()
            }
        }
    }
}

impl PathSection {
    pub(super) fn resolve(self) -> Result<Path, ConfigError> {
        let delivery = self.delivery.resolve()?;
        let source = match self.source {
            SourceSection::Port(PortSection { listen, to }) => TrafficSource::Port { listen, to },
            SourceSection::Tproxy(intercepted) => TrafficSource::Intercepted(intercepted),
            SourceSection::Tun(_) if delivery.carriage.fragment => {
                let problem =
                    "expected no `fragment` with `tun`: hosts are told how long packets may be";
                return Err(ConfigError::new("fragment", problem));
            }
            SourceSection::Tun(tunnel) => TrafficSource::Tunnel(tunnel),
        };
        let path = Path { source, delivery };
        path.check()?;
        Ok(path)
    }
}

/// The parts of a delivery that the services share, and those of some of them.
struct Parts {
    remote: RemoteSection,
    relays: ViaSection,
    carriage: Carriage,
    max_loss: Option<Ratio>,
    copies: Option<CopiesSection>,
    assumed: Assumed,
}

impl DeliverySection {
    const fn neighbours(&self) -> (&RemoteSection, &ViaSection) {
        match self {
            Self::Direct(DirectSection { remote, relays, .. })
            | Self::Forwarding(ForwardingSection { remote, relays, .. })
            | Self::Caching(RecoverySection { remote, relays, .. })
            | Self::Coding(RecoverySection { remote, relays, .. })
            | Self::Auto(AutoSection { remote, relays, .. }) => (remote, relays),
        }
    }

    pub(super) fn further(&self) -> Further {
        let (remote, relays) = self.neighbours();
        relays.several().chain(remote.several()).collect()
    }

    fn parts(self) -> Result<Parts, ConfigError> {
        let assumed = Assumed::default();
        let recovery = |section: RecoverySection, service| {
            let RecoverySection { remote, relays, budget, copies, in_order, fragment } = section;
            let carriage = Carriage { in_order, fragment, ..carriage(service, None, budget)? };
            Ok(Parts { remote, relays, carriage, max_loss: None, copies, assumed })
        };
        match self {
            Self::Direct(DirectSection { remote, relays, budget, fragment }) => {
                let carriage = Carriage { fragment, ..carriage(Service::Direct, None, budget)? };
                Ok(Parts { remote, relays, carriage, max_loss: None, copies: None, assumed })
            }
            Self::Forwarding(section) => {
                let ForwardingSection { in_order, fragment, paths, .. } = section;
                if in_order && paths == Some(ForwardingPaths::Relays) {
                    let problem = "expected only where something may come back: not with \
                                   `paths = \"relays\"`";
                    return Err(ConfigError::new("in_order", problem));
                }
                let carriage = carriage(Service::Forwarding, paths, section.budget)?;
                let carriage = Carriage { in_order, fragment, ..carriage };
                let ForwardingSection { remote, relays, copies, .. } = section;
                Ok(Parts { remote, relays, carriage, max_loss: None, copies, assumed })
            }
            Self::Caching(section) => recovery(section, Service::Caching),
            Self::Coding(section) => recovery(section, Service::Coding),
            Self::Auto(section) => {
                let AutoSection { remote, relays, budget, copies, in_order, fragment, .. } =
                    section;
                // Until measurements tell more.
                let carriage = carriage(Service::Direct, None, budget)?;
                let carriage = Carriage { in_order, fragment, ..carriage };
                let max_loss = Some(section.max_loss.unwrap_or_else(max_loss));
                let assumed = section.coding.unwrap_or_default().assumed(section.costs)?;
                Ok(Parts { remote, relays, carriage, max_loss, copies, assumed })
            }
        }
    }

    /// Returns the delivery policy, checked by itself.
    pub(super) fn resolve(self) -> Result<DeliveryPolicy, ConfigError> {
        let Parts { remote, relays, carriage, max_loss, copies, assumed } = self.parts()?;
        let copies = copies.map(CopiesSection::resolve);
        let (remote, relays) = (remote.placed()?, relays.0);
        let delivery = DeliveryPolicy { remote, relays, carriage, max_loss, copies, assumed };
        delivery.check()?;
        Ok(delivery)
    }
}

impl RendezvousSection {
    pub(super) fn resolve(self) -> Result<Deposits, ConfigError> {
        let Self { listen, to, remote, relays, keep } = self;
        let relay = match relays.0 {
            Via::Relays(relays) if relays.len() == 1 => relays[0],
            _ => {
                let problem = "expected exactly one: where packets wait";
                return Err(ConfigError::new("relays", problem));
            }
        };
        let keep = keep.unwrap_or(rendezvous::KEEP);
        rendezvous::check_keep(keep)?;
        Ok(Deposits { listen, to, remote: remote.recipient(), relay, keep })
    }
}

impl MemberSection {
    /// Returns those of its relays and its remote gateway that have several addresses.
    fn several(&self) -> impl Iterator<Item = (PublicIdentity, Vec<SocketAddr>)> + '_ {
        self.relays.several().chain(self.remote.several())
    }
}

impl GroupSection {
    pub(super) fn resolve(self) -> Result<Group, ConfigError> {
        let service = match self.service {
            GroupService::Caching => Service::Caching,
            GroupService::Forwarding => Service::Forwarding,
        };
        let carriage = carriage(service, self.paths, self.budget)?;
        let member = |member: MemberSection| {
            let MemberSection { remote, to, relays: ViaSection(relays, _) } = member;
            Ok(GroupMember { remote: remote.placed()?, to, relays })
        };
        let members = self.group.into_iter().map(member).collect::<Result<_, ConfigError>>()?;
        let group = Group { listen: self.listen, carriage, members };
        group.check()?;
        Ok(group)
    }
}

/// Returns the carriage that `service`, `paths` and `budget` order.
fn carriage(
    service: Service,
    paths: Option<ForwardingPaths>,
    budget: Option<Duration>,
) -> Result<Carriage, ConfigError> {
    let paths = match paths {
        Some(_) if service != Service::Forwarding => {
            let problem = "expected only with `service = \"forwarding\"`";
            return Err(ConfigError::new("paths", problem));
        }
        Some(ForwardingPaths::Relays) => Paths::Overlay,
        Some(ForwardingPaths::Both) | None => Paths::Both,
    };
    let budget_ms = budget.map(budget_ms).transpose()?;
    if budget_ms == Some(0) {
        return Err(ConfigError::new("budget", "expected at least 1 ms"));
    }
    let budget_ms = budget_ms.unwrap_or(0);
    Ok(Carriage { service, paths, budget_ms, in_order: false, fragment: false })
}
