//! `lab-day`: a day in virtual time in which conditions and demand change, with the controller in
//! the loop, against the plan of its morning, direct paths and hindsight.
//!
//! The controller is `tradewind-control` itself: its hosts are models of agents, which fetch their
//! documents, follow them, measure and report. Only sessions and legs are computed.

use tradewind_output::chart::Scale;

use crate::harness::seeds::{Threads, each};
use crate::harness::{Figure, Finding, Job, NumericError, Record, Row, Spot};

mod host;
mod overlay;
mod run;
mod scenario;
mod world;

pub use scenario::Scenario;

use run::{BAD, Outcome, Way};

/// Most changes of path that noise may cause in a flow and day.
const MAX_BY_NOISE: usize = 2;
/// Least share of hindsight's gain that the controller is to reach. Chosen: what is lost while a
/// change is noticed, measured and applied.
const MIN_SHARE: f64 = 0.8;

/// Runs the experiment.
///
/// # Errors
/// When a part of a day is refused, or the run is stopped.
pub fn run(scenario: &Scenario, job: &mut Job<'_>) -> Result<Record, NumericError> {
    let hour = if job.options.quick { scenario.hour_quick } else { scenario.hour };
    let seeds = scenario.runs.seeds(job.options);
    let stop = job.options.stop.clone();
    let runs = each(&scenario.name, &seeds, Threads::All, job, |seed| {
        run::run(scenario, hour, seed, &stop)
    })?;
    let mut record =
        Record::of_runs(&scenario.name, &scenario.assumptions, &scenario.runs, job.options);
    if job.options.quick {
        let minutes = hour.as_secs() / 60;
        record.assumptions.push(format!("quick: an hour of the day takes {minutes} minutes"));
    }
    record.figures.push(Figure {
        title: "acceleration by hour".to_owned(),
        x_label: "hour of the day".to_owned(),
        y_label: "time of direct sessions over that of each way (x)".to_owned(),
        scale: Scale::Linear,
    });
    hours(&runs, &mut record);
    rows(scenario, &runs, &mut record);
    findings(scenario, &runs, &mut record);
    Ok(record)
}

fn hours(runs: &[Outcome], record: &mut Record) {
    for way in [Way::Static, Way::Controller, Way::Hindsight] {
        for hour in 0..world::HOURS as usize {
            let of = |run: &Outcome| {
                let seconds = |way: Way| run.account(way).seconds[hour];
                seconds(Way::Direct) / seconds(way)
            };
            let values: Vec<f64> = runs.iter().map(of).collect();
            let (line, x_name) = (way.name().to_owned(), format!("{hour}:00"));
            let case = format!("acceleration at {x_name}, {line}");
            let spot = Spot { figure: 0, line, x: hour as f64, x_name };
            record.rows.push(Row::of(&case, None, &values, "x", "").drawn_at(spot));
        }
    }
}

fn values(runs: &[Outcome], of: impl Fn(&Outcome) -> f64) -> Vec<f64> {
    runs.iter().map(of).collect()
}

fn most(changes: &[usize]) -> usize {
    changes.iter().copied().max().unwrap_or(0)
}

fn rows(scenario: &Scenario, runs: &[Outcome], record: &mut Record) {
    let mut push = |case: String, values: Vec<f64>, unit: &str, note: &str| {
        record.rows.push(Row::of(&case, None, &values, unit, note));
    };
    for way in [Way::Static, Way::Controller, Way::Hindsight] {
        let case = format!("acceleration of the day, {}", way.name());
        push(case, values(runs, |run| run.acceleration(way)), "x", "");
    }
    for way in [Way::Static, Way::Controller] {
        let case = format!("share of hindsight's gain, {}", way.name());
        push(case, values(runs, |run| 100.0 * run.share(way)), "%", "of the time that it saves");
    }
    for way in [Way::Static, Way::Controller, Way::Hindsight] {
        let spent = |run: &Outcome| 100.0 * run.account(way).spent_usd / scenario.budget_usd;
        let note = if way == Way::Controller { "by the controller's meter" } else { "" };
        push(format!("spent of the budget, {}", way.name()), values(runs, spent), "%", note);
    }
    let of_most = |of: fn(&Outcome) -> &[usize]| values(runs, |run| most(of(run)) as f64);
    let note = "of the flow that has most of them";
    push("changes of path".to_owned(), of_most(|run| &run.changes[..]), "", note);
    push("changes of path by noise alone".to_owned(), of_most(|run| &run.by_noise[..]), "", note);
    let case = format!("longest time on a path {BAD} times as slow as hindsight's");
    push(case, values(runs, |run| run.longest_bad), "min", "");
}

fn findings(scenario: &Scenario, runs: &[Outcome], record: &mut Record) {
    let least = |of: &dyn Fn(&Outcome) -> f64| runs.iter().map(of).fold(f64::INFINITY, f64::min);
    let ahead =
        |run: &Outcome| run.account(Way::Static).total() / run.account(Way::Controller).total();
    record.findings.push(Finding::new(
        "ours: the controller gains as much as the morning's plan, kept all day, or more",
        least(&ahead) >= 1.0,
        format!("sessions are at least {:.2} times as fast, in each run", least(&ahead)),
    ));
    let share = least(&|run| run.share(Way::Controller));
    record.findings.push(Finding::new(
        "ours: it has at least 80 % of the gain of hindsight",
        share >= MIN_SHARE,
        format!("the least of the runs has {:.0} %", 100.0 * share),
    ));
    let noise = runs.iter().map(|run| most(&run.by_noise)).max().unwrap_or(0);
    record.findings.push(Finding::new(
        "ours: noise alone causes at most two changes of plan in a flow and day",
        noise <= MAX_BY_NOISE,
        format!("{noise} at most"),
    ));
    let spent = runs.iter().map(|run| run.account(Way::Controller).spent_usd);
    let spent = spent.fold(0.0, f64::max);
    record.findings.push(Finding::new(
        "ours: the meter never passes the budget of the day",
        spent <= scenario.budget_usd,
        format!("${spent:.2} at most, of ${:.2}", scenario.budget_usd),
    ));
}
