//! The check of where packets may go: the node's rules, and the host's addresses.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use tradewind_grant::{Check, Grant, GrantError, Policy, Target};
use tradewind_net::NetError;
use tradewind_net::local_address::LocalAddresses;
use tradewind_telemetry::{LogLimit, limited};

/// A worker's check before it sends or delivers.
pub(super) struct Access {
    policy: Policy,
    /// The address at which neighbours reach this node.
    listener: SocketAddr,
    local_addresses: LocalAddresses,
    /// The generation of the host's addresses at the last check.
    generation: u64,
    lines: LogLimit<()>,
}

impl Access {
    pub(super) fn new(policy: Policy, listener: SocketAddr) -> Result<Self, NetError> {
        let local_addresses = LocalAddresses::open()?;
        Ok(Self { policy, listener, local_addresses, generation: 0, lines: LogLimit::new() })
    }

    /// Checks whether addresses of the host have changed.
    pub(super) fn look(&mut self) {
        self.generation = self.local_addresses.generation();
    }

    /// Returns the generation of the host's addresses, which changes with them.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Replaces the policy.
    pub(super) fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Adds relays and remote endpoints that became known while the node runs.
    pub(super) fn add_relays(&mut self, addresses: impl IntoIterator<Item = SocketAddr>) {
        let mut known: BTreeSet<SocketAddr> = self.policy.relays.iter().copied().collect();
        self.policy.relays.extend(addresses.into_iter().filter(|address| known.insert(*address)));
    }

    /// Checks whether packets may go to `target`, under `grant` unless it is a next hop.
    ///
    /// # Errors
    /// As [`Check::allows`].
    pub(super) fn allows(
        &self,
        grant: Option<&Grant>,
        target: Target<'_>,
    ) -> Result<(), GrantError> {
        self.allows_unless_local(grant, target, &|ip| self.is_here(ip))
    }

    /// Returns whether `ip` is an address of this host; also `true` where that cannot be found out.
    pub(super) fn is_here(&self, ip: IpAddr) -> bool {
        self.local_addresses.contains(ip).unwrap_or_else(|error| {
            limited!(warn, self.lines, (), %error, "taken for an address of this host");
            true
        })
    }

    /// Does the same for packets that end in this very process, or are not delivered yet.
    ///
    /// # Errors
    /// As [`Check::allows`].
    pub(super) fn allows_inside(
        &self,
        grant: Option<&Grant>,
        target: Target<'_>,
    ) -> Result<(), GrantError> {
        self.allows_unless_local(grant, target, &|_| false)
    }

    fn allows_unless_local(
        &self,
        grant: Option<&Grant>,
        target: Target<'_>,
        is_local: &(dyn Fn(IpAddr) -> bool + Sync),
    ) -> Result<(), GrantError> {
        let listeners = std::slice::from_ref(&self.listener);
        Check { grant, listeners, ..Check::new(&self.policy, is_local) }.allows(target)
    }
}
