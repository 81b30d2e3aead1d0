//! Two neighbours and the datagrams between them.

#![allow(dead_code, reason = "each test takes some of these")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeSet;
use std::net::SocketAddr;

use tradewind_grant::{Grant, IdentityKey, OperatorKey, PublicIdentity, Relays, SignedGrant};
use tradewind_packet::session::{
    Event, HEADER_BYTES, Limits, Link, Now, OVERHEAD, PeerId, Sessions, SessionsConfig, Transmit,
};
use tradewind_units::{Duration, Timestamp};

pub(crate) const START_UNIX: Timestamp = Timestamp::from_nanos(1_795_176_000_000_000_000);

/// Returns the time `millis` milliseconds after the start.
pub(crate) fn at(millis: u64) -> Now {
    let span = Duration::from_millis(millis);
    Now { steady: Timestamp::from_nanos(5_000_000_000) + span, unix: START_UNIX + span }
}

pub(crate) fn operator() -> OperatorKey {
    OperatorKey::from_entropy([1; 32])
}

pub(crate) fn endpoint() -> IdentityKey {
    IdentityKey::from_entropy([2; 32])
}

pub(crate) fn relay() -> IdentityKey {
    IdentityKey::from_entropy([3; 32])
}

pub(crate) fn grant_for(gateway: PublicIdentity, relays: Relays) -> Grant {
    Grant {
        gateway,
        not_before: START_UNIX,
        expires: START_UNIX + Duration::from_secs(3600),
        sessions: None,
        extensions: tradewind_grant::Extensions::default(),
        relays,
        destinations: vec!["0.0.0.0/0:*".parse().unwrap()],
    }
}

pub(crate) fn signed(grant: Grant) -> SignedGrant {
    grant.sign(&operator()).unwrap()
}

pub(crate) fn link(port: u16) -> Link {
    Link::to(SocketAddr::from(([192, 0, 2, 1], port)))
}

pub(crate) const ENDPOINT: u16 = 1000;
pub(crate) const RELAY: u16 = 2000;

pub(crate) fn machine(
    identity: IdentityKey,
    neighbours: &[PublicIdentity],
    limits: Limits,
    seed: u8,
) -> Sessions {
    let neighbours: BTreeSet<_> = neighbours.iter().copied().collect();
    let operators = vec![operator().public()];
    Sessions::new(SessionsConfig { identity, operators, neighbours, limits }, at(0), [seed; 32])
}

/// An endpoint that connects to a relay.
pub(crate) struct Pair {
    pub(crate) endpoint: Sessions,
    pub(crate) relay: Sessions,
    pub(crate) peer: PeerId,
}

impl Pair {
    /// Returns a pair between which no datagram was carried yet; the initiation is in the
    /// endpoint's queue.
    pub(crate) fn fresh(limits: Limits) -> Self {
        Self::with_grant(limits, grant_for(self::endpoint().public(), Relays::Any))
    }

    /// Returns the same with the given grant.
    pub(crate) fn with_grant(limits: Limits, grant: Grant) -> Self {
        let mut endpoint = machine(self::endpoint(), &[], Limits::default(), 11);
        let relay = machine(self::relay(), &[], limits, 12);
        let identity = self::relay().public();
        let peer = endpoint.connect(at(0), identity, link(RELAY), Some(signed(grant))).unwrap();
        Self { endpoint, relay, peer }
    }

    pub(crate) fn established() -> Self {
        let mut pair = Self::fresh(Limits::default());
        pair.exchange(at(10));
        assert!(pair.endpoint.is_open(pair.peer));
        events(&mut pair.endpoint);
        events(&mut pair.relay);
        pair
    }

    /// Carries all waiting datagrams, both ways, until there are none.
    pub(crate) fn exchange(&mut self, now: Now) {
        loop {
            let there = transmits(&mut self.endpoint);
            let back = transmits(&mut self.relay);
            if there.is_empty() && back.is_empty() {
                return;
            }
            for mut transmit in there {
                self.relay.handle_datagram(now, link(ENDPOINT), &mut transmit.bytes);
            }
            for mut transmit in back {
                self.endpoint.handle_datagram(now, link(RELAY), &mut transmit.bytes);
            }
        }
    }

    /// Returns the relay's id of the endpoint.
    pub(crate) fn peer_at_relay(&mut self) -> PeerId {
        let mut datagram = sealed(&mut self.endpoint, self.peer, b"who am I?");
        self.relay.handle_datagram(at(20), link(ENDPOINT), &mut datagram).unwrap().peer
    }
}

pub(crate) fn transmits(machine: &mut Sessions) -> Vec<Transmit> {
    std::iter::from_fn(|| machine.poll_transmit()).collect()
}

pub(crate) fn events(machine: &mut Sessions) -> Vec<Event> {
    std::iter::from_fn(|| machine.poll_event()).collect()
}

pub(crate) fn sealed(machine: &mut Sessions, peer: PeerId, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; OVERHEAD + payload.len()];
    datagram[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(payload);
    machine.seal(peer, &mut datagram).unwrap();
    datagram
}

/// Returns the payload that a machine opens of a datagram, if any.
pub(crate) fn opened(
    machine: &mut Sessions,
    now: Now,
    from: Link,
    datagram: &[u8],
) -> Option<Vec<u8>> {
    let mut datagram = datagram.to_vec();
    let opened = machine.handle_datagram(now, from, &mut datagram)?;
    Some(datagram[opened.payload].to_vec())
}
