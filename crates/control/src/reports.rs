//! Reports of hosts: the processes that they run, and their measurements.

use std::collections::BTreeMap;

use tradewind_grant::PublicIdentity;
use tradewind_model::measurement::{LegMeasurement, Method, RateSummary, RttSummary};
use tradewind_units::{
    Bandwidth, Bytes, Duration, FlowId, Money, Ratio, SiteId, Timestamp, one_line, time,
};

use crate::by_path::Handshakes;
use crate::draft::unix_ms;
use crate::event::{Answer, Decision, Refusal};
use crate::message::{
    Probe, ProbeKind, ProbeOutcome, ProbeResult, ProcessStatus, RefusedDocument, Report,
    ReportAnswer, SCHEMA_VERSION,
};
use crate::money::{self, Traffic};
use crate::path_loss;
use crate::record::{Host, Probing, RateTest, Record, Role, Seen};
use crate::state::{SEEN_WITHIN, State, is_within};
use crate::transfers::DayTransfers;
use crate::{
    learned, learner_reports, packets, passive, predicted, prices, relayed, schedule, sessions,
    sharing, take_back, transfers, usage,
};

/// Most bytes of a rate test. Chosen: a minute at 10 Gbit/s.
const MAX_TEST_BYTES: u64 = 75_000_000_000;
/// Longest text that a host tells of itself.
const MAX_TEXT: usize = 300;

/// Takes a report, and answers with probes.
pub(crate) fn report(
    state: &State,
    time: Timestamp,
    identity: &PublicIdentity,
    report: &Report,
) -> Result<Decision, Refusal> {
    let host = match state.host_of(identity) {
        None => return Err(Refusal::Forbidden("no host of this identity has joined".to_owned())),
        Some(host) if !host.is_trusted => {
            return Err(Refusal::Forbidden(format!("host `{}` is revoked", host.id)));
        }
        Some(host) => host,
    };
    let now = unix_ms(time);
    let mut records = vec![Record::Seen(seen(state, host, now, report))];
    if host.config_version != report.config_version {
        records.push(Record::Host(relayed::with_version(host, report.config_version, now)));
    }
    let mut measured = Measured {
        state,
        host,
        now,
        legs: Vec::new(),
        tests: Vec::new(),
        transfers: Vec::new(),
        cost: Money::ZERO,
        bytes: 0,
        handshakes: Vec::new(),
    };
    let probings = measured.take_all(report);
    records.extend(measured.legs.into_iter().map(Record::Measurement));
    records.extend(measured.tests.into_iter().map(Record::RateTest));
    records.extend(measured.handshakes.into_iter().map(Record::Handshakes));
    records.extend(measured.transfers.into_iter().map(Record::Transfers));
    passive::take(state, now, host, &report.passive, &mut records);
    learner_reports::take(state, now, host, &report.learners, &mut records);
    records.extend(probings.into_iter().map(Record::Probing));
    let mut sessions_cost = Money::ZERO;
    if let Some(batch) = &report.sessions
        && let Some(tallies) = sessions::new_tallies(state, host, batch)
    {
        sessions_cost = sessions::take(state, now, host, batch, &tallies, &mut records);
        sessions_cost = sessions_cost + packets::take(state, now, host, batch, &mut records);
        sessions_cost = sessions_cost + relayed::take(state, now, host, batch, &mut records);
        records.extend(relayed::told(state, now, &tallies));
        records.extend(predicted::take(state, now, &tallies));
        let adopted = learned::of_flows(state, host, batch);
        // Hours and times of a flow that was removed tell nothing of what is to come.
        let tallies: Vec<_> =
            tallies.into_iter().filter(|tally| state.flows.contains_key(&tally.flow)).collect();
        records.extend(usage::take(state, now, batch, &tallies, adopted));
        learned::take(state, now, host, batch, &mut records);
        records.extend(take_back::windows(state, now, &tallies));
    }
    let carried =
        Traffic { sessions: sessions_cost, tests: measured.cost, test_bytes: measured.bytes };
    money::charge(state, now, carried, &mut records);
    let probings = schedule::probes(state, now, host, &records);
    let probes = probings.iter().filter_map(|probing| probing.probe.clone());
    let probes = probes.map(|(probe, _)| probe).collect();
    records.extend(probings.into_iter().map(Record::Probing));
    let shared = sharing::windows(state, now, host);
    let answer = ReportAnswer { schema_version: SCHEMA_VERSION, probes, shared };
    Ok(Decision { records, answer: Answer::Reported(answer) })
}

