//! Properties of any problem file, with a log or without, which the fuzzer and the replay of its
//! corpus check.

use std::sync::LazyLock;

use tradewind_model::Catalogue;
use tradewind_plan::file::{FileError, Log};
use tradewind_plan::forecast::{History, past_period, regret};
use tradewind_plan::solver::{self, Greedy, Limits, SolveError};
use tradewind_plan::{Plan, Problem, file, verify};
use tradewind_units::Duration;

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::builtin);

/// Sizes beyond which a problem is only read, so that the fuzzer stays fast.
const MAX_FLOWS: usize = 8;
const MAX_LEGS: usize = 60;
const MAX_PERIODS: usize = 50;
/// The period over which logs are summed up.
const PERIOD: Duration = Duration::from_secs(3600);
/// Steps of the solver.
const WORK: u64 = 200;
/// Separator between the problem file and its one table, which every table name refers to.
pub(crate) const TABLE_MARK: &str = "\n#table\n";

/// Checks that a file is refused in one line, or is a problem whose plans are valid.
pub(crate) fn plan_problem(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (text, table) = text.split_once(TABLE_MARK).unwrap_or((text, ""));
    let mut load = |name: &str| match name {
        "absent" => Err("no such file".to_owned()),
        _ => Ok(table.to_owned()),
    };
    with_log(text, table, &mut load);
    let read = match file::parse(text, &CATALOGUE, &mut load) {
        Ok(read) => read,
        Err(error) => return one_line(&error),
    };
    packet_flows(&read);
    let inputs = read.inputs;
    assert!(!(inputs.flows.is_empty() && read.packets.flows.is_empty()), "a problem has flows");
    if inputs.flows.len() > MAX_FLOWS || inputs.legs.len() > MAX_LEGS || inputs.max_relays > 2 {
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

/// Checks that packet flows have a valid plan, or an error in one line.
fn packet_flows(read: &file::ProblemFile) {
    let nothing = Plan::nothing();
    if read.packets.flows.len() > MAX_FLOWS || read.inputs.legs.len() > MAX_LEGS {
        return;
    }
    match read.packets.plan(&read.inputs, Some(&nothing)) {
        Ok(plan) => {
            let violations = read.packets.verify(&read.inputs, &nothing, &plan);
            assert!(violations.is_empty(), "{violations:?}");
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

fn one_line(error: &FileError) {
    let message = error.to_string();
    assert!(!message.contains('\n'), "one line, not {message:?}");
    assert!(error.line >= 1 && !error.problem.is_empty(), "{error:?}");
}

/// Uses the table as a log of past flows: checks that it is refused in one line, or that no plan
/// for its forecast exceeds the budget or is better than the best known one.
fn with_log(text: &str, log: &str, load: &mut dyn FnMut(&str) -> Result<String, String>) {
    let log = Log { name: "log", text: log };
    let (read, past) = match file::parse_with_log(text, &CATALOGUE, load, log) {
        Ok(read) => read,
        Err(error) => return one_line(&error),
    };
    let inputs = read.inputs;
    let Ok(history) = History::new(&past, PERIOD) else { return };
    if inputs.legs.len() > MAX_LEGS || inputs.max_relays > 2 || history.periods() > MAX_PERIODS {
        return;
    }
    let Ok(past) = past_period(&history, &inputs, history.periods() - 1, None) else { return };
    if past.truth.flows.len().max(past.expected.len()) > MAX_FLOWS {
        return;
    }
    let Ok(outcome) = regret(&past.truth, past.expected, &Greedy, &Limits::work(WORK)) else {
        return;
    };
    assert!(outcome.applied_cost() <= past.truth.budget, "{outcome:?}");
    if let Some(by) = outcome.as_planned.filter(|by| by.late == 0) {
        assert!(by.cost <= past.truth.budget, "{by:?}");
        assert!(outcome.values.as_planned >= Some(outcome.values.best), "{:?}", outcome.values);
    }
}
