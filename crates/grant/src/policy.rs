//! Destination policy: one decision for relays, gateways' direct routes and packets. Default deny.
//!
//! [`Check::allows`] checks in this order, and the first refusal decides:
//!
//! 1. the address's class: some are never reached ([`forbidden`](crate::forbidden));
//! 2. `never`, and this process's own listeners;
//! 3. relays: a next hop is no destination, or sessions could be nested in each other;
//! 4. the grant's rules;
//! 5. the own rules;
//! 6. the own host: only a rule for exactly this address allows it, as no firewall protects it.
//!
//! A name is checked before it is resolved, and each of its addresses afterwards. Name rules cover
//! public addresses only: the owner of a name does not decide who may reach a private network.

use std::net::{IpAddr, SocketAddr};

use crate::forbidden::{Class, class_of, innermost};
use crate::{Destination, DestinationRule, Grant, GrantError, Hop, HostName};

/// A host's own rules. The default allows nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Destinations that this host reaches, as the last of a route.
    pub destinations: Vec<DestinationRule>,
    /// Relays that this host dials as the next of a route; only ranges of addresses count.
    pub next_hops: Vec<DestinationRule>,
    /// True if rules may also cover loopback addresses. For tests and laboratories only.
    pub allow_loopback: bool,
    /// Addresses that are never reached regardless of the rules.
    pub never: Vec<SocketAddr>,
    /// Known relays besides those in `next_hops`.
    pub relays: Vec<SocketAddr>,
}

/// A target of traffic, to be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// A name and a port, before the name is resolved.
    Name(&'a HostName, u16),
    /// An address that a name was resolved to.
    Resolved(&'a HostName, SocketAddr),
    /// An address, given as such.
    Address(SocketAddr),
    /// A host, at all its ports and by any protocol.
    Host(IpAddr),
    /// The next relay.
    NextHop(SocketAddr),
}

impl<'a> Target<'a> {
    /// Returns the target of a requested destination.
    #[must_use]
    pub fn of(destination: &'a Destination) -> Self {
        match destination {
            Destination::Address(address) => Self::Address(*address),
            Destination::Name { name, port } => Self::Name(name, *port),
        }
    }

    fn address(self) -> Option<SocketAddr> {
        match self {
            Self::Name(..) => None,
            Self::Resolved(_, address) | Self::Address(address) | Self::NextHop(address) => {
                Some(address)
            }
            // Port 0: no port is given, and none is special.
            Self::Host(ip) => Some(SocketAddr::new(ip, 0)),
        }
    }

    /// Returns whether `rule` covers this target.
    pub(crate) fn is_covered_by(self, rule: &DestinationRule) -> bool {
        match self {
            Self::Name(name, port) => rule.covers_name(name, port) || rule.covers_any_name(port),
            Self::Resolved(name, address) => {
                let is_public = class_of(address.ip()) == Class::Public;
                rule.covers_address(address) || is_public && rule.covers_name(name, address.port())
            }
            Self::Address(address) | Self::NextHop(address) => rule.covers_address(address),
            Self::Host(ip) => rule.covers_host(ip),
        }
    }
}

impl std::fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name, port) => write!(f, "{name}:{port}"),
            Self::Resolved(name, address) => {
                write!(f, "{name}:{} at {}", address.port(), address.ip().to_canonical())
            }
            Self::Address(address) => address.fmt(f),
            Self::Host(ip) => write!(f, "{ip}, all ports"),
            Self::NextHop(address) => write!(f, "next hop {address}"),
        }
    }
}

/// The inputs of the decision whether a target is allowed.
#[derive(Clone, Copy)]
pub struct Check<'a> {
    /// The own rules.
    pub policy: &'a Policy,
    /// Rules that hold for this requester beside the policy's `destinations`.
    pub also: &'a [DestinationRule],
    /// The requester's grant; `None` where the own rules are sufficient.
    pub grant: Option<&'a Grant>,
    /// The relays of the session's own route.
    pub route: &'a [Hop],
    /// Addresses that this process listens on; an unspecified one stands for all of this host's.
    pub listeners: &'a [SocketAddr],
    /// A function that returns whether an address is currently one of this host's, by the kernel.
    pub is_local: &'a (dyn Fn(IpAddr) -> bool + Sync),
}

impl std::fmt::Debug for Check<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check").field("policy", self.policy).finish_non_exhaustive()
    }
}

impl<'a> Check<'a> {
    /// Creates a check by the own rules only.
    #[must_use]
    pub fn new(policy: &'a Policy, is_local: &'a (dyn Fn(IpAddr) -> bool + Sync)) -> Self {
        Self { policy, also: &[], grant: None, route: &[], listeners: &[], is_local }
    }

