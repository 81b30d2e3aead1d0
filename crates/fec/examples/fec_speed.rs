//! A benchmark of the coding of packets, against other libraries: `cargo run --release -p
//! tradewind-fec --example fec_speed [-- --quick]`.
//!
//! For blocks of k packets of a given size with r repair packets it prints two tables of the time
//! per packet, in nanoseconds: to add it to a block's repair packets, by every kernel that this
//! processor supports and by every library; and to recover each of r lost packets. The figures are
//! medians of several rounds, in turns.
//!
//! | library | code | how |
//! |---|---|---|
//! | ours | GF(2^8), Cauchy, first row XOR | packet by packet |
//! | reed-solomon-erasure | GF(2^8) | packet by packet |
//! | rustfs-erasure-codec | GF(2^8), with all its SIMD | packet by packet |
//! | fec-rs | GF(2^8) | packet by packet |
//! | reed-solomon-simd | GF(2^16), transforms | whole blocks: it needs all packets before it begins |
//!
//! Each library picks the best instructions that it has for this processor.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark looks at the clock"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};
use tradewind_fec::{Decoder, Encoder, Kernel};

/// k, r and bytes: the paper's packets (512 B), and full ones.
const CASES: [(usize, usize, usize); 5] =
    [(6, 1, 512), (6, 2, 512), (10, 2, 1400), (10, 4, 1400), (32, 4, 1400)];
/// The index of the case in which this crate must not be slower than any other library.
const JUDGED: usize = 2;
const ROUNDS: usize = 15;
/// The shortest duration of one contender's round.
const SPAN: Duration = Duration::from_millis(20);

/// Runs one pass and returns the number of packets processed.
type Contender = Box<dyn FnMut() -> usize>;

/// A library that adds packets to repair packets one by one.
trait Peer {
    const NAME: &str;
    fn of(sources: usize, repairs: usize) -> Self;
    fn add(&self, index: usize, packet: &[u8], repairs: &mut [Vec<u8>]);
    fn restore(&self, block: &mut [Option<Vec<u8>>]);
}

/// The three libraries have one interface, each with its own types.
macro_rules! peer {
    ($name:literal, $codec:ty) => {
        impl Peer for $codec {
            const NAME: &str = $name;

            fn of(sources: usize, repairs: usize) -> Self {
                Self::new(sources, repairs).expect("a possible code")
            }

            fn add(&self, index: usize, packet: &[u8], repairs: &mut [Vec<u8>]) {
                self.encode_single_sep(index, packet, repairs).expect("shards fit");
            }

            fn restore(&self, block: &mut [Option<Vec<u8>>]) {
                self.reconstruct_data(block).expect("enough arrived");
            }
        }
    };
}

peer!("reed-solomon-erasure", reed_solomon_erasure::galois_8::ReedSolomon);
peer!("rustfs-erasure-codec", rustfs_erasure_codec::galois_8::ReedSolomon);
peer!("fec-rs", fec_rs::ReedSolomon);

fn main() {
    println!("ns per packet to add");
    let added = table(|packets, repairs| {
        let mut contenders: Vec<(String, Contender)> = Vec::new();
        for kernel in Kernel::available() {
            let contender = encode_ours(packets.clone(), repairs, kernel);
            contenders.push((format!("ours, {kernel:?}"), Box::new(contender)));
        }
        contenders
            .push(encode_theirs::<reed_solomon_erasure::galois_8::ReedSolomon>(&packets, repairs));
        contenders
            .push(encode_theirs::<rustfs_erasure_codec::galois_8::ReedSolomon>(&packets, repairs));
        contenders.push(encode_theirs::<fec_rs::ReedSolomon>(&packets, repairs));
        contenders.push(("reed-solomon-simd".to_owned(), Box::new(encode_whole(packets, repairs))));
        contenders
    });
    judge(&added);
    println!("ns per lost packet to recover");
    table(|packets, repairs| {
        vec![
            ("ours".to_owned(), Box::new(recover_ours(packets.clone(), repairs))),
            recover_theirs::<reed_solomon_erasure::galois_8::ReedSolomon>(&packets, repairs),
            recover_theirs::<rustfs_erasure_codec::galois_8::ReedSolomon>(&packets, repairs),
            recover_theirs::<fec_rs::ReedSolomon>(&packets, repairs),
            ("reed-solomon-simd".to_owned(), Box::new(recover_whole(packets, repairs))),
        ]
    });
}

/// Prints whether this crate is at most as slow as the fastest other library in the judged case.
fn judge(added: &[(String, f64)]) {
    let least = |is_ours: bool| {
        let these = added.iter().filter(|(name, _)| name.starts_with("ours") == is_ours);
        these.map(|(_, nanos)| *nanos).fold(f64::INFINITY, f64::min)
    };
    let (ours, others) = (least(true), least(false));
    let (sources, repairs, bytes) = CASES[JUDGED];
    let is_met = if ours <= others { "met" } else { "missed" };
    println!(
        "bar: k={sources} r={repairs} {bytes} B, ns to add: \
         at most the fastest other's {others:.0}, found {ours:.0}: {is_met}"
    );
}

