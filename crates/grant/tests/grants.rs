//! Grants and keys: their encodings, their signatures, and their specifications.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use common::{GRANT_LIFE, NOW, gateway, grant, operator, relay, signed_grant};
use proptest::prelude::*;
use tradewind_grant::{
    Extensions, Grant, GrantError, GrantSpec, IdentityKey, OperatorKey, OperatorPublicKey,
    PublicIdentity, Relays, SignedGrant,
};
use tradewind_units::{Duration, Timestamp};

#[test]
fn signed_grant_survives_a_round_trip() {
    let signed = signed_grant();
    let read = SignedGrant::from_bytes(signed.as_bytes()).unwrap();
    assert_eq!(read.verify(&[operator().public()]).unwrap(), &grant());
    let text = signed.to_string();
    assert!(text.starts_with("twgrant_"));
    assert_eq!(text.parse::<SignedGrant>().unwrap(), signed);
}

#[test]
fn bit_flips_of_a_grant_are_refused() {
    let signed = signed_grant();
    for bit in 0..signed.as_bytes().len() * 8 {
        let mut bytes = signed.as_bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let believed = SignedGrant::from_bytes(&bytes)
            .and_then(|grant| grant.verify(&[operator().public()]).cloned());
        assert!(believed.is_err(), "bit {bit} was flipped and nobody saw");
    }
}

#[test]
fn unknown_extension_is_refused() {
    let extensions =
        Extensions { session_max_age: Some(Duration::from_secs(60)), ..Extensions::default() };
    let signed = Grant { extensions, ..grant() }.sign(&operator()).unwrap();
    let (plain, bytes) = (signed_grant(), signed.as_bytes());
    assert_eq!((plain.as_bytes()[3], bytes[3]), (1, 2), "an older reader passes over none");
    // Number, kind, length, value; then the signature.
    let kind_at = bytes.len() - 64 - 4 - 2 - 1;
    assert_eq!(bytes[kind_at - 1..kind_at + 7], [1, 1, 0, 4, 0, 0, 0, 60]);
    for (at, wrong) in [(kind_at, 77), (kind_at, 0), (kind_at - 1, 0), (kind_at - 1, 9)] {
        let mut other = bytes.to_vec();
        other[at] = wrong;
        let refused = SignedGrant::from_bytes(&other).unwrap_err();
        assert!(matches!(refused, GrantError::Malformed { .. }), "{refused}");
    }
    let mut never = bytes.to_vec();
    never[kind_at + 6] = 0;
    assert!(SignedGrant::from_bytes(&never).is_err(), "no session would be open");
}

#[test]
fn session_limit_is_the_grants_end_or_max_age() {
    let (plain, hour) = (grant(), Duration::from_secs(3600));
    assert_eq!(plain.session_limit(NOW), hour);
    let of = |age| Grant {
        extensions: Extensions { session_max_age: Some(age), ..Extensions::default() },
        ..grant()
    };
    assert_eq!(of(Duration::from_secs(60)).session_limit(NOW), Duration::from_secs(60));
    assert_eq!(of(hour * 2).session_limit(NOW + hour / 2), hour / 2);
}

#[test]
fn truncated_or_extended_grant_is_refused() {
    let signed = signed_grant();
    for length in 0..signed.as_bytes().len() {
        assert!(SignedGrant::from_bytes(&signed.as_bytes()[..length]).is_err(), "{length}");
    }
    assert!(SignedGrant::from_bytes(&[signed.as_bytes(), &[0]].concat()).is_err());
}

#[test]
fn unknown_key_differs_from_bad_signature() {
    let signed = signed_grant();
    let other = OperatorKey::from_entropy([5; 32]).public();
    let key_id = operator().public().key_id();
    assert_eq!(signed.verify(&[other]).unwrap_err(), GrantError::UnknownKey(key_id));
    assert_eq!(signed.verify(&[]).unwrap_err(), GrantError::UnknownKey(key_id));
    assert!(signed.verify(&[other, operator().public()]).is_ok(), "keys rotate");

    let mut forged = signed.as_bytes().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let forged = SignedGrant::from_bytes(&forged).unwrap();
    let refused = forged.verify(&[operator().public()]).unwrap_err();
    assert_eq!(refused, GrantError::BadSignature(key_id));
}

