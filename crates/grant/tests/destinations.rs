//! The decision table of destinations: one policy for relays, gateways' direct routes and packets.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::net::{IpAddr, SocketAddr};

use common::grant;
use tradewind_grant::{Check, Destination, DestinationRule, Grant, GrantError, HostName, Policy};
use tradewind_grant::{Hop, Target};

/// This host's own addresses.
const OWN: [&str; 3] = ["93.184.216.7", "2606:2800:220::7", "10.0.0.7"];
/// The addresses that this process listens on: a single one, and all of this host's.
const LISTENERS: [&str; 2] = ["93.184.216.7:7000", "0.0.0.0:7001"];
const NEVER: &str = "93.184.216.99:443";
/// A known relay that is not in `next_hops`, and one of the session's own route.
const RELAY: &str = "93.184.216.50:7000";
const ON_ROUTE: &str = "93.184.216.51:7000";

const INTERNET: &str = "0.0.0.0/0:* [::]/0:*";
const NEXT_HOPS: &str = "93.184.217.0/24:7000 10.7.0.0/16:7000 93.184.216.7/32:7002";

/// Grant, own rules, target, decision.
///
/// A target is an address, a name, `name=address` once it is resolved, `host` or `next`.
const TABLE: &[(&str, &str, &str, &str)] = &[
    // Default deny, and both must allow it.
    ("", INTERNET, "93.184.216.34:443", "not granted"),
    (INTERNET, "", "93.184.216.34:443", "denied"),
    (INTERNET, INTERNET, "93.184.216.34:443", "yes"),
    ("93.184.216.0/24:443", INTERNET, "93.184.216.34:443", "yes"),
    ("93.184.216.0/24:443", INTERNET, "93.184.216.34:444", "not granted"),
    ("-", INTERNET, "93.184.216.34:443", "yes"),
    ("-", "", "93.184.216.34:443", "denied"),
    // Private networks need an explicit rule in both.
    (INTERNET, INTERNET, "10.9.0.77:443", "not granted"),
    ("10.9.0.0/24:443", INTERNET, "10.9.0.77:443", "unnamed private"),
    (INTERNET, "10.9.0.0/24:443", "10.9.0.77:443", "not granted"),
    ("10.0.0.0/8:*", "10.9.0.0/24:443", "10.9.0.77:443", "yes"),
    ("-", INTERNET, "10.9.0.77:443", "unnamed private"),
    ("-", "10.9.0.0/24:443", "10.9.0.77:443", "yes"),
    // Names are checked before they are resolved.
    ("", INTERNET, "db.tenant.example:443", "not granted"),
    ("*.tenant.example:443", "", "db.tenant.example:443", "denied"),
    ("*.tenant.example:443", INTERNET, "db.tenant.example:443", "yes"),
    ("*.tenant.example:443", INTERNET, "db.tenant.example:444", "not granted"),
    ("*.tenant.example:443", INTERNET, "tenant.example:443", "not granted"),
    (INTERNET, INTERNET, "db.tenant.example:443", "yes"),
    ("0.0.0.0/0:443", "*.example:443", "db.tenant.example:443", "yes"),
    ("0.0.0.0/0:443", "*.example:443", "db.tenant.example:80", "not granted"),
    ("10.9.0.0/24:443", INTERNET, "db.tenant.example:443", "not granted"),
    ("128.0.0.0/1:443", INTERNET, "db.tenant.example:443", "not granted"),
    (INTERNET, "10.9.0.0/24:443", "db.tenant.example:443", "denied"),
    ("-", INTERNET, "db.tenant.example:443", "yes"),
    // Name rules cover public addresses only.
    ("*.tenant.example:443", INTERNET, "db.tenant.example=93.184.216.34:443", "yes"),
    ("*.tenant.example:443", "*.example:443", "db.tenant.example=93.184.216.34:443", "yes"),
    (
        "*.tenant.example:443",
        "*.other.example:443",
        "db.tenant.example=93.184.216.34:443",
        "denied",
    ),
    ("*.tenant.example:443", "10.9.0.0/24:443", "db.tenant.example=10.9.0.77:443", "not granted"),
    ("10.9.0.0/24:443", "*.tenant.example:443", "db.tenant.example=10.9.0.77:443", "denied"),
    ("10.9.0.0/24:443", "10.9.0.0/24:443", "db.tenant.example=10.9.0.77:443", "yes"),
    ("*.tenant.example:443", INTERNET, "db.tenant.example=fd00::1:443", "not granted"),
    ("-", INTERNET, "db.tenant.example=10.9.0.77:443", "unnamed private"),
    // Some addresses are never reached, even inside others.
    ("127.0.0.0/8:*", "127.0.0.0/8:*", "127.0.0.1:80", "never"),
    ("169.254.0.0/16:*", "169.254.0.0/16:*", "169.254.169.254:80", "never"),
    ("*.tenant.example:80", INTERNET, "db.tenant.example=169.254.169.254:80", "never"),
    ("*.tenant.example:80", INTERNET, "db.tenant.example=64:ff9b::a00:1:80", "never"),
    // The own host, whatever the class of its address, needs a rule for exactly that address.
    (INTERNET, INTERNET, "93.184.216.7:6379", "own host"),
    (INTERNET, INTERNET, "2606:2800:220::7:6379", "own host"),
    (INTERNET, INTERNET, "64:ff9b::5db8:d807:6379", "own host"),
    (INTERNET, "93.184.216.0/24:6379", "93.184.216.7:6379", "own host"),
    (INTERNET, "93.184.216.7/32:6379", "93.184.216.7:6379", "yes"),
    (INTERNET, "0.0.0.0/0:* 93.184.216.7/32:80", "93.184.216.7:6379", "own host"),
    (INTERNET, "[2606:2800:220::7]/128:*", "2606:2800:220::7:6379", "yes"),
    ("10.0.0.0/8:*", "10.0.0.0/8:*", "10.0.0.7:6379", "own host"),
    ("10.0.0.0/8:*", "10.0.0.7/32:*", "10.0.0.7:6379", "yes"),
    ("", "93.184.216.7/32:6379", "93.184.216.7:6379", "not granted"),
    ("*.tenant.example:80", "*.tenant.example:80", "db.tenant.example=93.184.216.7:80", "own host"),
    ("*.tenant.example:80", "93.184.216.7/32:80", "db.tenant.example=93.184.216.7:80", "yes"),
    ("-", INTERNET, "93.184.216.7:6379", "own host"),
    // Own listeners and `never` addresses are always refused.
    (INTERNET, "93.184.216.7/32:*", "93.184.216.7:7000", "denied"),
    (INTERNET, "93.184.216.7/32:*", "93.184.216.7:7001", "denied"),
    (INTERNET, "[2606:2800:220::7]/128:*", "2606:2800:220::7:7001", "denied"),
    (INTERNET, INTERNET, "93.184.216.8:7001", "yes"),
    (INTERNET, "93.184.216.99/32:443", "93.184.216.99:443", "denied"),
    (INTERNET, INTERNET, "64:ff9b::5db8:d863:443", "denied"),
    // Relays are next hops and no destinations, whatever rule covers them.
    (INTERNET, "93.184.217.5/32:7000", "93.184.217.5:7000", "relay"),
    (INTERNET, INTERNET, "64:ff9b::5db8:d905:7000", "relay"),
    (INTERNET, INTERNET, "93.184.217.5:7001", "yes"),
    ("10.0.0.0/8:*", "10.0.0.0/8:*", "10.7.0.1:7000", "relay"),
    (INTERNET, "93.184.216.50/32:7000", "93.184.216.50:7000", "relay"),
    (INTERNET, INTERNET, "93.184.216.50:443", "yes"),
    (INTERNET, "93.184.216.51/32:7000", "93.184.216.51:7000", "relay"),
    ("*.tenant.example:*", INTERNET, "db.tenant.example=93.184.217.5:7000", "relay"),
    ("-", INTERNET, "93.184.216.50:7000", "relay"),
    // A host at all its ports.
    (INTERNET, INTERNET, "host 93.184.216.34", "yes"),
    (INTERNET, "93.184.216.0/24:443", "host 93.184.216.34", "denied"),
    ("93.184.216.0/24:443", INTERNET, "host 93.184.216.34", "not granted"),
    (INTERNET, INTERNET, "host 2606:2800:220::7", "own host"),
    (INTERNET, "[2606:2800:220::7]/128:*", "host 2606:2800:220::7", "yes"),
    (INTERNET, "[2606:2800:220::7]/128:443", "host 2606:2800:220::7", "denied"),
    ("10.0.0.0/8:*", "10.0.0.0/8:*", "host 10.0.0.7", "own host"),
    ("10.0.0.0/8:*", "10.0.0.7/32:*", "host 10.0.0.7", "yes"),
    (INTERNET, INTERNET, "host 93.184.217.5", "relay"),
    (INTERNET, INTERNET, "host 93.184.216.50", "relay"),
    (INTERNET, INTERNET, "host 93.184.216.99", "denied"),
    // Next hops need no grant, and the own host needs a rule for exactly its address there, too.
    ("-", "", "next 93.184.217.5:7000", "yes"),
    ("-", INTERNET, "next 93.184.217.5:7001", "denied"),
    ("-", INTERNET, "next 93.184.216.7:7000", "denied"),
    ("-", "", "next 93.184.216.7:7002", "yes"),
    ("-", "", "next 10.7.0.1:7000", "yes"),
    ("-", "", "next 203.0.113.9:7000", "denied"),
];

