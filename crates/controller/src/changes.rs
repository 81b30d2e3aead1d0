//! Changes of what operators see, by kind: a listener learns which kinds changed since it last
//! looked, however slow it is.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tradewind_control::record::Seen;
use tradewind_control::state::SEEN_WITHIN;
use tradewind_control::{Record, State};
use tradewind_units::{FlowId, HostId};

/// A kind of what operators see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Hosts and their states.
    Hosts,
    /// Flows and their paths.
    Flows,
    /// The newest plan.
    Plan,
    /// The rollout.
    Rollout,
    /// The gain and the money.
    Gain,
    /// The settings.
    Settings,
    /// The audit log.
    Audit,
}

/// All kinds.
const KINDS: [Kind; 7] =
    [Kind::Hosts, Kind::Flows, Kind::Plan, Kind::Rollout, Kind::Gain, Kind::Settings, Kind::Audit];

/// The kinds with numbers that follow from the hour, and so from the day: forecasts of volumes, and
/// what today has gained and cost.
pub(crate) const OF_THE_HOUR: [Kind; 2] = [Kind::Flows, Kind::Gain];

/// The version of each kind: the number of the last change of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Versions([u64; KINDS.len()]);

impl Versions {
    /// Returns the number of the last change of any kind.
    pub(crate) fn newest(&self) -> u64 {
        self.0.iter().copied().max().unwrap_or(0)
    }

    /// Returns the kinds that changed since version `seen`; all of them if that is `None`.
    pub(crate) fn since(&self, seen: Option<u64>) -> Vec<Kind> {
        let is_new = |version: u64| seen.is_none_or(|seen| version > seen);
        let kinds = KINDS.iter().zip(self.0).filter(|(_, version)| is_new(*version));
        kinds.map(|(kind, _)| *kind).collect()
    }
}

/// The sender of changes.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    versions: watch::Sender<Versions>,
}

impl Changes {
    pub(crate) fn subscribe(&self) -> watch::Receiver<Versions> {
        self.versions.subscribe()
    }

    /// Tells of a change of these kinds; none is none.
    pub(crate) fn tell(&self, kinds: &[Kind]) {
        if kinds.is_empty() {
            return;
        }
        self.versions.send_modify(|versions| {
            let number = versions.newest() + 1;
            kinds.iter().for_each(|kind| versions.0[*kind as usize] = number);
        });
    }
}

/// Returns what operators see otherwise once `record` is applied to `state`.
pub(crate) fn kinds_of(state: &State, record: &Record) -> &'static [Kind] {
    match record {
        Record::Host(_) => &[Kind::Hosts, Kind::Gain],
        Record::Document(_) => &[Kind::Hosts],
        Record::Seen(seen) => match (is_news(state, seen), has_other_flows(state, seen)) {
            (true, true) => &[Kind::Hosts, Kind::Gain],
            (true, false) => &[Kind::Hosts],
            (false, true) => &[Kind::Gain],
            (false, false) => &[],
        },
        Record::Flow(_) | Record::PacketFlow(_) | Record::FlowRemoved { .. } => &[Kind::Flows],
        Record::Plan(_) => &[Kind::Plan],
        Record::Rollout(_) => &[Kind::Rollout, Kind::Flows],
        Record::Settings(_)
        | Record::Tenant(_)
        | Record::TenantRemoved { .. }
        | Record::Proxies(_)
        | Record::ProxiesRemoved { .. } => &[Kind::Settings],
        Record::Audit(_) => &[Kind::Audit],
        Record::Sessions(_)
        | Record::Predicted(_)
        | Record::Relayed(_)
        | Record::Usage(_)
        | Record::Packets(_)
        | Record::Spent(_)
        | Record::Billed(_)
        | Record::Learned(_)
        | Record::LearnedForgotten { .. } => &[Kind::Gain],
        Record::TakenBack(_) | Record::PathHistory(_) => &[Kind::Flows],
        Record::Counters(_)
        | Record::Invite(_)
        | Record::Measurement(_)
        | Record::OldMeasurement(_)
        | Record::RateTest(_)
        | Record::Handshakes(_)
        | Record::Batch(_)
        | Record::Jumps(_)
        | Record::Transfers(_)
        | Record::Learners(_)
        | Record::Doubt(_)
        | Record::Window(_)
        | Record::Probing(_)
        | Record::Watching(_) => &[],
    }
}

