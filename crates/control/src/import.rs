//! Measurements that others made, taken in by their own time: the newest of a leg counts as one of
//! ours of that age. The history has all, as they were made.

use std::collections::BTreeSet;

use tradewind_model::measurement::{LegMeasurement, Method, RateSummary, RttSummary};
use tradewind_units::{Bandwidth, Duration, Ratio, SiteId, UnitError, time};

use crate::draft::{Draft, OPERATOR};
use crate::event::{Answer, Refusal};
use crate::imported::{Imported, ImportedRate, ImportedRtt, MAX_IMPORTED};
use crate::record::{RateTest, Record};
use crate::schedule;
use crate::state::State;

/// Longest time in the future that is taken for another clock's error. Chosen.
const CLOCK_ERROR: Duration = Duration::from_secs(300);
/// Most places that a refusal names. Chosen: a line.
const MAX_NAMED: usize = 8;

/// Takes measurements in: all of them or none.
pub(crate) fn import(draft: &mut Draft, all: &[Imported]) -> Result<Answer, Refusal> {
    if all.is_empty() || all.len() > MAX_IMPORTED {
        let problem = format!("{} measurements: expected 1 to {MAX_IMPORTED}", all.len());
        return Err(Refusal::Invalid(problem));
    }
    let places = places(&draft.state);
    let mut legs = BTreeSet::new();
    for one in all {
        let named = |problem: String| {
            Refusal::Invalid(format!("measurement {} > {}: {problem}", one.from, one.to))
        };
        check_ends(one, &places).map_err(named)?;
        take(draft, one).map_err(named)?;
        legs.insert((&one.from, &one.to));
    }
    draft.audit(OPERATOR, format!("imported {} measurements of {} legs", all.len(), legs.len()));
    Ok(Answer::Done)
}

/// Returns the places of hosts and the ends of flows.
fn places(state: &State) -> BTreeSet<SiteId> {
    let ends = state.flows.values().flat_map(|flow| [flow.from.clone(), flow.to_site.clone()]);
    state.hosts.values().map(|host| host.role.site()).chain(ends).collect()
}

/// Refuses legs that no plan could use: they would only fill the store.
fn check_ends(one: &Imported, places: &BTreeSet<SiteId>) -> Result<(), String> {
    if one.from == one.to {
        return Err("expected two places".to_owned());
    }
    let Some(unknown) = [&one.from, &one.to].into_iter().find(|end| !places.contains(*end)) else {
        return Ok(());
    };
    let known: Vec<&str> = places.iter().map(SiteId::as_str).take(MAX_NAMED).collect();
    let (known, more) = (known.join(", "), if places.len() > MAX_NAMED { ", ..." } else { "" });
    Err(format!("`{unknown}`: expected the place of a host or an end of a flow ({known}{more})"))
}

