//! The sessions that relays carried, by their own counts, beside what gateways tell of them.
//!
//! Both sides tell a session when it ends, in batches that count once, so that their sums of a flow
//! and relay differ by no more than what is on its way, and by the buffers of sessions that broke.
//! A difference beyond that, for a while in which both report, is alarmed once. Traffic costs what
//! relays counted; where one does not tell, what gateways told. So it is as well for an hour after
//! an older agent was upgraded: the relay's process of before tells nobody its sessions while it
//! drains.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_grant::PublicIdentity;
use tradewind_units::{Bytes, Duration, FlowId, HostId, Money, RegionId, RelayId, Timestamp};

use crate::draft::{CONTROLLER, DAY_MS, Draft, unix_ms};
use crate::message::{RelayTally, SessionBatch, SessionTally, TELLS_SESSIONS};
use crate::money;
use crate::prices;
use crate::record::{Carried, DayRelayed, Host, Record, Role};
use crate::removed;
use crate::sessions::{MAX_BYTES, MAX_COUNT, MAX_OF_BATCH, MAX_SESSIONS};
use crate::state::{SEEN_WITHIN, State};

/// Time for which the relays of a plan go on for its sessions. Chosen: as a process does after an
/// upgrade (`timeouts.retire`).
pub(crate) const RETIRES_FOR: Duration = Duration::from_secs(3600);
/// The first [`CONFIG_VERSION`](crate::message::CONFIG_VERSION) of agents that tell what their
/// relay carried.
pub(crate) const TELLS_RELAYED: u32 = 2;
/// The share of what was carried that sums may differ by. Chosen: far below what a wrong account
/// would be worth.
const MAX_SHARE: f64 = 0.05;
/// Bytes that sums may differ by in any case, and for each session that did not end in order: what
/// is in buffers along its path. Chosen: buffers grow to several megabytes a leg.
const SMALL: u64 = 1_000_000;
const IN_BUFFERS: u64 = 32_000_000;
/// Time for which a process goes on for its sessions after the upgrade of its agent, and until the
/// last of them is told. Chosen: as processes retire, and some reports.
const DRAINS_FOR: Duration = Duration::from_secs(RETIRES_FOR.as_secs() + 120);
/// Time for which sums must differ. Chosen: a dozen reports.
const LASTS: Duration = Duration::from_secs(120);

/// The sessions of a flow over one relay in one day, as both sides tell them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Compared {
    /// The day, in days since the Unix epoch (UTC).
    pub day: u64,
    /// The flow.
    pub flow: FlowId,
    /// The relay.
    pub relay: RelayId,
    /// Sessions over it that gateways told of.
    pub told_sessions: u64,
    /// Their bytes, both ways.
    pub told_bytes: u64,
    /// Sessions that the relay counted itself.
    pub counted_sessions: u64,
    /// Their bytes, both ways.
    pub counted_bytes: u64,
    /// The cost of what the relay sent, by its own count.
    pub cost: Money,
    /// True if both differ by more than sessions under way explain.
    pub differs: bool,
}

/// Returns what gateways told and relays counted in the last `days`, today included, oldest first.
#[must_use]
pub fn compared(state: &State, now: Timestamp, days: u64) -> Vec<Compared> {
    let first = (unix_ms(now) / DAY_MS + 1).saturating_sub(days);
    let rows = state.relayed.since(first);
    let compare = |row: &DayRelayed| Compared {
        day: row.day,
        flow: row.flow.clone(),
        relay: row.relay.clone(),
        told_sessions: row.told.sessions,
        told_bytes: row.told.bytes,
        counted_sessions: row.counted.sessions,
        counted_bytes: row.counted.bytes,
        cost: row.cost,
        differs: row.is_alarmed && differs(state, row),
    };
    rows.map(compare).collect()
}

/// Returns whether a relay's host tells all that it carried.
pub(crate) fn tells(state: &State, now: u64, relay: &RelayId) -> bool {
    let host = HostId::new(relay.as_str()).ok().and_then(|id| state.hosts.get(&id));
    host.is_some_and(|host| host_tells(host, now))
}

