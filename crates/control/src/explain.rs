//! Explanations of a flow's path: its legs, and the reasons against other paths.
//!
//! Other paths are judged as they look now, by the measurements and prices that the next plan would
//! be made of, each alone: this flow moves, all others stay.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_model::measurement::Method;
use tradewind_plan::{Candidate, Offer, Plan, Problem};
use tradewind_units::{FlowId, HostId, Money, Ratio, RelayId, SiteId, Timestamp, time};

use crate::demand::Demand;
use crate::draft::unix_ms;
use crate::event::Refusal;
use crate::message::ProcessStatus;
use crate::planning::{self, HYSTERESIS};
use crate::record::{FlowRecord, Host, Mode, PlanRecord, Role, Step, TakenPath};
use crate::state::{SEEN_WITHIN, State};
use crate::{forecast, gain, knowledge, path_now, prices, staleness, take_back, tenants};

/// Most other paths of an answer. Chosen: they fit on a screen.
const MAX_OTHERS: usize = 5;

/// The explanation of a flow's path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The flow.
    pub flow: FlowId,
    /// True if its path in effect has relays.
    pub is_over_relays: bool,
    /// The answer, in one line: why it goes over relays, or why it does not.
    pub answer: String,
    /// The plan in effect; absent: none, all flows go direct.
    pub plan: Option<u64>,
    /// The volume of a day: declared, forecast, and which of both counts.
    pub demand: Demand,
    /// The path in effect.
    pub path: PathTaken,
    /// Predicted seconds for a day's volume on the direct path; absent if it is not measured.
    pub seconds_direct: Option<f64>,
    /// Other paths, the direct one first, then the fastest.
    pub others: Vec<OtherPath>,
}

/// The path that a flow takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathTaken {
    /// Its relays, as hosts; empty: direct.
    pub hosts: Vec<HostId>,
    /// Its legs.
    pub legs: Vec<PathLeg>,
    /// Predicted seconds for a day's volume, by what is known now.
    pub seconds: Option<f64>,
    /// The cost of its traffic in a day.
    pub usd_per_day: Option<Money>,
}

/// A leg of a path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathLeg {
    /// The sender: a site or a region.
    pub from: SiteId,
    /// The receiver.
    pub to: SiteId,
    /// The round-trip time; absent if it is not measured.
    pub rtt_ms: Option<f64>,
    /// The rate that plans count on.
    pub rate_mbps: Option<f64>,
    /// True if that was measured; else it is estimated by window over round-trip time.
    pub is_rate_measured: bool,
    /// Share of packets that were sent again in the last test of the rate.
    pub retransmitted: Option<Ratio>,
    /// The method of the measurement.
    pub method: Option<Method>,
    /// Seconds since it was measured.
    pub age_s: Option<u64>,
}

/// A path that a flow does not take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OtherPath {
    /// Its relays, as hosts; empty: direct.
    pub hosts: Vec<HostId>,
    /// Predicted seconds for a day's volume; absent if a leg is not measured.
    pub seconds: Option<f64>,
    /// The cost of a day: its traffic, and the machines that do not run yet.
    pub usd_per_day: Option<Money>,
    /// The reason why it is not taken.
    pub reason: Reason,
    /// The same in words.
    pub why: String,
}

/// The reason why a path is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// It is being put into effect.
    RolloutUnderWay,
    /// A newer plan takes it, and waits for the operator.
    AwaitsApply,
    /// A newer plan takes it, and is hardly better than the one in effect.
    WithinHysteresis,
    /// The budget of today is spent, or that of its tenant is spent or zero.
    BudgetSpent,
    /// A day of it would cost more than the budget leaves.
    OverBudget,
    /// It was taken back from the flow: sessions took longer than predicted.
    TakenBack,
    /// The operator drains one of its hosts.
    HostDrained,
    /// One of its hosts does not report.
    HostAway,
    /// One of its hosts fails, or refuses what it should run.
    HostFailing,
    /// The spend that the owner of one of its hosts allows is used up today.
    HostSpent,
    /// One of its legs is not measured.
    NotMeasured,
    /// It is not faster than the path in effect.
    Slower,
    /// Measurements or declarations have changed since the newest plan; the next one weighs it.
    PlanOutdated,
    /// The newest plan does not take it: others gain more, or a host came into service later.
    NotPlanned,
}

