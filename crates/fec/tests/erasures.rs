//! All loss patterns that a block can repair, and the first that it cannot.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use proptest::prelude::*;
use tradewind_fec::{Decoder, Encoder, FecError, Kernel, MAX_REPAIRS, MAX_SOURCES, Members};

/// Returns packets of different lengths, an empty one among them.
fn packets(count: usize) -> Vec<Vec<u8>> {
    let packet = |index: usize| (0..index * 13 % 41).map(move |byte| (byte * 31 + index * 7) as u8);
    (0..count).map(|index| packet(index).collect()).collect()
}

fn encode(packets: &[Vec<u8>], repairs: usize, kernel: Kernel) -> Encoder {
    let mut encoder = Encoder::with_kernel(repairs, kernel).unwrap();
    for (column, packet) in packets.iter().enumerate() {
        encoder.add(column, packet).unwrap();
    }
    encoder
}

/// Decodes from the source and repair packets whose bits are set in `survivors`.
fn recover(
    packets: &[Vec<u8>],
    encoder: &Encoder,
    survivors: u64,
) -> Result<Vec<(usize, Vec<u8>)>, FecError> {
    let survives = |index: usize| survivors >> index & 1 == 1;
    let mut decoder = Decoder::new(encoder.members(), encoder.repairs()).unwrap();
    for (column, packet) in packets.iter().enumerate().filter(|(column, _)| survives(*column)) {
        assert!(decoder.add_source(column, packet).unwrap());
    }
    for row in (0..encoder.repairs()).filter(|row| survives(packets.len() + row)) {
        assert!(decoder.add_repair(row, encoder.repair(row)).unwrap());
    }
    decoder.recover()
}

#[test]
fn every_repairable_loss_pattern_is_repaired() {
    for (sources, repairs) in [(1, 1), (4, 1), (6, 2), (10, 2), (5, 4), (3, 8)] {
        let packets = packets(sources);
        let encoder = encode(&packets, repairs, Kernel::best());
        for survivors in 0..1u64 << (sources + repairs) {
            let lost: Vec<_> = (0..sources).filter(|index| survivors >> index & 1 == 0).collect();
            let arrived = (survivors >> sources).count_ones() as usize;
            let expected = if lost.len() <= arrived {
                Ok(lost.iter().map(|&column| (column, packets[column].clone())).collect())
            } else {
                Err(FecError::TooFew { missing: lost.len(), repairs: arrived })
            };
            let what = format!("{sources} + {repairs}, survivors {survivors:b}");
            assert_eq!(recover(&packets, &encoder, survivors), expected, "{what}");
        }
    }
}

#[test]
fn eight_of_thirty_two_are_recovered() {
    let packets = packets(MAX_SOURCES);
    let encoder = encode(&packets, MAX_REPAIRS, Kernel::best());
    let all = (1u64 << (MAX_SOURCES + MAX_REPAIRS)) - 1;
    // Runs of eight, and eight at every stride.
    for start in 0..MAX_SOURCES {
        for stride in [1, 3, 5, 7] {
            let lost = (0..8).map(|index| (start + index * stride) % MAX_SOURCES);
            let mask = lost.fold(0u64, |mask, column| mask | 1 << column);
            let recovered = recover(&packets, &encoder, all & !mask).unwrap();
            assert_eq!(recovered.len(), 8);
            assert!(recovered.iter().all(|(column, packet)| *packet == packets[*column]));
        }
    }
}

#[test]
fn kernels_agree_on_repair_packets() {
    let packets = packets(20);
    let first = encode(&packets, MAX_REPAIRS, Kernel::Scalar);
    for kernel in Kernel::available() {
        let other = encode(&packets, MAX_REPAIRS, kernel);
        for row in 0..MAX_REPAIRS {
            assert_eq!(first.repair(row), other.repair(row), "{kernel:?}, repair packet {row}");
        }
    }
}

#[test]
fn first_repair_packet_is_xor() {
    let encoder = encode(&[vec![1, 2, 3], vec![4]], 1, Kernel::best());
    assert_eq!(encoder.repair(0), [0, 3 ^ 1, 1 ^ 4, 2, 3]);
}

