//! Replies prove the answering relay and session, and are forwarded hop by hop.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use common::{NOW, nonce, sealed, verifier};
use proptest::prelude::*;
use tradewind_grant::reply::{MESSAGE_LIMIT, REPLY_LIMIT, REPLY_PREFIX_BYTES, reply_length};
use tradewind_grant::{GrantError, Reply, ReplyKey, Status};

const TO: &str = "10.1.2.3:443";

/// Returns the keys of a session over relays 1 and 2: (gateway's, relay 1's up, relay 1's down,
/// relay 2's up).
fn session() -> (ReplyKey, ReplyKey, ReplyKey, ReplyKey) {
    let header = sealed(&[1, 2], TO);
    let mut first = verifier(1);
    let open = first.open(NOW, &header.bytes).unwrap();
    let next = first.forward(&open).unwrap().unwrap();
    let last = verifier(2).open(NOW, &next.bytes).unwrap();
    (header.downstream, open.upstream, next.downstream, last.upstream)
}

#[test]
fn reply_passes_back_unchanged_over_each_hop() {
    let (gateway, first_up, first_down, last_up) = session();
    for reply in [Reply::ok(1), Reply::failed(Status::ConnectionRefused, 1, "10.1.2.3:443: no")] {
        let forwarded = first_down.open(&last_up.seal(&reply)).unwrap();
        assert_eq!(forwarded, reply);
        assert_eq!(gateway.open(&first_up.seal(&forwarded)).unwrap(), reply);
    }
}

#[test]
fn bit_flips_of_a_reply_are_refused() {
    let (gateway, first_up, ..) = session();
    let bytes = first_up.seal(&Reply::failed(Status::TimedOut, 1, "10.1.2.3:443 after 5 s"));
    assert_eq!(reply_length(&bytes[..REPLY_PREFIX_BYTES]), Ok(bytes.len()));
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(gateway.open(&flipped).is_err(), "bit {bit} was flipped and nobody saw");
    }
    for length in 0..bytes.len() {
        assert!(gateway.open(&bytes[..length]).is_err());
    }
}

#[test]
fn reply_of_another_hop_or_session_is_refused() {
    let (gateway, first_up, first_down, last_up) = session();
    let ok = Reply::ok(1);
    assert_eq!(gateway.open(&last_up.seal(&ok)).unwrap_err(), GrantError::ReplyTag(0));
    assert_eq!(first_down.open(&first_up.seal(&ok)).unwrap_err(), GrantError::ReplyTag(1));

    let mut sealer =
        tradewind_grant::Sealer::new(common::gateway(), common::signed_grant()).unwrap();
    let (flow, destination, route) = (common::flow(), TO.parse().unwrap(), common::route(&[1, 2]));
    let request =
        tradewind_grant::Request { flow: &flow, destination: &destination, route: &route };
    let other = sealer.seal(NOW, nonce(2), &request).unwrap();
    assert_eq!(other.downstream.open(&first_up.seal(&ok)).unwrap_err(), GrantError::ReplyTag(0));
}

#[test]
fn hop_cannot_blame_an_earlier_one() {
    let (_, _, first_down, last_up) = session();
    let blame = last_up.seal(&Reply::failed(Status::Internal, 0, ""));
    assert_eq!(first_down.open(&blame).unwrap().hop, 1, "the sealing hop takes it on itself");
}

#[test]
fn message_is_one_short_line() {
    let reply = Reply::failed(Status::Internal, 0, &"line\nü".repeat(100));
    assert!(reply.message.len() <= MESSAGE_LIMIT && !reply.message.contains('\n'));
    let (gateway, first_up, ..) = session();
    let bytes = first_up.seal(&reply);
    assert!(bytes.len() <= REPLY_LIMIT);
    assert_eq!(gateway.open(&bytes).unwrap(), reply);
}

#[test]
fn refusal_status_names_the_cause() {
    let expired = GrantError::Expired { expired_s: 1, now_s: 2 };
    assert_eq!(Status::from(&expired), Status::GrantRefused);
    assert_eq!(Status::from(&GrantError::Replayed(nonce(1))), Status::Replayed);
    assert_eq!(Status::from(&GrantError::Denied(String::new())), Status::DestinationRefused);
}

proptest! {
    #[test]
    fn reply_parser_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (gateway, ..) = session();
        prop_assert!(gateway.open(&bytes).is_err());
        let framed = [b"TWR\x01".as_slice(), &(bytes.len() as u16 + 6).to_be_bytes(), &bytes];
        prop_assert!(gateway.open(&framed.concat()).is_err());
    }
}