/// Explains the path of a flow.
pub(crate) fn explain(state: &State, now: Timestamp, id: &FlowId) -> Result<Explanation, Refusal> {
    let none = || Refusal::NotFound(format!("no flow `{id}`"));
    let flow = state.flows.get(id).ok_or_else(none)?;
    let view = View::new(state, now, flow)?;
    let in_effect = planning::paths_in_effect(state, unix_ms(now));
    let hosts: Vec<HostId> = in_effect.get(id).into_iter().flatten().copied().cloned().collect();
    let direct = view.seconds(&[]);
    let path = view.taken(&hosts);
    let others = view.others(&path);
    let answer = view.answer(&path, direct, &others);
    Ok(Explanation {
        flow: id.clone(),
        is_over_relays: !path.hosts.is_empty(),
        answer,
        plan: state.plan_in_effect().map(|plan| plan.number),
        demand: forecast::demand(state, unix_ms(now), flow),
        path,
        seconds_direct: direct,
        others,
    })
}

/// The knowledge of one flow now.
struct View<'a> {
    state: &'a State,
    time: Timestamp,
    flow: &'a FlowRecord,
    /// The problem of this flow alone, over all trusted relay hosts, whatever their state; `None`
    /// before its direct path is measured.
    problem: Option<Problem>,
    /// The first reason to make a new plan, if there is one.
    stale: Option<String>,
    /// The reason why nothing may be spent for the flow now, if there is one.
    unpaid: Option<String>,
}

impl<'a> View<'a> {
    fn new(state: &'a State, time: Timestamp, flow: &'a FlowRecord) -> Result<Self, Refusal> {
        let relays = trusted_relays(state);
        let problem = match planning::problem_of(state, time, relays, &[flow]) {
            Ok(problem) => Some(problem),
            // Too little is known, which the answer says.
            Err(Refusal::Conflict(_)) => None,
            Err(other) => return Err(other),
        };
        let stale = staleness::reasons(state, time).into_iter().next();
        let unpaid = if gain::spending(state, time).is_exhausted {
            Some("the budget of today is spent".to_owned())
        } else {
            tenants::why_stopped(state, unix_ms(time), &flow.id)
        };
        Ok(Self { state, time, flow, problem, stale, unpaid })
    }

    fn offer(&self, index: usize) -> Option<&Offer> {
        self.problem.as_ref()?.offers().get(index)
    }

    /// Returns the hosts of the flow's path in a plan; none for direct.
    fn path_in(&self, plan: Option<&PlanRecord>) -> Vec<HostId> {
        let Some(plan) = plan.filter(|_| self.unpaid.is_none()) else { return Vec::new() };
        let planned = planned(&plan.plan, &self.flow.id);
        let host = |relay| plan.hosts.get(relay).cloned();
        planned.into_iter().flatten().filter_map(host).collect()
    }

    /// Returns the indices of the offers that hosts stand for; `None` if one is none any more.
    fn offers(&self, hosts: &[HostId]) -> Option<Vec<usize>> {
        let problem = self.problem.as_ref()?;
        let offer = |id: &HostId| {
            let host = self.state.hosts.get(id)?;
            problem.offers().iter().position(|offer| is_of(self.state, host, offer))
        };
        hosts.iter().map(offer).collect()
    }

    fn seconds(&self, offers: &[usize]) -> Option<f64> {
        Some(self.problem.as_ref()?.fct(0, offers)?.as_secs_f64())
    }

    /// Returns the path in effect.
    fn taken(&self, hosts: &[HostId]) -> PathTaken {
        let offers = self.offers(hosts);
        let problem = self.problem.as_ref().zip(offers.as_ref());
        let rates = problem.and_then(|(problem, offers)| problem.legs(0, offers));
        let mut places = vec![self.flow.from.clone()];
        places.extend(hosts.iter().filter_map(|id| Some(self.state.hosts.get(id)?.role.site())));
        places.push(self.flow.to_site.clone());
        let legs = places.windows(2).enumerate().map(|(index, ends)| {
            let rate = rates.as_ref().and_then(|rates| rates.get(index));
            self.leg(&ends[0], &ends[1], rate.map(|leg| leg.rate().as_mbps()))
        });
        PathTaken {
            legs: legs.collect(),
            seconds: offers.as_ref().and_then(|offers| self.seconds(offers)),
            usd_per_day: problem.and_then(|(problem, offers)| problem.egress_cost(0, offers).ok()),
            hosts: hosts.to_vec(),
        }
    }