fn rules(text: &str) -> Vec<DestinationRule> {
    text.split_whitespace().map(|rule| rule.parse().unwrap()).collect()
}

/// Parses `address:port`, where IPv6 has no brackets.
fn address(text: &str) -> SocketAddr {
    let (ip, port) = text.rsplit_once(':').unwrap();
    SocketAddr::new(ip.parse().unwrap(), port.parse().unwrap())
}

fn word(answer: Result<(), GrantError>) -> &'static str {
    match answer {
        Ok(()) => "yes",
        Err(GrantError::DestinationNotGranted(_)) => "not granted",
        Err(GrantError::Denied(_)) => "denied",
        Err(GrantError::UnnamedPrivate(_)) => "unnamed private",
        Err(GrantError::Forbidden { .. }) => "never",
        Err(GrantError::LocalHost(_)) => "own host",
        Err(GrantError::Relay(_)) => "relay",
        Err(other) => panic!("{other}"),
    }
}

fn asked(policy: &Policy, grant: Option<&Grant>, text: &str) -> &'static str {
    let is_local = |ip: IpAddr| OWN.iter().any(|own| own.parse::<IpAddr>().unwrap() == ip);
    let listeners = LISTENERS.map(|listener| listener.parse().unwrap());
    let identity = common::relay(1).public();
    let route = [Hop { address: ON_ROUTE.parse().unwrap(), identity }];
    let check =
        Check { grant, route: &route, listeners: &listeners, ..Check::new(policy, &is_local) };
    if let Some(ip) = text.strip_prefix("host ") {
        return word(check.allows(Target::Host(ip.parse().unwrap())));
    }
    if let Some(hop) = text.strip_prefix("next ") {
        return word(check.allows(Target::NextHop(address(hop))));
    }
    if let Some((name, resolved)) = text.split_once('=') {
        let name = HostName::new(name).unwrap();
        return word(check.allows(Target::Resolved(&name, address(resolved))));
    }
    match text.parse::<Destination>() {
        Ok(destination) => word(check.allows(Target::of(&destination))),
        Err(_) => word(check.allows(Target::Address(address(text)))),
    }
}

