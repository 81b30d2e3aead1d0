//! What a relay itself agrees to dial, beside what a grant allows. Default deny.
//!
//! The relay resolves a name once, checks each address here, and dials a checked address: what a
//! name means cannot change between check and use.

use std::net::{IpAddr, SocketAddr};

use crate::forbidden::{Class, class_of, innermost};
use crate::{Destination, DestinationRule, Grant, GrantError};

/// A relay's own rules. The default allows nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RelayPolicy {
    /// Destinations that this relay dials as the last of a route.
    pub destinations: Vec<DestinationRule>,
    /// Relays that this relay dials as the next of a route; only ranges of addresses count.
    pub next_hops: Vec<DestinationRule>,
    /// Whether rules may also cover loopback addresses. For tests and laboratories only.
    pub allow_loopback: bool,
    /// Addresses that are never dialled whatever the rules say, such as the relay's own listeners.
    pub never: Vec<SocketAddr>,
}

impl RelayPolicy {
    /// Whether this relay may dial `address` for `destination`, which the last relay has resolved to
    /// it (an address destination is itself), under `grant`.
    ///
    /// # Errors
    /// [`GrantError::Forbidden`], [`GrantError::DestinationNotGranted`] or [`GrantError::Denied`].
    pub fn check(
        &self,
        grant: &Grant,
        destination: &Destination,
        address: SocketAddr,
    ) -> Result<(), GrantError> {
        self.check_class(address)?;
        if !grant.covers_resolved(destination, address) {
            return Err(GrantError::DestinationNotGranted(described(destination, address)));
        }
        if self.covers(destination, address) {
            Ok(())
        } else {
            Err(GrantError::Denied(described(destination, address)))
        }
    }

    /// Whether this relay may send the host at `ip` packets of any protocol under `grant`.
    ///
    /// # Errors
    /// As [`RelayPolicy::check`].
    pub fn check_host(&self, grant: &Grant, ip: IpAddr) -> Result<(), GrantError> {
        // No port is said, and none is special.
        self.check_class(SocketAddr::new(ip, 0))?;
        if !grant.covers_host(ip) {
            return Err(GrantError::DestinationNotGranted(format!("{ip}, all ports")));
        }
        if self.destinations.iter().any(|rule| rule.covers_host(ip)) {
            Ok(())
        } else {
            Err(GrantError::Denied(format!("{ip}, all ports")))
        }
    }

    /// Whether this relay may dial the relay at `address` as the next hop.
    ///
    /// # Errors
    /// [`GrantError::Forbidden`] or [`GrantError::Denied`].
    pub fn check_next_hop(&self, address: SocketAddr) -> Result<(), GrantError> {
        self.check_class(address)?;
        if self.next_hops.iter().any(|rule| rule.covers_address(address)) {
            Ok(())
        } else {
            Err(GrantError::Denied(format!("next hop {address}")))
        }
    }

    /// Whether a rule covers `address`, or the name that was resolved to it when it is public: who
    /// owns a name does not decide who may reach a private network.
    fn covers(&self, destination: &Destination, address: SocketAddr) -> bool {
        let by_address = |rule: &DestinationRule| rule.covers_address(address);
        let by_name = |rule: &DestinationRule| match destination {
            Destination::Name { name, port } => {
                class_of(address.ip()) == Class::Public && rule.covers_name(name, *port)
            }
            Destination::Address(_) => false,
        };
        self.destinations.iter().any(|rule| by_address(rule) || by_name(rule))
    }

    fn check_class(&self, address: SocketAddr) -> Result<(), GrantError> {
        let class = class_of(address.ip());
        if class.is_forbidden() && !(self.allow_loopback && class == Class::Loopback) {
            return Err(GrantError::Forbidden { address: address.ip(), class });
        }
        let reached = innermost(address.ip());
        let same =
            |never: &SocketAddr| never.port() == address.port() && innermost(never.ip()) == reached;
        if self.never.iter().any(same) {
            return Err(GrantError::Denied(address.to_string()));
        }
        Ok(())
    }
}

fn described(destination: &Destination, address: SocketAddr) -> String {
    match destination {
        Destination::Address(_) => destination.to_string(),
        Destination::Name { .. } => format!("{destination} at {}", address.ip().to_canonical()),
    }
}