    fn leg(&self, from: &SiteId, to: &SiteId, rate_mbps: Option<f64>) -> PathLeg {
        let now = unix_ms(self.time);
        let known = self.state.measurements.get(&(from.clone(), to.clone()));
        let is_rate_measured = knowledge::has_current_rate(self.state, from, to, now);
        let age = |at: u64| now.saturating_sub(at) / 1000;
        PathLeg {
            from: from.clone(),
            to: to.clone(),
            rtt_ms: known.map(|leg| time::as_millis_f64(leg.rtt.min)),
            rate_mbps,
            is_rate_measured,
            retransmitted: known.and_then(|leg| leg.rate?.retransmitted),
            method: known.map(|leg| leg.method),
            age_s: known.and_then(|leg| leg.measured_at_unix_ms).map(age),
        }
    }

    /// Returns the best other paths, and why they are not taken.
    fn others(&self, taken: &PathTaken) -> Vec<OtherPath> {
        let candidates = self.problem.as_ref().map_or(&[][..], |problem| problem.candidates(0));
        let mut measured: Vec<OtherPath> = candidates
            .iter()
            .map(|candidate| self.other(candidate, taken))
            .filter(|other| other.hosts != taken.hosts)
            .collect();
        // The direct path first, then those that a plan has chosen, then the fastest.
        let rank = |other: &OtherPath| {
            let is_chosen = matches!(
                other.reason,
                Reason::RolloutUnderWay | Reason::AwaitsApply | Reason::WithinHysteresis
            );
            (!other.hosts.is_empty(), !is_chosen)
        };
        measured.sort_by(|a, b| {
            let (a, b) = ((rank(a), a.seconds), (rank(b), b.seconds));
            a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal)
        });
        let unmeasured = self.unmeasured();
        measured.truncate(MAX_OTHERS - unmeasured.len().min(1));
        measured.extend(unmeasured);
        measured.truncate(MAX_OTHERS);
        measured
    }

    fn other(&self, candidate: &Candidate, taken: &PathTaken) -> OtherPath {
        let offers = candidate.relays.iter().filter_map(|index| self.offer(*index));
        let hosts: Vec<&Host> = offers.filter_map(|offer| self.host_of(offer)).collect();
        let ids: Vec<HostId> = hosts.iter().map(|host| host.id.clone()).collect();
        let usd_per_day = candidate.cost + self.machines(candidate);
        let seconds = candidate.fct.as_secs_f64();
        let (reason, why) = self
            .choice(&ids)
            .or_else(|| self.obstacle(&hosts))
            .unwrap_or_else(|| self.comparison(seconds, usd_per_day, taken));
        let (seconds, usd_per_day) = (Some(seconds), Some(usd_per_day));
        OtherPath { hosts: ids, seconds, usd_per_day, reason, why }
    }

    /// Returns the host that an offer stands for: one of the plan in effect, else one that can be
    /// used, else the first.
    fn host_of(&self, offer: &Offer) -> Option<&'a Host> {
        let used: BTreeSet<&HostId> =
            self.state.plan_in_effect().into_iter().flat_map(|plan| plan.hosts.values()).collect();
        let such = trusted_relays(self.state).filter(|host| is_of(self.state, host, offer));
        such.min_by_key(|host| (self.fault(host).is_some(), !used.contains(&host.id)))
    }

    /// Returns the cost of a day of the machines that the path needs and that do not run.
    fn machines(&self, candidate: &Candidate) -> Money {
        let relays = self.state.plan_in_effect().into_iter().flat_map(|plan| &plan.plan.relays);
        let running: BTreeSet<_> = relays.map(|relay| (&relay.region, &relay.relay_type)).collect();
        let offers = candidate.relays.iter().filter_map(|index| self.offer(*index));
        let runs = |offer: &&Offer| running.contains(&(&offer.region, &offer.relay_type.id));
        offers.filter(|offer| !runs(offer)).map(|offer| offer.relay_type.set_up).sum()
    }

    /// Returns why a path that a plan has chosen is not in effect.
    fn choice(&self, hosts: &[HostId]) -> Option<(Reason, String)> {
        let rollout = &self.state.rollout;
        let takes = |plan: Option<&PlanRecord>| {
            plan.filter(|plan| self.path_in(Some(plan)) == hosts).map(|plan| plan.number)
        };
        let to = rollout.to.and_then(|number| self.state.plans.get(&number));
        if let Some(number) = takes(to).filter(|_| rollout.step != Step::Done) {
            let why = format!("plan {number} is being put into effect: its relays start");
            return Some((Reason::RolloutUnderWay, why));
        }
        let in_effect = self.state.plan_in_effect().map(|plan| plan.number);
        let can_be = |plan: &&PlanRecord| {
            Some(plan.number) > in_effect
                && planning::obstacle(self.state, unix_ms(self.time), plan).is_none()
        };
        let newest = self.state.newest_plan().filter(can_be);
        let number = takes(newest)?;
        // A plan that was made before the flow says nothing of it.
        planned(&newest?.plan, &self.flow.id)?;
        Some(match self.state.settings.mode {
            Mode::Suggest => {
                let why = format!("plan {number} takes it: `tradewind apply {number}`");
                (Reason::AwaitsApply, why)
            }
            Mode::Auto => {
                let percent = HYSTERESIS * 100.0;
                let why = format!("plan {number} takes it, and saves less than {percent:.0} %");
                (Reason::WithinHysteresis, why)
            }
        })
    }

    /// Returns what stands in the way of a path over these hosts, whatever its figures.
    fn obstacle(&self, hosts: &[&Host]) -> Option<(Reason, String)> {
        if hosts.is_empty() {
            return None;
        }
        if let Some(why) = &self.unpaid {
            return Some((Reason::BudgetSpent, why.clone()));
        }
        self.taken_back(hosts).or_else(|| hosts.iter().find_map(|host| self.fault(host)))
    }

    /// Returns why no plan has a path over these hosts, if one like it was taken back: with a first
    /// relay of the same region.
    fn taken_back(&self, hosts: &[&Host]) -> Option<(Reason, String)> {
        let first = &hosts.first()?.role;
        let is_alike = |taken: &&TakenPath| {
            let region = taken.path.first().and_then(|relay| prices::region(self.state, relay));
            matches!(first, Role::Relay { region: of_host, .. } if Some(of_host) == region)
        };
        let mut taken = take_back::of_flow(self.state, unix_ms(self.time), &self.flow.id);
        let finding = &taken.find(is_alike)?.finding;
        Some((Reason::TakenBack, format!("it was taken back: {finding}")))
    }

    /// Returns why a host cannot be used, if it cannot.
    fn fault(&self, host: &Host) -> Option<(Reason, String)> {
        let id = &host.id;
        if host.is_drained {
            return Some((Reason::HostDrained, format!("{id} is drained")));
        }
        if !self.state.is_reachable(id, unix_ms(self.time), SEEN_WITHIN) {
            return Some((Reason::HostAway, format!("{id} does not report")));
        }
        let seen = self.state.seen.get(id)?;
        if seen.refused.is_some() {
            return Some((Reason::HostFailing, format!("{id} refuses its configuration")));
        }
        if seen.is_used_up() {
            let why = format!("the spend that the owner of {id} allows is used up until tomorrow");
            return Some((Reason::HostSpent, why));
        }
        let fails = seen.processes.iter().any(ProcessStatus::fails);
        fails.then(|| (Reason::HostFailing, format!("the relay on {id} fails")))
    }

    /// Returns why a path that could be taken is not, by its figures.
    fn comparison(&self, seconds: f64, usd_per_day: Money, taken: &PathTaken) -> (Reason, String) {
        if let Some(now) = taken.seconds.filter(|now| seconds >= *now) {
            let why =
                format!("{seconds:.1} s is no less than the {now:.1} s of the path in effect");
            return (Reason::Slower, why);
        }
        let budget = self.state.settings.budget_usd_per_day;
        let plan = self.state.plan_in_effect().map_or(Money::ZERO, |plan| plan.usd_per_day);
        let others = plan.checked_sub(taken.usd_per_day.unwrap_or_default()).unwrap_or_default();
        if others + usd_per_day > budget {
            let why = if others == Money::ZERO {
                format!("a day would cost {usd_per_day}, and the budget is {budget}")
            } else {
                format!("a day would cost {usd_per_day} beside {others}; the budget is {budget}")
            };
            return (Reason::OverBudget, why);
        }
        if let Some(stale) = &self.stale {
            let why = format!("the next plan weighs it; since the last one: {stale}");
            return (Reason::PlanOutdated, why);
        }
        let newest = self.state.newest_plan().map_or(0, |plan| plan.number);
        let why = format!(
            "plan {newest} does not take it: budget and capacity go to other flows, or a host came \
             into service later (`tradewind plan` makes a new one)"
        );
        (Reason::NotPlanned, why)
    }

    /// Returns the paths over one relay host with a leg that is not measured.
    fn unmeasured(&self) -> Vec<OtherPath> {
        let FlowRecord { from, to_site, .. } = self.flow;
        let is_known = |from: &SiteId, to: &SiteId| {
            self.state.measurements.contains_key(&(from.clone(), to.clone()))
        };
        let missing = |region: &SiteId| {
            let legs = [(from, region), (region, to_site)];
            let leg = legs.into_iter().find(|(from, to)| !is_known(from, to));
            leg.map(|(from, to)| format!("{from} -> {to} is not measured"))
        };
        let mut by_region: BTreeMap<SiteId, OtherPath> = BTreeMap::new();
        for host in trusted_relays(self.state) {
            let region = host.role.site();
            let Some(why) = missing(&region) else { continue };
            let other = OtherPath {
                hosts: vec![host.id.clone()],
                seconds: None,
                usd_per_day: None,
                reason: Reason::NotMeasured,
                why,
            };
            by_region.entry(region).or_insert(other);
        }
        by_region.into_values().collect()
    }

    /// Returns the answer in a line.
    fn answer(&self, taken: &PathTaken, direct: Option<f64>, others: &[OtherPath]) -> String {
        if !taken.hosts.is_empty() {
            let path = named(&taken.hosts);
            return match (taken.seconds, direct) {
                (Some(over), Some(direct)) if over < direct => format!(
                    "it goes over {path}: {over:.1} s for a day's volume, and {direct:.1} s direct"
                ),
                (Some(over), Some(direct)) => format!(
                    "it goes over {path} as planned; by now it would take {over:.1} s, and \
                     {direct:.1} s direct"
                ),
                _ => format!("it goes over {path} as planned"),
            };
        }
        let mut over_relays = others.iter().filter(|other| !other.hosts.is_empty());
        let why = if let Some(why) = path_now::without_gateway(self.state, self.flow) {
            why
        } else if let Some(why) = &self.unpaid {
            why.clone()
        } else if direct.is_none() {
            let FlowRecord { from, to_site, .. } = self.flow;
            format!("its direct path is not measured yet: {from} -> {to_site}")
        } else if trusted_relays(self.state).next().is_none() {
            "no relay host has joined".to_owned()
        } else if let Some(best) = over_relays.find(|other| other.reason != Reason::Slower) {
            format!("over {}: {}", named(&best.hosts), best.why)
        } else {
            "no path over relays is faster".to_owned()
        };
        format!("it goes direct: {why}")
    }
}

