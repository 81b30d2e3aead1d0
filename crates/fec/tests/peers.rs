//! The same code in another library: repair packets agree byte for byte, and each decodes the
//! other's blocks.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use fec_rs::ReedSolomon;
use fec_rs::galois::div;
use tradewind_fec::{Decoder, Encoder, Kernel, MAX_REPAIRS, MAX_SOURCES};

/// Returns packets of different lengths: an empty one, and some longer than any kernel processes at
/// once.
fn packets(count: usize) -> Vec<Vec<u8>> {
    let packet = |index: usize| {
        (0..index * 59 % 211).map(move |byte| (byte * 31 + index * 7 + byte * byte / 5) as u8)
    };
    (0..count).map(|index| packet(index).collect()).collect()
}

/// Returns each packet as encoded: its length, its bytes, zeros up to the longest.
fn padded(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let longest = packets.iter().map(Vec::len).max().unwrap_or_default();
    let pad = |packet: &Vec<u8>| {
        let mut shard = (packet.len() as u16).to_be_bytes().to_vec();
        shard.extend_from_slice(packet);
        shard.resize(2 + longest, 0);
        shard
    };
    packets.iter().map(pad).collect()
}

/// Creates the other library's code with this code's coefficients: a Cauchy matrix by its own
/// field, with columns scaled so that the first row is ones.
fn peer(sources: usize, repairs: usize) -> ReedSolomon {
    let first = MAX_SOURCES as u8;
    let rows = (0..repairs as u8).flat_map(|row| {
        (0..sources as u8).map(move |column| div(first ^ column, (first + row) ^ column))
    });
    let mut peer = ReedSolomon::new(sources, repairs).unwrap();
    peer.set_parity_matrix(&rows.collect::<Vec<u8>>()).unwrap();
    peer
}

#[test]
fn repair_packets_equal_another_librarys() {
    for sources in 1..=MAX_SOURCES {
        let packets = packets(sources);
        let mut shards = padded(&packets);
        shards.resize(sources + MAX_REPAIRS, vec![0; shards[0].len()]);
        for repairs in 1..=MAX_REPAIRS {
            let shards = &mut shards[..sources + repairs];
            peer(sources, repairs).encode(shards).unwrap();
            for kernel in Kernel::available() {
                let mut encoder = Encoder::with_kernel(repairs, kernel).unwrap();
                for (column, packet) in packets.iter().enumerate() {
                    encoder.add(column, packet).unwrap();
                }
                for row in 0..repairs {
                    let what = format!("k = {sources}, r = {repairs}, row {row}, {kernel:?}");
                    assert_eq!(encoder.repair(row), shards[sources + row], "{what}");
                }
            }
        }
    }
}

#[test]
fn libraries_decode_each_others_blocks() {
    for (sources, repairs) in [(1, 1), (6, 2), (10, 2), (10, 4), (32, 8)] {
        let packets = packets(sources);
        let whole = {
            let mut shards = padded(&packets);
            shards.resize(sources + repairs, vec![0; shards[0].len()]);
            peer(sources, repairs).encode(&mut shards).unwrap();
            shards
        };
        let mut encoder = Encoder::new(repairs).unwrap();
        for (column, packet) in packets.iter().enumerate() {
            encoder.add(column, packet).unwrap();
        }
        // As many packets are lost as can be repaired, from any index on.
        for start in 0..sources {
            let is_lost = |column: usize| (column + sources - start) % sources < repairs;
            let mut decoder = Decoder::new(encoder.members(), repairs).unwrap();
            let mut shards: Vec<Option<Vec<u8>>> = whole.iter().cloned().map(Some).collect();
            for (column, packet) in packets.iter().enumerate() {
                if is_lost(column) {
                    shards[column] = None;
                } else {
                    decoder.add_source(column, packet).unwrap();
                }
            }
            for row in 0..repairs {
                decoder.add_repair(row, &whole[sources + row]).unwrap();
                shards[sources + row] = Some(encoder.repair(row).to_vec());
            }
            for (column, packet) in decoder.recover().unwrap() {
                assert_eq!(packet, packets[column], "k = {sources}, column {column}");
            }
            peer(sources, repairs).reconstruct_data(&mut shards).unwrap();
            let brought: Vec<Vec<u8>> = shards.into_iter().take(sources).flatten().collect();
            assert_eq!(brought, whole[..sources], "k = {sources}, lost from {start}");
        }
    }
}
