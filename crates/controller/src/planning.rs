//! The planner: makes plans of what is known, when that changes and periodically.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tradewind_control::{Answer, Controller, Event, Refusal};
use tradewind_plan::solver::{self, Executor, best_of};
use tradewind_plan::{Limits, Plan, Problem, verify};
use tradewind_stream::clock::unix_now;
use tradewind_units::Duration;

use crate::answer;
use crate::engine::Engine;
use crate::listener::stopped;

/// Longest time for one plan. Chosen: a plan of 1,000 flows comes close to its bound in half of it.
const PLANNING_TIME: Duration = Duration::from_secs(2);
/// Least time between two looks whether a plan is needed. Chosen: the results of one round of
/// measurements arrive within it.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The share of time that planning may take. Chosen.
const MOST_SHARE: u32 = 10;

/// Threads for the pieces of a solver's work.
pub type Threads = Arc<dyn Executor + Send + Sync>;

/// The planner; clones are the same one.
#[derive(Clone)]
pub(crate) struct Planner(Arc<Shared>);

struct Shared {
    executor: Threads,
    wanted: Notify,
    /// Held while a plan is made.
    turn: tokio::sync::Mutex<()>,
    /// Why there is no new plan, if the last attempt made none.
    problem: Mutex<Option<String>>,
}

impl std::fmt::Debug for Planner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Planner")
    }
}

impl Planner {
    pub(crate) fn new(executor: Threads) -> Self {
        let (wanted, turn) = (Notify::new(), tokio::sync::Mutex::new(()));
        Self(Arc::new(Shared { executor, wanted, turn, problem: Mutex::default() }))
    }

    /// Has a plan made soon.
    pub(crate) fn wake(&self) {
        self.0.wanted.notify_one();
    }

    /// Returns why there is no new plan, if the last attempt made none.
    pub(crate) fn problem(&self) -> Option<String> {
        self.0.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a plan of what is known now, and returns its number.
    pub(crate) async fn plan(&self, engine: &Engine) -> Result<u64, answer::Problem> {
        let _turn = self.0.turn.lock().await;
        let begun = Instant::now();
        let made = self.make(engine).await;
        match &made {
            Ok(_) => engine.counts().plans.add(begun),
            Err(_) => drop(engine.counts().plans_failed.inc()),
        }
        let problem = made.as_ref().err().map(|problem| problem.error.clone());
        *self.0.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
        made
    }

    /// Makes a plan of a problem that is only asked about, when the planner is not at work. Only on
    /// a thread that may wait.
    pub(crate) fn solve(&self, problem: &Problem, time: Duration) -> Result<Plan, String> {
        let _turn = self.0.turn.blocking_lock();
        solve(problem, self.0.executor.as_ref(), time)
    }

    async fn make(&self, engine: &Engine) -> Result<u64, answer::Problem> {
        let state = engine.read(|controller| controller.state().clone()).await;
        let executor = Arc::clone(&self.0.executor);
        let make = move || {
            let problem = Controller::problem_of(&state, unix_now())?;
            solve(&problem, executor.as_ref(), PLANNING_TIME).map_err(Refusal::Conflict)
        };
        let made = tokio::task::spawn_blocking(make).await;
        let plan = made.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        match engine.handle(Event::Planned(plan)).await? {
            Answer::Planned(number) => Ok(number),
            other => Err(answer::unexpected(&other)),
        }
    }

    /// Makes plans when the newest one does not fit any more, until `stop` is true.
    pub(crate) async fn run(&self, engine: &Engine, mut stop: watch::Receiver<bool>) {
        let mut pause = LOOK_EVERY;
        loop {
            let is_asked = tokio::select! {
                () = self.0.wanted.notified() => true,
                () = sleep(pause) => false,
                () = stopped(&mut stop) => return,
            };
            let reasons = engine.read(|controller| controller.staleness(unix_now())).await;
            engine.counts().stale.set(reasons.len() as i64);
            if reasons.is_empty() && !is_asked {
                continue;
            }
            let begun = Instant::now();
            match self.plan(engine).await {
                Ok(number) => tracing::info!("made plan {number}: {}", reasons.join("; ")),
                Err(problem) => tracing::debug!("no plan: {}", problem.error),
            }
            pause = LOOK_EVERY.max(begun.elapsed() * MOST_SHARE);
        }
    }
}

/// Returns the best plan of the streams found in time, checked by the verifier, which shares no
/// code with the solver.
fn solve(problem: &Problem, executor: &dyn Executor, time: Duration) -> Result<Plan, String> {
    if problem.flows().is_empty() {
        return Ok(Plan::nothing());
    }
    let solver = solver::by_name(solver::DEFAULT).expect("the registry holds its own default");
    let begun = Instant::now();
    let time_left = || time.saturating_sub(begun.elapsed());
    let should_stop = || time_left().is_zero();
    let limits =
        Limits { work: u64::MAX, should_stop: &should_stop, time_left: Some(&time_left), executor };
    let plan = best_of(&[solver.as_ref()], problem, &limits).map_err(|error| error.to_string())?;
    match verify(problem, &plan).first() {
        None => Ok(plan),
        Some(violation) => Err(format!("the plan is wrong, which is a bug of ours: {violation}")),
    }
}
