//! Figures of connections, which measure legs at no cost.
//!
//! A rate that they confirm need not be measured again. One that they contradict in successive
//! reports is measured at once; where no host can be tested against, no bytes are left for that, or
//! they contradict the new one as well, or there is none, what they show takes its place.
//!
//! Several connections that share a leg may carry more than one does, and each of them less. So a
//! rate is contradicted only where both readings do: all connections together are slower, or each
//! of them is faster. Their round-trip times hold queues, and are not taken.

use tradewind_model::measurement::{LegMeasurement, Method, RateSummary};
use tradewind_units::{Bandwidth, Duration, Ratio, SiteId};

use crate::knowledge::{self, CHANGED_BY};
use crate::message::PassiveLeg;
use crate::record::{Doubt, Host, RateTest, Record, ShownRate};
use crate::schedule::{self, DOUBTS};
use crate::state::State;

/// Time for which a confirmed rate is not noted again. Chosen: well below the time after which it
/// would be measured, and few records.
const CONFIRMED_EVERY: Duration = Duration::from_secs(600);
/// Time for which a test is not repeated that connections contradict again: what they show is taken
/// then. Chosen: tests that never agree with connections do not use up the bytes of a day.
const STANDS_FOR: Duration = Duration::from_secs(600);

/// Takes what a host reports of its legs in; `records` are those of the report so far.
pub(crate) fn take(
    state: &State,
    now: u64,
    host: &Host,
    passive: &[PassiveLeg],
    records: &mut Vec<Record>,
) {
    let Some(document) = state.documents.get(&host.id) else { return };
    // An agent has one for each neighbour that it watches.
    for leg in passive.iter().take(document.watched.len()) {
        if document.watched.iter().any(|watched| watched.site == leg.to) {
            let new = of_leg(state, now, host, leg, records).unwrap_or_default();
            records.extend(new);
        }
    }
}

/// Returns the newest rate that connections of a host have shown of each leg that is watched.
pub(crate) fn shown(
    state: &State,
    now: u64,
    host: &Host,
    passive: &[PassiveLeg],
) -> Vec<ShownRate> {
    let watched = state.documents.get(&host.id).map(|it| it.watched.as_slice()).unwrap_or_default();
    let before = state.seen.get(&host.id).map(|seen| seen.shown.as_slice()).unwrap_or_default();
    let of = |to: &SiteId| {
        let new = passive.iter().take(watched.len()).filter(|leg| leg.to == *to);
        let new = new.filter_map(|leg| {
            let rate_mbps = Bandwidth::from_mbps(leg.rate_mbps?).ok()?.as_mbps();
            let retransmitted = leg.retransmitted.filter(|share| (0.0..=1.0).contains(share));
            let (to, connections) = (to.clone(), leg.connections);
            Some(ShownRate { to, rate_mbps, connections, retransmitted, unix_ms: now })
        });
        let old = before.iter().filter(|rate| rate.to == *to).cloned();
        new.chain(old).next()
    };
    watched.iter().map(|watched| &watched.site).filter_map(of).collect()
}

