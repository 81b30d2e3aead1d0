//! Costs of jump-start on this machine:
//!
//! `cargo run --release -p tradewind-jumpstart-daemon --example jump_costs [--quick]`
//!
//! - Sampling all connections, by their number: our reading of `sock_diag`, the same with the
//!   learner's round on top, and `ss -tin` with its text parsed, as the paper's implementation does
//!   `[RT III-A]`; in turns, in the same run.
//! - A change of each kind, through routes and through the program in the kernel.
//! - A round of the learner over 100,000 destinations, by mode.
//!
//! Connections and routes are made in a network namespace of its own (root), and are removed with
//! it. A process may hold as many descriptors as its hard limit allows (`ulimit -Hn`), and a
//! connection's two ends are two of them and two rows of the table: children of this program hold
//! the connections. Measurements that are not possible here say SKIPPED.

mod acts;
mod poll;

use std::time::{Duration, Instant};

use tradewind_jumpstart::{Config, Learner, Mode, Sample};
use tradewind_net::capability::kernel_release;
use tradewind_units::{Bandwidth, Bytes, Segments, Timestamp};

/// Number of destinations in the learner's rounds.
const DESTINATIONS: u32 = 100_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [poll::HOLD, pairs] => return poll::hold(pairs),
        [] => false,
        ["--quick"] => true,
        _ => return eprintln!("jump_costs: no arguments, or --quick"),
    };
    let rounds = if quick { 3 } else { 11 };
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    println!("kernel {}, {cpus} CPUs, medians of {rounds} rounds", kernel_release());
    poll::print(rounds, quick);
    acts::print(rounds);
    decisions(rounds);
}

/// Returns the median of `rounds` measurements, after one that is not counted.
fn median(rounds: usize, mut measure: impl FnMut() -> Duration) -> Duration {
    measure();
    let mut all: Vec<Duration> = (0..rounds).map(|_| measure()).collect();
    all.sort();
    all[rounds / 2]
}

/// Returns the time that `work` takes.
fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// Returns a sample of a connection as on a busy host.
fn sample(number: u32, acked: u64) -> Sample {
    let [a, b, c, d] = (0x0a00_0000 + number).to_be_bytes();
    Sample {
        connection: number.into(),
        remote: [a, b, c, d].into(),
        window: Segments::new(10 + number % 90).expect("above zero"),
        slow_start_threshold: None,
        mss: Bytes::new(1448),
        rtt_min: Some(Duration::from_millis(40)),
        delivery_rate: Bandwidth::from_mbps(20.0).ok(),
        application_limited: false,
        rate_limit: None,
        acked: Bytes::new(acked),
        retransmitted_segments: 0,
        busy: Duration::from_secs(1),
    }
}

/// Prints the times of a learner's round over known destinations, one connection each.
fn decisions(rounds: usize) {
    println!("\nA round of the learner over {DESTINATIONS} destinations, one connection each");
    println!("{:<10} | ms a round | decisions a second", "mode");
    for mode in [Mode::Riptide, Mode::Paced, Mode::Strict] {
        let mut learner = Learner::new(Config::of(mode));
        let mut second = 0;
        let span = median(rounds, || {
            second += 1;
            let now = Timestamp::ZERO + Duration::from_secs(second);
            timed(|| {
                for number in 0..DESTINATIONS {
                    learner.observe(&sample(number, second * 1_000_000));
                }
                std::hint::black_box(learner.decide(now));
            })
        });
        assert_eq!(learner.len(), DESTINATIONS as usize, "all are known");
        let name = format!("{mode:?}").to_lowercase();
        let a_second = f64::from(DESTINATIONS) / span.as_secs_f64();
        println!("{name:<10} | {:>10.1} | {a_second:>18.0}", millis(span));
    }
}