/// Takes one measurement in.
fn take(draft: &mut Draft, one: &Imported) -> Result<(), String> {
    let now = draft.now();
    if u128::from(one.unix_ms.saturating_sub(now)) > CLOCK_ERROR.as_millis() {
        return Err(format!("unix_ms: {} is in the future: expected {now} or less", one.unix_ms));
    }
    let unix_ms = one.unix_ms.min(now);
    let ends = (one.from.clone(), one.to.clone());
    let known = draft.state.measurements.get(&ends).cloned();
    let rtt = one.rtt.map(rtt).transpose()?.or(known.as_ref().map(|leg| leg.rtt));
    let rtt = rtt.ok_or("rtt: none is known of this leg yet: import one, too")?;
    let rate = one.rate.map(rate).transpose()?;
    if one.rtt.is_none() && rate.is_none() {
        return Err("expected an rtt, a rate, or both".to_owned());
    }
    let (source, destination) = ends.clone();
    let (method, measured_at_unix_ms) = (Method::Imported, Some(unix_ms));
    let imported = LegMeasurement { source, destination, rtt, rate, method, measured_at_unix_ms };
    // Each figure has its own age: agents renew round trips far more often than rates.
    let tested = draft.state.rate_tests.get(&ends).map(|test| test.unix_ms);
    // What is exported and comes back is nothing new.
    let is_known = |leg: &LegMeasurement| (leg.rtt.min, leg.rtt.median) == (rtt.min, rtt.median);
    let has_new_rate = rate.is_some() && tested <= Some(unix_ms);
    let measured = known.as_ref().and_then(|leg| leg.measured_at_unix_ms);
    let has_new_rtt = one.rtt.is_some()
        && measured <= Some(unix_ms)
        && !(measured == Some(unix_ms) && known.as_ref().is_some_and(is_known));
    draft.push(Record::OldMeasurement(imported.clone()));
    if !has_new_rate && !has_new_rtt {
        return Ok(());
    }
    let mut leg = imported;
    if let Some(known) = known {
        if !has_new_rtt {
            (leg.rtt, leg.measured_at_unix_ms) = (known.rtt, known.measured_at_unix_ms);
        }
        // The method is that of the rate, where there is one.
        if !has_new_rate && known.rate.is_some() {
            (leg.rate, leg.method) = (known.rate, known.method);
        }
    }
    draft.push(Record::Measurement(leg));
    if has_new_rate {
        let (source, destination) = ends;
        let bytes_of_day = schedule::bytes_of_rate_tests(&draft.state, unix_ms);
        let was_doubted = false;
        let test = RateTest { source, destination, unix_ms, bytes_of_day, was_doubted };
        draft.push(Record::RateTest(test));
    }
    Ok(())
}

fn rtt(imported: ImportedRtt) -> Result<RttSummary, String> {
    let ImportedRtt { min_ms, median_ms, spread_ms, samples } = imported;
    let span = |key: &str, ms: f64| {
        time::duration_from_millis(ms).map_err(|error: UnitError| format!("rtt.{key}: {error}"))
    };
    let (min, median) = (span("min_ms", min_ms)?, span("median_ms", median_ms)?);
    if min.is_zero() {
        return Err("rtt.min_ms: expected a time above zero".to_owned());
    }
    if median < min {
        return Err(format!("rtt.median_ms: {median_ms}: expected {min_ms} (the least) or more"));
    }
    if samples == 0 {
        return Err("rtt.samples: expected one or more".to_owned());
    }
    Ok(RttSummary { min, median, spread: span("spread_ms", spread_ms)?, count: samples })
}

