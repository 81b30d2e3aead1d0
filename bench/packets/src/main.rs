//! `jq-scale`: what one thread of a relay carries, beside a bare loop over UDP and coturn [JQ B]: `cargo run --release -p
//! tradewind-bench-packets [seconds]`.
//!
//! All on loopback. A bare [`loops`] copies what comes: with trains (GRO in, GSO out), or with batches of single datagrams
//! (recvmmsg, sendmmsg). A relay between two gateways also decrypts, looks up and encrypts ([`services`]): it forwards every
//! packet, or takes copies of all, which it keeps (caching) or makes repair packets of (coding). [`coturn`] relays the same, in plain,
//! with one thread for packets; where it is not installed it is left out, and that is said. The load comes as trains of 32
//! datagrams of one flow, or as single datagrams of 64 flows in turn.
//!
//! Printed: datagrams that arrived a second, and datagrams handled by a second of the CPU time of the one thread that is measured (of
//! coturn's process), which holds when others share its cores; and that figure over the better bare loop's. Medians of five rounds, everything in
//! turns, after one round that is not counted.

#![allow(clippy::expect_used, reason = "a bench on loopback has no one to hand errors to")]

mod coturn;
mod cpu;
mod loops;
mod services;
mod traffic;

use std::time::Duration;

use anyhow::Context as _;

use loops::Loop;
use services::Carried;
use traffic::Traffic;

const ROUNDS: usize = 5;
/// The paper's [JQ B], and a full one.
const BYTES: [usize; 2] = [512, 1300];

/// What is measured.
#[derive(Debug, Clone, Copy)]
enum Subject {
    Loop(Loop),
    Relay(Carried),
    Coturn,
}

const SUBJECTS: [Subject; 6] = [
    Subject::Loop(Loop::Trains),
    Subject::Loop(Loop::Batches),
    Subject::Relay(Carried::Forwarding),
    Subject::Relay(Carried::Caching),
    Subject::Relay(Carried::Coding),
    Subject::Coturn,
];

/// What a round came to.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    arrived_a_second: f64,
    handled_a_cpu_second: f64,
}

impl Subject {
    fn name(self) -> String {
        match self {
            Self::Loop(kind) => format!("bare loop, {}", format!("{kind:?}").to_lowercase()),
            Self::Relay(service) => format!("relay, {}", format!("{service:?}").to_lowercase()),
            Self::Coturn => "coturn".to_owned(),
        }
    }

    fn run(self, traffic: Traffic, bytes: usize, span: Duration) -> anyhow::Result<Outcome> {
        match self {
            Self::Loop(kind) => Ok(loops::run(kind, traffic, bytes, span)),
            Self::Relay(service) => services::run(service, traffic, bytes, span),
            Self::Coturn => coturn::run(traffic, bytes, span),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let seconds = std::env::args().nth(1).map_or(Ok(1.0), |text| text.parse());
    let span = Duration::try_from_secs_f64(seconds.context("seconds: expected a number")?)?;
    let is_there =
        |subject: &&Subject| !matches!(subject, Subject::Coturn) || coturn::find().is_some();
    let subjects: Vec<Subject> = SUBJECTS.iter().filter(is_there).copied().collect();
    if subjects.len() < SUBJECTS.len() {
        println!("left out: coturn is not installed (`make setup-bench` does it)");
    }
    println!(
        "bytes | traffic | what | arrived a second | handled by a second of CPU | of a bare loop"
    );
    for bytes in BYTES {
        for traffic in [Traffic::Trains, Traffic::Singles] {
            let mut outcomes = vec![Vec::new(); subjects.len()];
            for round in 0..=ROUNDS {
                for (subject, outcomes) in subjects.iter().zip(&mut outcomes) {
                    let outcome = subject.run(traffic, bytes, span)?;
                    if round > 0 {
                        outcomes.push(outcome);
                    }
                }
            }
            let handled = |outcomes: &[Outcome]| median(outcomes, |it| it.handled_a_cpu_second);
            let bare = handled(&outcomes[0]).max(handled(&outcomes[1]));
            for (subject, outcomes) in subjects.iter().zip(&outcomes) {
                let (name, arrived) = (subject.name(), median(outcomes, |it| it.arrived_a_second));
                let handled = handled(outcomes);
                let of_bare = handled / bare;
                println!(
                    "{bytes} | {traffic:?} | {name} | {arrived:.0} | {handled:.0} | {of_bare:.2}"
                );
            }
        }
    }
    Ok(())
}

fn median(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    let mut values: Vec<f64> = outcomes.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
