//! The schedule: which probes a host runs next.
//!
//! Round-trip times come first: of every pair of places that could be neighbours on a path, and
//! more often of the legs that flows use or could use next, so that a plan is stale within a minute
//! when one of them changes. Rate tests follow, of the legs that the plan in effect and the newest
//! use and of the direct paths of their flows, one at a time for each host at either end, and
//! within bytes of a day: not of those whose rate connections confirm (`passive`), and at once of
//! those whose rate misled (`take_back`). Transfers between all places are timed each hour where
//! jump-start has probes, within the same bytes (`transfers`). The times of repetition are
//! spread by a hash, so that hosts that joined together do not measure together.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use tradewind_grant::Destination;
use tradewind_model::measurement::LegMeasurement;
use tradewind_units::{Duration, FlowId, HostId, RelayTypeId, SiteId};

use crate::draft::DAY_MS;
use crate::knowledge;
use crate::legs;
use crate::message::{Probe, ProbeKind, TIMES_TRANSFERS};
use crate::prices;
use crate::record::{FlowRecord, Host, PlanRecord, Probing, Record, Role};
use crate::state::{SEEN_WITHIN, State};
use crate::terms::Terms;
use crate::transfers;

/// The port of the responder of rate tests on each host.
pub const RESPONDER_PORT: u16 = 7001;
/// Time after which a round-trip time is measured again, a tenth more or less. Chosen.
pub const RTT_EVERY: Duration = Duration::from_secs(300);
/// The same for a leg that flows use, or would by the newest plan, and for the direct paths of
/// flows. Chosen: a change is known half a minute later at most, at five handshakes each time.
pub const RTT_IN_USE_EVERY: Duration = Duration::from_secs(20);
/// Time after which the rate of a leg of the newest plan is measured again. Chosen.
pub const RATE_EVERY: Duration = Duration::from_secs(3600);
/// Time after which a probe without a result counts as lost. Chosen: several reports, and more than
/// the longest test.
pub const LOST_AFTER: Duration = Duration::from_secs(60);
/// The same for a round-trip time. Chosen: a leg is probed again within a minute also when an
/// answer was lost.
const RTT_LOST_AFTER: Duration = Duration::from_secs(30);
/// The same for transfers. Chosen: longer than a round takes at worst, and a place that does not
/// answer costs a few attempts an hour.
const TRANSFERS_LOST_AFTER: Duration = Duration::from_secs(600);
/// Shortest and longest time of a rate test, and between them the round trips that it takes.
/// Chosen: as `tradewind probe rate`; twelve for slow start to a window of 16 MB and more, and
/// twice as many for the steady part; and the longest path on Earth fits in.
const RATE_TEST_LEAST: Duration = Duration::from_secs(5);
const RATE_TEST_MOST: Duration = Duration::from_secs(15);
const RATE_TEST_ROUND_TRIPS: u32 = 36;
/// Successive reports that contradict a rate before it is measured again. Chosen: one is noise.
pub(crate) const DOUBTS: u32 = 2;
/// Most probes of round-trip times in one answer. Chosen: a host measures at most so many paths at
/// once, and one that has just joined hundreds within minutes.
const MAX_RTT_PROBES: usize = 16;
/// Handshakes of such a probe, and the time between two. Chosen: two seconds in all.
const RTT_SAMPLES: u32 = 20;
const RTT_IN_USE_SAMPLES: u32 = 5;
const RTT_INTERVAL_MS: u64 = 100;
/// The price at which the bytes of rate tests are counted against their share of the budget.
/// Chosen: a common price of egress to the Internet.
const TESTS_USD_PER_GB: f64 = 0.09;
/// Most bytes that rate tests carry in a day, whatever the budget. Chosen: about 100 tests of
/// 600 Mbit/s.
pub const MAX_TEST_BYTES_A_DAY: u64 = 40_000_000_000;

/// Returns the hosts of a place that `host` can probe: they answer once they have applied a
/// document. Of one that has not reported since the controller started, that is supposed.
pub(crate) fn hosts_of<'a>(
    state: &'a State,
    now: u64,
    host: &HostId,
    to: &SiteId,
) -> impl Iterator<Item = &'a Host> {
    let hosts = state.index.hosts_of(to).filter_map(|id| state.hosts.get(id));
    hosts.filter(move |other| {
        let is_other = other.id != *host && other.is_trusted;
        let answers = state.seen.get(&other.id).is_none_or(|seen| seen.applied.is_some());
        is_other && answers && state.is_reachable(&other.id, now, SEEN_WITHIN)
    })
}