    /// Checks whether `target` may be reached.
    ///
    /// # Errors
    /// [`GrantError::Forbidden`], [`GrantError::Relay`], [`GrantError::LocalHost`],
    /// [`GrantError::DestinationNotGranted`], [`GrantError::UnnamedPrivate`] or
    /// [`GrantError::Denied`].
    pub fn allows(&self, target: Target<'_>) -> Result<(), GrantError> {
        if let Some(address) = target.address() {
            self.check_class(address.ip())?;
            self.check_never(target, address)?;
            self.check_relays(target, address)?;
        }
        let needs_grant = !matches!(target, Target::NextHop(_));
        let is_granted = |grant: &Grant| grant.covers(target);
        if needs_grant && !self.grant.is_none_or(is_granted) {
            return Err(GrantError::DestinationNotGranted(target.to_string()));
        }
        let is_covered = self.rules(target).any(|rule| target.is_covered_by(rule));
        match target.address() {
            Some(address) if is_covered => self.check_local_host(target, address.ip()),
            Some(address) if self.is_unnamed_private(target, address.ip()) => {
                Err(GrantError::UnnamedPrivate(address.ip()))
            }
            None if is_covered => Ok(()),
            _ => Err(GrantError::Denied(target.to_string())),
        }
    }

    /// Returns whether a name rule covers this name: one of the grant, or an own one where no grant
    /// is needed. Such a requester may be sent the reason of a refusal.
    #[must_use]
    pub fn names(&self, name: &HostName, port: u16) -> bool {
        let own = || self.rules(Target::Name(name, port)).any(|rule| rule.covers_name(name, port));
        let of_grant =
            |grant: &Grant| grant.destinations.iter().any(|rule| rule.covers_name(name, port));
        self.grant.map_or_else(own, of_grant)
    }

    /// Returns the own rules for such a target.
    fn rules(&self, target: Target<'_>) -> impl Iterator<Item = &'a DestinationRule> + use<'a> {
        let (rules, also): (&'a [_], &'a [_]) = match target {
            Target::NextHop(_) => (&self.policy.next_hops, &[]),
            _ => (&self.policy.destinations, self.also),
        };
        rules.iter().chain(also)
    }

    fn check_class(&self, ip: IpAddr) -> Result<(), GrantError> {
        let class = class_of(ip);
        if class.is_forbidden() && !(self.policy.allow_loopback && class == Class::Loopback) {
            return Err(GrantError::Forbidden { address: ip, class });
        }
        Ok(())
    }

    fn check_never(&self, target: Target<'_>, address: SocketAddr) -> Result<(), GrantError> {
        let (inner, is_whole) = (innermost(address.ip()), matches!(target, Target::Host(_)));
        let is_same = |other: &SocketAddr| innermost(other.ip()) == inner;
        let is_meant =
            |never: &SocketAddr| is_same(never) && (is_whole || never.port() == address.port());
        let listens = |own: &SocketAddr| {
            let is_here = || own.ip().is_unspecified() && self.is_here(address.ip());
            own.port() == address.port() && (is_same(own) || is_here())
        };
        if self.policy.never.iter().any(is_meant) || self.listeners.iter().any(listens) {
            return Err(GrantError::Denied(target.to_string()));
        }
        Ok(())
    }

    fn check_relays(&self, target: Target<'_>, address: SocketAddr) -> Result<(), GrantError> {
        let (ip, inner) = (address.ip(), innermost(address.ip()));
        let is_whole = match target {
            Target::NextHop(_) => return Ok(()),
            Target::Host(_) => true,
            _ => false,
        };
        let is_next_hop = |rule: &DestinationRule| {
            let port = if is_whole { *rule.ports().start() } else { address.port() };
            [ip, inner].iter().any(|ip| rule.covers_address(SocketAddr::new(*ip, port)))
        };
        let is_it = |relay: &SocketAddr| {
            innermost(relay.ip()) == inner && (is_whole || relay.port() == address.port())
        };
        let known = self.policy.relays.iter();
        let mut known = known.chain(self.route.iter().map(|hop| &hop.address));
        if self.policy.next_hops.iter().any(is_next_hop) || known.any(is_it) {
            return Err(GrantError::Relay(target.to_string()));
        }
        Ok(())
    }

    fn check_local_host(&self, target: Target<'_>, ip: IpAddr) -> Result<(), GrantError> {
        // Where loopback is allowed, its rules decide.
        let is_lab = class_of(ip) == Class::Loopback;
        let names_it = |rule: &DestinationRule| rule.is_one(ip) && target.is_covered_by(rule);
        if is_lab || !self.is_here(ip) || self.rules(target).any(names_it) {
            return Ok(());
        }
        Err(GrantError::LocalHost(ip))
    }

    /// Returns whether traffic to `ip` stays on this host, be it through a translator.
    fn is_here(&self, ip: IpAddr) -> bool {
        let (ip, inner) = (ip.to_canonical(), innermost(ip));
        (self.is_local)(ip) || ip != inner && (self.is_local)(inner)
    }

    /// Returns whether a rule would cover this if private addresses did not need an explicit one.
    fn is_unnamed_private(&self, target: Target<'_>, ip: IpAddr) -> bool {
        class_of(ip) == Class::Private && self.rules(target).any(|rule| rule.covers_source(ip))
    }
}
