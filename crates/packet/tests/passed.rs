//! Passed datagrams between two neighbours: a neighbour's datagrams are admitted once, by the train
//! or one by one alike; forged and altered ones are not.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod cast;

use cast::*;
use proptest::prelude::*;
use tradewind_packet::session::{
    DropReason, Event, Limits, PASSED_BYTES, Run, SealError, Sessions,
};

const LABEL: u32 = 77;

/// Returns datagrams of `segment` bytes, of which the last has `last`, from the endpoint to the
/// relay.
fn passed(pair: &mut Pair, label: u32, count: usize, (segment, last): (usize, usize)) -> Vec<u8> {
    let mut train: Vec<u8> = (0..(count - 1) * segment + last).map(|at| at as u8).collect();
    pair.endpoint.pass(pair.peer, label, &mut train, segment).unwrap();
    train
}

/// Returns the relay's runs of a train.
fn runs_of(relay: &mut Sessions, train: &[u8], segment: usize) -> Vec<Run> {
    let (mut at, mut runs) = (0, Vec::new());
    while at < train.len() {
        let run = relay.handle_passed(cast::at(50), link(ENDPOINT), &train[at..], segment).unwrap();
        assert!(run.bytes > 0 && run.datagrams == run.bytes.div_ceil(segment), "{run:?}");
        at += run.bytes;
        runs.push(run);
    }
    assert_eq!(at, train.len());
    runs
}

fn admitted(runs: &[Run]) -> usize {
    runs.iter().filter(|run| run.from.is_some()).map(|run| run.datagrams).sum()
}

#[test]
fn train_passes_once_as_one_run() {
    let mut pair = Pair::established();
    let from = Some((pair.peer_at_relay(), LABEL));
    let train = passed(&mut pair, LABEL, 32, (600, 26));
    let runs = runs_of(&mut pair.relay, &train, 600);
    assert_eq!(runs, [Run { bytes: train.len(), datagrams: 32, from }]);
    assert_eq!(
        runs_of(&mut pair.relay, &train, 600),
        [Run { bytes: train.len(), datagrams: 32, from: None }]
    );
    assert_eq!(pair.relay.drops()[DropReason::Replayed as usize], 32);
    // They count among sealed datagrams, none of which is dropped for that.
    let sealed = sealed(&mut pair.endpoint, pair.peer, b"sealed");
    assert_eq!(opened(&mut pair.relay, at(60), link(ENDPOINT), &sealed).unwrap(), b"sealed");
}

#[test]
fn passing_needs_keys_and_body() {
    let mut pair = Pair::fresh(Limits::default());
    let pass = |pair: &mut Pair, bytes: usize, segment| {
        pair.endpoint.pass(pair.peer, LABEL, &mut vec![0; bytes], segment)
    };
    assert_eq!(pass(&mut pair, 40, 40), Err(SealError::NoSession));
    pair.exchange(at(10));
    assert!(pass(&mut pair, 40, 40).is_ok());
    for (bytes, segment) in [(0, 40), (PASSED_BYTES, 40), (80, PASSED_BYTES), (65, 40), (40, 0)] {
        assert!(matches!(pass(&mut pair, bytes, segment), Err(SealError::Length(_))), "{bytes}");
    }
}

#[test]
fn passed_and_sealed_datagrams_are_distinct() {
    let mut pair = Pair::established();
    let train = passed(&mut pair, LABEL, 1, (60, 60));
    assert_eq!(opened(&mut pair.relay, at(50), link(ENDPOINT), &train), None);
    let sealed = sealed(&mut pair.endpoint, pair.peer, b"sealed");
    let run = pair.relay.handle_passed(at(50), link(ENDPOINT), &sealed, sealed.len());
    assert_eq!(run, None);
    assert_eq!(pair.relay.handle_passed(at(50), link(ENDPOINT), &[], 1), None);
    // Reflected to the sender.
    let run = pair.endpoint.handle_passed(at(50), link(RELAY), &train, 60).unwrap();
    assert_eq!(run.from, None);
}

/// The first datagram of an endpoint that has new keys may be a passed one: the relay uses these
/// keys from then on.
#[test]
fn passed_datagram_confirms_handshake() {
    let mut pair = Pair::fresh(Limits::default());
    let mut there = transmits(&mut pair.endpoint);
    pair.relay.handle_datagram(at(5), link(ENDPOINT), &mut there[0].bytes);
    let mut back = transmits(&mut pair.relay);
    pair.endpoint.handle_datagram(at(10), link(RELAY), &mut back[0].bytes);
    let train = passed(&mut pair, LABEL, 2, (60, 60));
    let run = pair.relay.handle_passed(at(15), link(ENDPOINT), &train, 60).unwrap();
    let (peer, label) = run.from.unwrap();
    assert!(label == LABEL && pair.relay.is_open(peer));
    assert!(matches!(events(&mut pair.relay)[..], [Event::Established { .. }]));
}

