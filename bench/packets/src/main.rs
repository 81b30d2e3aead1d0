//! `jq-scale`: the packet rate of a relay per thread, compared with a bare UDP loop and coturn [JQ
//! B]: `cargo run --release -p tradewind-bench-packets [seconds [part of a name]]`; with a part,
//! only the loops and the subjects whose names contain it, and no bars. With `--quick` everything
//! runs once and briefly: that shows that all works, and nothing else.
//!
//! All runs on loopback. A bare [`loops`] thread copies datagrams: with trains (GRO in, GSO out),
//! or with batches of single datagrams (recvmmsg, sendmmsg); another one, with trains, encrypts
//! each datagram twice, as a relay must that opens and seals them. A relay between gateways
//! ([`services`]) forwards every packet, of which it checks and writes the header, or all of it
//! where legs are sealed whole; or it receives copies of all, which it opens, and keeps (caching)
//! or makes repair packets of (coding). [`coturn`] relays the same, unencrypted, with one thread
//! for packets; where it is not installed it is left out with a message. The load is trains of 32
//! datagrams of one flow, or single datagrams of 64 flows in turn. As a gateway makes trains of
//! either before they reach the relay, one relay is fed datagrams one by one, and one is fed
//! [`straight`] by the load, without a gateway that limits it. One relay has two workers, and a
//! gateway for each.
//!
//! Printed figures: datagrams that arrived a second; datagrams handled per second of CPU time of
//! the measured threads (of coturn's process), which holds even when others share its cores; and
//! that figure divided by the better bare loop's of the same round, since a machine's speed varies.
//! They are medians of five rounds, everything in turns, after one round that is not counted. Then
//! follow the coding rate of a core that does nothing else ([`alone`]), the time in which a relay
//! recovers packets ([`recovery`]), and a line for each bar, met or missed ([`bars`]).

#![allow(clippy::expect_used, reason = "a bench on loopback has no one to hand errors to")]

mod alone;
mod bars;
mod coturn;
mod cpu;
mod loops;
mod nodes;
mod recovery;
mod services;
mod straight;
mod traffic;

use std::time::Duration;

use anyhow::Context as _;

use loops::Loop;
use services::{Carried, Feed};
use traffic::Traffic;

const ROUNDS: usize = 5;
/// Packet sizes: the paper's [JQ B], and a full one.
const BYTES: [usize; 2] = [512, 1300];

/// A measured forwarder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Loop(Loop),
    Relay(Carried, Feed),
    Coturn,
}

const SUBJECTS: [Subject; 13] = [
    Subject::Loop(Loop::Trains),
    Subject::Loop(Loop::Batches),
    Subject::Loop(Loop::TrainsSealed),
    Subject::Relay(Carried::Forwarding, Feed::Gateway),
    Subject::Relay(Carried::Caching, Feed::Gateway),
    Subject::Relay(Carried::Coding, Feed::Gateway),
    Subject::Relay(Carried::Forwarding, Feed::Straight),
    Subject::Relay(Carried::Forwarding, Feed::SealedWhole),
    Subject::Relay(Carried::Forwarding, Feed::Apart),
    Subject::Relay(Carried::Caching, Feed::Apart),
    Subject::Relay(Carried::Coding, Feed::Apart),
    Subject::Relay(Carried::Forwarding, Feed::TwoGateways),
    Subject::Coturn,
];

/// The figures of one round.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    arrived_a_second: f64,
    handled_a_cpu_second: f64,
}

/// The result of a subject's rounds under one load.
struct Line {
    subject: Subject,
    bytes: usize,
    traffic: Traffic,
    medians: Outcome,
    of_bare: f64,
}

impl Subject {
    fn name(self) -> String {
        match self {
            Self::Loop(kind) => kind.name().to_owned(),
            Self::Relay(service, feed) => {
                let fed = match feed {
                    Feed::Gateway => "",
                    Feed::SealedWhole => ", sealed whole",
                    Feed::Straight => ", fed straight",
                    Feed::Apart => ", fed one by one",
                    Feed::TwoGateways => ", two workers",
                };
                format!("relay, {}{fed}", format!("{service:?}").to_lowercase())
            }
            Self::Coturn => "coturn".to_owned(),
        }
    }

