//! The nodes of relays' and gateways' files.

use tradewind_config::packet::{GatewayPackets, RelayPackets};

use super::*;

impl NodeConfig {
    /// Returns a relay's node, with the relay's identity and operators.
    #[must_use]
    pub fn of_relay(
        packets: &RelayPackets,
        identity: IdentityKey,
        operators: Vec<OperatorPublicKey>,
    ) -> Self {
        let each_core = || std::thread::available_parallelism().map_or(1, usize::from);
        let bare = Self::bare(packets.listen, identity);
        Self {
            workers: packets.workers.unwrap_or_else(each_core),
            operators,
            neighbours: packets.relays.iter().copied().collect(),
            policy: Policy {
                next_hops: packets.next_hops.clone(),
                allow_loopback: packets.allow_loopback,
                ..bare.policy.clone()
            },
            repeats_copies: false,
            leg_seal: packets.leg_seal,
            services: packets.services,
            ..bare
        }
    }

    /// Returns a gateway's node, with the gateway's identity and grant.
    #[must_use]
    pub fn of_gateway(
        packets: &GatewayPackets,
        identity: IdentityKey,
        grant: Option<SignedGrant>,
    ) -> Self {
        let packets = packets.clone();
        let bare = Self::bare(packets.listen, identity);
        Self {
            operators: packets.operators,
            neighbours: packets.relays.into_iter().collect(),
            policy: Policy {
                destinations: packets.destinations,
                allow_loopback: packets.allow_loopback,
                ..bare.policy.clone()
            },
            grant,
            paths: packets.paths,
            groups: packets.groups,
            // Its relays are no destinations either.
            courses: packets.socks5_udp.into_iter().collect(),
            further_addresses: packets.further_addresses,
            rendezvous: packets.rendezvous,
            repeats_copies: packets.repeats_copies,
            leg_seal: packets.leg_seal,
            preserve_source: packets.preserve_source,
            tunnel: packets.tunnel,
            members: packets.members,
            copying: packets.copying,
            sections: packets.sections,
            ..bare
        }
    }
}
