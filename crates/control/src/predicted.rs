//! Predicted speedups of sessions: those that the plan in effect predicts when gateways tell of
//! them, added up by day. Plans are forgotten, and what they predicted of past days is not.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_model::Leg;
use tradewind_units::FlowId;

use crate::draft::DAY_MS;
use crate::gain::Sample;
use crate::message::{Arm, SessionTally};
use crate::predict::{self, Predictor};
use crate::record::{DayPredicted, Record};
use crate::state::State;

/// Returns the new sums of a day, with the sessions of these tallies.
pub(crate) fn take(state: &State, now: u64, tallies: &[&SessionTally]) -> Vec<Record> {
    let Some(plan) = state.plan_in_effect() else { return Vec::new() };
    let day = now / DAY_MS;
    let Some(legs) = state.index.legs(plan.number) else { return Vec::new() };
    let predictor = Predictor::by(&state.settings.terms, plan, legs);
    let is_predicted = |tally: &&&SessionTally| tally.arm == Arm::Overlay && tally.sessions > 0;
    let tallies = || tallies.iter().copied().filter(|tally| is_predicted(&tally));
    let flows: BTreeSet<&FlowId> = tallies().map(|tally| &tally.flow).collect();
    let paths = plan.paths().filter(|(flow, path)| !path.is_empty() && flows.contains(&flow.id));
    let legs = paths.filter_map(|(flow, path)| {
        Some((&flow.id, (predictor.path(flow, path)?, predictor.path(flow, &[])?)))
    });
    let legs: BTreeMap<&FlowId, (Vec<Leg>, Vec<Leg>)> = legs.collect();
    let mut sums: BTreeMap<&FlowId, DayPredicted> = BTreeMap::new();
    for tally in tallies() {
        // Those that fell back to another path are measured, and so predicted, as they were to go.
        let Some((over_relays, direct)) = legs.get(&tally.flow) else { continue };
        let mut sample = Sample::default();
        sample.add(tally);
        let (up, down) = sample.mean_size(tally.size_class);
        let seconds = |legs| predict::seconds(legs, up, down);
        let log_speedup = (seconds(direct) / seconds(over_relays)).ln();
        if !log_speedup.is_finite() {
            continue;
        }
        let known = || state.predicted.get(day, &tally.flow).cloned();
        let empty = || DayPredicted { day, flow: tally.flow.clone(), classes: Vec::new() };
        let sum = sums.entry(&tally.flow).or_insert_with(|| known().unwrap_or_else(empty));
        sum.add(tally.size_class, tally.sessions, tally.sessions as f64 * log_speedup);
    }
    sums.into_values().map(Record::Predicted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::gain;
    use crate::record::ClassPredicted;
    use crate::state::NEWEST_PLANS;
    use crate::testing::{Bench, PATH, tally};

    fn predicted(bench: &Bench) -> Option<f64> {
        gain::flows(bench.state(), bench.time(), 31, None)[0].speedup_predicted
    }

    #[test]
    fn predictions_stay_when_their_plan_is_forgotten() {
        let mut bench = Bench::in_service();
        bench.sessions(1, 1, vec![tally(Arm::Overlay, &PATH, &[1.0; 5])]);
        let then = predicted(&bench);
        assert!(then.unwrap() > 1.5, "{then:?}");
        let plan = bench.state().rollout.to.unwrap();
        bench.now += DAY_MS;
        bench.pass(10);
        for _ in 0..=NEWEST_PLANS {
            let plan = bench.plan();
            bench.event(Event::Apply { plan });
            bench.pass(3700);
        }
        assert!(!bench.state().plans.contains_key(&plan), "the plan is forgotten");
        assert_eq!(predicted(&bench), then);
        assert_eq!(bench.restarted().state().predicted, bench.state().predicted);
    }

    #[test]
    fn sessions_are_predicted_by_class_as_they_were_to_go() {
        let mut bench = Bench::in_service();
        let small = tally(Arm::Overlay, &PATH, &[1.0; 5]);
        let large = SessionTally { size_class: 30, bytes_up: 5_000_000_000, ..small.clone() };
        let fell_back = SessionTally { path: Vec::new(), ..small.clone() };
        let over_one = SessionTally { path: small.path[..1].to_vec(), ..small.clone() };
        let control = tally(Arm::Control, &[], &[1.0; 5]);
        bench.sessions(1, 1, vec![small.clone(), large.clone(), fell_back, over_one, control]);
        bench.sessions(1, 2, vec![small, large]);
        let rows: Vec<_> = bench.state().predicted.rows().collect();
        let [row] = rows[..] else { panic!("{rows:?}") };
        let [small, large] = row.classes[..] else { panic!("{row:?}") };
        assert_eq!((small.sessions, large.sessions), (20, 10));
        let of = |class: ClassPredicted| class.log_speedup / class.sessions as f64;
        assert!(of(small) > 0.0 && of(large) > 0.0 && of(small) != of(large), "{row:?}");
        // The mean of both is that of their logarithms, and one class can be asked for.
        let both = (small.log_speedup + large.log_speedup) / 30.0;
        assert!((row.speedup(|_| true).unwrap().ln() - both).abs() < 1e-12);
        assert!((row.speedup(|class| class == 30).unwrap().ln() - of(large)).abs() < 1e-12);
        assert_eq!(row.speedup(|class| class == 1), None);
    }
}