#[test]
fn table_of_destinations() {
    for (granted, own, target, expected) in TABLE {
        let policy = Policy {
            destinations: rules(own),
            next_hops: rules(NEXT_HOPS),
            allow_loopback: false,
            never: vec![NEVER.parse().unwrap()],
            relays: vec![RELAY.parse().unwrap()],
        };
        let granted = (*granted != "-").then(|| rules(granted));
        let grant = granted.clone().map(|destinations| Grant { destinations, ..grant() });
        let answer = asked(&policy, grant.as_ref(), target);
        assert_eq!(answer, *expected, "{target} of {own:?} under {granted:?}");
    }
}

#[test]
fn loopback_listeners_and_relays_are_refused_in_a_lab() {
    let policy = Policy {
        destinations: rules("127.0.0.0/8:*"),
        next_hops: rules("127.0.7.0/24:*"),
        allow_loopback: true,
        ..Policy::default()
    };
    let is_local = |_| true;
    let listeners = ["0.0.0.0:7001".parse().unwrap()];
    let check = Check { listeners: &listeners, ..Check::new(&policy, &is_local) };
    let asked = |target| word(check.allows(target));
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    assert_eq!(asked(Target::Address(at("127.0.0.1:80"))), "yes");
    assert_eq!(asked(Target::Address(at("127.0.0.1:7001"))), "denied");
    assert_eq!(asked(Target::Address(at("127.0.7.1:80"))), "relay");
    assert_eq!(asked(Target::NextHop(at("127.0.7.1:80"))), "yes");
    assert_eq!(asked(Target::NextHop(at("127.0.7.1:7001"))), "denied");
}

#[test]
fn requester_rules_add_to_the_policy() {
    let policy = Policy { destinations: rules(INTERNET), ..Policy::default() };
    let (also, is_local) = (rules("10.9.0.77/32:443"), |_| false);
    let check = Check { also: &also, ..Check::new(&policy, &is_local) };
    let asked = |text: &str| word(check.allows(Target::Address(text.parse().unwrap())));
    assert_eq!(asked("10.9.0.77:443"), "yes");
    assert_eq!(asked("10.9.0.78:443"), "unnamed private");
    assert_eq!(word(check.allows(Target::NextHop(address("10.9.0.77:443")))), "denied");
}

#[test]
fn only_name_rules_name_a_name() {
    let policy = Policy { destinations: rules(INTERNET), ..Policy::default() };
    let is_local = |_| false;
    let name = HostName::new("db.tenant.example").unwrap();
    for (granted, expected) in
        [(INTERNET, false), ("*.tenant.example:443", true), ("*.tenant.example:80", false)]
    {
        let grant = Grant { destinations: rules(granted), ..grant() };
        let check = Check { grant: Some(&grant), ..Check::new(&policy, &is_local) };
        assert_eq!(check.names(&name, 443), expected, "{granted}");
    }
    assert!(!Check::new(&policy, &is_local).names(&name, 443));
}