/// Returns the path of a flow in a plan, if the plan has the flow.
fn planned<'p>(plan: &'p Plan, flow: &FlowId) -> Option<&'p Vec<RelayId>> {
    plan.flows.iter().find(|planned| planned.id == *flow).map(|planned| &planned.path)
}

fn trusted_relays(state: &State) -> impl Iterator<Item = &Host> {
    let is_relay = |host: &&Host| host.is_trusted && matches!(host.role, Role::Relay { .. });
    state.hosts.values().filter(is_relay)
}

fn is_of(state: &State, host: &Host, offer: &Offer) -> bool {
    let offered = prices::offered(state, host);
    offered == Some((offer.region.clone(), offer.relay_type.id.clone()))
}

fn named(hosts: &[HostId]) -> String {
    hosts.iter().map(HostId::as_str).collect::<Vec<_>>().join(" > ")
}

#[cfg(test)]
mod tests {
    use tradewind_units::Duration;

    use super::*;
    use crate::event::{Event, SettingsRequest};
    use crate::record::{Record, Rollout, Settings};
    use crate::testing::{Bench, flow, gateway, host, relay};

    fn explained(bench: &Bench) -> Explanation {
        bench.controller.explain(bench.time(), &flow("a", 7).id).unwrap()
    }

    fn hosts(path: &[&str]) -> Vec<HostId> {
        path.iter().map(|id| host(id)).collect()
    }

