//! Settings of a group: one port, and several remote endpoints `[JQ 3.5]`.

use std::net::SocketAddr;

use tradewind_packet::message::{Carriage, Service};

use super::{Assumed, DeliveryPolicy, Remote, Via};
use crate::ConfigError;

/// Most members of a group. Chosen: each packet is sent this many times over the Internet.
const MAX_IN_GROUP: usize = 256;

/// A local port whose datagrams, from unmodified applications, go to several remote endpoints
/// `[JQ 3.5]`.
#[derive(Debug, Clone)]
pub struct Group {
    /// The address that applications write to; with port 0 the system chooses a port.
    pub listen: SocketAddr,
    /// The carriage of packets: cached (over the Internet to each member; lost ones come from the
    /// relays), or forwarded.
    pub carriage: Carriage,
    /// The receivers.
    pub members: Vec<GroupMember>,
}

/// One receiver of a group's datagrams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// The remote endpoint.
    pub remote: Remote,
    /// The address to which it delivers.
    pub to: SocketAddr,
    /// The relays before it: one or two, of which the first is the same for all members.
    pub relays: Via,
}

impl Group {
    /// Returns the delivery policy and the destination of each member.
    pub fn courses(&self) -> impl Iterator<Item = (SocketAddr, DeliveryPolicy)> + '_ {
        self.members.iter().map(|member| {
            let GroupMember { remote, to, relays } = member.clone();
            let carriage = self.carriage;
            (
                to,
                DeliveryPolicy {
                    remote,
                    relays,
                    carriage,
                    max_loss: None,
                    copies: None,
                    assumed: Assumed::default(),
                },
            )
        })
    }

    /// Checks the group by itself.
    ///
    /// # Errors
    /// The mistake in `group`.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refused = |problem: &str| Err(ConfigError::new("group", problem));
        if !(1..=MAX_IN_GROUP).contains(&self.members.len()) {
            return refused("expected 1 to 256 members");
        }
        if !matches!(self.carriage.service, Service::Caching | Service::Forwarding) {
            return refused("expected the service `caching` or `forwarding`");
        }
        let first = |member: &GroupMember| match &member.relays {
            Via::Relays(relays) => (relays.first().copied(), relays.len()),
            Via::Nearest => (None, 1),
        };
        let (same, _) = first(&self.members[0]);
        for (place, member) in self.members.iter().enumerate() {
            let (hop, relays) = first(member);
            if hop != same || !(1..=2).contains(&relays) {
                return refused(
                    "expected one or two `relays` for each, of which the first is the same for \
                     all, or `nearest` for all",
                );
            }
            if self.members[..place].iter().any(|other| other.remote == member.remote) {
                return refused("expected another remote gateway for each member");
            }
        }
        Ok(())
    }
}