/// Returns the probes of a host, which reports now; `new` are the records of its report, which the
/// state does not hold yet.
#[must_use]
pub fn probes(state: &State, now_unix_ms: u64, host: &Host, new: &[Record]) -> Vec<Probing> {
    let schedule = Schedule::new(state, now_unix_ms, host, new);
    let mut probes = schedule.round_trips();
    probes.extend(schedule.rate_test().or_else(|| schedule.transfers()));
    probes
}

/// Returns the bytes that rate tests and timed transfers have carried on the day of `now_unix_ms`
/// (UTC).
#[must_use]
pub fn bytes_of_day(state: &State, now_unix_ms: u64) -> u64 {
    let transfers = transfers::bytes_of_day(state, now_unix_ms);
    bytes_of_rate_tests(state, now_unix_ms).saturating_add(transfers)
}

/// Returns the bytes that rate tests alone have carried on that day.
pub(crate) fn bytes_of_rate_tests(state: &State, now_unix_ms: u64) -> u64 {
    let today =
        state.rate_tests.values().filter(|test| test.unix_ms / DAY_MS == now_unix_ms / DAY_MS);
    today.map(|test| test.bytes_of_day).max().unwrap_or(0)
}

/// Returns the most bytes that these may carry in a day: their share of the budget pays them.
#[must_use]
pub fn most_bytes_of_day(state: &State) -> u64 {
    let usd = state.settings.budget_usd_per_day.as_usd() * state.settings.tests_share.as_f64();
    ((usd / TESTS_USD_PER_GB * 1e9) as u64).min(MAX_TEST_BYTES_A_DAY)
}

/// A place that a host may probe.
struct Target {
    to: SiteId,
    address: SocketAddr,
}

/// The view of one host when it reports.
struct Schedule<'a> {
    state: &'a State,
    now: u64,
    host: &'a Host,
    from: SiteId,
    /// Measurements of this report.
    measured: BTreeMap<&'a SiteId, &'a LegMeasurement>,
    /// Rate tests of this report, by their receivers.
    tested: BTreeSet<&'a SiteId>,
    /// Rate tests that run, of all hosts.
    rate_tests: Vec<(&'a Probing, &'a Probe)>,
    /// Places to which round-trip times, and rates, are being measured from here, by any host.
    rtts_from_here: BTreeSet<&'a SiteId>,
    rates_from_here: BTreeSet<&'a SiteId>,
    /// Transfers that run, of all hosts, and whether one is from here.
    transfers: u64,
    is_transferring: bool,
    /// The plan in effect and the newest.
    plans: Vec<&'a PlanRecord>,
    /// Places whose round-trip time is measured more often.
    in_use: BTreeSet<&'a SiteId>,
    /// Legs whose rates have misled, with the time since when that is known.
    misled: BTreeMap<(SiteId, SiteId), u64>,
}

