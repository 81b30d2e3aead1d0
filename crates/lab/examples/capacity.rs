//! Measures the capacity of the lab on this machine while its record stays valid.
//!
//! `cargo run --release -p tradewind-lab --example capacity` prints a table and exits with 0
//! (pass), 1 (fail) or 3 (invalid). The thresholds are meant for two cores.

#[path = "common/mod.rs"]
mod common;

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use common::check::{Bound, Check, Figure, Findings, run_all};
use common::traffic::{self, Train};
use common::{host, start};
use tradewind_lab::{LabError, LabOptions, privilege};
use tradewind_units::HostId;

const CHECKS: &[Check] = &[
    Check { name: "2 Gbit/s of TCP, 4 paths of 100 ms", run: four_paths },
    Check { name: "2 Gbit/s of TCP, 1 path of 100 ms", run: one_path },
    Check { name: "100,000 packets/s of 200 bytes", run: small_packets },
];

fn main() -> ExitCode {
    if let Err(error) = privilege::acquire() {
        eprintln!("capacity: CANNOT RUN, so nothing was measured: {error}");
        return ExitCode::from(3);
    }
    let filter = std::env::args().nth(1).unwrap_or_default();
    let verdict = run_all(CHECKS, &filter);
    println!("capacity: {verdict}");
    ExitCode::from(verdict.exit_code())
}

/// Returns a topology of `count` disjoint pairs of hosts, each with a path of 100 ms and `mbps`.
fn paths(count: usize, mbps: f64) -> (String, Vec<(HostId, HostId)>) {
    let mut text = "[default.host]\nreceive_buffer = \"128 MiB\"\nsend_buffer = \"128 MiB\"\n\
                    [default.pair]\nrtt = \"100 ms\"\n"
        .to_owned();
    let mut pairs = Vec::new();
    for index in 0..count {
        let (a, b) = (format!("a{index}"), format!("b{index}"));
        write!(
            text,
            "[[site]]\nid = \"{a}\"\n[[site]]\nid = \"{b}\"\n\
             [[pair]]\nbetween = [\"{a}\", \"{b}\"]\nrate = \"{mbps} Mbit/s\"\n"
        )
        .expect("strings take all");
        pairs.push((host(&a), host(&b)));
    }
    (text, pairs)
}

fn tcp(count: usize, mbps: f64) -> Result<Findings, LabError> {
    const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;
    let (topology, pairs) = paths(count, mbps);
    let lab = start(&topology, &LabOptions::default())?;
    let (warm_up, span) = (Duration::from_secs(8), Duration::from_secs(8));
    // The overshoot of slow start is a burst that no steady flow repeats: it is measured
    // separately.
    let (rates, overshoot) = std::thread::scope(|scope| {
        let running = scope.spawn(|| traffic::tcp_rates(&lab, &pairs, warm_up, span));
        std::thread::sleep(warm_up);
        let overshoot = lab.validity();
        let reset = lab.reset_validity();
        let rates = running.join().expect("workers do not panic");
        Ok::<_, LabError>((rates?, overshoot.and_then(|record| reset.map(|()| record))?))
    })?;
    println!("       first {} s: {overshoot}", warm_up.as_secs());
    let ideal = count as f64 * mbps / 1e3;
    let figure = Figure {
        what: format!("IP bytes of {count} cubic flow(s) of {mbps} Mbit/s"),
        expected: ideal * 0.95,
        measured: rates.iter().sum::<f64>() * 8.0 / 1e9 / PAYLOAD_SHARE,
        unit: "Gbit/s",
        bound: Bound::AtLeast,
    };
    Ok(Findings { figures: vec![figure], records: vec![lab.validity()?] })
}

fn four_paths() -> Result<Findings, LabError> {
    tcp(4, 525.0)
}

fn one_path() -> Result<Findings, LabError> {
    tcp(1, 2100.0)
}

fn small_packets() -> Result<Findings, LabError> {
    const PER_SECOND: u32 = 100_000;
    const SECONDS: u32 = 5;
    let (topology, pairs) = paths(1, 1000.0);
    let lab = start(&topology, &LabOptions::default())?;
    let (from, to) = &pairs[0];
    let gap = Duration::from_secs(1) / PER_SECOND;
    let train = Train { packets: PER_SECOND * SECONDS, payload: 172, together: 1, gap };
    let started = std::time::Instant::now();
    let arrived = traffic::udp_train(&lab, (from, to), train)?;
    let seconds = started.elapsed().as_secs_f64();
    let count = arrived.iter().filter(|arrived| **arrived).count() as f64;
    let figures = vec![
        Figure {
            what: "packets that arrived".to_owned(),
            expected: f64::from(train.packets),
            measured: count,
            unit: "packets",
            bound: Bound::Within(0.0),
        },
        Figure {
            what: "rate of single packets".to_owned(),
            expected: f64::from(PER_SECOND) * 0.95 / 1e3,
            measured: count / seconds / 1e3,
            unit: "k/s",
            bound: Bound::AtLeast,
        },
    ];
    Ok(Findings { figures, records: vec![lab.validity()?] })
}