/// Returns the status of a process with texts that a terminal can show, and the open sessions of
/// flows that are the host's.
fn process(state: &State, host: &Host, status: &ProcessStatus) -> ProcessStatus {
    let is_own = |flow: &FlowId| {
        let known = state.flows.get(flow).filter(|known| known.from == host.role.site());
        matches!(host.role, Role::Gateway { .. }) && known.is_some()
    };
    let flows = |told: &BTreeMap<FlowId, u64>| {
        let own = told.iter().filter(|(flow, _)| is_own(flow));
        own.map(|(flow, sessions)| (flow.clone(), *sessions)).collect()
    };
    ProcessStatus {
        name: one_line(&status.name, MAX_TEXT),
        flows: status.flows.as_ref().map(flows),
        failure: status.failure.as_deref().map(|failure| one_line(failure, MAX_TEXT)),
        ..status.clone()
    }
}

/// Returns whether a result can be that of a probe.
fn answers(probe: &Probe, result: &ProbeResult) -> bool {
    let is_kind = match (&probe.kind, &result.outcome) {
        (ProbeKind::Rtt { .. }, ProbeOutcome::Rtt { .. }) | (_, ProbeOutcome::Failed { .. }) => {
            true
        }
        (ProbeKind::Rate { .. }, ProbeOutcome::Rate { bytes, .. }) => *bytes <= MAX_TEST_BYTES,
        (ProbeKind::Transfers { .. }, ProbeOutcome::Transfers { .. }) => true,
        _ => false,
    };
    is_kind && probe.to == result.to
}

/// Returns whether the host that a probe goes to has just joined: it may not listen yet, but could
/// at any moment.
fn is_new(state: &State, now: u64, probe: &Probe) -> bool {
    let mut hosts = state.index.hosts_of(&probe.to).filter_map(|id| state.hosts.get(id));
    let joined = hosts.find(|host| host.address == probe.target.ip());
    joined.is_some_and(|host| is_within(host.joined_unix_ms, now, SEEN_WITHIN))
}

fn seen(state: &State, host: &Host, now: u64, report: &Report) -> Seen {
    Seen {
        shown: passive::shown(state, now, host, &report.passive),
        host: host.id.clone(),
        unix_ms: now,
        applied: report.applied,
        refused: report.refused.clone().map(|refused| RefusedDocument {
            reason: one_line(&refused.reason, MAX_TEXT),
            ..refused
        }),
        processes: report.processes.iter().map(|status| process(state, host, status)).collect(),
        agent_version: one_line(&report.agent_version, MAX_TEXT),
        bounds: report.bounds,
    }
}

/// The measurements of one report, while they are collected.
struct Measured<'a> {
    state: &'a State,
    host: &'a Host,
    now: u64,
    legs: Vec<LegMeasurement>,
    tests: Vec<RateTest>,
    transfers: Vec<DayTransfers>,
    /// The cost of their traffic.
    cost: Money,
    bytes: u64,
    handshakes: Vec<Handshakes>,
}