    fn reason(bench: &Bench, path: &[&str]) -> Reason {
        let others = explained(bench).others;
        let other = others.iter().find(|other| other.hosts == hosts(path));
        other.unwrap_or_else(|| panic!("{path:?} is none of {others:?}")).reason
    }

    const BOTH: [&str; 2] = ["gcp:europe-north1-1", "gcp:asia-east1-1"];

    fn budget(bench: &mut Bench, usd: f64) {
        let usd_per_day = Money::from_usd(usd).unwrap();
        bench.event(Event::ChangeSettings(SettingsRequest::budget(usd_per_day)));
    }

    #[test]
    fn path_over_relays_is_told_with_its_legs() {
        let bench = Bench::in_service();
        let explained = explained(&bench);
        assert!(explained.is_over_relays, "{explained:?}");
        assert_eq!(explained.path.hosts, hosts(&BOTH));
        let ends: Vec<_> = explained.path.legs.iter().map(|leg| leg.to.as_str()).collect();
        assert_eq!(ends, ["gcp:europe-north1", "gcp:asia-east1", "far7"]);
        let leg = &explained.path.legs[0];
        assert_eq!((leg.rtt_ms, leg.method), (Some(12.0), Some(Method::Tcp)));
        assert!(leg.rate_mbps.unwrap() > 0.0 && leg.age_s.unwrap() < 60);
        assert!(explained.path.seconds < explained.seconds_direct);
        assert!(explained.path.usd_per_day.unwrap() > Money::ZERO);
        let said = format!("it goes over {} > {}: ", BOTH[0], BOTH[1]);
        assert!(explained.answer.starts_with(&said), "{}", explained.answer);
        assert_eq!(
            (&explained.others[0].hosts[..], explained.others[0].reason),
            (&[][..], Reason::Slower)
        );
        assert!(explained.others.len() <= MAX_OTHERS);
        let unknown = bench.controller.explain(bench.time(), &flow("b", 8).id).unwrap_err();
        assert!(matches!(unknown, Refusal::NotFound(_)));
    }

