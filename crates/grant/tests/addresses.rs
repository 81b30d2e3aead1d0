//! Addresses that are never dialled in any form, and those that need an explicit rule.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::net::{IpAddr, SocketAddr};

use common::forbidden::{Entry, entries};
use common::grant;
use proptest::prelude::*;
use tradewind_grant::forbidden::{Class, class_of};
use tradewind_grant::{
    Check, Destination, DestinationRule, Grant, GrantError, HostName, Policy, Target,
};

fn open_policy() -> Policy {
    let everything = [
        "0.0.0.0/0:*",
        "[::]/0:*",
        "127.0.0.0/8:*",
        "169.254.0.0/16:*",
        "0.0.0.0/8:*",
        "[fe80::]/10:*",
        "[fc00::]/7:*",
        "[::1]/128:*",
        "10.0.0.0/8:*",
        "100.64.0.0/10:*",
        "*.example.com:*",
    ];
    let rules: Vec<DestinationRule> = everything.iter().map(|r| r.parse().unwrap()).collect();
    Policy { destinations: rules, ..Policy::default() }
}

/// Checks a target on a host that owns none of the addresses.
fn check(policy: &Policy, grant: &Grant, target: Target<'_>) -> Result<(), GrantError> {
    Check { grant: Some(grant), ..Check::new(policy, &|_| false) }.allows(target)
}

fn open_grant() -> Grant {
    Grant { destinations: open_policy().destinations, ..grant() }
}

#[test]
fn forbidden_destinations_are_refused_in_every_form() {
    for Entry { request, answers, why } in entries() {
        let Some(last) = answers.last() else {
            match Destination::new(request, 80) {
                Ok(Destination::Address(address)) => assert_never_dialled(address, &why),
                Ok(name @ Destination::Name { .. }) => panic!("{why}: taken for the name {name}"),
                Err(_) => {
                    assert!(HostName::new(request).is_err(), "{why}");
                    assert!(format!("{request}:80").parse::<Destination>().is_err(), "{why}");
                }
            }
            continue;
        };
        assert!(matches!(Destination::new(request, 80), Ok(Destination::Name { .. })), "{why}");
        let forbidden: Vec<_> = last.iter().filter(|ip| class_of(**ip).is_forbidden()).collect();
        assert!(!forbidden.is_empty(), "{why}");
        for ip in forbidden {
            assert_never_dialled(SocketAddr::new(*ip, 80), &why);
        }
    }
}

/// Asserts that `address` is refused as itself, for an innocent name, and as the next relay.
fn assert_never_dialled(address: SocketAddr, why: &str) {
    let (policy, grant) = (open_policy(), open_grant());
    let name = HostName::new("innocent.example.com").unwrap();
    assert!(class_of(address.ip()).is_forbidden(), "{why} is {}", class_of(address.ip()));
    for target in [Target::Address(address), Target::Resolved(&name, address)] {
        let refused = check(&policy, &grant, target).unwrap_err();
        assert!(matches!(refused, GrantError::Forbidden { .. }), "{why}: {refused}");
    }
    let next_hops = Policy { next_hops: policy.destinations, ..Policy::default() };
    assert!(check(&next_hops, &grant, Target::NextHop(address)).is_err(), "{why}");
}

#[test]
fn host_names_are_validated() {
    for name in ["", ".", "a-.example", "exa mple.com", "a/b", "a@b", "example.com\n", "xn--\u{0}"]
    {
        assert!(HostName::new(name).is_err(), "{name:?}");
        assert!(Destination::new(name, 80).is_err(), "{name:?}");
        assert!(format!("{name}:80").parse::<Destination>().is_err(), "{name:?}");
    }
    for name in ["example.com", "a", "x1.b-2.c_3", "1.example", "xn--exmple-cua.com"] {
        assert!(HostName::new(name).is_ok(), "{name}");
    }
}

