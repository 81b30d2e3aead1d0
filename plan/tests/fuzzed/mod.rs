//! What must hold for any problem file, as the fuzzer and the replay of its corpus ask.

use std::sync::LazyLock;

use tradewind_model::Catalogue;
use tradewind_plan::solver::{self, Greedy, Limits, SolveError};
use tradewind_plan::{Problem, file, verify};

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::builtin);

/// Sizes beyond which a problem is only read, so that the fuzzer stays fast.
const MOST_FLOWS: usize = 8;
const MOST_LEGS: usize = 60;
/// Steps of the solver.
const WORK: u64 = 200;
/// Between the problem file and its one table, which every name stands for.
pub(crate) const TABLE_MARK: &str = "\n#table\n";

/// A file is refused in one line, or makes a problem whose plans hold.
pub(crate) fn plan_problem(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (text, table) = text.split_once(TABLE_MARK).unwrap_or((text, ""));
    let mut load = |name: &str| match name {
        "absent" => Err("no such file".to_owned()),
        _ => Ok(table.to_owned()),
    };
    let read = match file::parse(text, &CATALOGUE, &mut load) {
        Ok(read) => read,
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains('\n'), "one line, not {message:?}");
            assert!(error.line >= 1 && !error.problem.is_empty(), "{error:?}");
            return;
        }
    };
    let inputs = read.inputs;
    assert!(!inputs.flows.is_empty(), "a problem has flows");
    if inputs.flows.len() > MOST_FLOWS || inputs.legs.len() > MOST_LEGS || inputs.max_relays > 2 {
        return;
    }
    let Ok(problem) = Problem::new(inputs) else { return };
    let plan = match solver::solve(&Greedy, &problem, &Limits::work(WORK)) {
        Ok(plan) => Some(plan),
        Err(SolveError::WorkLimit { best, .. }) => best.map(|plan| *plan),
        Err(_) => None,
    };
    let violations = plan.map(|plan| verify(&problem, &plan)).unwrap_or_default();
    assert!(violations.is_empty(), "{violations:?}");
}