/// Returns the records of a leg; `None` if it has no rate, a false one, or is not known.
fn of_leg(
    state: &State,
    now: u64,
    host: &Host,
    passive: &PassiveLeg,
    records: &[Record],
) -> Option<Vec<Record>> {
    let ends = (host.role.site(), passive.to.clone());
    let shown = Bandwidth::from_mbps(passive.rate_mbps?).ok()?;
    let connections = passive.connections.max(1);
    let of_report = records.iter().rev().find_map(|record| match record {
        Record::Measurement(leg) if leg.destination == ends.1 => Some(leg),
        _ => None,
    });
    let known = of_report.or_else(|| state.measurements.get(&ends))?;
    let is_tested = records
        .iter()
        .any(|record| matches!(record, Record::RateTest(test) if test.destination == ends.1));
    if is_tested {
        return None;
    }
    let instead = || {
        let rate = RateSummary {
            rate: shown,
            connections,
            window: None,
            retransmitted: passive.retransmitted.and_then(|share| Ratio::new(share).ok()),
        };
        let leg = LegMeasurement { rate: Some(rate), method: Method::Passive, ..known.clone() };
        vec![Record::Measurement(leg), confirmed(state, now, &ends)]
    };
    let test = state.rate_tests.get(&ends);
    let misled_since = knowledge::misled(state).remove(&ends);
    let is_misled = misled_since.is_some_and(|since| test.is_none_or(|it| it.unix_ms <= since));
    let Some(rate) = known.rate.filter(|_| !is_misled) else { return Some(instead()) };
    let doubt = |reports| {
        let (source, destination) = ends.clone();
        Record::Doubt(Doubt { source, destination, reports })
    };
    let doubted = state.doubts.get(&ends).map_or(0, |doubt| doubt.reports);
    if !contradicts(shown, connections, &rate) {
        let is_noted = test.is_some_and(|test| {
            u128::from(now.abs_diff(test.unix_ms)) < CONFIRMED_EVERY.as_millis()
        });
        let confirmed = (!is_noted).then(|| confirmed(state, now, &ends));
        return Some((doubted > 0).then(|| doubt(0)).into_iter().chain(confirmed).collect());
    }
    let is_enough = doubted + 1 >= DOUBTS;
    let was_doubted = test.is_some_and(|test| {
        test.was_doubted && u128::from(now.abs_diff(test.unix_ms)) < STANDS_FOR.as_millis()
    });
    let can_test = || {
        schedule::hosts_of(state, now, &host.id, &ends.1).next().is_some()
            && schedule::allows_test(state, now, known.rtt.min, rate.rate.as_mbps())
    };
    if is_enough && (was_doubted || !can_test()) {
        return Some(instead());
    }
    Some(vec![doubt(doubted + 1)])
}

/// Returns that the rate of a leg is known anew, at no bytes.
fn confirmed(state: &State, now: u64, (source, destination): &(SiteId, SiteId)) -> Record {
    Record::RateTest(RateTest {
        source: source.clone(),
        destination: destination.clone(),
        unix_ms: now,
        bytes_of_day: schedule::bytes_of_rate_tests(state, now),
        was_doubted: false,
    })
}