#[test]
fn destinations_are_written_in_one_way() {
    for text in ["192.0.2.7:443", "[2001:db8::1]:80", "db.example.com:5432"] {
        assert_eq!(text.parse::<Destination>().unwrap().to_string(), text);
    }
    let mapped: Destination = "[::ffff:192.0.2.7]:443".parse().unwrap();
    assert_eq!(mapped.to_string(), "192.0.2.7:443");
    for text in [
        "192.0.2.7",
        "192.0.2.7:0",
        "192.0.2.7:65536",
        "192.0.2.7:+80",
        "192.0.2.7:080",
        "2001:db8::1:80",
        "db.example.com",
        ":80",
        "db.example.com:",
        "http://a.example:80",
    ] {
        let error = text.parse::<Destination>().unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn private_network_needs_its_own_rule() {
    for (text, rule) in [
        ("10.1.2.3:443", "10.0.0.0/8:443"),
        ("172.31.0.1:443", "172.16.0.0/12:443"),
        ("192.168.1.1:443", "192.168.1.0/24:443"),
        ("100.64.0.1:443", "100.64.0.0/10:443"),
        ("198.18.0.1:443", "198.18.0.0/15:443"),
        ("[fd12::1]:443", "[fd12::]/16:443"),
    ] {
        let rules = |rule: &str| vec![rule.parse().unwrap()];
        let grant = Grant { destinations: rules(rule), ..grant() };
        let asked = |rule: &str| {
            let policy = Policy { destinations: rules(rule), ..Policy::default() };
            check(&policy, &grant, Target::Address(text.parse().unwrap()))
        };
        assert!(asked(rule).is_ok(), "{text}");
        assert!(asked("0.0.0.0/0:*").is_err(), "{text}");
        assert!(asked("[::]/0:*").is_err(), "{text}");
        assert!(asked("8.0.0.0/5:*").is_err(), "{text}: a wider range is not meant");
    }
}

#[test]
fn source_is_covered_for_any_port_and_class() {
    let covers = |rule: &str, source: &str| {
        rule.parse::<DestinationRule>().unwrap().covers_source(source.parse().unwrap())
    };
    assert!(covers("10.0.0.9/32:443", "10.0.0.9"));
    assert!(covers("0.0.0.0/0:*", "10.0.0.9"), "who says all addresses means all");
    assert!(covers("10.0.0.0/8:*", "::ffff:10.1.2.3"));
    assert!(!covers("10.0.0.0/8:*", "11.0.0.1"));
    assert!(!covers("lb.example.com:*", "10.0.0.9"));
}

#[test]
fn ambiguous_rules_are_refused() {
    for text in [
        "10.0.0.1/8:443",
        "10.0.0.0/33:443",
        "10.0.0.0/8",
        "10.0.0.0/08:443",
        "*:443",
        "*.*.example.com:1",
        "a.*.com:1",
        "10.0.0.0/8:0",
        "10.0.0.0/8:9-8",
        "10.0.0.0/8:1-",
        "10.0.0.0/8:-1",
        "fd12::/16:443",
        "[fd12::/16]:443",
        "[fd12::1]/16:443",
        "[::ffff:10.0.0.0]/104:443",
        "example.com/8:443",
        "[10.0.0.0]/8:443",
        "10.0.0.0/+8:443",
        "",
    ] {
        let error = text.parse::<DestinationRule>().unwrap_err();
        assert!(error.to_string().contains("destination rule"), "{text}: {error}");
    }
    for text in [
        "10.0.0.0/8:443",
        "192.0.2.7/32:1-1024",
        "[2001:db8::]/32:*",
        "*.example.com:443",
        "db.example.com:5432",
    ] {
        assert_eq!(text.parse::<DestinationRule>().unwrap().to_string(), text);
    }
}

proptest! {
    #[test]
    fn mapped_ipv4_addresses_are_checked(octets in any::<[u8; 4]>()) {
        let [a, b, c, d] = octets;
        let v4 = IpAddr::from(octets);
        let mapped: IpAddr = format!("::ffff:{a}.{b}.{c}.{d}").parse().unwrap();
        prop_assert_eq!(class_of(mapped), class_of(v4));
        let nat64: IpAddr = format!("64:ff9b::{a}.{b}.{c}.{d}").parse().unwrap();
        let six_to_four: IpAddr = format!("2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1").parse().unwrap();
        for inside in [nat64, six_to_four] {
            let open = !class_of(inside).is_forbidden();
            prop_assert_eq!(open, class_of(v4) == Class::Public);
        }
    }

    #[test]
    fn rule_parser_never_panics(text in "\\PC{0,60}") {
        let _ = text.parse::<DestinationRule>();
        let _ = text.parse::<Destination>();
    }
}