#[test]
fn cleared_encoder_is_empty() {
    let mut encoder = encode(&packets(9), 2, Kernel::best());
    encoder.clear();
    assert!(encoder.members().is_empty());
    encoder.add(0, b"new").unwrap();
    let mut fresh = Encoder::new(2).unwrap();
    fresh.add(0, b"new").unwrap();
    assert_eq!(encoder.repair(1), fresh.repair(1));
}

#[test]
fn foreign_packets_are_refused() {
    let mut encoder = Encoder::new(1).unwrap();
    encoder.add(3, b"abc").unwrap();
    assert_eq!(encoder.add(3, b"abc"), Err(FecError::ColumnInUse(3)));
    assert_eq!(encoder.add(32, b"abc"), Err(FecError::Column(32)));
    assert_eq!(encoder.add(4, &vec![0; 65_536]), Err(FecError::TooLong(65_536)));
    assert_eq!(encoder.members(), Members::from_bits(1 << 3));
    assert_eq!(Encoder::new(0).unwrap_err(), FecError::Repairs(0));
    assert_eq!(Encoder::new(9).unwrap_err(), FecError::Repairs(9));

    let mut decoder = Decoder::new(encoder.members(), 1).unwrap();
    assert_eq!(decoder.add_source(4, b"x"), Err(FecError::Column(4)));
    assert_eq!(decoder.add_repair(1, encoder.repair(0)), Err(FecError::Repair(1)));
    assert_eq!(decoder.add_repair(0, &[0]), Err(FecError::Length { found: 1, needed: 2 }));
    assert!(decoder.add_repair(0, encoder.repair(0)).unwrap());
    assert!(!decoder.add_repair(0, encoder.repair(0)).unwrap());
    assert_eq!(decoder.add_source(3, b"abcd"), Err(FecError::Length { found: 5, needed: 6 }));
    assert_eq!(decoder.recover().unwrap(), [(3, b"abc".to_vec())]);
}

#[test]
fn altered_packet_is_an_error() {
    let encoder = encode(&packets(6), 1, Kernel::best());
    let mut repair = encoder.repair(0).to_vec();
    repair[0] ^= 0x80;
    let mut decoder = Decoder::new(encoder.members(), 1).unwrap();
    for (column, packet) in packets(6).iter().enumerate().skip(1) {
        decoder.add_source(column, packet).unwrap();
    }
    decoder.add_repair(0, &repair).unwrap();
    assert_eq!(decoder.recover(), Err(FecError::Contradiction));
}

proptest! {
    /// Partial blocks, with packets and repair packets in any order: the lost packets are recovered
    /// unchanged.
    #[test]
    fn partial_blocks_in_any_order_are_recovered(
        packets in proptest::collection::btree_map(
            0usize..MAX_SOURCES,
            proptest::collection::vec(any::<u8>(), 0..1500),
            1..MAX_SOURCES,
        ),
        repairs in 1usize..=MAX_REPAIRS,
        seed in any::<u64>(),
    ) {
        let mut encoder = Encoder::new(repairs).unwrap();
        for (column, packet) in &packets {
            encoder.add(*column, packet).unwrap();
        }
        // A fixed shuffle by the seed: its first items arrive, repair packets at any place among
        // them.
        let mut items: Vec<(u64, Option<usize>, usize)> = packets.keys().map(|&c| (Some(c), c))
            .chain((0..repairs).map(|row| (None, row)))
            .map(|(column, index)| {
                let key = (index as u64 + 1 + 64 * u64::from(column.is_none()))
                    .wrapping_mul(seed | 1).rotate_left(29).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                (key, column, index)
            }).collect();
        items.sort();
        let mut decoder = Decoder::new(encoder.members(), repairs).unwrap();
        for (_, column, index) in items.into_iter().take(packets.len()) {
            match column {
                Some(column) => decoder.add_source(column, &packets[&column]).unwrap(),
                None => decoder.add_repair(index, encoder.repair(index)).unwrap(),
            };
        }
        prop_assert!(decoder.is_solvable());
        let missing = decoder.missing();
        let recovered = decoder.recover().unwrap();
        prop_assert_eq!(recovered.len(), missing.len());
        for (column, packet) in recovered {
            prop_assert_eq!(&packet, &packets[&column]);
        }
    }
}