impl<'a> Schedule<'a> {
    fn new(state: &'a State, now: u64, host: &'a Host, new: &'a [Record]) -> Self {
        let (mut measured, mut tested, mut ended) =
            (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for record in new {
            match record {
                Record::Measurement(leg) => drop(measured.insert(&leg.destination, leg)),
                Record::RateTest(test) => drop(tested.insert(&test.destination)),
                Record::Probing(Probing { id, probe: None, .. }) => drop(ended.insert(*id)),
                _ => {}
            }
        }
        let runs = |probing: &'a Probing| {
            let (probe, lost_at) = probing.probe.as_ref()?;
            (*lost_at > now && !ended.contains(&probing.id)).then_some((probing, probe))
        };
        let from = host.role.site();
        let (mut rtts_from_here, mut rates_from_here) = (BTreeSet::new(), BTreeSet::new());
        let mut rate_tests = Vec::new();
        let (mut transfers, mut is_transferring) = (0, false);
        for (probing, probe) in state.probing.values().filter_map(runs) {
            let is_from_here =
                state.hosts.get(&probing.host).is_some_and(|host| host.role.site() == from);
            let from_here = match probe.kind {
                ProbeKind::Rtt { .. } => &mut rtts_from_here,
                ProbeKind::Rate { .. } => {
                    rate_tests.push((probing, probe));
                    &mut rates_from_here
                }
                ProbeKind::Transfers { .. } => {
                    transfers += 1;
                    is_transferring |= is_from_here;
                    continue;
                }
            };
            if is_from_here {
                from_here.insert(&probe.to);
            }
        }
        let mut plans: Vec<&PlanRecord> =
            state.newest_plan().into_iter().chain(state.plan_in_effect()).collect();
        plans.dedup_by_key(|plan| plan.number);
        let on_paths = plans.iter().flat_map(|plan| state.index.next(plan.number, &from));
        let declared = state.index.flows_from(&from).filter_map(|flow| state.flows.get(flow));
        let packets = state.packet_flows.values().filter(|flow| flow.from == from);
        let ends = declared.map(|flow| &flow.to_site).chain(packets.map(|flow| &flow.to_site));
        let of_packets =
            plans.iter().flat_map(|plan| state.index.next_of_packets(plan.number, &from));
        let in_use = on_paths.chain(of_packets).chain(ends).collect();
        let misled = knowledge::misled(state);
        Self {
            state,
            now,
            host,
            from,
            measured,
            tested,
            rate_tests,
            rtts_from_here,
            rates_from_here,
            transfers,
            is_transferring,
            plans,
            in_use,
            misled,
        }
    }

    /// Returns the probes of round-trip times that are due, the unmeasured legs first.
    fn round_trips(&self) -> Vec<Probing> {
        let mut due: Vec<(u64, Target)> = Vec::new();
        for target in self.targets() {
            if let Some(since) = self.rtt_due_since(&target.to) {
                due.push((since, target));
            }
        }
        due.sort_by_key(|(since, _)| *since);
        let probing = |(_, target): (u64, Target)| {
            let is_used = self.in_use.contains(&target.to);
            let samples = if is_used { RTT_IN_USE_SAMPLES } else { RTT_SAMPLES };
            self.probing(target, ProbeKind::Rtt { samples, interval_ms: RTT_INTERVAL_MS })
        };
        due.into_iter().take(MAX_RTT_PROBES).map(probing).collect()
    }

    /// Returns the time since when a round-trip time is due; zero if it was never measured.
    fn rtt_due_since(&self, to: &SiteId) -> Option<u64> {
        if self.rtts_from_here.contains(to) {
            return None;
        }
        let Some(at) = self.known(to).and_then(|leg| leg.measured_at_unix_ms) else {
            return Some(0);
        };
        let is_used = self.in_use.contains(to);
        self.due_since(to, at, if is_used { RTT_IN_USE_EVERY } else { RTT_EVERY })
    }

