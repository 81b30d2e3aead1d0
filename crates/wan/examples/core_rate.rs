//! Measures the cost of a segment: runs the core as its driver does and prints nanoseconds of
//! processor time for each segment that crosses the network.
//!
//! `cargo run --release -p tradewind-wan --example core_rate [-- --quick]`
#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a measurement of the core needs a clock; the core itself has none"
)]

use std::error::Error;

use tradewind_model::Catalogue;
use tradewind_units::{Duration, Timestamp};
use tradewind_wan::{Bundle, Ecn, HostIndex, Topology, Wan};

/// One kind of traffic through one kind of network.
struct Case {
    name: &'static str,
    /// Keys of each host, keys of each pair, and the number of busy pairs of hosts.
    host: &'static str,
    pair: &'static str,
    pairs: u16,
    /// Segments of a bundle, and their payload.
    segments: u32,
    payload: u32,
    /// Time between two bundles of a pair.
    gap: Duration,
}

const CASES: &[Case] = &[
    Case {
        name: "4 x 1 Gbit/s, super-packets, rate and queue only",
        host: "",
        pair: "rate = '1 Gbit/s'",
        pairs: 4,
        segments: 44,
        payload: 1448,
        gap: Duration::from_micros(530),
    },
    Case {
        name: "4 x 1 Gbit/s, super-packets, every stage and fault",
        host: "egress = '2 Gbit/s'\ncap = 'tail-drop'\ningress = '2 Gbit/s'\n\
               per_connection = '1.5 Gbit/s'",
        pair: "rate = '1 Gbit/s'\nloss = 1e-5\njitter = '1 ms'\n\
               burst_loss = { enter = 1e-5, leave = 0.3 }\nduplicate = 1e-5\n\
               reorder = { share = 1e-5, late_by = '1 ms' }",
        pairs: 4,
        segments: 44,
        payload: 1448,
        gap: Duration::from_micros(530),
    },
    Case {
        name: "4 x 1 Gbit/s that overload caps of 900 Mbit/s",
        host: "ingress = '900 Mbit/s'\nper_connection = '950 Mbit/s'",
        pair: "",
        pairs: 4,
        segments: 44,
        payload: 1448,
        gap: Duration::from_micros(530),
    },
    Case {
        name: "16 x 100 Mbit/s, super-packets",
        host: "ingress = '2 Gbit/s'",
        pair: "rate = '100 Mbit/s'",
        pairs: 16,
        segments: 10,
        payload: 1448,
        gap: Duration::from_micros(1210),
    },
    Case {
        name: "100,000 small packets a second",
        host: "",
        pair: "rate = '1 Gbit/s'",
        pairs: 2,
        segments: 1,
        payload: 200,
        gap: Duration::from_micros(20),
    },
];

/// Virtual seconds of each case.
const SPAN: Duration = Duration::from_secs(5);
/// Virtual seconds of each case in a run that only shows that the example works.
const QUICK_SPAN: Duration = Duration::from_millis(100);

fn main() -> Result<(), Box<dyn Error>> {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let span = if is_quick { QUICK_SPAN } else { SPAN };
    for case in CASES {
        let Work { crossed, deliveries, wakes, nanos } = run(case, span)?;
        println!(
            "{:52} {:6.1} ns/segment {:6.1} segments/delivery {:5.2} wakes/delivery {:5.1} % of a \
             core at this load",
            case.name,
            nanos as f64 / crossed as f64,
            crossed as f64 / deliveries as f64,
            wakes as f64 / deliveries as f64,
            nanos as f64 / span.as_nanos() as f64 * 100.0,
        );
    }
    Ok(())
}

fn topology(case: &Case) -> Result<Topology, Box<dyn Error>> {
    let mut text =
        format!("[default.host]\n{}\n[default.pair]\nrtt = '100 ms'\n{}\n", case.host, case.pair);
    for n in 0..2 * case.pairs {
        text.push_str(&format!("[[site]]\nid = 's{n}'\n"));
    }
    Ok(Topology::parse(&text, &Catalogue::builtin())?)
}

/// The work of a run.
struct Work {
    /// Segments delivered.
    crossed: u64,
    deliveries: u64,
    /// Wake-ups.
    wakes: u64,
    /// Nanoseconds spent.
    nanos: u128,
}

fn run(case: &Case, span: Duration) -> Result<Work, Box<dyn Error>> {
    let mut wan = Wan::new(&topology(case)?, 1);
    let end = Timestamp::ZERO + span;
    let stagger = case.gap / u32::from(case.pairs);
    let mut next_push: Vec<Timestamp> =
        (0..case.pairs).map(|pair| Timestamp::ZERO + stagger * u32::from(pair)).collect();
    let (mut deliveries, mut wakes) = (0, 0);
    let started = std::time::Instant::now();
    loop {
        let (pair, at) = next_push
            .iter()
            .copied()
            .enumerate()
            .min_by_key(|(_, at)| *at)
            .ok_or("a case has pairs")?;
        while let Some(deadline) = wan.next_deadline().filter(|deadline| *deadline <= at) {
            wakes += 1;
            while wan.pop_due(deadline).is_some() {
                deliveries += 1;
            }
        }
        if at >= end {
            break;
        }
        let source = u16::try_from(2 * pair)?;
        wan.push(
            at,
            Bundle {
                source: HostIndex(source),
                destination: HostIndex(source + 1),
                connection: u64::from(source),
                header_bytes: 52,
                payload_bytes: case.payload * case.segments,
                segment_bytes: case.payload,
                ecn: Ecn::NotCapable,
                content: (),
            },
        );
        next_push[pair] = at + case.gap;
    }
    let nanos = started.elapsed().as_nanos();
    Ok(Work { crossed: wan.counters().total.delivered, deliveries, wakes, nanos })
}
