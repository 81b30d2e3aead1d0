//! Revocation lists: their format, the grants that they apply to, and the order of versions.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::str::FromStr;
use std::sync::Arc;

use common::{NOW, gateway, grant, operator, relay, sealed, signed_grant, verifier};
use proptest::prelude::*;
use tradewind_grant::{
    Extensions, Grant, GrantError, GrantId, OperatorKey, RevocationList, Revocations,
    SignedRevocations, Status, Trust, VerifiedGrant,
};
use tradewind_units::Duration;

fn other_operator() -> OperatorKey {
    OperatorKey::from_entropy([5; 32])
}

fn verified(grant: Grant, operator: &OperatorKey) -> VerifiedGrant {
    grant.sign(operator).unwrap().into_verified(&[operator.public()]).unwrap()
}

fn list(version: u64) -> RevocationList {
    RevocationList { version, ..RevocationList::default() }
}

/// Returns the lists in force after `list` of the operator was applied.
fn in_force(list: &RevocationList) -> Revocations {
    let lists = [list.sign(&operator()).unwrap()];
    Revocations::default().updated(&lists, &[operator().public()]).unwrap()
}

fn is_revoked(list: &RevocationList, grant: &VerifiedGrant) -> bool {
    match in_force(list).check(grant) {
        Ok(()) => false,
        Err(GrantError::Revoked { version, .. }) => {
            assert_eq!(version, list.version);
            true
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn grant_is_revoked_by_id_gateway_or_time_of_issue() {
    let granted = verified(grant(), &operator());
    let issued_at = granted.grant.issued_at();
    let ms = Duration::from_millis(1);
    assert!(!is_revoked(&list(1), &granted));
    let by_name = RevocationList { grants: [granted.id].into(), ..list(1) };
    assert!(is_revoked(&by_name, &granted));
    let by_gateway = RevocationList { gateways: [gateway().public()].into(), ..list(2) };
    assert!(is_revoked(&by_gateway, &granted));
    let before = |time| RevocationList { issued_before: Some(time), ..list(3) };
    assert!(is_revoked(&before(issued_at + ms), &granted));
    assert!(!is_revoked(&before(issued_at), &granted));
    let others = RevocationList {
        grants: [GrantId::from_str(&"0".repeat(32)).unwrap()].into(),
        gateways: [relay(1).public()].into(),
        ..list(4)
    };
    assert!(!is_revoked(&others, &granted));
}

#[test]
fn future_grant_is_revoked_by_issue_time() {
    let later = NOW + Duration::from_secs(86_400);
    let extensions = Extensions { issued_at: Some(NOW), ..Extensions::default() };
    let granted = Grant {
        not_before: later,
        expires: later + Duration::from_secs(60),
        extensions,
        ..grant()
    };
    let granted = verified(granted, &operator());
    let before = NOW + Duration::from_secs(1);
    assert!(is_revoked(&RevocationList { issued_before: Some(before), ..list(1) }, &granted));
}

#[test]
fn list_applies_only_to_its_operators_grants() {
    let operators = [operator().public(), other_operator().public()];
    let names_all = RevocationList {
        gateways: [gateway().public()].into(),
        issued_before: Some(NOW + Duration::from_secs(9999)),
        ..list(9)
    };
    let lists = [names_all.sign(&other_operator()).unwrap()];
    let revocations = Revocations::default().updated(&lists, &operators).unwrap();
    assert_eq!(revocations.check(&verified(grant(), &operator())), Ok(()));
    assert!(revocations.check(&verified(grant(), &other_operator())).is_err());
    // Lists of untrusted operators are ignored and do not affect others.
    let ours = Revocations::default().updated(&lists, &operators[..1]).unwrap();
    assert_eq!(ours, Revocations::default());
}

#[test]
fn older_list_is_refused() {
    let operators = [operator().public()];
    let by_gateway = RevocationList { gateways: [gateway().public()].into(), ..list(7) };
    let newer = in_force(&by_gateway);
    for older in [list(6), list(7)] {
        let refused = newer.updated(&[older.sign(&operator()).unwrap()], &operators).unwrap_err();
        let found = older.version;
        let operator = operator().public().key_id();
        assert_eq!(refused, GrantError::OlderRevocations { operator, found, known: 7 });
    }
    let same = newer.updated(&[by_gateway.sign(&operator()).unwrap()], &operators);
    assert_eq!(same.as_ref(), Ok(&newer));
    assert_eq!(newer.updated(&[], &operators), Ok(newer.clone()), "no list takes none back");
    let next = newer.updated(&[list(8).sign(&operator()).unwrap()], &operators).unwrap();
    assert!(next.check(&verified(grant(), &operator())).is_ok());
}

#[test]
fn altered_or_truncated_list_is_refused() {
    let original = RevocationList {
        grants: [signed_grant().id()].into(),
        gateways: [gateway().public(), relay(1).public()].into(),
        issued_before: Some(NOW),
        ..list(3)
    };
    let signed = original.sign(&operator()).unwrap();
    assert_eq!(signed.verify(&[operator().public()]), Ok(&original));
    assert_eq!(signed.to_string().parse::<SignedRevocations>().as_ref(), Ok(&signed));
    let bytes = signed.as_bytes();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let believed = SignedRevocations::from_bytes(&flipped)
            .and_then(|list| list.verify(&[operator().public()]).cloned());
        assert!(believed.is_err(), "bit {bit} was flipped and nobody saw");
    }
    for length in 0..bytes.len() {
        assert!(SignedRevocations::from_bytes(&bytes[..length]).is_err(), "{length}");
    }
    assert!(SignedRevocations::from_bytes(&[bytes, &[0]].concat()).is_err());
    let none = list(0).sign(&operator()).unwrap_err().to_string();
    assert!(none.contains("expected a version from 1 on"), "{none}");
    let forged = original.sign(&other_operator()).unwrap();
    assert!(matches!(forged.verify(&[operator().public()]), Err(GrantError::UnknownKey(_))));
}

#[test]
fn proven_gateway_gets_the_revocation() {
    let by_gateway = RevocationList { gateways: [gateway().public()].into(), ..list(2) };
    let trust = Trust::new(vec![operator().public()], in_force(&by_gateway));
    let mut verifier = verifier(1);
    let first = sealed(&[1], "10.1.2.3:443");
    assert!(verifier.open(NOW, &first.bytes).is_ok());
    verifier.set_trust(Arc::new(trust));
    let refusal = verifier.open(NOW, &first.bytes).unwrap_err();
    assert_eq!(Status::from(&refusal.cause), Status::GrantRevoked);
    assert!(refusal.upstream.is_some() && refusal.hop == Some(0));
    let message = refusal.cause.to_string();
    let key = operator().public().key_id();
    let expected = format!(
        "gateway {} was revoked by operator key {key}, in version 2 of its list",
        gateway().public()
    );
    assert_eq!(message, expected);
}

#[test]
fn grants_of_an_untrusted_operator_are_dropped() {
    let mut verifier = verifier(1);
    let first = sealed(&[1], "10.1.2.3:443");
    assert!(verifier.open(NOW, &first.bytes).is_ok());
    verifier.set_trust(Arc::new(Trust::from(vec![other_operator().public()])));
    let refusal = verifier.open(NOW, &first.bytes).unwrap_err();
    assert!(matches!(refusal.cause, GrantError::UnknownKey(_)), "{}", refusal.cause);
}

proptest! {
    #[test]
    fn any_list_survives_its_bytes(
        version in 1u64.., grants: Vec<u128>, gateways: Vec<[u8; 32]>,
        before in 0u64..4_000_000_000_000,
    ) {
        let original = RevocationList {
            version,
            grants: grants.iter().map(|id| format!("{id:032x}").parse().unwrap()).collect(),
            gateways: gateways
                .into_iter()
                .map(tradewind_grant::PublicIdentity::from_bytes)
                .collect(),
            issued_before: (before > 0)
                .then(|| tradewind_units::Timestamp::from_nanos(before * 1_000_000)),
        };
        let signed = original.sign(&operator()).unwrap();
        prop_assert_eq!(signed.verify(&[operator().public()]), Ok(&original));
    }
}
