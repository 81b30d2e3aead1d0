//! The controller and its store as one: each event is decided, stored, applied, then answered.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;
use tradewind_control::{Answer, Controller, Event, Record, Refusal};
use tradewind_net::entropy;
use tradewind_stream::clock::unix_now;
use tradewind_units::{HostId, Timestamp};

use crate::changes::{self, Changes, Kind, Versions};
use crate::links::Links;
use crate::metrics::Counts;
use crate::store::{MeasuredOnce, Store, StoreError};

/// Milliseconds of an hour.
const HOUR_MS: u64 = 3_600_000;

/// A reason why an event has no effect.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The controller refuses it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It could not be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system has no entropy.
    #[error("read the system's entropy: {0}")]
    Entropy(#[from] std::io::Error),
}

/// The running controller; clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Engine(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    /// Changes with each new document.
    documents: watch::Sender<u64>,
    changes: Changes,
    counts: Counts,
    links: Links,
}

#[derive(Debug)]
struct Inner {
    controller: Controller,
    store: Store,
    /// Hosts that did not report when time last passed.
    silent: Vec<HostId>,
    /// A hash of the paths of flows then.
    paths: u64,
    /// The hour then, in hours since the Unix epoch; `None` before the first tick.
    hour: Option<u64>,
}

impl Engine {
    pub(crate) fn new(controller: Controller, store: Store) -> Self {
        let inner =
            Mutex::new(Inner { controller, store, silent: Vec::new(), paths: 0, hour: None });
        let documents = watch::Sender::new(0);
        let (changes, counts) = (Changes::default(), Counts::default());
        let links = Links::default();
        Self(Arc::new(Shared { inner, documents, changes, counts, links }))
    }

    /// Returns its counters.
    pub(crate) fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// Returns the connections of agents.
    pub(crate) fn links(&self) -> &Links {
        &self.0.links
    }

    /// Tells operators of a change of these kinds.
    pub(crate) fn tell(&self, kinds: &[Kind]) {
        self.0.changes.tell(kinds);
    }

    /// Returns a signal of what operators see otherwise.
    pub(crate) fn changes(&self) -> watch::Receiver<Versions> {
        self.0.changes.subscribe()
    }

    /// Returns a signal of new documents.
    pub(crate) fn documents(&self) -> watch::Receiver<u64> {
        self.0.documents.subscribe()
    }

    /// Lets an event take effect; waits for the disk.
    pub(crate) async fn handle(&self, event: Event) -> Result<Answer, Failure> {
        self.on_a_thread(move |engine| engine.handle_now(unix_now(), &event)).await
    }

