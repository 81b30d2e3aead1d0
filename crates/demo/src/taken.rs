//! Checks that transfers took their paths: gateways fall back to other relays or to the direct path
//! where one fails, and tell the controller over which relays each session went.

use std::collections::BTreeMap;
use std::time::Instant;

use tradewind_controller::view::Gain;
use tradewind_units::{Duration, FlowId, RelayId};

use crate::DemoError;
use crate::controlled::Controlled;
use crate::looped::Planned;
use crate::transfers::{Carriage, PathKind};

/// Longest wait until gateways have told of all sessions. Chosen: they report each five seconds.
const TO_TELL: Duration = Duration::from_secs(20);
/// Time between two looks at what they told.
const LOOK: Duration = Duration::from_millis(500);
/// Today and yesterday: a run may pass midnight.
const GAIN: &str = "/v1/gain?days=2";

/// Adds a reason to the outcome of each transfer whose sessions did not all take its path.
pub(crate) fn check(
    overlay: &mut Controlled<'_>,
    plan: &Planned,
    carried: &mut Carriage,
) -> Result<(), DemoError> {
    let mut flows = Vec::new();
    for (index, (flow, path)) in plan.record.paths().enumerate() {
        if let Some(outcome) = carried.outcome(index, PathKind::Planned) {
            flows.push((index, &flow.id, path, outcome.attempts as u64));
        }
    }
    let begun = Instant::now();
    let told = loop {
        let told: Gain = overlay.client.get(GAIN)?;
        let is_whole = flows.iter().all(|(_, flow, _, carried)| sessions(&told, flow) >= *carried);
        if is_whole || begun.elapsed() > TO_TELL {
            break told;
        }
        overlay.pass(LOOK)?;
    };
    for (index, flow, path, sessions) in flows {
        if let Some(outcome) = carried.outcome_mut(index, PathKind::Planned) {
            outcome.reasons.extend(reason(&told, flow, path, sessions));
        }
    }
    Ok(())
}

/// Returns the number of a flow's sessions that its gateway told of.
fn sessions(told: &Gain, flow: &FlowId) -> u64 {
    let days = told.flows.iter().filter(|day| day.flow == *flow);
    days.map(|day| {
        day.overlay_sessions + day.control_sessions + day.other_sessions + day.failed_sessions
    })
    .sum()
}

/// Returns why so many sessions of a flow do not all count as carried over `path`.
fn reason(told: &Gain, flow: &FlowId, path: &[RelayId], carried: u64) -> Option<String> {
    let all = sessions(told, flow);
    if all != carried {
        return Some(format!("its gateway told of {all} sessions; {carried} were carried"));
    }
    let mut relays: BTreeMap<&RelayId, u64> = path.iter().map(|relay| (relay, 0)).collect();
    for row in told.relayed.iter().filter(|row| row.flow == *flow) {
        *relays.entry(&row.relay).or_default() += row.told_sessions;
    }
    let is_wrong = |(relay, passed): &(&RelayId, u64)| {
        *passed != if path.contains(relay) { carried } else { 0 }
    };
    let wrong = relays.into_iter().filter(is_wrong);
    let wrong: Vec<_> = wrong.map(|(relay, passed)| format!("{passed} passed {relay}")).collect();
    (!wrong.is_empty())
        .then(|| format!("took another path: of {carried} sessions {}", wrong.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<RelayId> {
        names.iter().map(|name| RelayId::new(*name).unwrap()).collect()
    }

    /// Returns what gateways told of a flow: its sessions, and those over each relay.
    fn told(sessions: u64, relays: &[(&str, u64)]) -> Gain {
        let relayed: Vec<_> = relays
            .iter()
            .map(|(relay, sessions)| {
                serde_json::json!({
                    "day": 1, "flow": "a", "relay": relay, "told_sessions": sessions,
                    "told_bytes": 0, "counted_sessions": 0, "counted_bytes": 0, "cost": 0.0,
                    "differs": false,
                })
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "schema_version": 1, "days": 2, "control_share": 0.0,
            "flows": [{
                "day": 1, "flow": "a", "overlay_sessions": sessions, "fallback_sessions": 0,
                "control_sessions": 0, "other_sessions": 0, "failed_sessions": 0,
                "overlay_failed_sessions": 0, "control_failed_sessions": 0, "bytes": 0,
                "cost": 0.0,
            }],
            "relays": [], "relayed": relayed,
            "spending": {
                "day": 1, "estimated": 0.0, "machines": 0.0, "traffic": 0.0, "tests": 0.0,
                "budget": 6.0, "is_alarmed": false, "is_exhausted": false,
            },
        }))
        .unwrap()
    }

    #[test]
    fn sessions_count_over_all_relays_of_their_path_and_no_others() {
        let flow = FlowId::new("a").unwrap();
        let path = names(&["r1", "r2"]);
        let reason = |told: &Gain, sessions| reason(told, &flow, &path, sessions);
        assert_eq!(reason(&told(2, &[("r1", 2), ("r2", 2)]), 2), None);
        for (relays, why) in [
            (&[][..], "of 1 sessions 0 passed r1, 0 passed r2"),
            (&[("r2", 1)], "of 1 sessions 0 passed r1"),
            (&[("r1", 1), ("r2", 1), ("r3", 1)], "of 1 sessions 1 passed r3"),
        ] {
            let reason = reason(&told(1, relays), 1).unwrap();
            assert_eq!(reason, format!("took another path: {why}"));
        }
        let missing = reason(&told(1, &[("r1", 1), ("r2", 1)]), 2).unwrap();
        assert!(missing.contains("told of 1 sessions; 2 were carried"), "{missing}");
        assert!(reason(&told(0, &[]), 1).is_some());
    }
}
