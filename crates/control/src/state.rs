//! The state that records add up to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tradewind_grant::PublicIdentity;
use tradewind_model::measurement::LegMeasurement;
use tradewind_units::{Duration, FlowId, HostId, Money, SiteId};

use crate::by_path::Handshakes;
use crate::history::History;
use crate::imported::Billed;
use crate::index::Index;
use crate::invite::InviteHash;
use crate::learner::{DayJumps, HostLearners};
use crate::message::{Document, ProcessStatus, SessionTally};
use crate::packet_flow::{DayPackets, PacketFlowRecord};
use crate::predicted_days::PredictedDays;
use crate::proxies::{LearnedFlow, Proxies};
use crate::record::{
    AuditEntry, BatchTaken, Counters, DAYS_IN_MEMORY, DaySessions, DayUsage, Doubt, FlowRecord,
    Host, InviteRecord, PathHistory, PlanRecord, Probing, RateTest, Record, Role, Rollout, Seen,
    Settings, Spent, Step, TakenBack, Watching, Window,
};
use crate::relayed_days::RelayedDays;
use crate::tenant::{Tenant, TenantId};
use crate::transfer_times::{DAYS_OF_TRANSFERS, DayTransfers, Transfers};

/// The controller's state. Its maps are shared, so that the copy of a draft costs nothing for what
/// it does not change.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    /// Numbers that only grow.
    pub counters: Counters,
    /// The operator's settings.
    pub settings: Settings,
    /// Invites, by the hashes of their secrets.
    pub invites: Arc<BTreeMap<InviteHash, InviteRecord>>,
    /// Hosts, by name.
    pub hosts: Arc<BTreeMap<HostId, Host>>,
    /// Declared flows.
    pub flows: Arc<BTreeMap<FlowId, FlowRecord>>,
    /// Declared packet flows.
    pub packet_flows: Arc<BTreeMap<FlowId, PacketFlowRecord>>,
    /// The newest measurement of each leg.
    pub measurements: Arc<BTreeMap<(SiteId, SiteId), LegMeasurement>>,
    /// The last rate test of each leg.
    pub rate_tests: Arc<BTreeMap<(SiteId, SiteId), RateTest>>,
    /// Plans, by number: those of the rollout and the newest [`NEWEST_PLANS`].
    pub plans: Arc<BTreeMap<u64, PlanRecord>>,
    /// The rollout.
    pub rollout: Rollout,
    /// The newest document of each host.
    pub documents: Arc<BTreeMap<HostId, Document>>,
    /// The newest entries of the audit log.
    pub audit: Arc<BTreeMap<u64, AuditEntry>>,
    /// The last batch of sessions that was taken of each host.
    pub batches: Arc<BTreeMap<HostId, BatchTaken>>,
    /// The sessions of the newest [`DAYS_IN_MEMORY`], by day and flow, sorted by
    /// [`SessionTally::key`].
    pub sessions: Arc<BTreeMap<(u64, FlowId), Vec<SessionTally>>>,
    /// The predicted speedups of those sessions.
    pub predicted: Arc<PredictedDays>,
    /// The sessions of the newest [`DAYS_IN_MEMORY`] as gateways tell and relays count them.
    pub relayed: Arc<RelayedDays>,
    /// The usage of flows in each hour.
    pub usage: Arc<BTreeMap<FlowId, History>>,
    /// The packets of packet flows, by day and flow: of the newest [`DAYS_IN_MEMORY`].
    pub packets: Arc<BTreeMap<(u64, FlowId), DayPackets>>,
    /// Handshakes of probes between the sites of packet flows.
    pub handshakes: Arc<BTreeMap<(SiteId, SiteId), Handshakes>>,
    /// The tenants.
    pub tenants: Arc<BTreeMap<TenantId, Tenant>>,
    /// The proxies of sites' gateways.
    pub proxies: Arc<BTreeMap<SiteId, Proxies>>,
    /// Destinations that gateways have learned, by site and name.
    pub learned: Arc<BTreeMap<SiteId, BTreeMap<FlowId, LearnedFlow>>>,
    /// The paths that were taken back from each flow.
    pub taken_back: Arc<BTreeMap<FlowId, TakenBack>>,
    /// The paths that flows had.
    pub path_histories: Arc<BTreeMap<FlowId, PathHistory>>,
    /// Doubts in the rates of legs.
    pub doubts: Arc<BTreeMap<(SiteId, SiteId), Doubt>>,
    /// The sessions of each flow since its path was judged last.
    pub windows: Arc<BTreeMap<FlowId, Window>>,
    /// The money of those days.
    pub spent: Arc<BTreeMap<u64, Spent>>,
    /// The bills of hosts, by day: of the newest [`DAYS_IN_MEMORY`] that have some.
    pub billed: Arc<BTreeMap<u64, BTreeMap<HostId, Money>>>,
    /// The ended connections of each host in the newest [`DAYS_IN_MEMORY`] on which some ended.
    pub jumps: Arc<BTreeMap<HostId, BTreeMap<u64, Arc<DayJumps>>>>,
    /// The timed transfers between two places, by day: of the newest
    /// [`DAYS_OF_TRANSFERS`] that have some.
    pub transfers: Arc<BTreeMap<(SiteId, SiteId), Transfers>>,
    /// The learners of each host, as it reported last.
    pub learners: Arc<BTreeMap<HostId, HostLearners>>,
    /// The last report of each host.
    pub seen: Arc<BTreeMap<HostId, Seen>>,
    /// Probes that run.
    pub probing: Arc<BTreeMap<u64, Probing>>,
    /// The time for which the controller has watched its hosts; `None` before the first tick.
    pub watching: Option<Watching>,
    /// The lookups.
    pub(crate) index: Arc<Index>,
}