    /// Reads something of the controller.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Controller) -> T + Send + 'static,
    ) -> T {
        self.on_a_thread(move |engine| engine.read_now(read)).await
    }

    /// Reads something of the controller, on a thread that may wait.
    pub(crate) fn read_now<T>(&self, read: impl FnOnce(&Controller) -> T) -> T {
        read(&self.lock().controller)
    }

    /// Reads the history of a leg.
    pub(crate) async fn history(
        &self,
        from: String,
        to: String,
    ) -> Result<Vec<MeasuredOnce>, Failure> {
        let read = move |engine: &Self| engine.lock().store.history(&from, &to);
        Ok(self.on_a_thread(read).await?)
    }

    /// Removes from the store what is too old, and plans that are no longer used.
    pub(crate) async fn prune(&self) -> Result<(), Failure> {
        let prune = |engine: &Self| {
            let mut inner = engine.lock();
            let used = inner.controller.state().plans.keys().copied().collect();
            inner.store.prune(millis(unix_now()), &used)
        };
        Ok(self.on_a_thread(prune).await?)
    }

    /// Lets an event take effect at `now`.
    pub(crate) fn handle_now(&self, now: Timestamp, event: &Event) -> Result<Answer, Failure> {
        let entropy = entropy::bytes()?;
        let counts = &self.0.counts;
        let mut inner = self.lock();
        let begun = Instant::now();
        let decision = inner.controller.decide(now, event, entropy)?;
        counts.decisions.add(begun);
        if decision.records.iter().any(Record::is_kept) {
            let begun = Instant::now();
            inner.store.append(millis(now), &decision.records)?;
            counts.store_writes.add(begun);
        }
        let mut has_documents = false;
        let mut kinds = Vec::new();
        for record in decision.records {
            has_documents |= matches!(record, Record::Document(_));
            kinds.extend(changes::kinds_of(inner.controller.state(), &record));
            inner.controller.apply(record);
        }
        if matches!(event, Event::Report { .. }) {
            counts.reports.inc();
        }
        if matches!(event, Event::Tick) {
            let silent = changes::silent_hosts(inner.controller.state(), millis(now));
            if silent != inner.silent {
                inner.silent = silent;
                // Open sessions that they told count no more.
                kinds.extend([Kind::Hosts, Kind::Gain]);
            }
            // A path comes back, or goes, by time alone as well.
            let paths = hash_of(&inner.controller.paths_in_effect(now));
            if paths != inner.paths {
                inner.paths = paths;
                kinds.push(Kind::Flows);
            }
            let hour = millis(now) / HOUR_MS;
            if inner.hour.replace(hour).is_some_and(|before| before != hour) {
                kinds.extend(changes::OF_THE_HOUR);
            }
        }
        drop(inner);
        self.tell(&kinds);
        if has_documents {
            self.0.documents.send_modify(|count| *count += 1);
        }
        match decision.answer {
            Answer::Refused(refusal) => Err(refusal.into()),
            answer => Ok(answer),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` where it may wait.
    async fn on_a_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> T {
        let engine = self.clone();
        let worked = tokio::task::spawn_blocking(move || work(&engine)).await;
        worked.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }
}

/// Returns a hash of a value, which is compared with others of this process.
fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Milliseconds of a day.
pub(crate) const DAY_MS: u64 = 86_400_000;

/// Returns a time in milliseconds since the Unix epoch.
pub(crate) const fn millis(time: Timestamp) -> u64 {
    time.as_nanos() / 1_000_000
}

#[cfg(test)]
mod tests {
    use tradewind_control::record::{FlowRecord, PlanRecord, Rollout, Step, TakenBack, TakenPath};
    use tradewind_plan::{Plan, PlannedFlow};
    use tradewind_units::{Duration, Money, RelayId};

    use super::*;
    use crate::folder::{Folder, Settings};
    use crate::testing::TestFolder;

    /// Returns a flow with a path over relay `r1` that is taken back until `until` milliseconds.
    fn taken_back(until: u64) -> Vec<Record> {
        let flow = FlowRecord {
            id: "backup".parse().unwrap(),
            from: "office".parse().unwrap(),
            to: "192.0.2.7:443".parse().unwrap(),
            to_site: "far".parse().unwrap(),
            per_day: "1 GB".parse().unwrap(),
            weight: 1,
            listen: "127.0.0.1:15000".parse().unwrap(),
        };
        let relay: RelayId = "r1".parse().unwrap();
        let planned = PlannedFlow {
            id: flow.id.clone(),
            path: vec![relay.clone()],
            fct: Duration::from_secs(1),
            fct_direct: None,
            egress: Money::ZERO,
            move_cost: Money::ZERO,
        };
        let plan = PlanRecord {
            number: 1,
            made_unix_ms: 1,
            plan: Plan { flows: vec![planned], ..Plan::nothing() },
            hosts: [(relay.clone(), "r1".parse().unwrap())].into(),
            usd_per_day: Money::ZERO,
            flows: vec![flow.clone()],
            rests_on: Vec::new(),
            measurements: Vec::new(),
            measurements_in_effect: Vec::new(),
            known_legs: 0,
            budget: None,
            tenants: std::collections::BTreeMap::new(),
            packets: Box::default(),
            demands: std::collections::BTreeMap::new(),
            paths_since: std::collections::BTreeMap::new(),
            was_used: false,
        };
        let path = TakenPath {
            path: vec![relay],
            legs: Vec::new(),
            since_unix_ms: 2,
            until_unix_ms: until,
            finding: String::new(),
            sessions: Vec::new(),
            direct_before: Vec::new(),
            excused_unix_ms: None,
        };
        let taken = TakenBack { flow: flow.id.clone(), paths: vec![path] };
        let rollout = Rollout { to: Some(1), step: Step::Done, ..Rollout::default() };
        vec![
            Record::Rollout(rollout),
            Record::Flow(flow),
            Record::Plan(plan),
            Record::TakenBack(taken),
        ]
    }

    #[test]
    fn turn_of_the_hour_is_told() {
        let place = TestFolder::new("turn-of-hour");
        let engine = engine_of(&place, Vec::new());
        let changes = engine.changes();
        let kinds_at = |unix_ms: u64| kinds_at(&engine, &changes, unix_ms);
        assert!(!kinds_at(HOUR_MS - 2000).contains(&Kind::Gain), "the first tick is no turn");
        assert_eq!(kinds_at(HOUR_MS - 1000), []);
        assert_eq!(kinds_at(HOUR_MS), changes::OF_THE_HOUR);
        assert_eq!(kinds_at(HOUR_MS + 1000), []);
        assert_eq!(kinds_at(24 * HOUR_MS), changes::OF_THE_HOUR, "a day begins with an hour");
    }

    /// Returns an engine with these records, over a new store.
    fn engine_of(place: &TestFolder, records: Vec<Record>) -> Engine {
        let folder = Folder::new(place.path().join("net"));
        let any = "127.0.0.1:0".parse().unwrap();
        folder.init(&Settings::new(any, any, any)).unwrap();
        let store = Store::open(&folder.store()).unwrap();
        Engine::new(Controller::new(folder.keys().unwrap(), records), store)
    }

    /// Lets time pass to `unix_ms`, and returns the kinds that changed by that.
    fn kinds_at(engine: &Engine, changes: &watch::Receiver<Versions>, unix_ms: u64) -> Vec<Kind> {
        let before = changes.borrow().newest();
        engine.handle_now(Timestamp::from_nanos(unix_ms * 1_000_000), &Event::Tick).unwrap();
        changes.borrow().since(Some(before))
    }

    #[test]
    fn path_that_comes_back_by_time_alone_is_told() {
        let place = TestFolder::new("path-by-time");
        let engine = engine_of(&place, taken_back(100_000));
        let changes = engine.changes();
        let kinds_at = |unix_ms: u64| kinds_at(&engine, &changes, unix_ms);
        kinds_at(98_000);
        assert!(!kinds_at(99_000).contains(&Kind::Flows));
        assert!(kinds_at(100_000).contains(&Kind::Flows));
        assert!(!kinds_at(101_000).contains(&Kind::Flows));
    }
}
