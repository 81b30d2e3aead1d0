//! The error of predicted speedups against measured ones, which gives a prediction its interval.
//!
//! The model knows of round trips, rates and windows, and not of what else the Internet does. So
//! its interval is taken from how far off it was before.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::FlowId;

use crate::gain;
use crate::record::DayPredicted;
use crate::state::State;

/// Fewest flows and days of which an interval is told: the next one is between the least and the
/// greatest of nine in eight of ten cases.
const MIN_COMPARED: usize = 9;
/// Flows and days of which older days count no more. Chosen: a tenth of them is not by chance, and
/// thousands of flows take no longer.
const ENOUGH_COMPARED: usize = 200;

/// The measured speedup divided by the predicted one, over flows and days: the interval in which
/// the next one is in eight of ten cases, the chance in what is measured included.
///
/// Source: the order statistics of exchangeable numbers (conformal prediction): of `n` of them, the
/// next is above the `k`-th least in `(n + 1 - k) / (n + 1)` of all cases.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PredictionError {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The number of flows and days of which both are known.
    pub compared: usize,
}

/// Returns the interval by the newest days before one that the state holds, of the flows and days
/// that are wanted: of as many days as have 200 of them, or all. `None` if fewer than nine were
/// compared.
#[must_use]
pub fn before(
    state: &State,
    day: u64,
    is_wanted: impl Fn(&FlowId, u64) -> bool,
) -> Option<PredictionError> {
    let quotient = |row: &DayPredicted| {
        let tallies = state.sessions.get(&(row.day, row.flow.clone()))?;
        gain::measured_by_predicted(tallies, row)
    };
    let mut quotients = Vec::new();
    for rows in state.predicted.days_before(day).rev() {
        let rows = rows.values().filter(|row| is_wanted(&row.flow, row.day));
        quotients.extend(rows.filter_map(quotient));
        if quotients.len() >= ENOUGH_COMPARED {
            break;
        }
    }
    interval(quotients)
}

fn interval(mut quotients: Vec<f64>) -> Option<PredictionError> {
    quotients.sort_by(f64::total_cmp);
    let compared = quotients.len();
    (compared >= MIN_COMPARED).then(|| {
        // A tenth is beyond either end.
        let end = (compared + 1) / 10 - 1;
        let (low, high) = (quotients[end], quotients[compared - 1 - end]);
        PredictionError { low, high, compared }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::DAY_MS;
    use crate::message::{Arm, SessionTally};
    use crate::record::{DaySessions, Record};
    use crate::testing::{Bench, PATH, tally};

    #[test]
    fn eight_of_ten_are_within() {
        assert_eq!(interval((1..=8).rev().map(f64::from).collect()), None, "eight are known");
        let nine = interval((1..=9).rev().map(f64::from).collect());
        assert_eq!(nine, Some(PredictionError { low: 1.0, high: 9.0, compared: 9 }));
        let many = interval((1..=39).map(f64::from).collect());
        assert_eq!(many, Some(PredictionError { low: 4.0, high: 36.0, compared: 39 }));
    }

    #[test]
    fn next_one_is_within_in_eight_of_ten_cases() {
        // Each rank of the next one among them is as likely.
        for known in [9_u32, 19, 29, 99] {
            let numbers: Vec<f64> = (0..=known).map(f64::from).collect();
            let is_within = |next: &usize| {
                let mut others = numbers.clone();
                let next = others.remove(*next);
                let interval = interval(others).unwrap();
                (interval.low..=interval.high).contains(&next)
            };
            let within = (0..numbers.len()).filter(is_within).count();
            assert_eq!(within * 10, numbers.len() * 8, "of {known}");
        }
    }

    #[test]
    fn days_give_later_predictions_their_interval() {
        let mut bench = Bench::in_service();
        let mut quotients = Vec::new();
        let error = |bench: &Bench| before(bench.state(), bench.now / DAY_MS, |_, _| true);
        for day in 1..=10_u32 {
            let direct = [f64::from(day); 5];
            let sessions =
                [tally(Arm::Overlay, &PATH, &[1.0; 5]), tally(Arm::Control, &[], &direct)];
            bench.sessions(1, u64::from(day), sessions.to_vec());
            let error = error(&bench);
            assert_eq!(error.is_some(), day == 10, "{error:?}");
            let all = gain::flows(bench.state(), bench.time(), 31, error);
            let today = all.last().unwrap();
            let (measured, predicted) = (today.speedup.unwrap(), today.speedup_predicted.unwrap());
            assert_eq!(today.speedup_predicted_low, error.map(|error| predicted * error.low));
            assert_eq!(today.speedup_predicted_high, error.map(|error| predicted * error.high));
            let older = &all[..all.len() - 1];
            assert!(older.iter().all(|row| row.speedup_predicted_low.is_none()), "{older:?}");
            quotients.push(measured.value / predicted);
            if day < 10 {
                bench.now += DAY_MS;
                bench.pass(10);
            }
        }
        let known = error(&bench).unwrap();
        assert_eq!(known, PredictionError { low: quotients[0], high: quotients[8], compared: 9 });
        let restarted = bench.restarted();
        let today = bench.now / DAY_MS;
        assert_eq!(before(restarted.state(), today, |_, _| true), Some(known));
        assert_eq!(before(bench.state(), today, |_, day| day + 1 != today), None, "eight");
    }

    #[test]
    fn many_flows_of_a_day_leave_older_days_out() {
        let mut bench = Bench::in_service();
        bench.sessions(1, 1, vec![tally(Arm::Overlay, &PATH, &[1.0; 5])]);
        let mut state = bench.state().clone();
        let row = state.predicted.rows().next().unwrap().clone();
        let add = |state: &mut State, day: u64, number: usize| {
            let flow = FlowId::new(format!("flow-{number}")).unwrap();
            for (arm, path) in [(Arm::Overlay, &PATH[..]), (Arm::Control, &[])] {
                let tally = SessionTally { flow: flow.clone(), ..tally(arm, path, &[1.0; 5]) };
                state.apply(Record::Sessions(DaySessions { day, tally }));
            }
            state.apply(Record::Predicted(DayPredicted { day, flow, ..row.clone() }));
        };
        add(&mut state, row.day, 0);
        for number in 1..ENOUGH_COMPARED {
            add(&mut state, row.day + 1, number);
        }
        let compared = |state: &State| before(state, u64::MAX, |_, _| true).unwrap().compared;
        assert_eq!(compared(&state), ENOUGH_COMPARED, "one of them is of the day before");
        add(&mut state, row.day + 1, ENOUGH_COMPARED);
        assert_eq!(compared(&state), ENOUGH_COMPARED, "all are of the newest day");
        add(&mut state, row.day + 1, ENOUGH_COMPARED + 1);
        assert_eq!(compared(&state), ENOUGH_COMPARED + 1, "a day counts as a whole");
    }
}