/// A host that has not reported for this long counts as unreachable. Chosen: six reports.
pub const SEEN_WITHIN: Duration = Duration::from_secs(30);

/// Audit entries kept in memory; the store keeps all. Chosen: a screen of a day.
const AUDIT_IN_MEMORY: usize = 1000;
/// Newest plans that are kept. Chosen: who reads a proposal for some minutes may still apply it,
/// though new measurements have led to newer ones.
pub const NEWEST_PLANS: usize = 8;

/// Longest time between two ticks; after a longer one, or a step back of the clock, the controller
/// concludes nothing from the silence of hosts for a while. Chosen: ticks come every second.
const MAX_TICK: Duration = Duration::from_secs(15);

impl State {
    /// Returns the host whose agent has this identity.
    #[must_use]
    pub fn host_of(&self, identity: &PublicIdentity) -> Option<&Host> {
        self.hosts.get(self.index.host_of(identity)?)
    }

    /// Returns the plan in effect: the one that gateways follow, or are told to.
    #[must_use]
    pub fn plan_in_effect(&self) -> Option<&PlanRecord> {
        let number = match self.rollout.step {
            Step::Relays => self.rollout.from,
            Step::Gateways | Step::Done => self.rollout.to,
        };
        self.plans.get(&number?)
    }

    /// Returns the newest plan.
    #[must_use]
    pub fn newest_plan(&self) -> Option<&PlanRecord> {
        self.plans.values().next_back()
    }

    /// Returns whether a host has reported within `span`. Reports of the future, from before the
    /// clock was put back, count for nothing.
    #[must_use]
    pub fn was_seen(&self, host: &HostId, now_unix_ms: u64, span: Duration) -> bool {
        let at = self.seen.get(host).map(|seen| seen.unix_ms);
        at.is_some_and(|at| is_within(at, now_unix_ms, span))
    }

    /// Returns whether a host can be reached, or the controller has not watched for long enough to
    /// say otherwise.
    #[must_use]
    pub fn is_reachable(&self, host: &HostId, now_unix_ms: u64, span: Duration) -> bool {
        let is_new = |since| is_within(since, now_unix_ms, span);
        self.watched_since(now_unix_ms).is_none_or(is_new) || self.was_seen(host, now_unix_ms, span)
    }

    /// Returns the time since when the controller has watched its hosts; `None` if it has not done
    /// so lately, or its clock was set since.
    #[must_use]
    pub fn watched_since(&self, now_unix_ms: u64) -> Option<u64> {
        let Watching { since_unix_ms, last_unix_ms } = self.watching?;
        let longest = MAX_TICK.as_millis() as u64;
        let is_steady =
            (last_unix_ms..=last_unix_ms.saturating_add(longest)).contains(&now_unix_ms);
        is_steady.then_some(since_unix_ms)
    }