    /// Returns the rate test that is due, if there is one and all it takes is free.
    fn rate_test(&self) -> Option<Probing> {
        if self.is_testing(&self.host.id, self.host.address) {
            return None;
        }
        let left = bytes_left(self.state, self.now).saturating_sub(self.bytes_under_way());
        let newest = *self.plans.first()?;
        let misled = self.misled.keys().filter(|(from, _)| *from == self.from);
        let misled = misled.map(|(_, to)| (newest, to.clone()));
        let of_plan = |plan: &&'a PlanRecord| {
            let plan = *plan;
            let next = self.state.index.next(plan.number, &self.from);
            next.iter().map(move |to| (plan, to.clone()))
        };
        let of_plans = self.plans.iter().flat_map(of_plan);
        for (plan, to) in misled.chain(of_plans) {
            let Some(other) = self.idle_host(&to).filter(|_| self.is_rate_due(&to)) else {
                continue;
            };
            let Some(expected) = self.expected_mbps(plan, &to) else { continue };
            let duration = rate_test(self.known(&to)?.rtt.min);
            if test_bytes(expected, duration) > left {
                continue;
            }
            let kind = ProbeKind::Rate {
                connections: 1,
                duration_ms: duration.as_millis() as u64,
                max_rate_mbps: Some(expected),
            };
            let address = SocketAddr::new(other.address, RESPONDER_PORT);
            return Some(self.probing(Target { to, address }, kind));
        }
        None
    }

    /// Returns the round of transfers that is due for longest, to another place with an idle host;
    /// one round at a time from here.
    fn transfers(&self) -> Option<Probing> {
        let settings = &self.state.settings.jumpstart;
        let is_asked = settings.has_probes && settings.covers(&self.host.id, &self.from);
        let times = |host: &Host| host.config_version >= TIMES_TRANSFERS;
        let left = bytes_left(self.state, self.now).saturating_sub(self.bytes_under_way());
        let is_free = !self.is_transferring && !self.is_testing(&self.host.id, self.host.address);
        if !(is_asked && is_free && times(self.host) && left >= transfers::ROUND_BYTES) {
            return None;
        }
        let places = self.state.index.places().map(|(to, _)| to).filter(|to| **to != self.from);
        let mut due: Vec<(u64, &SiteId)> =
            places.filter_map(|to| Some((self.transfers_due_since(to)?, to))).collect();
        due.sort_unstable();
        let (to, other) = due.into_iter().find_map(|(_, to)| {
            let mut hosts = self.hosts_of(to).filter(|host| times(host));
            Some((to, hosts.find(|host| !self.is_testing(&host.id, host.address))?))
        })?;
        let address = SocketAddr::new(other.address, RESPONDER_PORT);
        let kind = ProbeKind::Transfers { sizes: transfers::SIZES };
        Some(self.probing(Target { to: to.clone(), address }, kind))
    }

    /// Returns the time since when transfers to a place are due; zero if there were none.
    fn transfers_due_since(&self, to: &SiteId) -> Option<u64> {
        let days = self.state.transfers.get(&(self.from.clone(), to.clone()));
        let Some(last) = days.and_then(|days| days.values().next_back()) else { return Some(0) };
        self.due_since(to, last.unix_ms, transfers::EVERY)
    }

    /// Returns the time since when something is due that was measured at `at`, and is each `every`,
    /// a tenth more or less.
    fn due_since(&self, to: &SiteId, at: u64, every: Duration) -> Option<u64> {
        let every = every.as_millis() as u64;
        let spread = hash(&[self.from.as_str(), to.as_str(), &at.to_string()]) % (every / 5);
        let every = every - every / 10 + spread;
        (self.now.abs_diff(at) >= every).then_some(at.saturating_add(every))
    }

    /// Returns whether the rate of a leg is due; its round-trip time must be known.
    fn is_rate_due(&self, to: &SiteId) -> bool {
        let ends = (self.from.clone(), to.clone());
        let is_fresh = self.state.rate_tests.get(&ends).is_some_and(|test| {
            u128::from(self.now.abs_diff(test.unix_ms)) < RATE_EVERY.as_millis()
                && !is_doubted(self.state, &self.from, to)
                && self.misled.get(&ends).is_none_or(|since| *since < test.unix_ms)
        });
        let is_new = self.tested.contains(to);
        let runs = self.rates_from_here.contains(to);
        self.known(to).is_some() && !is_fresh && !is_new && !runs
    }

    /// Returns the largest rate that a test of a leg is worth: what the leg would carry at best, if
    /// its rate was never measured, and no more than the path's other legs carry.
    fn expected_mbps(&self, plan: &PlanRecord, to: &SiteId) -> Option<f64> {
        let regions = plan.plan.relays.iter().map(|relay| relay.region.clone()).collect();
        let unmeasured = |leg: &LegMeasurement| LegMeasurement { rate: None, ..leg.clone() };
        let optimistic = legs::of_measurements(&[unmeasured(self.known(to)?)], &regions);
        let best = optimistic.values().next()?.rate().as_mbps();
        let terms = &self.state.settings.terms;
        let most = plan.plan.relays.iter().map(|relay| relay_mbps(terms, &relay.relay_type));
        Some(most.fold(best, f64::min).max(1.0))
    }

    /// Returns a trusted host of a place that takes part in no rate test, and can be reached.
    fn idle_host(&self, to: &SiteId) -> Option<&'a Host> {
        self.hosts_of(to).find(|other| !self.is_testing(&other.id, other.address))
    }

    /// Returns the other hosts of a place that can be probed.
    fn hosts_of(&self, to: &SiteId) -> impl Iterator<Item = &'a Host> {
        hosts_of(self.state, self.now, &self.host.id, to)
    }

    /// Returns whether a host takes part in a rate test, at either end.
    fn is_testing(&self, host: &HostId, address: IpAddr) -> bool {
        self.rate_tests
            .iter()
            .any(|(probing, probe)| probing.host == *host || probe.target.ip() == address)
    }

    fn bytes_under_way(&self) -> u64 {
        let bytes = |(_, probe): &(&Probing, &Probe)| match probe.kind {
            ProbeKind::Rate { max_rate_mbps: Some(mbps), duration_ms, .. } => {
                test_bytes(mbps, Duration::from_millis(duration_ms))
            }
            _ => 0,
        };
        let of_rates: u64 = self.rate_tests.iter().map(bytes).sum();
        of_rates.saturating_add(self.transfers.saturating_mul(transfers::ROUND_BYTES))
    }

    fn known(&self, to: &SiteId) -> Option<&'a LegMeasurement> {
        let before = || self.state.measurements.get(&(self.from.clone(), to.clone()));
        self.measured.get(to).copied().or_else(before)
    }

    /// Returns the places that could follow this one on a path, each once: relays, and destinations
    /// of flows.
    fn targets(&self) -> Vec<Target> {
        let index = &self.state.index;
        let relay = |(to, _): (&SiteId, _)| {
            let mut hosts = self.hosts_of(to);
            let host = hosts.find(|host| matches!(host.role, Role::Relay { .. }))?;
            let address = SocketAddr::new(host.address, RESPONDER_PORT);
            Some(Target { to: to.clone(), address })
        };
        let mut targets: Vec<Target> = index.places().filter_map(relay).collect();
        let known: BTreeSet<SiteId> = targets.iter().map(|target| target.to.clone()).collect();
        let destination = |flows: &mut dyn Iterator<Item = &FlowId>| {
            flows.filter_map(|flow| self.state.flows.get(flow)).find_map(|it| self.destination(it))
        };
        match &self.host.role {
            Role::Relay { .. } => {
                let unknown = index.destinations().filter(|(to, _)| !known.contains(to));
                targets.extend(unknown.filter_map(|(_, flows)| destination(&mut flows.iter())));
            }
            Role::Gateway { site } | Role::Probe { site } => {
                let mut known = known;
                let flows = index.flows_from(site).filter_map(|flow| self.state.flows.get(flow));
                for flow in flows.filter(|flow| !known.contains(&flow.to_site)).collect::<Vec<_>>()
                {
                    if let Some(target) = self.destination(flow)
                        && known.insert(flow.to_site.clone())
                    {
                        targets.push(target);
                    }
                }
            }
        }
        targets.extend(self.receivers(&targets));
        targets.retain(|target| target.to != self.from);
        targets
    }

    /// Returns the receiving gateways of packet flows from here, and at relays of all, at places
    /// other than those of `known`.
    fn receivers(&self, known: &[Target]) -> Vec<Target> {
        let is_relay = matches!(self.host.role, Role::Relay { .. });
        let flows = self.state.packet_flows.values();
        let from_here = flows.filter(|flow| is_relay || flow.from == self.from);
        let places: BTreeSet<&SiteId> = from_here.map(|flow| &flow.to_site).collect();
        let is_new = |to: &&SiteId| known.iter().all(|target| target.to != **to);
        let target = |to: &SiteId| {
            let address = SocketAddr::new(self.hosts_of(to).next()?.address, RESPONDER_PORT);
            Some(Target { to: to.clone(), address })
        };
        places.into_iter().filter(is_new).filter_map(target).collect()
    }

    /// Returns where to probe the destination of a flow: itself, or a host of its site where it is
    /// given by name.
    fn destination(&self, flow: &FlowRecord) -> Option<Target> {
        let to = flow.to_site.clone();
        let of_host = || {
            let host = self.hosts_of(&to).next();
            host.map(|host| SocketAddr::new(host.address, RESPONDER_PORT))
        };
        let address = match &flow.to {
            Destination::Address(address) => of_host().unwrap_or(*address),
            Destination::Name { .. } => of_host()?,
        };
        Some(Target { to, address })
    }

    fn probing(&self, target: Target, kind: ProbeKind) -> Probing {
        let Target { to, address } = target;
        let (measured, lost_after) = match kind {
            ProbeKind::Rtt { .. } => ("rtt", RTT_LOST_AFTER),
            ProbeKind::Rate { .. } => ("rate", LOST_AFTER),
            ProbeKind::Transfers { .. } => ("transfers", TRANSFERS_LOST_AFTER),
        };
        let parts = [self.host.id.as_str(), to.as_str(), measured, &self.now.to_string()];
        // Numbers that every reader of JSON holds exactly.
        let id = hash(&parts) >> 11;
        let probe = Probe { id, to, target: address, kind };
        let lost_at = self.now.saturating_add(lost_after.as_millis() as u64);
        let (host, probe) = (self.host.id.clone(), Some((probe, lost_at)));
        Probing { id, host, probe, has_failed: false }
    }
}

