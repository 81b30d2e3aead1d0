//! The forwarding table: who may use a label, how a path opens and ends, and that nothing of it is
//! left, whatever the order of messages.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use proptest::prelude::*;
use tradewind_grant::PublicIdentity;
use tradewind_packet::id::Peer;
use tradewind_packet::label::{
    Answered, GIVES_WAY_AFTER, IDLE, LabelEntry, Labels, MAX_FOR_ONE, OPENS_WITHIN, PathPosition,
};
use tradewind_packet::session::PeerId;
use tradewind_units::{Duration, Timestamp};

fn peer(number: u32) -> PeerId {
    Peer(number).into()
}

fn at_ms(ms: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(ms)
}

fn place(gateway: u8) -> PathPosition {
    let gateway = PublicIdentity::from_bytes([gateway; 32]);
    PathPosition { gateway, is_first: true, is_last: false }
}

/// Returns a relay's table with a path from peer 1, label 7, to peer 2, where it is not open yet;
/// the labels of both directions.
fn led_on(header: &[u8]) -> (Labels<bool>, [u32; 2]) {
    let mut labels = Labels::default();
    let there = (peer(2), header.to_vec());
    let mine = labels.lead_on(at_ms(0), (peer(1), 7), (place(1), true), there).unwrap();
    let (_, back, _) = labels.poll_opening(at_ms(0), mine).unwrap();
    (labels, [mine, back])
}

#[test]
fn path_forwards_both_ways_once_next_hop_answers() {
    let (mut labels, [mine, back]) = led_on(b"header");
    assert_eq!(labels.along(at_ms(1), peer(1), mine), None, "the next label is not known");
    assert!(!labels.is_open(mine));
    assert_eq!(labels.complete(at_ms(2), (peer(3), 9), back), None, "another neighbour");
    let through = Answered::Through { asker: (peer(1), 7), mine };
    assert_eq!(labels.complete(at_ms(2), (peer(2), 9), back), Some(through));
    assert!(labels.is_open(mine));
    let along = LabelEntry { place: Some(place(1)), next: Some((peer(2), 9)) };
    assert_eq!(labels.along(at_ms(3), peer(1), mine), Some(along));
    let there = PathPosition { is_first: false, is_last: true, ..place(1) };
    let along = LabelEntry { place: Some(there), next: Some((peer(1), 7)) };
    assert_eq!(labels.along(at_ms(3), peer(2), back), Some(along));
    assert_eq!(labels.along(at_ms(3), peer(2), mine), None, "the label of another neighbour");
    assert_eq!(labels.backwards(mine), Some((peer(1), 7)));
    assert_eq!(labels.complete(at_ms(4), (peer(2), 10), back), None, "it is open already");
}

#[test]
fn opening_is_repeated_then_given_up() {
    let (mut labels, [mine, back]) = led_on(b"header");
    let mut tries = 0;
    for ms in (0..OPENS_WITHIN.as_nanos() as u64 / 1_000_000).step_by(50) {
        labels.handle_timeout(at_ms(ms), |to, label, header| {
            assert_eq!((to, label, header), (peer(2), back, &b"header"[..]));
            tries += 1;
        });
    }
    assert_eq!((tries, labels.len()), (9, 2), "each 200 ms after the first");
    labels.handle_timeout(at_ms(0) + OPENS_WITHIN, |_, _, _| panic!("it is over"));
    assert_eq!((labels.len(), labels.opened()), (0, 0));
    assert_eq!(labels.along(at_ms(1), peer(1), mine), None);
}

#[test]
fn refusal_drops_both_directions() {
    let (mut labels, [mine, back]) = led_on(b"header");
    assert_eq!(labels.refuse(peer(1), back), None, "not by the one that asked");
    let through = Answered::Through { asker: (peer(1), 7), mine };
    assert_eq!(labels.refuse(peer(2), back), Some(through));
    assert_eq!((labels.len(), labels.opened()), (0, 0));
    let own = labels.open(at_ms(0), peer(2)).unwrap();
    assert_eq!(labels.refuse(peer(2), own), Some(Answered::Own));
    assert_eq!(labels.reverse_hop(own), None);
    assert_eq!(labels.complete(at_ms(1), (peer(2), 5), own), Some(Answered::Own));
    assert_eq!(labels.reverse_hop(own), Some((peer(2), 5)));
    assert_eq!(labels.refuse(peer(2), own), None, "it was opened");
}

#[test]
fn bytes_are_charged_once() {
    let (mut labels, [mine, _]) = led_on(b"header");
    labels.charge(mine, 100);
    labels.charge(mine, 20);
    assert_eq!((labels.take_uncharged(mine), labels.take_uncharged(mine)), (120, 0));
}

#[test]
fn paths_without_authorization_end_with_both_labels() {
    let (mut labels, _) = led_on(b"header");
    let ends = labels.end_here(at_ms(0), (peer(1), 8), (place(1), false)).unwrap();
    assert_eq!((labels.retain(|basis| *basis), labels.len()), (1, 2));
    assert_eq!((labels.along(at_ms(0), peer(1), ends), labels.opened()), (None, 1));
    assert_eq!((labels.retain(|_| false), labels.len(), labels.opened()), (1, 0, 0));
}