/// Returns whether connections that carried `shown` together contradict a measured rate.
fn contradicts(shown: Bandwidth, connections: u32, known: &RateSummary) -> bool {
    let (all, of_test) = (shown.as_mbps(), known.rate.as_mbps());
    let as_many = all * f64::from(known.connections.max(1)) / f64::from(connections);
    all.max(as_many) < of_test * (1.0 - CHANGED_BY)
        || all.min(as_many) > of_test * (1.0 + CHANGED_BY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Probe, ProbeKind};
    use crate::testing::Bench;

    fn leg(rate_mbps: f64, connections: u32) -> PassiveLeg {
        PassiveLeg {
            to: SiteId::new("gcp:europe-north1").unwrap(),
            rate_mbps: Some(rate_mbps),
            connections,
            retransmitted: Some(0.001),
            rtt_ms: Some(20.0),
            bytes: 1_000_000,
        }
    }

    /// Has the gateway report what its connections show; returns whether a rate is tested.
    fn report(bench: &mut Bench, leg: PassiveLeg) -> bool {
        let probes = bench.report_with(1, |report| report.passive = vec![leg]);
        probes.iter().any(|probe: &Probe| matches!(probe.kind, ProbeKind::Rate { .. }))
    }

    fn known(bench: &Bench) -> &LegMeasurement {
        let to = SiteId::new("gcp:europe-north1").unwrap();
        &bench.state().measurements[&(SiteId::new("office").unwrap(), to)]
    }

    #[test]
    fn confirmed_rate_is_not_measured_again() {
        let mut bench = Bench::in_service();
        let bytes = schedule::bytes_of_day(bench.state(), bench.now);
        for _ in 0..9 {
            bench.now += 900_000;
            bench.event(crate::event::Event::Tick);
            assert!(!report(&mut bench, leg(380.0, 1)));
            assert!(!report(&mut bench, leg(380.0, 1)));
        }
        assert_eq!(schedule::bytes_of_day(bench.state(), bench.now), bytes);
        assert_eq!(known(&bench).method, Method::Tcp);
        bench.now += schedule::RATE_EVERY.as_millis() as u64;
        bench.event(crate::event::Event::Tick);
        assert!(
            bench.report(1, Vec::new()).iter().any(|it| matches!(it.kind, ProbeKind::Rate { .. }))
        );
    }

    #[test]
    fn newest_rate_of_connections_is_kept_until_another_is_shown() {
        let mut bench = Bench::in_service();
        let shown = |bench: &Bench| {
            let rates = bench.state().seen.values().flat_map(|seen| &seen.shown);
            rates.map(|rate| (rate.rate_mbps, rate.unix_ms)).collect::<Vec<_>>()
        };
        report(&mut bench, leg(380.0, 2));
        let first = bench.now;
        assert_eq!(shown(&bench), [(380.0, first)]);
        bench.now += 5000;
        report(&mut bench, PassiveLeg { rate_mbps: None, ..leg(0.0, 0) });
        report(&mut bench, leg(f64::NAN, 1));
        let other = SiteId::new("gcp:nowhere").unwrap();
        report(&mut bench, PassiveLeg { to: other, ..leg(9.0, 1) });
        assert_eq!(shown(&bench), [(380.0, first)], "of legs that are watched");
        report(&mut bench, leg(370.0, 1));
        assert_eq!(shown(&bench), [(370.0, bench.now)]);
    }

    #[test]
    fn rate_that_two_reports_contradict_is_measured_at_once() {
        let mut bench = Bench::in_service();
        assert!(!report(&mut bench, leg(100.0, 1)));
        assert!(!report(&mut bench, leg(390.0, 1)), "one is noise");
        assert!(!report(&mut bench, leg(100.0, 1)));
        assert!(!report(&mut bench, leg(f64::NAN, 1)));
        assert!(!report(&mut bench, leg(100.0, 1)));
        assert!(report(&mut bench, leg(100.0, 1)));
        // That one was lost; the next is not.
        bench.pass(70);
        assert!(bench.state().doubts.is_empty());
        assert_eq!(known(&bench).rate.unwrap().rate.as_mbps(), 400.0);
        // They contradict that as well.
        assert!(!report(&mut bench, leg(100.0, 1)));
        assert!(!report(&mut bench, leg(100.0, 1)));
        assert_eq!(known(&bench).rate.unwrap().rate.as_mbps(), 100.0);
        assert_eq!(known(&bench).method, Method::Passive);
    }

    #[test]
    fn without_bytes_for_a_test_the_connections_rate_is_taken() {
        let mut bench = Bench::in_service();
        let test = bench.state().rate_tests.values().next().unwrap().clone();
        let bytes_of_day = schedule::most_bytes_of_day(bench.state());
        bench.controller.apply(Record::RateTest(RateTest { bytes_of_day, ..test }));
        for _ in 0..3 {
            assert!(!report(&mut bench, leg(100.0, 2)));
        }
        let rate = known(&bench).rate.unwrap();
        assert_eq!((rate.rate.as_mbps(), rate.connections), (100.0, 2));
        assert_eq!(known(&bench).method, Method::Passive);
        // A round-trip time changes nothing of that.
        bench.pass(30);
        assert_eq!(known(&bench).method, Method::Passive);
        assert_eq!(known(&bench).rate.unwrap(), rate);
    }

    #[test]
    fn contradicted_rate_to_a_place_without_a_host_is_that_of_connections() {
        let mut bench = Bench::in_service();
        let ends = || (SiteId::new("gcp:asia-east1").unwrap(), SiteId::new("far7").unwrap());
        let report = |bench: &mut Bench, mbps: f64| {
            let shown = PassiveLeg { to: ends().1, ..leg(mbps, 1) };
            bench.report_with(3, |report| report.passive = vec![shown]);
            bench.state().measurements[&ends()].rate.unwrap().rate.as_mbps()
        };
        assert_eq!(report(&mut bench, 100.0), 100.0);
        assert_eq!(report(&mut bench, 30.0), 100.0, "one is noise");
        assert_eq!(report(&mut bench, 30.0), 30.0, "nothing there can be tested against");
    }

    #[test]
    fn connections_together_and_each_must_contradict() {
        let one = RateSummary {
            rate: Bandwidth::from_mbps(100.0).unwrap(),
            connections: 1,
            window: None,
            retransmitted: None,
        };
        let shown =
            |mbps, connections| contradicts(Bandwidth::from_mbps(mbps).unwrap(), connections, &one);
        assert!(!shown(90.0, 1) && !shown(110.0, 1) && shown(79.0, 1) && shown(121.0, 1));
        // Four share it, or have as much each.
        assert!(!shown(100.0, 4) && !shown(400.0, 4) && shown(79.0, 4) && shown(500.0, 4));
    }
}
