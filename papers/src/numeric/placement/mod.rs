//! CP's simulations [CP VII-B]: placements under a budget, over simulated end points.
//!
//! Every point is drawn anew in each run and planned by each algorithm. Only predicted times are
//! compared.

use std::time::Instant;

use tradewind_model::StartUp;
use tradewind_output::chart::Scale;
use tradewind_plan::solver::by_name;
use tradewind_plan::{Limits, Plan, Problem, verify};

use super::Kind;
use crate::harness::seeds::{Threads, each};
use crate::harness::{Figure, Job, NumericError, Record, Row, Spot, Stop, quantile};

mod cases;
mod findings;
mod scenario;
mod world;

pub use cases::{Setting, UseCase};
pub use scenario::{Axis, Measure, PaperValue, PointSetting, Scenario};

/// Name of the line of the best paths at any cost.
const UNLIMITED: &str = "unlimited";

/// Figures of one algorithm in one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Direct over planned total FCT.
    pub acceleration: f64,
    /// Relays set up.
    pub relays: f64,
    /// Total cost, in dollars.
    pub cost_usd: f64,
    /// The part of it for relays.
    pub set_up_usd: f64,
    /// Share of flows with no, one, and two or more relays.
    pub path_kinds: [f64; 3],
    /// Time to solve in milliseconds.
    pub solve_ms: f64,
    /// Its processor time in milliseconds, where the kernel reports it.
    pub cpu_ms: Option<f64>,
}

impl Sample {
    fn of(&self, measure: Measure) -> f64 {
        match measure {
            Measure::Acceleration => self.acceleration,
            Measure::Relays => self.relays,
            Measure::SetUpShare => 100.0 * self.set_up_usd / self.cost_usd.max(1e-9),
            Measure::Direct => 100.0 * self.path_kinds[0],
            Measure::OneRelay => 100.0 * self.path_kinds[1],
            Measure::TwoRelays => 100.0 * self.path_kinds[2],
            Measure::SolveMs => self.solve_ms,
            Measure::CpuMs => self.cpu_ms.unwrap_or(f64::NAN),
        }
    }
}

/// Results of a point.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The point.
    pub point: PointSetting,
    /// Direct total FCT over that of the best paths at any cost, run by run: no algorithm is above
    /// it.
    pub unlimited: Vec<f64>,
    /// Samples by algorithm and run.
    pub samples: Vec<(String, Vec<Sample>)>,
}

impl Outcome {
    /// Returns the mean acceleration of an algorithm, or the unlimited one by its name.
    fn acceleration(&self, algorithm: &str) -> Option<f64> {
        if algorithm == UNLIMITED {
            return Some(crate::harness::mean(&self.unlimited));
        }
        self.mean(algorithm, Measure::Acceleration)
    }

    fn mean(&self, algorithm: &str, measure: Measure) -> Option<f64> {
        let (_, samples) = self.samples.iter().find(|(name, _)| name == algorithm)?;
        Some(crate::harness::mean(&values(samples, measure)))
    }
}

fn values(samples: &[Sample], measure: Measure) -> Vec<f64> {
    samples.iter().map(|sample| sample.of(measure)).collect()
}

/// Runs a placement experiment.
///
/// # Errors
/// When an algorithm has no plan, or one that does not hold, or the run is stopped.
pub fn run(kind: Kind, scenario: &Scenario, job: &mut Job<'_>) -> Result<Record, NumericError> {
    let threads = if kind == Kind::RunTime { Threads::One } else { Threads::All };
    let outcomes = outcomes(scenario, threads, job)?;
    let mut record =
        Record::of_runs(&scenario.name, &scenario.assumptions, &scenario.runs, job.options);
    for (figure, measure) in scenario.show.iter().enumerate() {
        record.figures.push(figure_of(scenario, *measure));
        record.rows.extend(rows(scenario, &outcomes, figure, *measure));
    }
    record.findings = findings::of(kind, &outcomes);
    Ok(record)
}

fn outcomes(
    scenario: &Scenario,
    threads: Threads,
    job: &mut Job<'_>,
) -> Result<Vec<Outcome>, NumericError> {
    let seeds = scenario.runs.seeds(job.options);
    let stop = job.options.stop.clone();
    let mut outcomes = Vec::with_capacity(scenario.points.len());
    for point in &scenario.points {
        let line = point.line.as_ref().map(|line| format!("{line}, ")).unwrap_or_default();
        let step = format!("{}: {line}{}", scenario.name, point.name);
        let runs = each(&step, &seeds, threads, job, |seed| {
            let problem = point.setting.problem(&scenario.regions, seed)?;
            let solved = |name: &String| sample(name, &problem, &stop);
            let samples: Result<Vec<Sample>, _> = scenario.algorithms.iter().map(solved).collect();
            Ok((unlimited_acceleration(&problem), samples?))
        })?;
        let samples = scenario.algorithms.iter().enumerate().map(|(index, name)| {
            (name.clone(), runs.iter().map(|(_, samples)| samples[index]).collect())
        });
        outcomes.push(Outcome {
            point: point.clone(),
            unlimited: runs.iter().map(|(unlimited, _)| *unlimited).collect(),
            samples: samples.collect(),
        });
    }
    Ok(outcomes)
}

