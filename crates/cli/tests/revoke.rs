//! Grants from their issue to their revocation, by the program.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use common::Files;
use tradewind_grant::{GrantError, OperatorPublicKey, Revocations, SignedRevocations};

#[test]
fn revocation_list_version_increases() {
    let files = Files::new("revoke");
    let key: OperatorPublicKey =
        files.prints("keygen operator operator.key").trim().parse().unwrap();
    let gateway = files.prints("keygen identity gateway.key");
    let spec = format!(
        "gateway = '{}'\ndestinations = ['192.0.2.0/24:443']\nrelays = 'any'\nexpires = '720 h'",
        gateway.trim()
    );
    files.write("spec.toml", spec);
    let issue =
        ["grant", "issue", "--key", "operator.key", "--session-max-age", "8 h", "spec.toml"];
    files.write("gateway.grant", files.prints(&issue));
    let shown = files.prints(&format!("grant show --operator {key} gateway.grant"));
    let name = shown.lines().find_map(|line| line.strip_prefix("name ")).unwrap().trim();
    assert!(shown.contains("sessions end  after 28800 s"), "{shown}");

    let revoke = "grant revoke --key operator.key --list revoked";
    files.refuses(revoke, "nothing to revoke");
    let printed = files.prints(&format!("{revoke} --grant gateway.grant"));
    assert_eq!(printed, "version 1: grants 1, gateways 0\n");
    let of_file = || -> SignedRevocations { files.read("revoked").trim().parse().unwrap() };
    let first = of_file();
    assert_eq!(first.verify(&[key]).unwrap().grants, [name.parse().unwrap()].into());
    let printed =
        files.prints(&format!("{revoke} --gateway {} --issued-before now", gateway.trim()));
    assert_eq!(printed, "version 2: grants 1, gateways 1, all issued before a time\n");
    let again = files.prints(&format!("{revoke} --issued-before 2020-01-01T00:00:00Z"));
    assert!(again.starts_with("version 3"), "{again}");
    let newest = Revocations::default().updated(&[of_file()], &[key]).unwrap();
    let older = newest.updated(&[first], &[key]).unwrap_err();
    assert!(matches!(older, GrantError::OlderRevocations { found: 1, known: 3, .. }), "{older}");

    // Another operator's list is retained beside it.
    files.prints("keygen operator other.key");
    files.prints("grant revoke --key other.key --list revoked --issued-before now");
    assert_eq!(files.read("revoked").lines().count(), 2);
    files.refuses(&format!("{revoke} --grant nothing.grant"), "nothing.grant");
    files.refuses(&format!("{revoke} --issued-before yesterday"), "a date with time and zone");
}
