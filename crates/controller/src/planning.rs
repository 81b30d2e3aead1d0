//! The planner: makes plans of what is known, when that changes and periodically.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
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
const MAX_SHARE: u32 = 10;

/// Most times that a plan which is only asked about begins anew because a plan was made meanwhile.
/// Chosen: plans follow each other seldom.
const MAX_ATTEMPTS: u32 = 3;

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
    work: Work,
    /// Why there is no new plan, if the last attempt made none.
    problem: Mutex<Option<String>>,
}

/// The number of plans that are made or wait for their turn, to which questions give way.
#[derive(Default)]
struct Work {
    plans: Mutex<u32>,
    none_left: Condvar,
}

/// A plan that is made or waits for its turn.
struct AtWork<'a>(&'a Work);

impl Work {
    fn begin(&self) -> AtWork<'_> {
        *self.plans.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        AtWork(self)
    }

    fn is_under_way(&self) -> bool {
        *self.plans.lock().unwrap_or_else(PoisonError::into_inner) > 0
    }

    /// Waits until no plan is made.
    fn wait(&self) {
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.none_left.wait_while(plans, |plans| *plans > 0));
    }

    /// Answers a question by `solve`, which is told when it must give way to a plan; it begins anew
    /// after that plan.
    fn give_way<T>(
        &self,
        solve: impl Fn(&(dyn Fn() -> bool + Sync)) -> Result<T, String>,
    ) -> Result<T, String> {
        for _ in 0..MAX_ATTEMPTS {
            self.wait();
            let gave_way = AtomicBool::new(false);
            let answer = solve(&|| {
                let must = self.is_under_way();
                gave_way.fetch_or(must, Ordering::Relaxed);
                must
            });
            if !gave_way.load(Ordering::Relaxed) {
                return answer;
            }
        }
        Err("plans are being made; ask again in some seconds".to_owned())
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let mut plans = self.0.plans.lock().unwrap_or_else(PoisonError::into_inner);
        *plans -= 1;
        if *plans == 0 {
            self.0.none_left.notify_all();
        }
    }
}

impl std::fmt::Debug for Planner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Planner")
    }
}

impl Planner {
    pub(crate) fn new(executor: Threads) -> Self {
        let (wanted, turn) = (Notify::new(), tokio::sync::Mutex::new(()));
        let (work, problem) = (Work::default(), Mutex::default());
        Self(Arc::new(Shared { executor, wanted, turn, work, problem }))
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
        self.plan_timed(engine).await.0
    }

    /// Makes a plan, and returns the time that it took since it had its turn.
    async fn plan_timed(&self, engine: &Engine) -> (Result<u64, answer::Problem>, Duration) {
        let _work = self.0.work.begin();
        let _turn = self.0.turn.lock().await;
        let begun = Instant::now();
        let made = self.make(engine).await;
        match &made {
            Ok(_) => engine.counts().plans.add(begun),
            Err(_) => drop(engine.counts().plans_failed.inc()),
        }
        let problem = made.as_ref().err().map(|problem| problem.error.clone());
        *self.0.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
        (made, begun.elapsed())
    }

    /// Makes a plan of a problem that is only asked about, while the planner is not at work: its
    /// plans wait for none of these. Only on a thread that may wait.
    pub(crate) fn solve(&self, problem: &Problem, time: Duration) -> Result<Plan, String> {
        let executor = self.0.executor.as_ref();
        self.0.work.give_way(|must_end| solve(problem, executor, time, must_end))
    }

    async fn make(&self, engine: &Engine) -> Result<u64, answer::Problem> {
        let state = engine.read(|controller| controller.state().clone()).await;
        let now = unix_now();
        let executor = Arc::clone(&self.0.executor);
        let make = move || {
            let problem = Controller::problem_of(&state, now)?;
            let streams = solve(&problem, executor.as_ref(), PLANNING_TIME, &|| false);
            Controller::joint_of(&state, now, streams.map_err(Refusal::Conflict)?)
        };
        let made = tokio::task::spawn_blocking(make).await;
        let plan = made.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        match engine.handle(Event::Planned(Box::new(plan))).await? {
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
            let (made, took) = self.plan_timed(engine).await;
            match made {
                Ok(number) => tracing::info!("made plan {number}: {}", reasons.join("; ")),
                Err(problem) => tracing::debug!("no plan: {}", problem.error),
            }
            pause = LOOK_EVERY.max(took * MAX_SHARE);
        }
    }
}

/// Returns the best plan of the streams found in time, checked by the verifier, which shares no
/// code with the solver; it ends sooner when `must_end` says so.
fn solve(
    problem: &Problem,
    executor: &dyn Executor,
    time: Duration,
    must_end: &(dyn Fn() -> bool + Sync),
) -> Result<Plan, String> {
    if problem.flows().is_empty() {
        return Ok(Plan::nothing());
    }
    let solver = solver::by_name(solver::DEFAULT).expect("the registry holds its own default");
    let begun = Instant::now();
    let time_left = || time.saturating_sub(begun.elapsed());
    let should_stop = || time_left().is_zero() || must_end();
    let limits =
        Limits { work: u64::MAX, should_stop: &should_stop, time_left: Some(&time_left), executor };
    let plan = best_of(&[solver.as_ref()], problem, &limits).map_err(|error| error.to_string())?;
    match verify(problem, &plan).first() {
        None => Ok(plan),
        Some(violation) => Err(format!("the plan is wrong, which is a bug of ours: {violation}")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc;
    use std::thread;

    use tradewind_plan::solver::OneByOne;

    use super::*;

    #[test]
    fn plans_never_wait_for_questions_which_give_way_and_begin_anew() {
        let planner = Planner::new(Arc::new(OneByOne));
        let (has_begun, begun) = mpsc::channel();
        let (go_on, gone_on) = mpsc::channel::<()>();
        let (asked, attempts) = (planner.clone(), AtomicU32::new(0));
        let question = thread::spawn(move || {
            let gone_on = Mutex::new(gone_on);
            asked.0.work.give_way(|must_end| {
                if attempts.fetch_add(1, Ordering::Relaxed) == 0 {
                    has_begun.send(()).unwrap();
                    gone_on.lock().unwrap().recv().unwrap();
                }
                Ok((attempts.load(Ordering::Relaxed), must_end()))
            })
        });
        begun.recv().unwrap();
        // The question is being computed: a plan has its turn at once all the same.
        let work = planner.0.work.begin();
        let turn = planner.0.turn.try_lock();
        assert!(turn.is_ok());
        go_on.send(()).unwrap();
        drop((turn, work));
        let (attempts, must_end) = question.join().unwrap().unwrap();
        assert!(!must_end && (1..=2).contains(&attempts));
    }

    #[test]
    fn question_that_plans_interrupt_again_and_again_is_refused() {
        let (work, attempts) = (Work::default(), AtomicU32::new(0));
        let refused = work.give_way(|must_end| {
            attempts.fetch_add(1, Ordering::Relaxed);
            let _plan = work.begin();
            Ok(must_end())
        });
        assert!(refused.unwrap_err().contains("ask again"));
        assert_eq!(attempts.load(Ordering::Relaxed), MAX_ATTEMPTS);
        assert_eq!(work.give_way(|must_end| Ok(must_end())), Ok(false));
    }
}
