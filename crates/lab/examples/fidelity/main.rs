//! Checks that the lab matches its topology: figures on real kernel TCP, each with its bound.
//!
//! `cargo run --release -p tradewind-lab --example fidelity [-- PART-OF-A-NAME]` prints a table and
//! exits with 0 (pass), 1 (fail) or 3 (invalid: the machine was too busy to keep time, three
//! times).

#[path = "../common/mod.rs"]
mod common;

mod lateness;
mod leftovers;
mod mechanisms;
mod statistics;
mod throughput;

use std::process::ExitCode;

use common::check::{Check, run_all};
use tradewind_lab::privilege;

const CHECKS: &[Check] = &[
    Check { name: "round trips", run: throughput::round_trips },
    Check { name: "rate of a lone flow", run: throughput::rates },
    Check { name: "window over round trip", run: throughput::windows },
    Check { name: "reno follows Mathis", run: throughput::mathis },
    Check { name: "super-packets equal single packets", run: throughput::single_packets },
    Check { name: "random loss", run: statistics::random_loss },
    Check { name: "burst loss", run: statistics::burst_loss },
    Check { name: "queue overflows at its byte", run: statistics::overflow },
    Check { name: "content survives", run: mechanisms::integrity },
    Check { name: "changes while running", run: mechanisms::changes },
    Check { name: "path MTU is discovered", run: mechanisms::path_mtu },
    Check { name: "marks instead of losses", run: mechanisms::marks },
    Check { name: "late deliveries", run: lateness::late_deliveries },
    Check { name: "nothing remains", run: leftovers::nothing_remains },
    Check { name: "a busy machine is noticed", run: mechanisms::busy_machine },
];

/// Checks that run only by their name: no bound on them is proven, so they measure.
const BY_NAME: &[Check] = &[Check { name: "waits for a CPU", run: lateness::waits_for_a_cpu }];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(outcome) = leftovers::child_role(&arguments) {
        if let Err(error) = &outcome {
            eprintln!("{error}");
        }
        return ExitCode::from(u8::from(outcome.is_err()));
    }
    if let Err(error) = privilege::acquire() {
        eprintln!("fidelity: CANNOT RUN, so nothing was checked: {error}");
        return ExitCode::from(3);
    }
    let filter = arguments.first().map_or("", String::as_str);
    let by_name = if filter.is_empty() { &[] } else { BY_NAME };
    let verdict = run_all(&[CHECKS, by_name].concat(), filter);
    println!("fidelity: {verdict}");
    ExitCode::from(verdict.exit_code())
}