impl Measured<'_> {
    /// Takes the results of a report, and returns the probes that they are of: ended, or failed.
    fn take_all(&mut self, report: &Report) -> Vec<Probing> {
        let mut probings: BTreeMap<u64, Probing> = BTreeMap::new();
        for result in &report.results {
            let Some(probing) = self.state.probing.get(&result.id) else { continue };
            let Some((probe, _)) = &probing.probe else { continue };
            let has_ended = probings.get(&result.id).is_some_and(|it| it.probe.is_none());
            if probing.host != self.host.id || !answers(probe, result) || has_ended {
                continue;
            }
            if !matches!(result.outcome, ProbeOutcome::Failed { .. }) {
                if self.take(probe, result).is_some() {
                    probings.insert(result.id, Probing { probe: None, ..probing.clone() });
                }
            } else if is_new(self.state, self.now, probe) {
                probings.insert(result.id, Probing { probe: None, ..probing.clone() });
            } else if !probing.has_failed && !probings.contains_key(&result.id) {
                // It is kept until it counts as lost, so that it is not repeated at once.
                self.count_handshakes(probe, result);
                probings.insert(result.id, Probing { has_failed: true, ..probing.clone() });
            }
        }
        probings.into_values().collect()
    }

    /// Takes a result; `None` if it has no figures, or impossible ones. Their time is that of the
    /// controller's clock, whatever the host's says.
    fn take(&mut self, probe: &Probe, result: &ProbeResult) -> Option<()> {
        let source = self.host.role.site();
        let leg = match &result.outcome {
            ProbeOutcome::Failed { .. } => return None,
            ProbeOutcome::Transfers { times } => {
                let ends = (source, result.to.clone());
                self.transfers.push(transfers::with(self.state, self.now, ends, times)?);
                self.charge(&result.to, times.iter().map(|time| u64::from(time.size_bytes)).sum());
                return Some(());
            }
            ProbeOutcome::Rtt { min_ms, median_ms, spread_ms, samples } => {
                let known = self.known(&source, &result.to);
                LegMeasurement {
                    rtt: rtt(*min_ms, *median_ms, *spread_ms, *samples)?,
                    rate: known.and_then(|leg| leg.rate),
                    // It is that of the rate, where there is one.
                    method: known
                        .filter(|leg| leg.rate.is_some())
                        .map_or(Method::Tcp, |leg| leg.method),
                    source,
                    destination: result.to.clone(),
                    measured_at_unix_ms: Some(self.now),
                }
            }
            ProbeOutcome::Rate { .. } => {
                let leg = self.known(&source, &result.to)?.clone();
                let (rate, bytes) = rate(&result.outcome)?;
                self.charge(&result.to, bytes);
                self.count(source, result.to.clone(), bytes);
                LegMeasurement { rate, method: Method::Tcp, ..leg }
            }
        };
        self.legs.push(leg);
        self.count_handshakes(probe, result);
        Some(())
    }

    /// Counts the handshakes of a result between sites of packet flows.
    fn count_handshakes(&mut self, probe: &Probe, result: &ProbeResult) {
        let outcome = (probe, &result.outcome);
        let sum = path_loss::handshakes(self.state, self.now, self.host, outcome, &self.handshakes);
        self.handshakes.extend(sum);
    }

    /// Returns what is known of a leg, this report included.
    fn known(&self, source: &SiteId, to: &SiteId) -> Option<&LegMeasurement> {
        let new = self.legs.iter().rev().find(|leg| leg.destination == *to);
        new.or_else(|| self.state.measurements.get(&(source.clone(), to.clone())))
    }

    /// Adds the bytes of a probe, and their cost.
    fn charge(&mut self, to: &SiteId, bytes: u64) {
        let terms = &self.state.settings.terms;
        self.cost = self.cost + prices::test_traffic(terms, &self.host.role, to, bytes);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Counts the bytes of a rate test to those of the day.
    fn count(&mut self, source: SiteId, destination: SiteId, bytes: u64) {
        let new = self.tests.iter().map(|test| test.bytes_of_day).max().unwrap_or(0);
        let before = schedule::bytes_of_rate_tests(self.state, self.now).max(new);
        let bytes_of_day = before.saturating_add(bytes);
        let unix_ms = self.now;
        let was_doubted = schedule::is_doubted(self.state, &source, &destination);
        self.tests.push(RateTest { source, destination, unix_ms, bytes_of_day, was_doubted });
    }
}

/// Returns a round-trip time from a report; `None` for impossible figures.
fn rtt(min_ms: f64, median_ms: f64, spread_ms: f64, samples: u32) -> Option<RttSummary> {
    let ms = |figure: f64| time::duration_from_millis(figure).ok();
    let (min, median) = (ms(min_ms)?, ms(median_ms)?);
    let is_possible = samples > 0 && min > Duration::ZERO && min <= median;
    is_possible.then_some(RttSummary { min, median, spread: ms(spread_ms)?, count: samples })
}

