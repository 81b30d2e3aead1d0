//! Past periods, with the flows predicted from all periods before them and the flows that were
//! carried.

use std::collections::BTreeSet;

use tradewind_units::{FlowId, Timestamp};

use super::{ForecastError, History, PredictedFlow, Predictor, forecast, named};
use crate::problem::{Flow, Inputs};

/// A period of a log, with its predicted and its true flows.
#[derive(Debug, Clone)]
pub struct PastPeriod {
    /// Its beginning.
    pub begins: Timestamp,
    /// The predictor that made the forecast from the periods before.
    pub predictor: Predictor,
    /// Sum of the absolute errors of predicted volumes, over the volume carried; `None` if there
    /// was none.
    pub error_ratio: Option<f64>,
    /// The predicted flows.
    pub expected: Vec<Flow>,
    /// The inputs of the problem with the true flows.
    pub truth: Inputs,
}

/// Returns the first period that a forecast from those before it can be compared with: the log's
/// middle one, or a later one if a given season must be in the log twice before.
#[must_use]
pub fn first_testable(history: &History, season: Option<usize>) -> usize {
    (history.periods() / 2).max(1).max(season.unwrap_or(0).saturating_mul(2))
}

/// Forecasts the period of this number (the log's first is 0) from all before it; `inputs` has the
/// sites, prices and everything else but the flows.
///
/// # Errors
/// When there is no period before it, it is not in the log, or the season cannot be tested on those
/// before.
pub fn past_period(
    history: &History,
    inputs: &Inputs,
    period: usize,
    season: Option<usize>,
) -> Result<PastPeriod, ForecastError> {
    if period == 0 || period >= history.periods() {
        return Err(ForecastError::NoPast { periods: history.periods() });
    }
    let before = forecast(&history.until(period), season)?;
    let came = history.flows_of(period);
    let volume = |flows: &[PredictedFlow], of: &PredictedFlow| {
        let same = |flow: &&PredictedFlow| {
            (&flow.source, &flow.destination) == (&of.source, &of.destination)
        };
        flows.iter().find(same).map_or(0, |flow| flow.volume.as_u64())
    };
    let missed = came.iter().map(|flow| flow.volume.as_u64().abs_diff(volume(&before.flows, flow)));
    let unasked = before.flows.iter().filter(|flow| volume(&came, flow) == 0);
    let wrong: f64 = missed.chain(unasked.map(|flow| flow.volume.as_u64())).map(|b| b as f64).sum();
    let carried: f64 = came.iter().map(|flow| flow.volume.as_u64() as f64).sum();
    Ok(PastPeriod {
        begins: before.begins,
        predictor: before.predictor(),
        error_ratio: (carried > 0.0).then(|| wrong / carried),
        expected: with_flows(inputs, before.planned_flows()).flows,
        truth: with_flows(inputs, named(&came)),
    })
}

/// Returns the same inputs with other flows. A flow between the sites of one of the old flows takes
/// its name, weight and deadline. Running paths of flows that no longer exist are left out.
#[must_use]
pub fn with_flows(inputs: &Inputs, flows: Vec<Flow>) -> Inputs {
    let mut used: BTreeSet<FlowId> = flows.iter().map(|flow| flow.id.clone()).collect();
    let like_stated = |flow: Flow| {
        let same = |stated: &&Flow| {
            (&stated.source, &stated.destination) == (&flow.source, &flow.destination)
        };
        let Some(stated) = inputs.flows.iter().find(same) else { return flow };
        let id = if used.insert(stated.id.clone()) { stated.id.clone() } else { flow.id.clone() };
        Flow { id, weight: stated.weight, deadline: stated.deadline, ..flow }
    };
    let flows: Vec<Flow> = flows.into_iter().map(like_stated).collect();
    let mut changed = Inputs { flows, ..inputs.clone() };
    let there: BTreeSet<&FlowId> = changed.flows.iter().map(|flow| &flow.id).collect();
    changed.running.paths.retain(|flow, _| there.contains(flow));
    changed
}
