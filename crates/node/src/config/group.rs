//! What is told of a group: one port, and several far endpoints `[JQ 3.5]`.

use std::net::SocketAddr;

use tradewind_packet::message::{Carriage, Service};

use super::{Assumed, DeliveryPolicy, Far, Via};
use crate::NodeError;

/// Most members of a group. Chosen: each packet leaves so many times over the Internet.
const MOST_IN_GROUP: usize = 256;

/// A local port from where datagrams of unmodified applications go to several far endpoints `[JQ
/// 3.5]`.
#[derive(Debug, Clone)]
pub struct Group {
    /// Where applications write to; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// How packets are carried: cached (over the Internet to each member, and from the relays what
    /// gets lost), or forwarded.
    pub carriage: Carriage,
    /// To whom.
    pub members: Vec<GroupMember>,
}

/// One of those that a group's datagrams go to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// The far endpoint.
    pub far: Far,
    /// Where it delivers.
    pub to: SocketAddr,
    /// The relays before it: one or two, of which the first is the same for all members.
    pub relays: Via,
}

impl Group {
    /// How packets get to each member, and where they are delivered there.
    pub(crate) fn courses(&self) -> impl Iterator<Item = (SocketAddr, DeliveryPolicy)> + '_ {
        self.members.iter().map(|member| {
            let GroupMember { far, to, relays } = member.clone();
            let carriage = self.carriage;
            (
                to,
                DeliveryPolicy {
                    far,
                    relays,
                    carriage,
                    max_loss: None,
                    copies: None,
                    assumed: Assumed::default(),
                },
            )
        })
    }

    pub(crate) fn check(&self) -> Result<(), NodeError> {
        let refused =
            |problem: &str| Err(NodeError::Config { key: "group", problem: problem.to_owned() });
        if !(1..=MOST_IN_GROUP).contains(&self.members.len()) {
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
            if self.members[..place].iter().any(|other| other.far == member.far) {
                return refused("expected another far gateway for each member");
            }
        }
        Ok(())
    }
}