    #[test]
    fn newer_plan_waits_for_the_operator_or_is_hardly_better() {
        let mut bench = Bench::in_service();
        bench.event(Event::Drain { host: host(BOTH[1]), is_drained: true });
        bench.plan();
        bench.pass(10);
        // Nothing of the plan before goes on.
        let rollout = Rollout { retiring: Vec::new(), ..bench.state().rollout.clone() };
        bench.controller.apply(Record::Rollout(rollout));
        bench.pass(61);
        bench.event(Event::ChangeSettings(SettingsRequest::mode(Mode::Suggest)));
        bench.event(Event::Drain { host: host(BOTH[1]), is_drained: false });
        assert_eq!(reason(&bench, &BOTH), Reason::NotPlanned);
        let newest = bench.plan();
        assert_eq!(reason(&bench, &BOTH), Reason::AwaitsApply);
        // In auto mode only a plan that is hardly better waits; the event would apply this one.
        let settings = Settings { mode: Mode::Auto, ..bench.state().settings.clone() };
        bench.controller.apply(Record::Settings(settings));
        assert_eq!(reason(&bench, &BOTH), Reason::WithinHysteresis);
        bench.event(Event::Apply { plan: newest });
        assert_eq!(bench.state().rollout.step, Step::Relays);
        assert_eq!(reason(&bench, &BOTH), Reason::RolloutUnderWay);
        bench.pass(10);
        assert_eq!(explained(&bench).path.hosts, hosts(&BOTH));
    }