    /// Returns the hosts that a new plan may use as relays: those that can run them, and were not
    /// given up lately.
    pub fn relay_hosts(&self, now_unix_ms: u64) -> impl Iterator<Item = &Host> {
        let hosts = self.able_hosts(now_unix_ms);
        hosts.filter(move |host| !self.is_given_up(&host.id, now_unix_ms))
    }

    /// Returns whether a host's relay was waited for in vain lately, and nothing of it has changed.
    pub(crate) fn is_given_up(&self, host: &HostId, now_unix_ms: u64) -> bool {
        let given_up = self.rollout.given_up.iter().find(|it| it.host == *host);
        let version = self.seen.get(host).map(|seen| &seen.agent_version);
        given_up.is_some_and(|it| {
            let is_same = it.agent_version.as_ref().zip(version).is_none_or(|(a, b)| a == b);
            is_same && it.counts(now_unix_ms)
        })
    }

    /// Returns whether the relay of a host has failed, or its agent refuses its document.
    pub(crate) fn has_failed(&self, host: &HostId) -> bool {
        let fails =
            |seen: &Seen| seen.refused.is_some() || seen.processes.iter().any(ProcessStatus::fails);
        self.seen.get(host).is_some_and(fails)
    }

    /// Returns the hosts that can run relays: as [`State::willing_hosts`], and none whose relay has
    /// failed.
    pub(crate) fn able_hosts(&self, now_unix_ms: u64) -> impl Iterator<Item = &Host> {
        self.willing_hosts(now_unix_ms).filter(|host| !self.has_failed(&host.id))
    }

    /// Returns the hosts that may run relays: trusted, not drained, reachable, and none whose agent
    /// refuses its document, or whose owner's spend is used up.
    pub(crate) fn willing_hosts(&self, now_unix_ms: u64) -> impl Iterator<Item = &Host> {
        let is_able = |host: &&Host| {
            let seen = self.seen.get(&host.id);
            seen.is_none_or(|seen| !seen.is_used_up() && seen.refused.is_none())
        };
        let is_there = move |host: &&Host| {
            let is_relay = matches!(host.role, Role::Relay { .. });
            let is_in_service = host.is_trusted && !host.is_drained;
            is_relay && is_in_service && self.is_reachable(&host.id, now_unix_ms, SEEN_WITHIN)
        };
        self.hosts.values().filter(is_there).filter(is_able)
    }

