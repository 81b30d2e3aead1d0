//! One fixed vector for each format: a change of a format fails here, and must raise its version.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use common::{NOW, flow, gateway, nonce, operator, route, sealed, signed_grant, verifier};
use tradewind_grant::{Reply, Sealer, Status};

/// Lines of `name = value`.
const VECTORS: &str = include_str!("vectors.txt");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn formats_match_the_vectors() {
    let header = sealed(&[1, 2], "10.1.2.3:443");
    let named = sealed(&[1], "db.example.com:443");
    let mut sealer = Sealer::new(gateway(), signed_grant()).unwrap();
    let probe = sealer.seal_probe(NOW, nonce(1), &flow(), &route(&[1])).unwrap();
    let mut first = verifier(1);
    let open = first.open(NOW, &header.bytes).unwrap();
    let next = first.forward(&open).unwrap().unwrap();
    let last = verifier(2).open(NOW, &next.bytes).unwrap();
    let failed = Reply::failed(Status::ConnectionRefused, 1, "10.1.2.3:443 refused");
    let made = [
        ("identity key", gateway().to_secret_text().to_string()),
        ("public identity", gateway().public().to_string()),
        ("fingerprint", hex(&gateway().public().fingerprint())),
        ("operator key", operator().to_secret_text().to_string()),
        ("operator public key", operator().public().to_string()),
        ("operator key id", operator().public().key_id().to_string()),
        ("grant", signed_grant().to_string()),
        ("grant id", signed_grant().id().to_string()),
        ("header for hop 0", hex(&header.bytes)),
        ("header for hop 1", hex(&next.bytes)),
        ("header with a name", hex(&named.bytes)),
        ("header of a probe", hex(&probe.bytes)),
        ("reply ok from hop 1", hex(&last.upstream.seal(&Reply::ok(1)))),
        ("reply ok from hop 0", hex(&open.upstream.seal(&Reply::ok(1)))),
        ("reply of a failure", hex(&open.upstream.seal(&failed))),
        ("the same before the dial", hex(&open.upstream.seal(&failed.clone().before_dial()))),
    ];
    let mut written = VECTORS.lines().filter(|line| !line.starts_with('#'));
    for (name, value) in made {
        let line = format!("{name} = {value}");
        assert_eq!(written.next(), Some(line.as_str()));
    }
    assert_eq!(written.next(), None);
}
