//! The places of sessions, of their further connections, and of probes: each grant and each gateway
//! has its share.

use std::sync::Arc;

use tradewind_config::{Limits, Share};
use tradewind_grant::{GrantId, OpenHeader, PublicIdentity};
use tradewind_stream::counts::Outcome;
use tradewind_stream::limits::live::NewLimits;
use tradewind_stream::limits::quota::{Members, Slot};
use tradewind_stream::process::worker::Permit;
use tradewind_stream::resolver::Lookups;
use tradewind_stream::stripe::Member;

/// The places at a relay, by grant and by gateway.
pub(super) struct Places {
    grants: Arc<Members<GrantId>>,
    /// Gateways, which share the limit of sessions.
    gateways: Arc<Members<PublicIdentity>>,
    /// Gateways whose probes arrive here.
    probing: Arc<Members<PublicIdentity>>,
}

impl Places {
    /// Creates the places of a relay that has capacity for `most_sessions`.
    pub(super) fn new(limits: &Limits, most_sessions: usize) -> Self {
        Self {
            grants: Members::new(limits.each_grant),
            gateways: Members::sharing(most_sessions, limits.each_gateway),
            probing: Members::sharing(most_probing(limits.sessions), Share::default()),
        }
    }

    /// Applies other limits.
    pub(super) fn set(&self, NewLimits { limits, most_sessions, .. }: &NewLimits) {
        self.grants.set(None, limits.each_grant);
        self.gateways.set(Some(*most_sessions), limits.each_gateway);
        self.probing.set(Some(most_probing(limits.sessions)), Share::default());
    }

    /// Gives a connection, of a session or a probe, a place among those of the gateway of its
    /// header. Returns the gateway's lookups.
    pub(super) fn admit(
        &self,
        permit: &mut Permit,
        header: &OpenHeader,
    ) -> Result<Lookups, Outcome> {
        let gateways = if header.is_probe { &self.probing } else { &self.gateways };
        let place = gateways.enter(header.grant.gateway, None).ok_or(Outcome::GatewayFull)?;
        let lookups = place.lookups.clone();
        permit.admit(Some(place)).map(|()| lookups)
    }

    /// Returns a place among the sessions of a grant, which itself allows `most`.
    pub(super) fn of_grant(&self, grant: GrantId, most: Option<u32>) -> Option<Slot<GrantId>> {
        self.grants.enter(grant, most)
    }

    /// Gives a further connection of a session a place among those of its gateway, and returns one
    /// among those of its grant.
    pub(super) fn join(
        &self,
        permit: &mut Permit,
        Member { gateway, grant, most }: Member,
    ) -> Result<Slot<GrantId>, Outcome> {
        let place = self.gateways.enter(gateway, None).ok_or(Outcome::GatewayFull)?;
        permit.admit(Some(place))?;
        self.of_grant(grant, most).ok_or(Outcome::GrantFull)
    }
}

/// Connections that may bring probes at a time, where there is capacity for `sessions`; each
/// gateway gets its share of them. Chosen: an eighth, since they take no place among a gateway's
/// sessions; a gateway has two for each path, and four while they are replaced.
const fn most_probing(sessions: usize) -> usize {
    const MIN: usize = 32;
    if sessions / 8 > MIN { sessions / 8 } else { MIN }
}
