//! A relay's packet plane.

use std::net::SocketAddr;

use tradewind_grant::{DestinationRule, PublicIdentity};
use tradewind_packet::ingress::Sharing;

use super::rendezvous::message_store;
use super::{LegSeal, RelaySection, RelayServices};
use crate::ConfigError;
use crate::checks::{check_ranges, check_workers};

/// A relay's packet plane, from its `[packet]`.
#[derive(Debug, Clone)]
pub struct RelayPackets {
    /// The UDP address for packets.
    pub listen: SocketAddr,
    /// Threads; one for each core when absent.
    pub workers: Option<usize>,
    /// Relays before it on paths.
    pub relays: Vec<PublicIdentity>,
    /// Relays and remote gateways that it may send to.
    pub next_hops: Vec<DestinationRule>,
    /// True if these rules may cover loopback addresses.
    pub allow_loopback: bool,
    /// Caching and coding.
    pub services: RelayServices,
    /// The part of forwarded packets that it seals.
    pub leg_seal: LegSeal,
}

impl RelaySection {
    /// Returns the packet plane, checked.
    pub(crate) fn resolve(&self) -> Result<RelayPackets, ConfigError> {
        let across = self.coding.across_gateways;
        let mut services = RelayServices {
            to_relays: self.usd_per_gb.to_relays,
            to_endpoints: self.usd_per_gb.to_endpoints,
            is_registry: self.registry,
            rendezvous: self.rendezvous.map(|it| message_store(it.bytes, it.per_sender, it.keep)),
            ..self.coding.numbers().resolve()
        };
        if across {
            services.sharing = Sharing::Any;
        }
        check_workers(self.workers).map_err(|error| error.within("packet"))?;
        services.check().map_err(|error| error.within("packet"))?;
        check_ranges("packet.next_hops", &self.next_hops)?;
        Ok(RelayPackets {
            listen: self.listen,
            // Flows can only be coded together on one thread.
            workers: self.workers.or(across.then_some(1)),
            relays: self.relays.clone(),
            next_hops: self.next_hops.clone(),
            allow_loopback: self.allow_loopback,
            services,
            leg_seal: self.leg_seal,
        })
    }
}