/// Returns the rate of a relay type's connection, in Mbit/s.
fn relay_mbps(terms: &Terms, relay_type: &RelayTypeId) -> f64 {
    let known = prices::offered_type(terms, relay_type).ok();
    let cap = known.map(|it| it.per_connection.unwrap_or(it.capacity).as_mbps());
    cap.unwrap_or(tradewind_model::leg::RELAY_FLOW_MBPS)
}

/// Returns the time of a rate test of a leg.
fn rate_test(rtt: Duration) -> Duration {
    (rtt * RATE_TEST_ROUND_TRIPS).clamp(RATE_TEST_LEAST, RATE_TEST_MOST)
}

/// Returns the bytes of a rate test at this rate.
fn test_bytes(mbps: f64, duration: Duration) -> u64 {
    (mbps * 1e6 / 8.0 * duration.as_secs_f64()) as u64
}

/// Returns whether connections have contradicted the rate of a leg in successive reports.
pub(crate) fn is_doubted(state: &State, source: &SiteId, destination: &SiteId) -> bool {
    let doubt = state.doubts.get(&(source.clone(), destination.clone()));
    doubt.is_some_and(|doubt| doubt.reports >= DOUBTS)
}

/// Returns the bytes that tests may still carry today.
fn bytes_left(state: &State, now: u64) -> u64 {
    most_bytes_of_day(state).saturating_sub(bytes_of_day(state, now))
}