/// Limit of a solver's work: far more steps than any heuristic takes here.
const WORK: u64 = 1 << 40;

fn sample(name: &str, problem: &Problem, stop: &Stop) -> Result<Sample, NumericError> {
    let solver = by_name(name).ok_or_else(|| NumericError::Nothing {
        what: format!("algorithm `{name}`: there is none of this name"),
    })?;
    let should_stop = || stop.is_set();
    let limits = Limits { should_stop: &should_stop, ..Limits::work(WORK) };
    let (start, cpu_before) = (Instant::now(), cpu_ms());
    let plan = solver.solve(problem, &limits);
    let solve_ms = start.elapsed().as_secs_f64() * 1e3;
    let cpu_ms = cpu_before.and_then(|before| Some(cpu_ms()? - before));
    if stop.is_set() {
        return Err(NumericError::Stopped);
    }
    let plan = plan.map_err(|error| NumericError::Solve { solver: name.to_owned(), error })?;
    let violations = verify(problem, &plan);
    if !violations.is_empty() {
        let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
        let violations = violations.join("; ");
        return Err(NumericError::Unsound { solver: name.to_owned(), violations });
    }
    Ok(figures(&plan, solve_ms, cpu_ms))
}

fn figures(plan: &Plan, solve_ms: f64, cpu_ms: Option<f64>) -> Sample {
    let egress: f64 = plan.flows.iter().map(|flow| flow.egress.as_usd()).sum();
    let kind = |kind: usize| {
        let of_it = plan.flows.iter().filter(|flow| flow.path.len().min(2) == kind);
        of_it.count() as f64 / plan.flows.len() as f64
    };
    Sample {
        acceleration: plan.acceleration().unwrap_or(1.0),
        relays: plan.relays.len() as f64,
        cost_usd: plan.cost.as_usd(),
        set_up_usd: plan.cost.as_usd() - egress,
        path_kinds: [kind(0), kind(1), kind(2)],
        solve_ms,
        cpu_ms,
    }
}

/// Returns this thread's processor time so far in milliseconds, which a busy machine does not
/// distort.
fn cpu_ms() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds / 1e6)
}

fn unlimited_acceleration(problem: &Problem) -> f64 {
    debug_assert_eq!(problem.inputs().start_up, StartUp::Ignored, "as the paper's model");
    let flows = 0..problem.flows().len();
    let seconds = |flow: usize| problem.candidates(flow).iter().map(|c| c.fct.as_secs_f64());
    let direct: f64 = flows.clone().filter_map(|flow| seconds(flow).next()).sum();
    let best: f64 = flows.map(|flow| seconds(flow).fold(f64::INFINITY, f64::min)).sum();
    direct / best
}

fn figure_of(scenario: &Scenario, measure: Measure) -> Figure {
    let (title, unit) = measure.words();
    let y_label = if unit.is_empty() { title.to_owned() } else { format!("{title} ({unit})") };
    Figure {
        title: title.to_owned(),
        x_label: scenario.x.map(Axis::label).unwrap_or_default().to_owned(),
        y_label,
        scale: match scenario.x {
            None => Scale::Names,
            Some(Axis::LastMile) => Scale::Log,
            Some(Axis::Flows | Axis::BudgetUsdPerFlow) => Scale::Linear,
        },
    }
}

fn rows(scenario: &Scenario, outcomes: &[Outcome], figure: usize, measure: Measure) -> Vec<Row> {
    let mut rows = Vec::new();
    for Outcome { point, unlimited, samples } in outcomes {
        let mut push = |algorithm: &str, values: &[f64], note: &str| {
            let line = match (&point.line, scenario.algorithms.len()) {
                (None, _) => algorithm.to_owned(),
                (Some(line), 1) if algorithm != UNLIMITED => line.clone(),
                (Some(line), _) => format!("{line}, {algorithm}"),
            };
            let case = format!("{}, {line}, {}", measure.words().0, point.name);
            let paper = scenario.paper.iter().find(|paper| {
                paper.show == measure
                    && paper.algorithm == algorithm
                    && paper.point.as_ref().is_none_or(|name| *name == point.name)
            });
            let paper = paper.map(|paper| paper.value);
            let spot = Spot { figure, line, x: point.x, x_name: point.name.clone() };
            rows.push(Row::of(&case, paper, values, measure.words().1, note).drawn_at(spot));
        };
        for (algorithm, samples) in samples {
            let values = values(samples, measure);
            let (low, high) = (quantile(&values, 0.25), quantile(&values, 0.75));
            push(algorithm, &values, &format!("middle half {low:.2} to {high:.2}"));
        }
        if measure == Measure::Acceleration {
            push(UNLIMITED, unlimited, "the fastest path of each flow, whatever it costs");
        }
    }
    rows
}
