//! The coding rate of a core that does nothing else, with the arithmetic that relays use.

use std::hint::black_box;
use std::time::Duration;

use tradewind_fec::Encoder;
use tradewind_net::clock;

/// Packets of a block, its repair packets, and bytes of each packet.
pub(crate) const BLOCK: (usize, usize, usize) = (10, 2, 1_400);

/// Returns the number of packets coded per second of CPU time.
pub(crate) fn run(span: Duration) -> f64 {
    let (sources, repairs, bytes) = BLOCK;
    let packets: Vec<Vec<u8>> = (0..sources).map(|index| vec![index as u8; bytes]).collect();
    let mut encoder = Encoder::new(repairs).expect("a possible number");
    let (begun, mut coded) = (clock::thread_cpu(), 0_u64);
    loop {
        for _ in 0..1_000 {
            encoder.clear();
            for (column, packet) in packets.iter().enumerate() {
                encoder.add(column, packet).expect("the column is free");
            }
            black_box(encoder.repair(repairs - 1));
            coded += sources as u64;
        }
        let spent = clock::thread_cpu() - begun;
        if spent >= span {
            return coded as f64 / spent.as_secs_f64();
        }
    }
}