#[test]
fn grant_is_valid_within_its_times() {
    let grant = grant();
    let milli = 1_000_000;
    assert!(grant.check_expiry(NOW).is_ok());
    let before = Timestamp::from_nanos(NOW.as_nanos() - milli);
    assert!(matches!(grant.check_expiry(before), Err(GrantError::NotYetValid { .. })));
    let end = NOW + GRANT_LIFE;
    assert!(grant.check_expiry(Timestamp::from_nanos(end.as_nanos() - milli)).is_ok());
    assert!(matches!(grant.check_expiry(end), Err(GrantError::Expired { .. })));
}

#[test]
fn invalid_grant_is_not_signed() {
    let refused = |change: fn(&mut Grant)| {
        let mut grant = grant();
        change(&mut grant);
        grant.sign(&operator()).unwrap_err().to_string()
    };
    assert!(refused(|g| g.destinations.clear()).contains("1 to 32"));
    assert!(refused(|g| g.destinations = vec![g.destinations[0].clone(); 33]).contains("1 to 32"));
    assert!(
        refused(|g| g.destinations = vec!["[2001:db8::]/32:1".parse().unwrap(); 32])
            .contains("at most 512 fit")
    );
    assert!(refused(|g| g.expires = g.not_before).contains("begins before it ends"));
    assert!(
        refused(|g| {
            let relays: Vec<_> = (0..17).map(|number| relay(number).public()).collect();
            g.relays = Relays::listed(&relays);
        })
        .contains("at most 16 relays")
    );
    // A list that is not sorted has no encoding.
    assert!(refused(|g| g.relays = Relays::Listed(vec![[2; 16], [1; 16]])).contains("relays"));
}

fn with_sources(sources: &[&str]) -> Grant {
    let sources = sources.iter().map(|range| range.parse().unwrap()).collect();
    Grant { extensions: tradewind_grant::Extensions { sources, ..Default::default() }, ..grant() }
}

#[test]
fn grant_with_sources_survives_a_round_trip() {
    let grant = with_sources(&["10.1.0.0/16", "fd00:1::/64", "10.2.0.7"]);
    let signed = grant.clone().sign(&operator()).unwrap();
    assert_eq!(signed.as_bytes()[3], 2, "who reads version 1 alone refuses it");
    let read = SignedGrant::from_bytes(signed.as_bytes()).unwrap();
    assert_eq!(read.verify(&[operator().public()]).unwrap(), &grant);
    for (ip, is_covered) in
        [("10.1.2.3", true), ("fd00:1::9", true), ("10.2.0.7", true), ("10.2.0.8", false)]
    {
        assert_eq!(grant.covers_source(ip.parse().unwrap()), is_covered, "{ip}");
    }
    assert!(!common::grant().covers_source("10.1.2.3".parse().unwrap()), "none when absent");
    let refused = with_sources(&["10.1.0.0/16"; 17]).sign(&operator()).unwrap_err().to_string();
    assert!(refused.contains("at most 16 ranges"), "{refused}");
}

#[test]
fn empty_relay_list_allows_none() {
    let nobody = Relays::listed(&[]);
    assert!(!nobody.contain(&relay(1).public()));
    assert!(Relays::Any.contain(&relay(1).public()));
    assert!(Relays::listed(&[relay(1).public()]).contain(&relay(1).public()));
}

