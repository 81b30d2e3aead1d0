//! Sixty problems dominated by the set-up costs of relays: thirty one-to-one with free transfer,
//! and six of each pattern of flows with prices between those and CP's.

use tradewind_model::StartUp;
use tradewind_model::cost::Prices;
use tradewind_plan::{Inputs, Problem};
use tradewind_units::PricePerGb;

use super::near_regions::{Pattern, near_regions};
use super::usd;

/// Number of problems.
pub(crate) const COUNT: usize = 60;

/// Number of flows of each.
const FLOWS: usize = 30;

/// Budgets in dollars of the one-to-one problems, each with as many seeds as needed.
const BUDGETS_USD: [f64; 5] = [3.0, 5.0, 7.0, 9.0, 12.0];

/// Set-up in dollars, transfer in dollars a GB, and the budget in dollars a flow of the others.
const TERMS: [(f64, f64, f64); 6] = [
    (1.0, 0.0, 0.15),
    (1.0, 0.0, 0.3),
    (1.0, 0.02, 0.3),
    (0.5, 0.05, 0.3),
    (0.5, 0.12, 0.5),
    (0.5, 0.12, 1.0),
];

const PATTERNS: [Pattern; 5] = [
    Pattern::OneToMany,
    Pattern::ManyToOne,
    Pattern::ManyToMany,
    Pattern::OneToOne,
    Pattern::LocalizedOneToMany,
];

/// Returns the problem of this number, below [`COUNT`].
pub(crate) fn problem(number: usize) -> Problem {
    Problem::new(inputs(number)).expect("it makes sense")
}

/// Returns a short description of the problem.
pub(crate) fn about(number: usize) -> String {
    let inputs = inputs(number);
    let pattern = pattern(number);
    let (set_up, budget) = (inputs.relay_types[0].set_up, inputs.budget);
    format!("{pattern:?}, set-up {set_up}, budget {budget}")
}

/// Returns a short description of the class of the problem: those with the same terms.
pub(crate) fn class(number: usize) -> String {
    let (set_up, transfer, budget) = terms(number);
    let of = if number < COUNT / 2 { "one-to-one" } else { "five patterns" };
    let budget = budget * FLOWS as f64;
    format!("{of}, set-up ${set_up:.2}, transfer ${transfer:.2} a GB, budget ${budget:.2}")
}

/// Returns set-up, transfer, and the budget a flow, in dollars.
fn terms(number: usize) -> (f64, f64, f64) {
    match number.checked_sub(COUNT / 2) {
        None => (1.0, 0.0, BUDGETS_USD[number % BUDGETS_USD.len()] / FLOWS as f64),
        Some(other) => TERMS[other / PATTERNS.len()],
    }
}

fn pattern(number: usize) -> Pattern {
    if number < COUNT / 2 { Pattern::OneToOne } else { PATTERNS[number % PATTERNS.len()] }
}

fn inputs(number: usize) -> Inputs {
    let (set_up, transfer, budget) = terms(number);
    let mut inputs = near_regions(FLOWS, budget, pattern(number), number as u64 + 1);
    inputs.relay_types[0].set_up = usd(set_up);
    inputs.prices = Prices::Flat(PricePerGb::from_usd_per_gb(transfer).expect("it is a price"));
    inputs.start_up = StartUp::Ignored;
    inputs
}

/// Returns the least score that a long search found for the problem of this number, in seconds.
pub(crate) fn best_known_s(number: usize) -> Option<f64> {
    let lines = include_str!("best_known.csv").lines().skip(1);
    let of = |line: &str| {
        let (at, seconds) = line.split_once(',')?;
        (at.parse() == Ok(number)).then(|| seconds.parse().ok())?
    };
    lines.filter_map(of).next()
}