/// Returns whether the bytes of today allow a test of a leg of this rate.
pub(crate) fn allows_test(state: &State, now: u64, rtt: Duration, mbps: f64) -> bool {
    test_bytes(mbps, rate_test(rtt)) <= bytes_left(state, now)
}

/// Returns a number of these words, the same each time.
fn hash(words: &[&str]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for word in words {
        hasher.update(word.as_bytes());
        hasher.update(b"\n");
    }
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use tradewind_units::Ratio;

    use super::*;
    use crate::event::{Event, SettingsRequest};
    use crate::message::{ProbeOutcome, ProbeResult};
    use crate::testing::{Bench, flow, gateway, relay};

    fn is_rate(probe: &Probe) -> bool {
        matches!(probe.kind, ProbeKind::Rate { .. })
    }

    #[test]
    fn each_place_measures_to_its_possible_neighbours_once_in_five_minutes() {
        let mut bench = Bench::new();
        bench.join(1, gateway("office"));
        bench.join(2, relay("gcp:us-east1"));
        bench.join(3, relay("gcp:asia-east1"));
        bench.event(Event::AddFlow(flow("a", 7)));
        let places = |probes: Vec<Probe>| -> Vec<String> {
            probes.iter().map(|probe| probe.to.to_string()).collect()
        };
        let first = bench.report(1, Vec::new());
        assert_eq!(places(first), ["gcp:asia-east1", "gcp:us-east1", "far7"]);
        assert_eq!(places(bench.report(2, Vec::new())), ["gcp:asia-east1", "far7"]);
        // They are under way.
        assert!(bench.report(1, Vec::new()).is_empty());
        // Lost ones are repeated.
        bench.now += LOST_AFTER.as_millis() as u64;
        assert_eq!(bench.report(1, Vec::new()).len(), 3);
        bench.now += LOST_AFTER.as_millis() as u64;
        bench.pass(1);
        assert_eq!(bench.state().measurements.len(), 7);
        bench.pass(269);
        assert!(bench.report(1, Vec::new()).is_empty());
        let before: Vec<_> = bench.state().measurements.values().cloned().collect();
        bench.pass(61);
        for leg in before {
            let again = &bench.state().measurements[&(leg.source, leg.destination)];
            assert!(again.measured_at_unix_ms > leg.measured_at_unix_ms);
        }
    }

    #[test]
    fn host_is_probed_once_it_has_applied_a_document() {
        let mut bench = Bench::new();
        bench.join(1, gateway("office"));
        bench.pass(60);
        bench.join(2, relay("gcp:us-east1"));
        bench.report_with(2, |report| report.applied = None);
        assert!(bench.report(1, Vec::new()).is_empty(), "it would fail, and wait for another try");
        bench.report(2, Vec::new());
        assert_eq!(bench.report(1, Vec::new()).len(), 1);
    }

    #[test]
    fn failed_probe_of_a_host_that_has_just_joined_is_repeated_at_once() {
        let mut bench = Bench::new();
        bench.pass(1);
        bench.join(1, gateway("office"));
        bench.join(2, relay("gcp:us-east1"));
        let fails = |probe: &Probe| ProbeResult {
            id: probe.id,
            to: probe.to.clone(),
            measured_unix_ms: 0,
            outcome: ProbeOutcome::Failed { reason: "connection refused".to_owned() },
        };
        bench.now += 5000;
        bench.event(Event::Tick);
        let probes = bench.report(1, Vec::new());
        assert_eq!(probes.len(), 1);
        let again = bench.report(1, vec![fails(&probes[0])]);
        assert_eq!(again.len(), 1, "it may listen by now");
        // One that should have listened for long is tried again later.
        bench.now += SEEN_WITHIN.as_millis() as u64 - 4000;
        bench.event(Event::Tick);
        bench.report(2, Vec::new());
        assert!(bench.report(1, vec![fails(&again[0])]).is_empty());
    }

    #[test]
    fn rate_tests_are_of_the_plans_legs_one_at_a_time_for_each_host() {
        let mut bench = Bench::in_service();
        // Of all that can be tested: to the first relay, and from there to the second.
        let tested: Vec<_> = bench.state().rate_tests.keys().cloned().collect();
        let tested: Vec<_> = tested.iter().map(|(from, to)| (from.as_str(), to.as_str())).collect();
        let expected = [("gcp:europe-north1", "gcp:asia-east1"), ("office", "gcp:europe-north1")];
        assert_eq!(tested, expected);
        bench.now += RATE_EVERY.as_millis() as u64;
        bench.event(Event::Tick);
        let of_gateway = bench.report(1, Vec::new());
        assert_eq!(of_gateway.iter().filter(|probe| is_rate(probe)).count(), 1);
        // The first relay takes part in that one.
        assert!(!bench.report(2, Vec::new()).iter().any(is_rate));
        assert!(!bench.report(1, Vec::new()).iter().any(is_rate));
    }

    #[test]
    fn rate_tests_stay_within_the_bytes_of_a_day() {
        let mut bench = Bench::in_service();
        assert!(bytes_of_day(bench.state(), bench.now) >= 2 * 250_000_000);
        // What a tenth of the budget pays.
        let most = most_bytes_of_day(bench.state());
        assert_eq!(most, 22_222_222_222);
        let test = bench.state().rate_tests.values().next().unwrap().clone();
        let spent = crate::record::RateTest { bytes_of_day: most - 1000, ..test };
        bench.controller.apply(Record::RateTest(spent));
        let tests = |bench: &mut Bench| {
            bench.now += RATE_EVERY.as_millis() as u64;
            bench.event(Event::Tick);
            bench.report(1, Vec::new()).iter().any(is_rate)
        };
        assert!(!tests(&mut bench));
        bench.now += DAY_MS;
        let share = |share: f64| {
            let tests_share = Some(Ratio::new(share).unwrap());
            Event::ChangeSettings(SettingsRequest { tests_share, ..SettingsRequest::default() })
        };
        bench.event(share(0.0));
        assert!(!tests(&mut bench));
        bench.event(share(0.1));
        assert!(tests(&mut bench));
    }
}