/// Returns the rate of a test and its bytes; no rate if it still grew, as it is only a lower bound;
/// `None` for impossible figures.
fn rate(outcome: &ProbeOutcome) -> Option<(Option<RateSummary>, u64)> {
    let ProbeOutcome::Rate {
        rate_mbps,
        connections,
        window_bytes,
        retransmitted,
        still_grew,
        bytes,
    } = outcome
    else {
        return None;
    };
    let summary = RateSummary {
        rate: Bandwidth::from_mbps(*rate_mbps).ok()?,
        connections: (*connections).max(1),
        window: window_bytes.map(Bytes::new),
        retransmitted: retransmitted.and_then(|share| Ratio::new(share).ok()),
    };
    Some(((!still_grew).then_some(summary), *bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::testing::{Bench, gateway, host, identity, relay};

    fn rtt_of(probe: &crate::message::Probe, min_ms: f64) -> ProbeResult {
        let (median_ms, spread_ms) = (min_ms, 0.0);
        ProbeResult {
            id: probe.id,
            to: probe.to.clone(),
            measured_unix_ms: 0,
            outcome: ProbeOutcome::Rtt { min_ms, median_ms, spread_ms, samples: 20 },
        }
    }

    #[test]
    fn rate_tests_of_relays_cost_their_traffic() {
        let bench = Bench::in_service();
        let spent = bench.state().spent.values().next_back().unwrap();
        // 250 MB from Europe to Asia at 5 cents a gigabyte or more, and from Asia to the Internet.
        let tests = spent.tests.as_usd();
        assert!((0.01..0.2).contains(&tests), "{tests}");
        assert_eq!(spent.total(), spent.of_machines() + spent.traffic + spent.tests);
    }

    #[test]
    fn only_results_of_own_probes_under_way_with_possible_figures_count() {
        let mut bench = Bench::new();
        bench.join(1, gateway("office"));
        bench.join(2, relay("gcp:us-east1"));
        let probes = bench.report(1, Vec::new());
        assert_eq!(probes.len(), 1);
        let probe = &probes[0];
        let invented = ProbeResult { id: probe.id + 1, ..rtt_of(probe, 20.0) };
        let elsewhere = ProbeResult { to: SiteId::new("far").unwrap(), ..rtt_of(probe, 20.0) };
        let impossible = [rtt_of(probe, f64::NAN), rtt_of(probe, -1.0), rtt_of(probe, 0.0)];
        for result in [invented, elsewhere].into_iter().chain(impossible) {
            bench.report(1, vec![result]);
            assert!(bench.state().measurements.is_empty());
        }
        // Another host's.
        bench.report(2, vec![rtt_of(probe, 20.0)]);
        assert!(bench.state().measurements.is_empty());
        bench.report(1, vec![rtt_of(probe, 20.0)]);
        let leg = bench.state().measurements.values().next().unwrap();
        assert_eq!(leg.rtt.min, Duration::from_millis(20));
        assert_eq!(leg.measured_at_unix_ms, Some(bench.now));
        // A repetition changes nothing.
        bench.report(1, vec![rtt_of(probe, 90.0)]);
        let leg = bench.state().measurements.values().next().unwrap();
        assert_eq!(leg.rtt.min, Duration::from_millis(20));
    }

    #[test]
    fn strangers_and_revoked_hosts_are_refused() {
        let mut bench = Bench::new();
        let report = || Event::Report { identity: identity(1), report: Report::default() };
        assert!(matches!(bench.refusal(report()), Refusal::Forbidden(_)));
        bench.join(1, gateway("office"));
        bench.report(1, Vec::new());
        bench.event(Event::Revoke(host("office-1")));
        assert!(matches!(bench.refusal(report()), Refusal::Forbidden(_)));
        assert!(bench.controller.document(&identity(1), None).is_none());
    }
}