fn rate(imported: ImportedRate) -> Result<RateSummary, String> {
    let ImportedRate { rate_mbps, connections, retransmitted } = imported;
    let rate = Bandwidth::from_mbps(rate_mbps).map_err(|e| format!("rate.rate_mbps: {e}"))?;
    if rate_mbps <= 0.0 {
        return Err("rate.rate_mbps: expected a rate above zero".to_owned());
    }
    if connections == 0 {
        return Err("rate.connections: expected one or more".to_owned());
    }
    let retransmitted = retransmitted.map(Ratio::new).transpose();
    let retransmitted = retransmitted.map_err(|e| format!("rate.retransmitted: {e}"))?;
    Ok(RateSummary { rate, connections, window: None, retransmitted })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::knowledge;
    use crate::testing::Bench;

    const RTT: ImportedRtt =
        ImportedRtt { min_ms: 31.0, median_ms: 32.0, spread_ms: 2.0, samples: 9 };
    const RATE: ImportedRate =
        ImportedRate { rate_mbps: 250.0, connections: 1, retransmitted: Some(0.001) };

    /// Returns a measurement of the direct leg of flow `a`.
    fn direct(unix_ms: u64) -> Imported {
        let site = |name: &str| SiteId::new(name).unwrap();
        Imported { from: site("office"), to: site("far7"), unix_ms, rtt: Some(RTT), rate: None }
    }

    fn known(bench: &Bench) -> LegMeasurement {
        let leg = direct(0);
        bench.state().measurements[&(leg.from, leg.to)].clone()
    }

    #[test]
    fn newest_counts_by_its_own_time_and_older_ones_do_not() {
        let mut bench = Bench::in_service();
        let (now, hour) = (bench.now, 3_600_000);
        bench.event(Event::Import(vec![direct(now - hour)]));
        assert_ne!(known(&bench).rtt.min, Duration::from_millis(31), "it was measured since");
        bench.event(Event::Import(vec![Imported { rate: Some(RATE), ..direct(now) }]));
        let leg = known(&bench);
        assert_eq!((leg.method, leg.measured_at_unix_ms), (Method::Imported, Some(now)));
        assert_eq!((leg.rtt.spread, leg.rtt.count), (Duration::from_millis(2), 9));
        let current = |bench: &Bench, now| {
            let legs = knowledge::current(bench.state(), now);
            let ends = |leg: &&LegMeasurement| {
                (leg.source.as_str(), leg.destination.as_str()) == ("office", "far7")
            };
            legs.iter().find(ends).unwrap().rate
        };
        assert_eq!(current(&bench, now).unwrap().rate.as_mbps(), 250.0);
        let last = knowledge::RATES_LAST.as_millis() as u64;
        assert_eq!(current(&bench, now + last), None, "it ages as ours do");
    }

    #[test]
    fn round_trips_keep_the_rate_and_rates_the_round_trips() {
        let mut bench = Bench::in_service();
        let now = bench.now;
        bench.event(Event::Import(vec![Imported { rate: Some(RATE), ..direct(now) }]));
        bench.event(Event::Import(vec![direct(now)]));
        assert_eq!(known(&bench).rate.unwrap().rate.as_mbps(), 250.0);
        let faster = ImportedRate { rate_mbps: 300.0, ..RATE };
        bench.event(Event::Import(vec![Imported { rtt: None, rate: Some(faster), ..direct(now) }]));
        let leg = known(&bench);
        assert_eq!(leg.rate.unwrap().rate.as_mbps(), 300.0);
        assert_eq!(leg.rtt.min, Duration::from_millis(31));
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_name() {
        let mut bench = Bench::in_service();
        let now = bench.now;
        let site = |name: &str| SiteId::new(name).unwrap();
        let rtt = |by: fn(&mut ImportedRtt)| {
            let mut rtt = RTT;
            by(&mut rtt);
            Imported { rtt: Some(rtt), ..direct(now) }
        };
        let rate = |rate_mbps, connections| {
            let rate = ImportedRate { rate_mbps, connections, ..RATE };
            Imported { rate: Some(rate), ..direct(now) }
        };
        for (wrong, expected) in [
            (Imported { to: site("office"), ..direct(now) }, "expected two places"),
            (Imported { to: site("mars"), ..direct(now) }, "`mars`: expected the place of a host"),
            (direct(now + 600_000), "unix_ms: "),
            (Imported { rtt: None, ..direct(now) }, "expected an rtt, a rate, or both"),
            (rtt(|rtt| rtt.min_ms = f64::NAN), "rtt.min_ms: "),
            (rtt(|rtt| rtt.min_ms = 0.0), "rtt.min_ms: expected a time above zero"),
            (rtt(|rtt| rtt.median_ms = 1.0), "rtt.median_ms: 1: expected 31"),
            (rtt(|rtt| rtt.spread_ms = -1.0), "rtt.spread_ms: "),
            (rtt(|rtt| rtt.samples = 0), "rtt.samples: "),
            (rate(-1.0, 1), "rate.rate_mbps: "),
            (rate(0.0, 1), "rate.rate_mbps: "),
            (rate(1.0, 0), "rate.connections: "),
        ] {
            // None of it is taken, neither what stands before.
            let before = bench.state().measurements.clone();
            let refused = bench.refusal(Event::Import(vec![direct(now), wrong])).to_string();
            assert!(refused.starts_with("measurement office > "), "{refused}");
            assert!(refused.contains(expected), "{expected}: {refused}");
            assert_eq!(bench.state().measurements, before);
        }
        let many = vec![direct(now); MAX_IMPORTED + 1];
        assert!(matches!(bench.refusal(Event::Import(many)), Refusal::Invalid(_)));
        assert!(matches!(bench.refusal(Event::Import(Vec::new())), Refusal::Invalid(_)));
    }
}