fn host_tells(host: &Host, now: u64) -> bool {
    let has_drained = host.counts_from_unix_ms.is_none_or(|from| from <= now);
    host.config_version >= TELLS_RELAYED && has_drained
}

/// Returns a host with the version of its agent that it states now.
pub(crate) fn with_version(host: &Host, config_version: u32, now: u64) -> Host {
    let is_upgraded = host.config_version < TELLS_RELAYED && config_version >= TELLS_RELAYED;
    let is_new = host.joined_unix_ms == now;
    let counts_from_unix_ms = if is_upgraded && !is_new {
        Some(now + DRAINS_FOR.as_millis() as u64)
    } else {
        host.counts_from_unix_ms
    };
    Host { config_version, counts_from_unix_ms, ..host.clone() }
}

/// Returns the records of what a gateway told of relays that count themselves.
pub(crate) fn told(state: &State, now: u64, tallies: &[&SessionTally]) -> Vec<Record> {
    let mut rows = Rows::new(state, now);
    for tally in tallies {
        for relay in tally.path.iter().filter(|relay| tells(state, now, relay)) {
            let row = rows.of(&tally.flow, relay);
            add(&mut row.told, tally.sessions, tally.failed, tally.bytes());
        }
    }
    rows.into_records()
}

/// Adds the records of what a relay counted, and returns the cost of what it sent.
pub(crate) fn take(
    state: &State,
    now: u64,
    host: &Host,
    batch: &SessionBatch,
    records: &mut Vec<Record>,
) -> Money {
    let (Role::Relay { region, .. }, Ok(relay)) = (&host.role, RelayId::new(host.id.as_str()))
    else {
        return Money::ZERO;
    };
    if batch.relayed.is_empty() || !host_tells(host, now) {
        return Money::ZERO;
    }
    let (regions, terms) = (regions(state), &state.settings.terms);
    let mut rows = Rows::new(state, now);
    let mut cost = Money::ZERO;
    for tally in batch.relayed.iter().take(MAX_OF_BATCH).filter(|tally| is_possible(tally)) {
        let to = |identity: &PublicIdentity| regions.get(identity).copied();
        let next = tally.next.as_ref().and_then(to);
        let cost_to = |to, bytes| prices::cost(terms, Some(region), to, bytes);
        let sent = cost_to(next, tally.bytes_up) + cost_to(to(&tally.from), tally.bytes_down);
        cost = (cost + sent).min(money::most());
        // A flow that is no more has cost money as well.
        if state.flows.contains_key(&tally.flow) || removed::was_removed(state, &tally.flow) {
            let row = rows.of(&tally.flow, &relay);
            let bytes = tally.bytes_up.saturating_add(tally.bytes_down);
            add(&mut row.counted, tally.sessions, tally.failed, bytes);
            row.cost = (row.cost + sent).min(money::most());
        }
    }
    records.extend(rows.into_records());
    cost
}

/// Returns the regions of relays, by the identities that neighbours know.
fn regions(state: &State) -> BTreeMap<PublicIdentity, &RegionId> {
    let hosts = state.hosts.values().filter_map(|host| match &host.role {
        Role::Relay { region, .. } => Some((host.data_identity, region)),
        Role::Gateway { .. } | Role::Probe { .. } => None,
    });
    hosts.collect()
}

/// Returns whether a relay can have carried so much.
fn is_possible(tally: &RelayTally) -> bool {
    let RelayTally { sessions, failed, bytes_up, bytes_down, .. } = *tally;
    sessions.max(failed) > 0
        && sessions.max(failed) <= MAX_SESSIONS
        && bytes_up.max(bytes_down) <= MAX_BYTES
}