#[test]
fn silent_paths_make_room_for_others_of_their_gateway() {
    let mut labels = Labels::default();
    for theirs in 0..MAX_FOR_ONE as u32 {
        let gateway = place(1).gateway;
        if !labels.has_room_for(at_ms(0), gateway) {
            break;
        }
        labels.end_here(at_ms(0), (peer(1), theirs), (place(1), ())).unwrap();
    }
    assert_eq!(labels.len(), MAX_FOR_ONE - 1);
    assert!(labels.has_room_for(at_ms(0), place(2).gateway), "another has its own share");
    let (first, later) = (labels.opened_by((peer(1), 0)).unwrap(), at_ms(0) + GIVES_WAY_AFTER);
    labels.along(later, peer(1), first).unwrap();
    assert!(labels.has_room_for(later, place(1).gateway));
    assert_eq!((labels.len(), labels.opened()), (1, 1), "the one in use");
}

/// A message or an input of a table.
#[derive(Debug, Clone)]
enum Input {
    Open(u32),
    EndHere(u32, u32),
    LeadOn(u32, u32, u32),
    Complete(u32, usize, u32),
    Refuse(u32, usize),
    LabelEntry(u32, usize),
    Gone(u32),
    Pass(u64),
}

fn inputs() -> impl Strategy<Value = Input> {
    let (peers, theirs, label) = (0_u32..4, 0_u32..6, 0_usize..64);
    prop_oneof![
        peers.clone().prop_map(Input::Open),
        (peers.clone(), theirs.clone()).prop_map(|(from, theirs)| Input::EndHere(from, theirs)),
        (peers.clone(), theirs.clone(), peers.clone())
            .prop_map(|(from, theirs, next)| Input::LeadOn(from, theirs, next)),
        (peers.clone(), label.clone(), theirs)
            .prop_map(|(from, label, theirs)| Input::Complete(from, label, theirs)),
        (peers.clone(), label.clone()).prop_map(|(from, label)| Input::Refuse(from, label)),
        (peers.clone(), label).prop_map(|(from, label)| Input::LabelEntry(from, label)),
        peers.prop_map(Input::Gone),
        (0_u64..20_000).prop_map(Input::Pass),
    ]
}

proptest! {
    /// Whatever comes in, a label is used by its neighbour alone, each opened label is one of the
    /// table's, and in the end nothing is left.
    #[test]
    fn no_order_of_messages_leaves_labels(all in prop::collection::vec(inputs(), 0..200)) {
        let (mut labels, mut ms, mut known) = (Labels::default(), 0, vec![(peer(9), 0)]);
        for input in all {
            let now = at_ms(ms);
            let pick = |at: usize| known[at % known.len()];
            match input {
                Input::Open(first) => {
                    known.push((peer(first), labels.open(now, peer(first)).unwrap()));
                }
                Input::EndHere(from, theirs)
                    if labels.opened_by((peer(from), theirs)).is_none() =>
                {
                    let asker = (peer(from), theirs);
                    known.push((peer(from), labels.end_here(now, asker, (place(1), ())).unwrap()));
                    prop_assert!(labels.opened_by(asker).is_some());
                }
                Input::LeadOn(from, theirs, next)
                    if labels.opened_by((peer(from), theirs)).is_none() =>
                {
                    let there = (peer(next), vec![1]);
                    let asker = (peer(from), theirs);
                    let mine = labels.lead_on(now, asker, (place(1), ()), there).unwrap();
                    let (to, back, _) = labels.poll_opening(now, mine).unwrap();
                    prop_assert_eq!(to, peer(next));
                    known.extend([(peer(from), mine), (peer(next), back)]);
                }
                Input::EndHere(..) | Input::LeadOn(..) => {}
                Input::Complete(from, at, theirs) => {
                    let (owner, label) = pick(at);
                    let answered = labels.complete(now, (peer(from), theirs), label);
                    prop_assert!(answered.is_none() || owner == peer(from));
                }
                Input::Refuse(from, at) => {
                    let (owner, label) = pick(at);
                    let answered = labels.refuse(peer(from), label);
                    prop_assert!(answered.is_none() || owner == peer(from));
                }
                Input::LabelEntry(from, at) => {
                    let (owner, label) = pick(at);
                    let along = labels.along(now, peer(from), label);
                    prop_assert!(along.is_none() || owner == peer(from));
                }
                Input::Gone(gone) => {
                    labels.drop_all_of(peer(gone));
                    prop_assert!(labels.neighbours().all(|left| left != peer(gone)));
                }
                Input::Pass(span) => {
                    ms += span;
                    labels.handle_timeout(at_ms(ms), |_, _, header| assert_eq!(header, [1]));
                }
            }
            prop_assert!(labels.opened() <= labels.len());
        }
        labels.handle_timeout(at_ms(ms) + IDLE, |_, _, _| ());
        prop_assert_eq!((labels.len(), labels.opened()), (0, 0));
    }
}