    /// Takes a record in.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Counters(counters) => self.counters = counters,
            Record::Settings(settings) => self.settings = settings,
            Record::Invite(invite) => {
                Arc::make_mut(&mut self.invites).insert(invite.hash.clone(), invite);
            }
            Record::Host(host) => {
                Arc::make_mut(&mut self.index).set_host(self.hosts.get(&host.id), &host);
                Arc::make_mut(&mut self.hosts).insert(host.id.clone(), host);
            }
            Record::Flow(flow) => {
                Arc::make_mut(&mut self.index).set_flow(self.flows.get(&flow.id), Some(&flow));
                Arc::make_mut(&mut self.flows).insert(flow.id.clone(), flow);
            }
            Record::PacketFlow(flow) => {
                Arc::make_mut(&mut self.packet_flows).insert(flow.id.clone(), flow);
            }
            Record::FlowRemoved { flow } => {
                self.remove_packet_flow(&flow);
                Arc::make_mut(&mut self.index).set_flow(self.flows.get(&flow), None);
                Arc::make_mut(&mut self.flows).remove(&flow);
                Arc::make_mut(&mut self.windows).remove(&flow);
                Arc::make_mut(&mut self.usage).remove(&flow);
                Arc::make_mut(&mut self.path_histories).remove(&flow);
            }
            Record::Measurement(leg) => {
                let ends = (leg.source.clone(), leg.destination.clone());
                Arc::make_mut(&mut self.measurements).insert(ends, leg);
            }
            Record::OldMeasurement(_) => {}
            Record::RateTest(test) => {
                let ends = (test.source.clone(), test.destination.clone());
                Arc::make_mut(&mut self.doubts).remove(&ends);
                Arc::make_mut(&mut self.rate_tests).insert(ends, test);
            }
            Record::Plan(plan) => {
                Arc::make_mut(&mut self.index).add_plan(&plan);
                Arc::make_mut(&mut self.plans).insert(plan.number, plan);
                self.forget_plans();
            }
            Record::Rollout(rollout) => {
                self.rollout = rollout;
                self.forget_plans();
            }
            Record::Document(document) => {
                Arc::make_mut(&mut self.documents).insert(document.host.clone(), document);
            }
            Record::Audit(entry) => {
                Arc::make_mut(&mut self.audit).insert(entry.number, entry);
                while self.audit.len() > AUDIT_IN_MEMORY {
                    Arc::make_mut(&mut self.audit).pop_first();
                }
            }
            Record::Seen(seen) => {
                Arc::make_mut(&mut self.seen).insert(seen.host.clone(), seen);
            }
            Record::Probing(probing) => match probing.probe {
                Some(_) => drop(Arc::make_mut(&mut self.probing).insert(probing.id, probing)),
                None => drop(Arc::make_mut(&mut self.probing).remove(&probing.id)),
            },
            Record::Watching(watching) => self.watching = Some(watching),
            other => self.apply_declared(other),
        }
    }

    /// Takes in a record of tenants or proxies.
    fn apply_declared(&mut self, record: Record) {
        match record {
            Record::Tenant(tenant) => {
                Arc::make_mut(&mut self.tenants).insert(tenant.id.clone(), tenant);
            }
            Record::TenantRemoved { tenant } => {
                Arc::make_mut(&mut self.tenants).remove(&tenant);
            }
            Record::Proxies(proxies) => {
                Arc::make_mut(&mut self.proxies).insert(proxies.site.clone(), proxies);
            }
            Record::ProxiesRemoved { site } => {
                Arc::make_mut(&mut self.proxies).remove(&site);
            }
            other => self.apply_traffic(other),
        }
    }

    /// Takes in a record that follows from traffic.
    fn apply_traffic(&mut self, record: Record) {
        match record {
            Record::Batch(batch) => {
                Arc::make_mut(&mut self.batches).insert(batch.host.clone(), batch);
            }
            Record::Sessions(sessions) => self.apply_sessions(sessions),
            Record::Predicted(row) => Arc::make_mut(&mut self.predicted).set(row),
            Record::Relayed(row) => Arc::make_mut(&mut self.relayed).set(row),
            Record::Learned(flow) => {
                let learned = Arc::make_mut(&mut self.learned);
                learned.entry(flow.from.clone()).or_default().insert(flow.id.clone(), flow);
            }
            Record::LearnedForgotten { from, flow } => {
                let learned = Arc::make_mut(&mut self.learned);
                learned.entry(from).or_default().remove(&flow);
                if !self.flows.contains_key(&flow) {
                    Arc::make_mut(&mut self.usage).remove(&flow);
                }
            }
            Record::Usage(DayUsage { flow, day, hours }) => {
                Arc::make_mut(&mut self.usage).entry(flow).or_default().set_day(day, hours);
            }
            Record::Handshakes(sum) => {
                let ends = (sum.source.clone(), sum.destination.clone());
                Arc::make_mut(&mut self.handshakes).insert(ends, sum);
            }
            Record::Packets(packets) => self.apply_packets(packets),
            Record::Spent(spent) => {
                Arc::make_mut(&mut self.spent).insert(spent.day, spent);
                while self.spent.len() > DAYS_IN_MEMORY {
                    Arc::make_mut(&mut self.spent).pop_first();
                }
            }
            Record::Billed(Billed { day, host, usd }) => {
                let days = Arc::make_mut(&mut self.billed);
                days.entry(day).or_default().insert(host, usd);
                while days.len() > DAYS_IN_MEMORY {
                    days.pop_first();
                }
            }
            Record::Jumps(jumps) => self.apply_jumps(jumps),
            Record::Transfers(transfers) => self.apply_transfers(transfers),
            Record::Learners(learners) => {
                Arc::make_mut(&mut self.learners).insert(learners.host.clone(), learners);
            }
            Record::PathHistory(paths) => {
                Arc::make_mut(&mut self.path_histories).insert(paths.flow.clone(), paths);
            }
            Record::TakenBack(taken) => {
                Arc::make_mut(&mut self.taken_back).insert(taken.flow.clone(), taken);
            }
            Record::Doubt(doubt) => {
                let ends = (doubt.source.clone(), doubt.destination.clone());
                match doubt.reports {
                    0 => drop(Arc::make_mut(&mut self.doubts).remove(&ends)),
                    _ => drop(Arc::make_mut(&mut self.doubts).insert(ends, doubt)),
                }
            }
            Record::Window(window) => {
                Arc::make_mut(&mut self.windows).insert(window.flow.clone(), window);
            }
            _ => unreachable!("`apply` takes the others in"),
        }
    }

    fn remove_packet_flow(&mut self, flow: &FlowId) {
        Arc::make_mut(&mut self.packet_flows).remove(flow);
        Arc::make_mut(&mut self.packets).retain(|(_, of), _| of != flow);
        let flows = &self.packet_flows;
        let is_probed =
            |from: &SiteId, to: &SiteId| flows.values().any(|flow| flow.is_between(from, to));
        Arc::make_mut(&mut self.handshakes).retain(|(from, to), _| is_probed(from, to));
    }

    fn apply_packets(&mut self, packets: DayPackets) {
        let (day, days) = (packets.day, Arc::make_mut(&mut self.packets));
        days.insert((day, packets.flow.clone()), packets);
        let known: BTreeSet<u64> = days.keys().map(|(day, _)| *day).collect();
        if let Some(oldest) = known.iter().rev().nth(DAYS_IN_MEMORY) {
            days.retain(|(day, _), _| day > oldest);
        }
    }

    fn apply_jumps(&mut self, jumps: DayJumps) {
        let days = Arc::make_mut(&mut self.jumps).entry(jumps.host.clone()).or_default();
        days.insert(jumps.day, Arc::new(jumps));
        while days.len() > DAYS_IN_MEMORY {
            days.pop_first();
        }
        // The next report is compared with the newest day alone.
        let older = days.values_mut().rev().skip(1);
        for day in older.filter(|day| !day.counted.is_empty()) {
            Arc::make_mut(day).counted.clear();
        }
    }

    fn apply_transfers(&mut self, transfers: DayTransfers) {
        let ends = (transfers.source.clone(), transfers.destination.clone());
        let days = Arc::make_mut(&mut self.transfers).entry(ends).or_default();
        days.insert(transfers.day, Arc::new(transfers));
        while days.len() > DAYS_OF_TRANSFERS {
            days.pop_first();
        }
    }

    fn apply_sessions(&mut self, DaySessions { day, tally }: DaySessions) {
        let sessions = Arc::make_mut(&mut self.sessions);
        let of_flow = sessions.entry((day, tally.flow.clone())).or_default();
        match of_flow.binary_search_by(|known| known.key().cmp(&tally.key())) {
            Ok(at) => of_flow[at] = tally,
            Err(at) => of_flow.insert(at, tally),
        }
        let is_new_day = of_flow.len() == 1;
        if is_new_day {
            let days: BTreeSet<u64> = sessions.keys().map(|(day, _)| *day).collect();
            if let Some(oldest) = days.iter().rev().nth(DAYS_IN_MEMORY - 1) {
                sessions.retain(|(day, _), _| day >= oldest);
            }
        }
    }

    /// Forgets all plans but those of the rollout and the newest ones.
    fn forget_plans(&mut self) {
        let newest = self.plans.keys().rev().take(NEWEST_PLANS).copied();
        let retiring = self.rollout.retiring.iter().map(|retiring| retiring.plan);
        let of_rollout = self.rollout.from.into_iter().chain(self.rollout.to);
        let used: BTreeSet<u64> = newest.chain(retiring).chain(of_rollout).collect();
        if !self.plans.keys().all(|number| used.contains(number)) {
            Arc::make_mut(&mut self.plans).retain(|number, _| used.contains(number));
            Arc::make_mut(&mut self.index).keep_plans(|number| used.contains(&number));
        }
    }
}

/// Returns whether a time is not longer ago than `span`, and not in the future by more.
pub(crate) fn is_within(unix_ms: u64, now_unix_ms: u64, span: Duration) -> bool {
    u128::from(now_unix_ms.abs_diff(unix_ms)) < span.as_millis()
}