/// Adds within what is exact.
fn add(sum: &mut Carried, sessions: u64, failed: u64, bytes: u64) {
    let add = |sum: u64, more: u64| sum.saturating_add(more).min(MAX_COUNT);
    sum.sessions = add(sum.sessions, sessions.saturating_add(failed));
    sum.failed = add(sum.failed, failed);
    sum.bytes = add(sum.bytes, bytes);
}

/// The sums of today that a report changes.
struct Rows<'a> {
    state: &'a State,
    day: u64,
    rows: BTreeMap<(FlowId, RelayId), DayRelayed>,
}

impl<'a> Rows<'a> {
    const fn new(state: &'a State, now: u64) -> Self {
        Self { state, day: now / DAY_MS, rows: BTreeMap::new() }
    }

    fn of(&mut self, flow: &FlowId, relay: &RelayId) -> &mut DayRelayed {
        let Self { state, day, rows } = self;
        rows.entry((flow.clone(), relay.clone())).or_insert_with_key(|(flow, relay)| {
            let known = state.relayed.get(*day, flow, relay);
            known.cloned().unwrap_or_else(|| DayRelayed::new(*day, flow.clone(), relay.clone()))
        })
    }

    fn into_records(self) -> Vec<Record> {
        self.rows.into_values().map(Record::Relayed).collect()
    }
}

/// Alarms sums of today and yesterday that have differed for [`LASTS`]; the caller looks each
/// minute.
pub(crate) fn watch(draft: &mut Draft) {
    let (now, day) = (draft.now(), draft.now() / DAY_MS);
    let state = &draft.state;
    let recent = state.relayed.since(day.saturating_sub(1)).filter(|row| row.day <= day);
    let changed = |row: &DayRelayed| {
        let differs = !row.is_alarmed && differs(state, row) && both_report(state, now, row);
        let since = row.differs_since_unix_ms.filter(|since| *since <= now);
        let since = differs.then(|| since.unwrap_or(now));
        let is_new = |since: u64| u128::from(now - since) >= LASTS.as_millis();
        let is_alarmed = row.is_alarmed || since.is_some_and(is_new);
        let since = since.filter(|_| !is_alarmed);
        let watched = DayRelayed { differs_since_unix_ms: since, is_alarmed, ..row.clone() };
        (watched != *row).then_some(watched)
    };
    let changed: Vec<DayRelayed> = recent.filter_map(changed).collect();
    for row in changed {
        if row.is_alarmed {
            let when = if row.day == day { "today" } else { "yesterday" };
            draft.audit(CONTROLLER, format!("alarm: {}", in_words(&row, when)));
        }
        draft.push(Record::Relayed(row));
    }
}

fn in_words(row: &DayRelayed, when: &str) -> String {
    let DayRelayed { flow, relay, told, counted, .. } = row;
    let [told, counted] = [told.bytes, counted.bytes].map(Bytes::new);
    format!(
        "flow {flow} {when}: gateways told {told} over {relay}, which counted {counted}; sessions \
         that end while an agent is away are told by one side alone"
    )
}

/// Returns whether the relay reports, and a gateway of the flow; all of them that do tell sessions.
fn both_report(state: &State, now: u64, row: &DayRelayed) -> bool {
    let reports = |host: &HostId| state.was_seen(host, now, SEEN_WITHIN);
    let site = state.flows.get(&row.flow).map(|flow| &flow.from);
    let is_gateway = |host: &&Host| matches!(host.role, Role::Gateway { .. });
    let gateways = site.into_iter().flat_map(|site| state.index.hosts_of(site));
    let gateways = gateways.filter_map(|id| state.hosts.get(id)).filter(is_gateway);
    // One that reports and does not tell its sessions has what is missing.
    let mut gateways = gateways.filter(|gateway| reports(&gateway.id)).peekable();
    HostId::new(row.relay.as_str()).is_ok_and(|relay| reports(&relay))
        && gateways.peek().is_some()
        && gateways.all(|gateway| gateway.config_version >= TELLS_SESSIONS)
}