    fn run(self, traffic: Traffic, bytes: usize, span: Duration) -> anyhow::Result<Outcome> {
        match self {
            Self::Loop(kind) => Ok(loops::run(kind, traffic, bytes, span)),
            Self::Relay(service, feed) => services::run((service, feed), traffic, bytes, span),
            Self::Coturn => coturn::run(traffic, bytes, span),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_quick = arguments.first().is_some_and(|first| first == "--quick");
    if is_quick {
        arguments[0] = "0.05".to_owned();
    }
    let seconds = arguments.first().map_or(Ok(1.0), |text| text.parse());
    let part = arguments.get(1).cloned();
    let span = Duration::try_from_secs_f64(seconds.context("seconds: expected a number")?)?;
    let is_there =
        |subject: &&Subject| !matches!(subject, Subject::Coturn) || coturn::find().is_some();
    let mut subjects: Vec<Subject> = SUBJECTS.iter().filter(is_there).copied().collect();
    if subjects.len() < SUBJECTS.len() {
        println!("left out: coturn is not installed (`make setup-bench` does it)");
    }
    if let Some(part) = &part {
        let is_wanted = |subject: &Subject| {
            matches!(subject, Subject::Loop(_)) || subject.name().contains(part.as_str())
        };
        subjects.retain(is_wanted);
    }
    println!(
        "bytes | traffic | what | arrived a second | handled by a second of CPU | of a bare loop"
    );
    let mut lines = Vec::new();
    let rounds = if is_quick { 1 } else { ROUNDS };
    let sizes = if is_quick { &BYTES[..1] } else { &BYTES };
    for bytes in sizes {
        for traffic in [Traffic::Trains, Traffic::Singles] {
            lines.extend(measure(&subjects, (traffic, *bytes), span, rounds)?);
        }
    }
    if part.is_none() {
        rest(span)?;
        if !is_quick {
            bars::judge(&lines);
        }
    }
    Ok(())
}

/// Runs the measurements besides those of forwarding rates.
fn rest(span: Duration) -> anyhow::Result<()> {
    println!();
    let (sources, repairs, bytes) = alone::BLOCK;
    let coded = alone::run(span);
    let what = format!("k = {sources}, {repairs} repair packets, {bytes} bytes");
    println!("coding alone, {what}: {coded:.0} packets by a second of CPU");
    for carried in [Carried::Caching, Carried::Coding] {
        let took = recovery::run(carried)?;
        let at = |part: usize| took[(took.len() - 1) * part / 100].as_secs_f64() * 1e6;
        let (name, median, tail) = (format!("{carried:?}").to_lowercase(), at(50), at(99));
        println!("from request to answer, {name}: median {median:.0} us, 99 % within {tail:.0} us");
    }
    println!();
    bars::tell(&format!("coding alone, {what}"), bars::CODED_ALONE, coded, 0);
    Ok(())
}

/// Runs and prints all subjects under one load.
fn measure(
    subjects: &[Subject],
    (traffic, bytes): (Traffic, usize),
    span: Duration,
    rounds: usize,
) -> anyhow::Result<Vec<Line>> {
    let mut outcomes = vec![Vec::new(); subjects.len()];
    for round in 0..=rounds {
        for (subject, outcomes) in subjects.iter().zip(&mut outcomes) {
            let outcome = subject.run(traffic, bytes, span)?;
            if round > 0 {
                outcomes.push(outcome);
            }
        }
    }
    let medians: Vec<Outcome> = outcomes
        .iter()
        .map(|outcomes| Outcome {
            arrived_a_second: median(outcomes, |it| it.arrived_a_second),
            handled_a_cpu_second: median(outcomes, |it| it.handled_a_cpu_second),
        })
        .collect();
    let handled =
        |subject: usize, round: usize| -> f64 { outcomes[subject][round].handled_a_cpu_second };
    // The first two are the bare loops.
    let bare = |round| handled(0, round).max(handled(1, round));
    let of_bare = (0..subjects.len()).map(|subject| {
        middle((0..rounds).map(|round| handled(subject, round) / bare(round)).collect())
    });
    let lines = subjects.iter().zip(medians).zip(of_bare).map(|((subject, medians), of_bare)| {
        let Outcome { arrived_a_second: arrived, handled_a_cpu_second: handled } = medians;
        let name = subject.name();
        println!("{bytes} | {traffic:?} | {name} | {arrived:.0} | {handled:.0} | {of_bare:.2}");
        Line { subject: *subject, bytes, traffic, medians, of_bare }
    });
    Ok(lines.collect())
}

fn median(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    middle(outcomes.iter().map(of).collect())
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