/// Returns whether a report tells more than its time, how many sessions are open and what the host
/// has sent, which change all the time.
fn is_news(state: &State, seen: &Seen) -> bool {
    let news = |seen: &Seen| {
        let mut seen = Seen { unix_ms: 0, shown: Vec::new(), ..seen.clone() };
        for process in &mut seen.processes {
            process.sessions = None;
            process.flows = None;
        }
        if let Some(spend) = seen.bounds.as_mut().and_then(|bounds| bounds.spend.as_mut()) {
            spend.used_usd = None;
        }
        seen
    };
    state.seen.get(&seen.host).is_none_or(|before| news(before) != news(seen))
}

/// Returns whether other flows have open sessions than at the last report.
fn has_other_flows(state: &State, seen: &Seen) -> bool {
    let flows = |seen: &Seen| -> BTreeSet<FlowId> {
        let flows = seen.processes.iter().filter_map(|process| process.flows.as_ref());
        flows.flat_map(|flows| flows.keys().cloned()).collect()
    };
    let before = state.seen.get(&seen.host).map(flows).unwrap_or_default();
    before != flows(seen)
}

/// Returns the trusted hosts that do not report.
pub(crate) fn silent_hosts(state: &State, now_unix_ms: u64) -> Vec<HostId> {
    let hosts = state.hosts.values().filter(|host| host.is_trusted);
    let silent = hosts.filter(|host| !state.is_reachable(&host.id, now_unix_ms, SEEN_WITHIN));
    silent.map(|host| host.id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use tradewind_control::ceiling::{Bounds, SpendBound};
    use tradewind_control::message::{ProcessState, ProcessStatus};
    use tradewind_units::Money;

    use super::*;

    #[test]
    fn listener_learns_what_it_missed() {
        let changes = Changes::default();
        let listener = changes.subscribe();
        assert_eq!(listener.borrow().since(None), KINDS);
        assert_eq!(listener.borrow().since(Some(0)), []);
        changes.tell(&[Kind::Rollout, Kind::Flows]);
        changes.tell(&[]);
        changes.tell(&[Kind::Hosts]);
        let versions = *listener.borrow();
        assert_eq!(versions.newest(), 2);
        assert_eq!(versions.since(Some(0)), [Kind::Hosts, Kind::Flows, Kind::Rollout]);
        assert_eq!(versions.since(Some(1)), [Kind::Hosts]);
        assert_eq!(versions.since(Some(2)), []);
    }

    #[test]
    fn report_is_news_by_more_than_its_time_and_open_sessions() {
        let seen = |unix_ms, state, sessions| Seen {
            host: "office-1".parse().unwrap(),
            unix_ms,
            applied: None,
            refused: None,
            processes: vec![ProcessStatus {
                name: "gateway".to_owned(),
                state,
                listen: Vec::new(),
                sessions,
                flows: None,
                failure: None,
            }],
            agent_version: String::new(),
            bounds: None,
            shown: Vec::new(),
        };
        let mut state = State::default();
        assert!(is_news(&state, &seen(1, ProcessState::Ready, None)));
        state.apply(Record::Seen(seen(1, ProcessState::Ready, None)));
        assert!(!is_news(&state, &seen(2, ProcessState::Ready, Some(7))));
        assert!(is_news(&state, &seen(2, ProcessState::Failed, Some(7))));
        let open = |sessions| {
            let mut seen = seen(2, ProcessState::Ready, Some(sessions));
            seen.processes[0].flows = Some([("nightly".parse().unwrap(), sessions)].into());
            seen
        };
        assert!(!is_news(&state, &open(1)) && has_other_flows(&state, &open(1)));
        let mut later = state.clone();
        later.apply(Record::Seen(open(1)));
        assert!(!has_other_flows(&later, &open(2)));
        assert!(has_other_flows(&later, &seen(2, ProcessState::Ready, Some(0))));
        let sent = |used, is_used_up| {
            let usd_per_day = Money::from_usd(5.0).unwrap();
            let used_usd = Some(Money::from_usd(used).unwrap());
            let spend = Some(SpendBound { usd_per_day, used_usd, is_used_up });
            let bounds = Some(Bounds { rate: None, spend });
            Seen { bounds, ..seen(3, ProcessState::Ready, None) }
        };
        assert!(is_news(&state, &sent(1.0, false)), "it had no bounds");
        state.apply(Record::Seen(sent(1.0, false)));
        assert!(!is_news(&state, &sent(2.0, false)));
        assert!(is_news(&state, &sent(5.0, true)));
    }

    #[test]
    fn kinds_stand_at_their_own_place() {
        assert!(KINDS.iter().enumerate().all(|(place, kind)| *kind as usize == place));
    }
}