#[test]
fn secrets_do_not_show_in_debug_or_errors() {
    let key = gateway();
    let secret = key.to_secret_text();
    assert_eq!(format!("{key:?}"), "IdentityKey([secret])");
    assert_eq!(format!("{:?}", operator()), "OperatorKey([secret])");
    let digits = &secret["twidkey_".len()..];
    let truncated = &secret[..secret.len() - 3];
    let errors = [
        truncated.parse::<IdentityKey>().unwrap_err().to_string(),
        secret.parse::<PublicIdentity>().unwrap_err().to_string(),
        digits.parse::<IdentityKey>().unwrap_err().to_string(),
        secret.parse::<OperatorKey>().unwrap_err().to_string(),
    ];
    for error in errors {
        assert!(!error.contains(&digits[..8]), "{error}");
    }
}

#[test]
fn bad_key_text_is_named() {
    let secret = gateway().to_secret_text();
    let error = secret.parse::<PublicIdentity>().unwrap_err().to_string();
    assert!(error.starts_with("public identity: this is a secret identity key;"), "{error}");
    let public = gateway().public().to_string();
    let error = public[..40].parse::<PublicIdentity>().unwrap_err().to_string();
    assert!(error.contains("cut off or mistyped"), "{error}");
    assert!("".parse::<PublicIdentity>().is_err());
    assert!(public.to_uppercase().parse::<PublicIdentity>().is_err());
}

#[test]
fn keys_survive_their_text_form() {
    let key: IdentityKey = gateway().to_secret_text().parse().unwrap();
    assert_eq!(key.public(), gateway().public());
    let operator_key: OperatorKey = operator().to_secret_text().parse().unwrap();
    assert_eq!(operator_key.public(), operator().public());
    let public: OperatorPublicKey = operator().public().to_string().parse().unwrap();
    assert_eq!(public, operator().public());
    let json = serde_json::to_string(&gateway().public()).unwrap();
    assert_eq!(serde_json::from_str::<PublicIdentity>(&json).unwrap(), gateway().public());
}

#[test]
fn grant_is_specified_in_toml() {
    let spec = format!(
        "gateway = \"{}\"\ndestinations = [\"10.0.0.0/8:443\", \"*.example.com:443\"]\n\
         relays = [\"{}\"]\nexpires = \"24 h\"\nsessions = 100\n",
        gateway().public(),
        relay(1).public(),
    );
    let issued = GrantSpec::parse(&spec).unwrap().issue(NOW).unwrap();
    assert_eq!(issued.gateway, gateway().public());
    assert_eq!(issued.expires, NOW + Duration::from_secs(86_400));
    assert!(issued.check_expiry(NOW).is_ok() && issued.not_before < NOW);
    assert_eq!(issued.sessions.unwrap().get(), 100);
    assert!(issued.relays.contain(&relay(1).public()));
    assert!(!issued.relays.contain(&relay(2).public()));
    assert!(issued.sign(&operator()).is_ok());
}

#[test]
fn grant_times_may_be_dates() {
    let spec = |expires: &str| {
        let gateway = gateway().public();
        let text = format!(
            "gateway = \"{gateway}\"\ndestinations = [\"192.0.2.7:22\"]\nrelays = \"any\"\n\
             not_before = 2026-11-20T13:00:00+01:00\nexpires = {expires}\n"
        );
        GrantSpec::parse(&text).unwrap().issue(NOW)
    };
    let grant = spec("2028-02-29T23:59:59Z").unwrap();
    assert_eq!(grant.not_before, NOW);
    assert_eq!(grant.expires, Timestamp::from_nanos(1_835_481_599_000_000_000));
    assert_eq!(spec("\"2028-02-29T23:59:59Z\"").unwrap().expires, grant.expires);
    let error = spec("2020-01-01T00:00:00Z").unwrap_err().to_string();
    assert!(error.contains("in the past"), "{error}");
}

