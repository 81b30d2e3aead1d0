//! The numeric experiments of \[CP VII-B\]: placements under a budget, over simulated end points.
//!
//! Each is a list of settings; every setting is drawn anew in each run, planned by each solver, and
//! averaged. Only predicted times are compared; nothing is carried.

use std::time::Instant;

use tradewind_model::StartUp;
use tradewind_plan::solver::{
    FlowGreedyCost, FlowGreedyFct, FlowGreedyRatio, OneProxy, TwoProxy, TwoProxyRollback,
};
use tradewind_plan::{Limits, Plan, Problem, ProblemError, SolveError, Solver, verify};

mod cases;
mod table;
mod world;

pub use cases::{Setting, UseCase};
pub use table::{Kind, render};

/// One of the paper's experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Experiment {
    /// Number of flows [CP Fig. 6].
    Flows,
    /// Budget [CP Fig. 7a].
    Budget,
    /// Prices of set-up and transfer [CP Fig. 7b and 7c].
    Cost,
    /// Last miles and relays of two sizes [CP Fig. 7d].
    LastMile,
    /// The four use cases [CP Fig. 8].
    UseCases,
    /// How long the solvers take [CP VII-B].
    RunTime,
}

impl Experiment {
    /// All of them, in the paper's order.
    pub const ALL: [Self; 6] =
        [Self::Flows, Self::Budget, Self::Cost, Self::LastMile, Self::UseCases, Self::RunTime];

    /// Its name, such as `cp-flows`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flows => "cp-flows",
            Self::Budget => "cp-budget",
            Self::Cost => "cp-cost",
            Self::LastMile => "cp-lastmile",
            Self::UseCases => "cp-usecases",
            Self::RunTime => "cp-runtime",
        }
    }

    /// The experiment of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|experiment| experiment.name() == name)
    }

    /// What it varies: a word for each setting.
    #[must_use]
    pub fn settings(self) -> Vec<(String, Setting)> {
        let tokyo = |flows| Setting::paper(UseCase::TokyoToMany, flows);
        match self {
            Self::Flows => {
                (1..=6).map(|tens| (format!("{} flows", 10 * tens), tokyo(10 * tens))).collect()
            }
            Self::Budget => [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4]
                .map(|usd| {
                    (format!("${usd:.2} a flow"), Setting { usd_per_flow: usd, ..tokyo(30) })
                })
                .to_vec(),
            Self::Cost => vec![
                ("as in VII-A".to_owned(), tokyo(30)),
                (
                    "free set-up, 16 cents/GB".to_owned(),
                    Setting { set_up_usd: 0.0, usd_per_gb: 0.16, ..tokyo(30) },
                ),
                (
                    "$1 set-up, free transfer".to_owned(),
                    Setting { set_up_usd: 1.0, usd_per_gb: 0.0, ..tokyo(30) },
                ),
            ],
            Self::LastMile => {
                let sizes = [2_000.0, 20_000.0].into_iter();
                let setting = |relay_mbps: f64, last_mile_mbps: f64| {
                    let gbps = relay_mbps / 1e3;
                    let name = format!("{gbps:.0} Gbit/s relays, {last_mile_mbps:.0} Mbit/s");
                    (name, Setting { relay_mbps, last_mile_mbps, ..tokyo(30) })
                };
                let last_miles = [10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0];
                sizes.flat_map(|size| last_miles.map(|rate| setting(size, rate))).collect()
            }
            Self::UseCases => UseCase::ALL
                .map(|use_case| (use_case.to_string(), Setting::paper(use_case, 60)))
                .to_vec(),
            Self::RunTime => vec![("60 flows".to_owned(), tokyo(60))],
        }
    }

    /// The solvers that it compares.
    #[must_use]
    pub fn solvers(self) -> Vec<Box<dyn Solver>> {
        if self == Self::LastMile {
            return vec![Box::new(TwoProxyRollback)];
        }
        let mut solvers: Vec<Box<dyn Solver>> = vec![
            Box::new(FlowGreedyFct),
            Box::new(FlowGreedyCost),
            Box::new(OneProxy),
            Box::new(TwoProxy),
            Box::new(TwoProxyRollback),
        ];
        if self == Self::Cost {
            solvers.push(Box::new(FlowGreedyRatio));
        }
        solvers
    }
}

/// What a solver made of a setting, averaged over the runs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Average {
    /// Direct over planned total FCT.
    pub acceleration: f64,
    /// The middle half of the runs' accelerations.
    pub quartiles: (f64, f64),
    /// Relays set up.
    pub relays: f64,
    /// What was paid, in dollars.
    pub cost_usd: f64,
    /// Of that, for relays.
    pub set_up_usd: f64,
    /// Share of flows with no, one, and two or more relays.
    pub path_kinds: [f64; 3],
    /// Time to solve in milliseconds: the median.
    pub solve_ms: f64,
    /// Processor time of that in milliseconds, where the kernel tells: the mean, because it is counted in ticks.
    pub cpu_ms: Option<f64>,
}

