//! Datagrams cut and joined: the same bytes once, in any order and with losses and duplicates; and
//! bounds that hold for everyone.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use proptest::prelude::*;
use tradewind_packet::fragment::{
    JoinLimits, Joined, Joiner, MAX_DATAGRAM_BYTES, MAX_PIECES, Piece, cut,
};
use tradewind_units::{Duration, Timestamp};

const WAIT: Duration = Duration::from_millis(100);

fn at_ms(ms: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(ms)
}

fn joiner() -> Joiner<u8> {
    Joiner::new(JoinLimits::default())
}

#[test]
fn short_and_huge_datagrams_are_not_fragmented() {
    assert!(cut(0, &[7; 100], 100).is_none());
    assert!(cut(0, &[], 100).is_none());
    assert!(cut(0, &[7; 100], 0).is_none());
    assert!(cut(0, &[7; 6_401], 100).is_none());
    assert_eq!(cut(0, &[7; 6_400], 100).unwrap().count(), usize::from(MAX_PIECES));
    let halves: Vec<usize> = cut(0, &[7; 101], 100).unwrap().map(|it| it.bytes.len()).collect();
    assert_eq!(halves, [51, 50]);
}

#[test]
fn reassembly_times_out() {
    let mut joiner = joiner();
    let pieces: Vec<_> = cut(1, &[7; 250], 100).unwrap().collect();
    assert_eq!(joiner.add(at_ms(0), (1, 1), pieces[0], WAIT), Joined::Waits);
    assert_eq!(joiner.add(at_ms(50), (1, 1), pieces[2], WAIT), Joined::Waits);
    joiner.expire(at_ms(99));
    assert_eq!((joiner.len(), joiner.given_up()), (1, 0));
    joiner.expire(at_ms(100));
    assert_eq!((joiner.len(), joiner.bytes(), joiner.given_up()), (0, 0, 1));
    // A late piece begins nothing anew.
    assert_eq!(joiner.add(at_ms(101), (1, 1), pieces[1], WAIT), Joined::Useless);
    assert!(joiner.is_empty());
}

#[test]
fn ended_conversation_leaves_no_fragments() {
    let mut joiner = joiner();
    for conversation in 0..5 {
        for datagram in 0..3 {
            let piece = cut(datagram, &[7; 250], 100).unwrap().next().unwrap();
            joiner.add(at_ms(0), (1, conversation), piece, WAIT);
        }
    }
    (0..5).for_each(|conversation| joiner.remove(1, conversation));
    assert_eq!((joiner.len(), joiner.bytes(), joiner.given_up()), (0, 0, 15));
}

#[test]
fn first_fragments_evict_own_only() {
    let limits = JoinLimits { bytes: 100_000, datagrams: 50 };
    let mut joiner = Joiner::new(limits);
    let honest: Vec<_> = cut(9, &[7; 250], 100).unwrap().collect();
    assert_eq!(joiner.add(at_ms(0), (1, 1), honest[0], WAIT), Joined::Waits);
    let bytes = [8; 1000];
    for number in 0..10_000 {
        let piece = Piece { datagram: number, index: 0, count: MAX_PIECES, bytes: &bytes };
        joiner.add(at_ms(1), (2, number % 300), piece, WAIT);
        assert!(joiner.bytes() <= limits.bytes && joiner.len() <= limits.datagrams);
    }
    joiner.add(at_ms(2), (1, 1), honest[1], WAIT);
    assert_eq!(joiner.add(at_ms(3), (1, 1), honest[2], WAIT), Joined::Whole(vec![7; 250]));
}

/// One arrival of a piece: which piece, of which datagram, and how much later than the one before.
type Step = (usize, usize, u64);

proptest! {
    #[test]
    fn reassembly_restores_datagram_once(
        lengths in prop::collection::vec(2_usize..5_000, 1..6),
        most in 1_usize..700,
        steps in prop::collection::vec((0_usize..6, 0_usize..64, 0_u64..3), 0..600),
    ) {
        let payloads: Vec<Vec<u8>> = (lengths.iter().zip(1_u8..))
            .map(|(length, seed)| (0..*length).map(|at| (at as u8).wrapping_mul(seed)).collect())
            .collect();
        let all: Vec<Vec<Piece<'_>>> = (payloads.iter().zip(0..))
            .filter_map(|(payload, number)| Some(cut(number, payload, most)?.collect()))
            .collect();
        prop_assume!(!all.is_empty());
        for pieces in &all {
            assert!(pieces.iter().all(|piece| (1..=most).contains(&piece.bytes.len())));
        }
        let mut joiner = joiner();
        let mut whole = vec![0; payloads.len()];
        let mut now = 0;
        let steps: Vec<Step> = steps;
        // Some pieces come, in any order and some of them twice, then all of them, a second time in
        // part.
        let some = steps.iter().map(|(of, piece, later)| (of % all.len(), *piece, *later));
        let rest = (0..all.len()).flat_map(|of| (0..all[of].len()).map(move |at| (of, at, 0)));
        for (of, piece, later) in some.chain(rest) {
            now += later.min(1);
            let piece = all[of][piece % all[of].len()];
            // No wait ends before.
            let joined = joiner.add(at_ms(now), (1, 1), piece, Duration::from_secs(60));
            if let Joined::Whole(datagram) = joined {
                assert_eq!(&datagram, &payloads[piece.datagram as usize]);
                whole[piece.datagram as usize] += 1;
            }
        }
        for pieces in &all {
            assert_eq!(whole[pieces[0].datagram as usize], 1);
        }
        assert_eq!((joiner.len(), joiner.bytes(), joiner.given_up()), (0, 0, 0));
    }

    #[test]
    fn hostile_fragments_stay_within_limits(
        pieces in prop::collection::vec(
            (0_u8..4, 0_u32..40, 0_u32..30, 0_u8..70, 0_u8..70, 0_usize..3_000, 0_u64..20),
            0..400,
        ),
    ) {
        let limits = JoinLimits { bytes: 40_000, datagrams: 20 };
        let mut joiner = Joiner::new(limits);
        let (bytes, mut now) = ([5; 3_000], 0);
        for (owner, conversation, datagram, index, count, length, later) in pieces {
            now += later;
            let piece = Piece { datagram, index, count, bytes: &bytes[..length] };
            if let Joined::Whole(whole) = joiner.add(at_ms(now), (owner, conversation), piece, WAIT)
            {
                assert!(whole.len() <= MAX_DATAGRAM_BYTES && whole.iter().all(|it| *it == 5));
            }
            assert!(joiner.bytes() <= limits.bytes && joiner.len() <= limits.datagrams);
            if now % 7 == 0 {
                joiner.expire(at_ms(now));
            }
        }
        joiner.expire(at_ms(now + 100));
        assert_eq!((joiner.len(), joiner.bytes()), (0, 0));
    }
}
