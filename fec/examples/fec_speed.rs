//! How fast packets are coded, beside another library: `cargo run --release -p tradewind-fec --example fec_speed`.
//!
//! For blocks of k packets of some bytes with r repair packets it prints the time that one packet takes, in nanoseconds: to add it to a
//! block's repair packets by every kernel that this processor has and by reed-solomon-erasure, shard by shard; and to recover r lost
//! packets, by lost packet. Medians of several rounds, in turns.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark looks at the clock"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use reed_solomon_erasure::galois_8::ReedSolomon;
use tradewind_fec::{Decoder, Encoder, Kernel};

/// k, r and bytes: what the paper uses (512 B), and full packets.
const CASES: [(usize, usize, usize); 5] =
    [(6, 1, 512), (6, 2, 512), (10, 2, 1400), (10, 4, 1400), (32, 4, 1400)];
const ROUNDS: usize = 15;
/// What a round of one contender takes at least.
const SPAN: Duration = Duration::from_millis(20);

fn main() {
    let kernels = Kernel::available();
    let names: Vec<String> = kernels.iter().map(|kernel| format!("{kernel:?}")).collect();
    println!("ns per packet to add | {} | peer | recover, ours | peer", names.join(" | "));
    for (sources, repairs, bytes) in CASES {
        let packets: Vec<Vec<u8>> = (0..sources).map(|index| vec![index as u8; bytes]).collect();
        let mut contenders: Vec<Box<dyn FnMut() -> usize>> = Vec::new();
        for &kernel in &kernels {
            contenders.push(Box::new(encode_ours(packets.clone(), repairs, kernel)));
        }
        contenders.push(Box::new(encode_theirs(packets.clone(), repairs)));
        contenders.push(Box::new(recover_ours(packets.clone(), repairs)));
        contenders.push(Box::new(recover_theirs(packets, repairs)));
        let medians = in_turns(&mut contenders);
        let cells: Vec<String> = medians.iter().map(|nanos| format!("{nanos:.0}")).collect();
        println!("k={sources} r={repairs} {bytes} B | {}", cells.join(" | "));
    }
}

fn encode_ours(packets: Vec<Vec<u8>>, repairs: usize, kernel: Kernel) -> impl FnMut() -> usize {
    let mut encoder = Encoder::with_kernel(repairs, kernel).expect("a possible number");
    move || {
        encoder.clear();
        for (column, packet) in packets.iter().enumerate() {
            encoder.add(column, packet).expect("the column is free");
        }
        black_box(encoder.repair(0));
        packets.len()
    }
}

fn encode_theirs(packets: Vec<Vec<u8>>, repairs: usize) -> impl FnMut() -> usize {
    let codec = ReedSolomon::new(packets.len(), repairs).expect("a possible code");
    let mut parity = vec![vec![0; packets[0].len()]; repairs];
    move || {
        for (index, packet) in packets.iter().enumerate() {
            codec.encode_single_sep(index, packet, &mut parity).expect("shards fit");
        }
        black_box(&parity);
        packets.len()
    }
}

fn recover_ours(packets: Vec<Vec<u8>>, repairs: usize) -> impl FnMut() -> usize {
    let mut encoder = Encoder::new(repairs).expect("a possible number");
    for (column, packet) in packets.iter().enumerate() {
        encoder.add(column, packet).expect("the column is free");
    }
    // As for the peer, the time begins when all is there: to add what arrived is what the first columns tell.
    let mut decoder = Decoder::new(encoder.members(), repairs).expect("a possible number");
    for (column, packet) in packets.iter().enumerate().skip(repairs) {
        decoder.add_source(column, packet).expect("a member");
    }
    for row in 0..repairs {
        decoder.add_repair(row, encoder.repair(row)).expect("of this block");
    }
    move || black_box(decoder.recover()).expect("enough arrived").len()
}

fn recover_theirs(packets: Vec<Vec<u8>>, repairs: usize) -> impl FnMut() -> usize {
    let codec = ReedSolomon::new(packets.len(), repairs).expect("a possible code");
    let mut shards = packets;
    shards.resize(shards.len() + repairs, vec![0; shards[0].len()]);
    codec.encode(&mut shards).expect("shards fit");
    let whole: Vec<Option<Vec<u8>>> = shards.into_iter().map(Some).collect();
    let mut block = whole;
    move || {
        for shard in block.iter_mut().take(repairs) {
            *shard = None;
        }
        codec.reconstruct_data(&mut block).expect("enough arrived");
        black_box(&block);
        repairs
    }
}

/// The median time per packet of each contender, in nanoseconds.
fn in_turns(contenders: &mut [Box<dyn FnMut() -> usize>]) -> Vec<f64> {
    let mut times = vec![Vec::new(); contenders.len()];
    for _ in 0..ROUNDS {
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            let (started, mut packets) = (Instant::now(), 0);
            while started.elapsed() < SPAN {
                for _ in 0..64 {
                    packets += contender();
                }
            }
            times.push(started.elapsed().as_nanos() as f64 / packets as f64);
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    times.into_iter().map(median).collect()
}