/// What came of a setting.
#[derive(Debug, Clone)]
pub struct Point {
    /// What was varied.
    pub name: String,
    /// Direct total FCT over that of the best paths, whatever they cost: no solver is above it.
    pub unlimited: f64,
    /// Solver by solver.
    pub solvers: Vec<(&'static str, Average)>,
}

/// Why an experiment failed.
#[derive(Debug, thiserror::Error)]
pub enum PlanningError {
    /// A setting that is no problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// A solver without a plan.
    #[error("solver `{solver}`: {error}")]
    Solve {
        /// The solver.
        solver: &'static str,
        /// What it says.
        error: SolveError,
    },
    /// A plan that does not hold.
    #[error("solver `{solver}`: {violations}")]
    Unsound {
        /// The solver.
        solver: &'static str,
        /// What is wrong with its plan.
        violations: String,
    },
}

/// One run's figures of one solver.
struct Sample {
    plan: Plan,
    solve_ms: f64,
    cpu_ms: Option<f64>,
}

/// Processor time of this thread so far in milliseconds: what a busy machine does not distort.
fn cpu_ms() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds / 1e6)
}

/// Runs a setting `runs` times, with seeds from `seed` on.
///
/// # Errors
/// When a solver has no plan, or one that does not hold.
pub fn measure(
    name: String,
    setting: &Setting,
    solvers: &[Box<dyn Solver>],
    runs: u64,
    seed: u64,
) -> Result<Point, PlanningError> {
    let mut samples: Vec<Vec<Sample>> = solvers.iter().map(|_| Vec::new()).collect();
    let mut unlimited = 0.0;
    for run in 0..runs {
        let problem = setting.problem(seed + run)?;
        unlimited += unlimited_acceleration(&problem) / runs as f64;
        for (solver, samples) in solvers.iter().zip(&mut samples) {
            samples.push(sample(solver.as_ref(), &problem)?);
        }
    }
    let averages = solvers.iter().zip(&samples);
    let solvers = averages.map(|(solver, samples)| (solver.name(), average(samples))).collect();
    Ok(Point { name, unlimited, solvers })
}

/// Far more steps than any heuristic takes here.
const WORK: u64 = 1 << 40;

fn sample(solver: &dyn Solver, problem: &Problem) -> Result<Sample, PlanningError> {
    let (start, cpu_before) = (Instant::now(), cpu_ms());
    let plan = solver
        .solve(problem, &Limits::work(WORK))
        .map_err(|error| PlanningError::Solve { solver: solver.name(), error })?;
    let solve_ms = start.elapsed().as_secs_f64() * 1e3;
    let cpu_ms = cpu_before.and_then(|before| Some(cpu_ms()? - before));
    let violations = verify(problem, &plan);
    if violations.is_empty() {
        return Ok(Sample { plan, solve_ms, cpu_ms });
    }
    let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
    Err(PlanningError::Unsound { solver: solver.name(), violations: violations.join("; ") })
}

fn unlimited_acceleration(problem: &Problem) -> f64 {
    debug_assert_eq!(problem.inputs().start_up, StartUp::Ignored, "as the paper's model");
    let flows = 0..problem.flows().len();
    let seconds = |flow: usize| problem.candidates(flow).iter().map(|c| c.fct.as_secs_f64());
    let direct: f64 = flows.clone().filter_map(|flow| seconds(flow).next()).sum();
    let best: f64 = flows.map(|flow| seconds(flow).fold(f64::INFINITY, f64::min)).sum();
    direct / best
}

fn average(samples: &[Sample]) -> Average {
    let count = samples.len() as f64;
    let mean = |of: &dyn Fn(&Plan) -> f64| samples.iter().map(|s| of(&s.plan)).sum::<f64>() / count;
    let accelerations =
        sorted(samples.iter().map(|s| s.plan.acceleration().unwrap_or(1.0)).collect());
    let egress = |plan: &Plan| plan.flows.iter().map(|flow| flow.egress.as_usd()).sum::<f64>();
    let kind = |kind: usize| {
        mean(&|plan| {
            let kinds = plan.flows.iter().filter(|flow| flow.path.len().min(2) == kind);
            kinds.count() as f64 / plan.flows.len() as f64
        })
    };
    Average {
        acceleration: accelerations.iter().sum::<f64>() / count,
        quartiles: (quantile(&accelerations, 0.25), quantile(&accelerations, 0.75)),
        relays: mean(&|plan| plan.relays.len() as f64),
        cost_usd: mean(&|plan| plan.cost.as_usd()),
        set_up_usd: mean(&|plan| plan.cost.as_usd() - egress(plan)),
        path_kinds: [kind(0), kind(1), kind(2)],
        solve_ms: quantile(&sorted(samples.iter().map(|s| s.solve_ms).collect()), 0.5),
        cpu_ms: samples.iter().map(|s| s.cpu_ms).sum::<Option<f64>>().map(|sum| sum / count),
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// A quantile of sorted values, between two of them where it falls there; 0 without any.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * sorted.len().saturating_sub(1) as f64;
    let value = |index: f64| sorted.get(index as usize).copied().unwrap_or_default();
    value(at.floor()) + (value(at.ceil()) - value(at.floor())) * at.fract()
}