    #[test]
    fn hosts_that_cannot_be_used_are_told() {
        let mut bench = Bench::in_service();
        budget(&mut bench, 0.0);
        bench.pass(10);
        assert!(!explained(&bench).is_over_relays);
        bench.event(Event::ChangeSettings(SettingsRequest::mode(Mode::Suggest)));
        budget(&mut bench, 20.0);
        bench.event(Event::Drain { host: host(BOTH[0]), is_drained: true });
        assert_eq!(reason(&bench, &BOTH), Reason::HostDrained);
        bench.event(Event::Drain { host: host(BOTH[0]), is_drained: false });
        bench.pass_without(40, &[3]);
        assert_eq!(reason(&bench, &BOTH), Reason::HostAway);
        bench.pass(2);
        let mut seen = bench.state().seen[&host(BOTH[1])].clone();
        let version = bench.state().documents[&host(BOTH[1])].version;
        let refused = crate::message::RefusedDocument { version, reason: "no".to_owned() };
        seen.refused = Some(refused);
        bench.controller.apply(Record::Seen(seen));
        assert_eq!(reason(&bench, &BOTH), Reason::HostFailing);
    }

    #[test]
    fn price_beyond_the_budget_is_told() {
        let mut bench = Bench::in_service();
        budget(&mut bench, 0.0);
        bench.pass(10);
        bench.event(Event::ChangeSettings(SettingsRequest::mode(Mode::Suggest)));
        budget(&mut bench, 0.5);
        assert_eq!(reason(&bench, &BOTH), Reason::OverBudget);
        let answer = explained(&bench).answer;
        assert!(
            answer.starts_with("it goes direct: over ") && answer.ends_with("$0.50"),
            "{answer}"
        );
    }

    #[test]
    fn path_that_was_taken_back_is_told() {
        let mut bench = Bench::in_service();
        let path: Vec<_> = BOTH.iter().map(|id| RelayId::new(*id).unwrap()).collect();
        let taken = TakenPath {
            path,
            legs: Vec::new(),
            since_unix_ms: bench.now,
            until_unix_ms: bench.now + 60_000,
            finding: "sessions took 2.0 times as long as predicted".to_owned(),
            sessions: Vec::new(),
            direct_before: Vec::new(),
            excused_unix_ms: None,
        };
        let taken = crate::record::TakenBack { flow: flow("a", 7).id, paths: vec![taken] };
        bench.controller.apply(Record::TakenBack(taken));
        let explained = explained(&bench);
        assert!(!explained.is_over_relays);
        assert_eq!(reason(&bench, &BOTH), Reason::TakenBack);
        assert!(explained.answer.ends_with("2.0 times as long as predicted"), "{explained:?}");
        bench.now += 60_000;
        assert!(
            super::explain(bench.state(), bench.time(), &flow("a", 7).id).unwrap().is_over_relays
        );
    }

    #[test]
    fn what_is_missing_is_named_first() {
        let mut bench = Bench::new();
        bench.event(Event::AddFlow(flow("a", 7)));
        assert_eq!(explained(&bench).answer, "it goes direct: no gateway has joined at office");
        bench.join(1, gateway("office"));
        let answer = explained(&bench).answer;
        assert!(answer.contains("its direct path is not measured yet: office -> far7"), "{answer}");
        bench.pass(10);
        assert_eq!(explained(&bench).answer, "it goes direct: no relay host has joined");
        bench.join(2, relay("gcp:europe-north1"));
        assert_eq!(reason(&bench, &["gcp:europe-north1-1"]), Reason::NotMeasured);
        let answer = explained(&bench).answer;
        assert!(answer.ends_with("office -> gcp:europe-north1 is not measured"), "{answer}");
    }

    #[test]
    fn slower_paths_leave_it_direct() {
        let mut bench = Bench::in_service();
        budget(&mut bench, 0.0);
        bench.pass(10);
        let legs: Vec<_> = bench.state().measurements.values().cloned().collect();
        for mut leg in legs.into_iter().filter(|leg| leg.source.as_str() == "office") {
            leg.rate = None;
            let is_direct = leg.destination.as_str() == "far7";
            leg.rtt.min = Duration::from_millis(if is_direct { 1 } else { 500 });
            bench.controller.apply(Record::Measurement(leg));
        }
        assert_eq!(explained(&bench).answer, "it goes direct: no path over relays is faster");
    }
}
