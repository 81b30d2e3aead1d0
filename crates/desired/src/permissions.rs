//! The permissions that the paths of a plan need: the addresses that each relay dials, and the
//! terms of each gateway's grant.

use std::net::SocketAddr;

use serde::Serialize;
use tradewind_grant::{Destination, DestinationRule, PublicIdentity};

/// Addresses that a relay may dial.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DialPolicy {
    /// Destinations of flows that leave the overlay here.
    pub destinations: Vec<DestinationRule>,
    /// Next relays.
    pub next_hops: Vec<DestinationRule>,
}

impl DialPolicy {
    /// Allows the relay at `address` as a next hop.
    pub(crate) fn add_hop(&mut self, address: SocketAddr) {
        add(&mut self.next_hops, Destination::Address(address).as_rule());
    }

    /// Allows `destination`.
    pub(crate) fn add_destination(&mut self, destination: &Destination) {
        add(&mut self.destinations, destination.as_rule());
    }

    /// Returns whether a rule names a loopback address, as in laboratories.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.destinations.iter().chain(&self.next_hops).any(is_loopback)
    }
}

/// The terms that a gateway's grant must cover.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct GrantTerms {
    /// Destinations of flows that take relays.
    pub destinations: Vec<DestinationRule>,
    /// The relays that they take.
    pub relays: Vec<PublicIdentity>,
}

impl GrantTerms {
    /// Covers the relay with this identity.
    pub fn add_relay(&mut self, relay: PublicIdentity) {
        add(&mut self.relays, relay);
    }

    /// Covers `destination`.
    pub fn add_destination(&mut self, destination: &Destination) {
        add(&mut self.destinations, destination.as_rule());
    }

    /// Covers everything that `other` covers.
    pub fn extend(&mut self, other: &Self) {
        other.relays.iter().for_each(|relay| add(&mut self.relays, *relay));
        other.destinations.iter().for_each(|rule| add(&mut self.destinations, rule.clone()));
    }

    /// Returns whether no grant is needed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.relays.is_empty()
    }
}

/// Returns whether `rule` covers loopback addresses only.
#[must_use]
pub fn is_loopback(rule: &DestinationRule) -> bool {
    rule.range().is_some_and(|(base, bits)| base.is_loopback() && bits >= 8)
}

fn add<T: PartialEq>(list: &mut Vec<T>, one: T) {
    if !list.contains(&one) {
        list.push(one);
    }
}