#[test]
fn bad_specification_gives_one_line() {
    let gateway = gateway().public();
    let good = format!(
        "gateway = \"{gateway}\"\ndestinations = [\"10.0.0.0/8:443\"]\nrelays = \"any\"\n\
         expires = \"24 h\"\n"
    );
    assert!(GrantSpec::parse(&good).is_ok());
    let secret = common::gateway().to_secret_text();
    let cases = [
        (good.replace("twid_", "twid"), "line 1"),
        (good.replace(&gateway.to_string(), &secret), "this is a secret identity key"),
        (good.replace("/8:443", "/8"), "destination rule"),
        (good.replace("/8:443", "/33:443"), "destination rule"),
        (good.replace("\"any\"", "\"all\""), "expected \"any\" or a list"),
        (good.replace("\"any\"", "[1]"), "expected \"any\" or a list"),
        (good.replace("24 h", "soon"), "a date with time and zone"),
        (good.replace("\"24 h\"", "24"), "a date with time and zone"),
        (good.replace("\"24 h\"", "2027-01-01"), "a date with time and zone"),
        (good.replace("expires", "expiry"), "expiry"),
        (good.replace("relays = \"any\"\n", ""), "relays"),
        (format!("{good}sessions = 0\n"), "line 5"),
        (good.replace('=', "= ="), "line 1"),
        (good.replace("[\"10.0.0.0/8:443\"]", "[]"), "`destinations` is empty"),
    ];
    for (text, part) in cases {
        let error = GrantSpec::parse(&text).and_then(|spec| spec.issue(NOW)).unwrap_err();
        let line = error.to_string();
        assert!(line.contains(part) && line.lines().count() == 1, "{part}: {line}");
        assert!(!line.contains(&secret[8..]), "{line}");
    }
}

proptest! {
    #[test]
    fn grant_parser_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(SignedGrant::from_bytes(&bytes).is_err());
        let framed = [b"TWG\x01".as_slice(), &bytes].concat();
        if let Ok(grant) = SignedGrant::from_bytes(&framed) {
            prop_assert!(grant.verify(&[operator().public()]).is_err());
        }
    }

    #[test]
    fn any_grant_survives_its_bytes(
        begin in 0u64..4_000_000_000_000, life in 1u64..4_000_000_000_000,
        sessions in any::<Option<std::num::NonZeroU32>>(),
        relays in proptest::option::of(proptest::collection::vec(0u8..200, 0..=8)),
        rules in proptest::collection::vec(any_rule(), 1..=8),
        age in proptest::option::of(1u32..),
        issued in proptest::option::of(0u64..4_000_000_000_000),
    ) {
        let listed = |numbers: Vec<u8>| {
            Relays::listed(&numbers.iter().map(|n| relay(n % 200).public()).collect::<Vec<_>>())
        };
        let at = |ms: u64| Timestamp::from_nanos(ms * 1_000_000);
        let grant = Grant {
            gateway: gateway().public(),
            not_before: at(begin),
            expires: at(begin + life),
            sessions,
            relays: relays.map_or(Relays::Any, listed),
            destinations: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
            extensions: Extensions {
                session_max_age: age.map(|age| Duration::from_secs(age.into())),
                issued_at: issued.map(at),
                ..Extensions::default()
            },
        };
        let signed = grant.clone().sign(&operator()).unwrap();
        prop_assert_eq!(signed.verify(&[operator().public()]).unwrap(), &grant);
    }
}

fn any_rule() -> impl Strategy<Value = String> {
    let hosts = prop_oneof![
        (any::<u32>(), 0u32..=32).prop_map(|(address, bits)| {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            format!("{}/{bits}", std::net::Ipv4Addr::from(address & mask))
        }),
        (any::<u64>(), 0u32..=64).prop_map(|(high, bits)| {
            let mask = u64::MAX.checked_shl(64 - bits).unwrap_or(0);
            format!("[{}]/{bits}", std::net::Ipv6Addr::from(u128::from(high & mask) << 64))
        }),
        "[a-z]{1,8}\\.example",
        "\\*\\.[a-z]{1,8}\\.example",
    ];
    let ports = prop_oneof![
        Just("*".to_owned()),
        (1u16..).prop_map(|port| port.to_string()),
        (1u16..60_000).prop_map(|port| format!("{port}-{}", port + 1000)),
    ];
    (hosts, ports).prop_map(|(hosts, ports)| format!("{hosts}:{ports}"))
}