/// Returns whether both sides differ by too much. What one told before midnight and the other after
/// it is no difference.
fn differs(state: &State, row: &DayRelayed) -> bool {
    let of_day = |day: Option<u64>| state.relayed.get(day?, &row.flow, &row.relay).map(difference);
    let least = [row.day.checked_sub(1), row.day.checked_add(1)]
        .map(|day| difference(row) + of_day(day).unwrap_or(0))
        .into_iter()
        .chain([difference(row)])
        .map(i64::unsigned_abs)
        .min();
    least.is_some_and(|least| least > tolerance(row))
}

/// Returns the bytes that gateways told more than the relay counted. Sums are far below the most.
fn difference(row: &DayRelayed) -> i64 {
    row.told.bytes as i64 - row.counted.bytes as i64
}

fn tolerance(row: &DayRelayed) -> u64 {
    let share = row.told.bytes.max(row.counted.bytes) as f64 * MAX_SHARE;
    let broken = row.told.failed.saturating_add(row.counted.failed);
    (share as u64).saturating_add(SMALL).saturating_add(broken.saturating_mul(IN_BUFFERS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::message::Arm;
    use crate::testing::{Bench, PATH, identity, tally};

    /// Has the gateway tell so many sessions of 3 MB over both relays.
    fn tell(bench: &mut Bench, number: u64, sessions: usize) {
        let tallies = vec![tally(Arm::Overlay, &PATH, &vec![1.0; sessions])];
        let batch = SessionBatch { tallies, ..SessionBatch::empty(1, number) };
        bench.report_with(1, |report| report.sessions = Some(batch));
    }

    /// Has the first relay count so many.
    fn count(bench: &mut Bench, run: u64, number: u64, sessions: u64) {
        let relayed = RelayTally {
            flow: FlowId::new("a").unwrap(),
            from: identity(101),
            next: Some(identity(103)),
            sessions,
            failed: 0,
            bytes_up: 1000 * sessions,
            bytes_down: 3_000_000 * sessions,
        };
        let batch = SessionBatch { relayed: vec![relayed], ..SessionBatch::empty(run, number) };
        bench.report_with(2, |report| report.sessions = Some(batch));
    }

    fn first(bench: &Bench) -> Compared {
        let rows = compared(bench.state(), bench.time(), 2);
        rows.into_iter().rfind(|row| row.relay.as_str() == PATH[0]).unwrap()
    }

    fn alarms(bench: &Bench) -> Vec<String> {
        let lines = bench.state().audit.values().map(|entry| entry.action.clone());
        lines.filter(|line| line.starts_with("alarm: flow a")).collect()
    }

    #[test]
    fn relays_batch_counts_once_also_after_a_restart() {
        let mut bench = Bench::in_service();
        count(&mut bench, 1, 1, 4);
        count(&mut bench, 1, 1, 4);
        assert_eq!((first(&bench).counted_sessions, first(&bench).counted_bytes), (4, 12_004_000));
        bench.controller = bench.restarted();
        count(&mut bench, 1, 1, 4);
        count(&mut bench, 1, 2, 1);
        // Another run of its agent.
        count(&mut bench, 2, 1, 1);
        assert_eq!(first(&bench).counted_sessions, 6);
        assert_eq!(first(&bench).told_sessions, 0);
    }

    #[test]
    fn traffic_costs_what_relays_counted_and_what_gateways_told_of_older_ones() {
        let mut bench = Bench::in_service();
        let traffic = |bench: &Bench| bench.state().spent.values().next_back().unwrap().traffic;
        let before = traffic(&bench);
        tell(&mut bench, 1, 100);
        assert_eq!(traffic(&bench), before, "told is not counted");
        count(&mut bench, 1, 1, 100);
        let counted = first(&bench).cost;
        assert!(counted > Money::ZERO);
        assert_eq!(traffic(&bench), before + counted);
        // A relay that does not tell costs what gateways told, as the other one does now.
        let both = crate::gain::flows(bench.state(), bench.time(), 1, None)[0].cost;
        bench.report_with(2, |report| report.config_version = 1);
        let before = traffic(&bench);
        tell(&mut bench, 2, 100);
        assert_eq!(traffic(&bench), before + counted);
        assert!(crate::gain::flows(bench.state(), bench.time(), 1, None)[0].cost >= both);
        assert_eq!(first(&bench).told_sessions, 100);

        // Its agent is new again. The process before drains and tells nobody, so that for an hour
        // gateways' word counts, and that of the new process not beside it.
        bench.report_with(2, |_| {});
        let before = traffic(&bench);
        tell(&mut bench, 3, 100);
        count(&mut bench, 2, 1, 40);
        assert_eq!(traffic(&bench), before + counted);
        bench.now += DRAINS_FOR.as_millis() as u64;
        let before = traffic(&bench);
        tell(&mut bench, 4, 100);
        count(&mut bench, 2, 2, 100);
        assert_eq!(traffic(&bench), before + counted);
    }

    #[test]
    fn relays_of_older_agents_are_not_asked_to_tell() {
        let mut bench = Bench::in_service();
        let tells = |bench: &Bench| bench.config(PATH[0]).unwrap().contains("[access_log]");
        assert!(tells(&bench));
        bench.report_with(2, |report| report.config_version = 1);
        bench.now += 60_000;
        bench.event(Event::Tick);
        assert!(!tells(&bench));
    }

    #[test]
    fn sums_that_differ_for_long_are_alarmed_once() {
        let mut bench = Bench::in_service();
        tell(&mut bench, 1, 100);
        bench.pass(90);
        assert_eq!(alarms(&bench), Vec::<String>::new());
        // The relay's report was late.
        count(&mut bench, 1, 1, 97);
        bench.pass(400);
        assert!(alarms(&bench).iter().all(|line| !line.contains(PATH[0])), "{:?}", alarms(&bench));
        assert!(!first(&bench).differs);
        tell(&mut bench, 2, 100);
        bench.pass(400);
        let of_first = || alarms(&bench).into_iter().filter(|line| line.contains(PATH[0]));
        let expected = "alarm: flow a today: gateways told 600.2 MB over gcp:europe-north1-1, \
                        which counted 291.097 MB; sessions that end while an agent is away are \
                        told by one side alone";
        assert_eq!(of_first().collect::<Vec<_>>(), [expected]);
        assert!(first(&bench).differs);
        count(&mut bench, 1, 2, 103);
        assert!(!first(&bench).differs);
    }

    #[test]
    fn relay_that_does_not_report_is_not_alarmed() {
        let mut bench = Bench::in_service();
        tell(&mut bench, 1, 100);
        bench.pass_without(600, &[2]);
        assert!(alarms(&bench).iter().all(|line| !line.contains(PATH[0])), "{:?}", alarms(&bench));
        bench.pass(300);
        assert!(alarms(&bench).iter().any(|line| line.contains(PATH[0])));
    }

    #[test]
    fn what_crosses_midnight_is_no_difference() {
        let mut bench = Bench::in_service();
        bench.now = (bench.now / DAY_MS + 1) * DAY_MS - 1000;
        bench.event(Event::Tick);
        tell(&mut bench, 1, 100);
        bench.pass(2);
        count(&mut bench, 1, 1, 100);
        bench.pass(400);
        assert!(alarms(&bench).iter().all(|line| !line.contains(PATH[0])), "{:?}", alarms(&bench));
        assert_eq!(compared(bench.state(), bench.time(), 1).len(), 1, "today has the count alone");
    }

    #[test]
    fn impossible_counts_and_flows_of_no_one_leave_no_row() {
        let mut bench = Bench::in_service();
        count(&mut bench, 1, 1, 0);
        bench.event(Event::RemoveFlow(FlowId::new("a").unwrap()));
        let before = bench.state().spent.values().next_back().unwrap().traffic;
        count(&mut bench, 1, 2, 1000);
        assert_eq!(bench.state().relayed.since(0).count(), 0);
        assert!(bench.state().spent.values().next_back().unwrap().traffic > before);
    }
}