/// Prints a line for each case and a column for each contender; returns the times of the judged
/// case.
fn table(
    contenders_for: impl Fn(Vec<Vec<u8>>, usize) -> Vec<(String, Contender)>,
) -> Vec<(String, f64)> {
    let mut judged = Vec::new();
    for (place, (sources, repairs, bytes)) in CASES.into_iter().enumerate() {
        let packets: Vec<Vec<u8>> = (0..sources).map(|index| vec![index as u8; bytes]).collect();
        let (names, mut contenders): (Vec<String>, Vec<Contender>) =
            contenders_for(packets, repairs).into_iter().unzip();
        if place == 0 {
            println!("block | {}", names.join(" | "));
        }
        let medians = in_turns(&mut contenders);
        let cells: Vec<String> = medians.iter().map(|nanos| format!("{nanos:.0}")).collect();
        println!("k={sources} r={repairs} {bytes} B | {}", cells.join(" | "));
        if place == JUDGED {
            judged = names.into_iter().zip(medians).collect();
        }
    }
    judged
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

fn encode_theirs<P: Peer + 'static>(packets: &[Vec<u8>], repairs: usize) -> (String, Contender) {
    let (packets, codec) = (packets.to_vec(), P::of(packets.len(), repairs));
    let mut parity = vec![vec![0; packets[0].len()]; repairs];
    let encode = move || {
        for (index, packet) in packets.iter().enumerate() {
            codec.add(index, packet, &mut parity);
        }
        black_box(&parity);
        packets.len()
    };
    (P::NAME.to_owned(), Box::new(encode))
}

fn encode_whole(packets: Vec<Vec<u8>>, repairs: usize) -> impl FnMut() -> usize {
    let mut encoder =
        ReedSolomonEncoder::new(packets.len(), repairs, packets[0].len()).expect("a possible code");
    move || {
        for packet in &packets {
            encoder.add_original_shard(packet).expect("shards fit");
        }
        black_box(encoder.encode().expect("all are there").recovery(0));
        packets.len()
    }
}

fn recover_ours(packets: Vec<Vec<u8>>, repairs: usize) -> impl FnMut() -> usize {
    let mut encoder = Encoder::new(repairs).expect("a possible number");
    for (column, packet) in packets.iter().enumerate() {
        encoder.add(column, packet).expect("the column is free");
    }
    // As for the peer, the measured time begins once all packets are there: the first columns
    // measure the time to add the received ones.
    let mut decoder = Decoder::new(encoder.members(), repairs).expect("a possible number");
    for (column, packet) in packets.iter().enumerate().skip(repairs) {
        decoder.add_source(column, packet).expect("a member");
    }
    for row in 0..repairs {
        decoder.add_repair(row, encoder.repair(row)).expect("of this block");
    }
    move || black_box(decoder.recover()).expect("enough arrived").len()
}

fn recover_theirs<P: Peer + 'static>(packets: &[Vec<u8>], repairs: usize) -> (String, Contender) {
    let codec = P::of(packets.len(), repairs);
    let mut parity = vec![vec![0; packets[0].len()]; repairs];
    for (index, packet) in packets.iter().enumerate() {
        codec.add(index, packet, &mut parity);
    }
    let mut block: Vec<Option<Vec<u8>>> = packets.iter().cloned().chain(parity).map(Some).collect();
    let recover = move || {
        for shard in block.iter_mut().take(repairs) {
            *shard = None;
        }
        codec.restore(&mut block);
        black_box(&block);
        repairs
    };
    (P::NAME.to_owned(), Box::new(recover))
}

fn recover_whole(packets: Vec<Vec<u8>>, repairs: usize) -> impl FnMut() -> usize {
    let (sources, bytes) = (packets.len(), packets[0].len());
    let parity = reed_solomon_simd::encode(sources, repairs, &packets).expect("a possible code");
    let mut decoder = ReedSolomonDecoder::new(sources, repairs, bytes).expect("a possible code");
    move || {
        for (index, packet) in packets.iter().enumerate().skip(repairs) {
            decoder.add_original_shard(index, packet).expect("shards fit");
        }
        for (index, repair) in parity.iter().enumerate() {
            decoder.add_recovery_shard(index, repair).expect("shards fit");
        }
        let restored = decoder.decode().expect("enough arrived");
        black_box(restored.restored_original_iter().count())
    }
}

/// Returns the median time per packet of each contender, in nanoseconds.
fn in_turns(contenders: &mut [Contender]) -> Vec<f64> {
    let mut times = vec![Vec::new(); contenders.len()];
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    for _ in 0..if is_quick { 1 } else { ROUNDS } {
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