/// Alterations of a header and truncations of a datagram are detected; alterations of a body are
/// detected by the endpoint.
#[test]
fn headers_are_sealed_bodies_are_not() {
    let mut pair = Pair::established();
    let datagram = passed(&mut pair, LABEL, 1, (60, 60));
    let admits = |pair: &mut Pair, datagram: &[u8]| {
        let run = pair.relay.handle_passed(at(50), link(ENDPOINT), datagram, datagram.len());
        run.is_some_and(|run| run.from.is_some())
    };
    for place in 0..PASSED_BYTES {
        let mut altered = datagram.clone();
        altered[place] ^= 0x40;
        assert!(!admits(&mut pair, &altered), "byte {place}");
    }
    for length in 0..datagram.len() {
        assert!(!admits(&mut pair, &datagram[..length]), "{length} bytes");
    }
    assert!(!admits(&mut pair, &[&datagram[..], &[0]].concat()));
    let mut altered = datagram.clone();
    altered[PASSED_BYTES] ^= 0x40;
    assert!(admits(&mut pair, &altered));
    assert!(!admits(&mut pair, &datagram), "its counter has passed");
}

/// A train that is forged from end to end is checked once.
#[test]
fn forged_train_is_one_run() {
    let mut pair = Pair::established();
    let mut train = passed(&mut pair, LABEL, 64, (26, 26));
    train.chunks_mut(26).for_each(|datagram| datagram[17] ^= 1);
    let runs = runs_of(&mut pair.relay, &train, 26);
    assert_eq!(runs, [Run { bytes: train.len(), datagrams: 64, from: None }]);
    assert_eq!(pair.relay.drops()[DropReason::AuthenticationFailed as usize], 64);
}

/// A forged train costs no datagram of the neighbour's that follows it.
#[test]
fn forged_datagram_is_dropped_alone() {
    let mut pair = Pair::established();
    let mut train = passed(&mut pair, LABEL, 64, (100, 100));
    let again: Vec<u8> = train[..100].to_vec();
    train[30 * 100..31 * 100].copy_from_slice(&again);
    train[40 * 100 + 17] ^= 1;
    train[50 * 100] = 0x14;
    let before = pair.relay.drops();
    let (first, others) = train.split_at(50 * 100);
    assert_eq!(admitted(&runs_of(&mut pair.relay, first, 100)), 48);
    assert_eq!(pair.relay.handle_passed(at(50), link(ENDPOINT), others, 100), None);
    assert_eq!(admitted(&runs_of(&mut pair.relay, &others[100..], 100)), 13);
    let drops = pair.relay.drops();
    for reason in [DropReason::Replayed, DropReason::AuthenticationFailed] {
        assert_eq!(drops[reason as usize] - before[reason as usize], 1, "{reason:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Trains of several labels, with datagrams of all of them altered, repeated or swapped: the
    /// same ones are admitted, under the same labels, by the train or one by one.
    #[test]
    fn trains_equal_single_datagrams(
        runs in prop::collection::vec((0..3_u32, 1..9_usize), 1..8),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..4_u8, 0..26_usize),
            0..6),
        last in 26..=40_usize,
    ) {
        let mut pair = Pair::established();
        let mut datagrams: Vec<Vec<u8>> = Vec::new();
        for (label, count) in runs {
            let train = passed(&mut pair, label, count, (40, 40));
            datagrams.extend(train.chunks(40).map(<[u8]>::to_vec));
        }
        for (which, change, place) in changes {
            let which = which.index(datagrams.len());
            match change {
                0 => datagrams[which][place] ^= 1,
                1 => datagrams.swap(0, which),
                2 => datagrams[which] = datagrams[0].clone(),
                _ => datagrams[which].fill(place as u8),
            }
        }
        let mut shorter = vec![0; last];
        pair.endpoint.pass(pair.peer, 1, &mut shorter, last).unwrap();
        datagrams.push(shorter);
        let mut alone = Pair::established();
        // The same keys: all randomness is seeded.
        let singly: Vec<Option<u32>> = datagrams
            .iter()
            .map(|datagram| {
                let run = alone.relay.handle_passed(at(50), link(ENDPOINT), datagram,
                    datagram.len());
                run.and_then(|run| run.from).map(|(_, label)| label)
            })
            .collect();
        let (train, mut at, mut together) = (datagrams.concat(), 0, Vec::new());
        while at < train.len() {
            let run = pair.relay.handle_passed(cast::at(50), link(ENDPOINT), &train[at..], 40);
            let run = run.unwrap_or(Run { bytes: 40.min(train.len() - at), datagrams: 1,
                from: None });
            let label = run.from.map(|(_, label)| label);
            together.extend(std::iter::repeat_n(label, run.datagrams));
            at += run.bytes;
        }
        prop_assert_eq!(&together, &singly);
        prop_assert_eq!(pair.relay.drops()[..4].iter().sum::<u64>(), alone.relay.drops()[..4].iter()
            .sum::<u64>());
        prop_assert!(singly.last().unwrap().is_some());
    }
}
