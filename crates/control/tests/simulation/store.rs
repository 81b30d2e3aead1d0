//! The controller with its store: a table of the newest record of each key, and crashes between
//! storing and applying.

use std::collections::BTreeMap;

use tradewind_control::message::{DocumentVersion, SignedDocument};
use tradewind_control::record::{DaySessions, Step};
use tradewind_control::{Answer, Controller, Event, Keys, Record, State};
use tradewind_grant::{IdentityKey, OperatorKey, PublicIdentity};
use tradewind_units::Timestamp;

pub(super) struct Server {
    pub(super) controller: Controller,
    table: BTreeMap<String, Record>,
    log: blake3::Hasher,
    entropy: u64,
    pub(super) rollouts: usize,
    pub(super) crashes: usize,
    /// True once a decision was stored, but its answer lost.
    pub(super) lost_an_answer: bool,
}

fn keys() -> Keys {
    Keys {
        identity: IdentityKey::from_entropy([200; 32]),
        operator: OperatorKey::from_entropy([201; 32]),
    }
}

pub(super) fn timestamp(unix_ms: u64) -> Timestamp {
    Timestamp::from_nanos(unix_ms * 1_000_000)
}

impl Server {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            controller: Controller::new(keys(), []),
            table: BTreeMap::new(),
            log: blake3::Hasher::new(),
            entropy: seed,
            rollouts: 0,
            crashes: 0,
            lost_an_answer: false,
        }
    }

    pub(super) const fn state(&self) -> &State {
        self.controller.state()
    }

    pub(super) fn identity(&self) -> PublicIdentity {
        keys().identity.public()
    }

    pub(super) fn digest(&self) -> String {
        self.log.finalize().to_string()
    }

    pub(super) fn document(
        &self,
        identity: &PublicIdentity,
        have: Option<DocumentVersion>,
    ) -> Option<SignedDocument> {
        self.controller.document(identity, have)
    }

    /// Decides, stores, applies and answers, with a crash before one of those (0: storing, 1:
    /// applying, 2: answering).
    pub(super) fn event(&mut self, now: u64, event: &Event, crash: Option<u64>) -> Option<Answer> {
        self.entropy += 1;
        let entropy = *blake3::hash(&self.entropy.to_le_bytes()).as_bytes();
        let decision = self.controller.decide(timestamp(now), event, entropy).ok()?;
        if crash == Some(0) {
            self.restart();
            return None;
        }
        let before = self.state().rollout.step;
        for record in decision.records.iter().filter(|record| record.is_kept()) {
            self.log.update(serde_json::to_string(record).unwrap().as_bytes());
            self.store(record);
        }
        if crash.is_some() {
            self.lost_an_answer = true;
        }
        if crash == Some(1) {
            self.restart();
            return None;
        }
        decision.records.into_iter().for_each(|record| self.controller.apply(record));
        if before != Step::Done && self.state().rollout.step == Step::Done {
            self.rollouts += 1;
        }
        if crash == Some(2) {
            self.restart();
            return None;
        }
        Some(decision.answer)
    }

    fn store(&mut self, record: &Record) {
        // Through text, as a store keeps it.
        let text = serde_json::to_string(record).unwrap();
        let record: Record = serde_json::from_str(&text).unwrap();
        if let Record::FlowRemoved { flow } = &record {
            self.table.remove(&format!("flow {flow}"));
            self.table.remove(&format!("packet flow {flow}"));
            self.table.remove(&format!("paths {flow}"));
            let usage = format!("usage {flow} ");
            let packets = format!("packets {flow} ");
            self.table.retain(|key, _| !key.starts_with(&usage) && !key.starts_with(&packets));
            // The only packet flow was of these.
            if !self.table.keys().any(|key| key.starts_with("packet flow ")) {
                self.table.retain(|key, _| !key.starts_with("handshakes "));
            }
            return;
        }
        self.table.insert(key(&record), record);
    }

    fn restart(&mut self) {
        self.crashes += 1;
        let before = self.state().clone();
        self.controller = Controller::new(keys(), self.table.values().cloned());
        let after = self.state();
        assert!(after.counters.next_version >= before.counters.next_version);
        assert!(after.counters.next_plan >= before.counters.next_plan);
        assert!(before.hosts.keys().all(|host| after.hosts.contains_key(host)));
        let plans = [after.rollout.from, after.rollout.to];
        let mut plans = plans.into_iter().flatten();
        assert!(plans.all(|plan| after.plans.contains_key(&plan)), "a plan in effect is lost");
    }
}

fn key(record: &Record) -> String {
    match record {
        Record::Counters(_) => "counters".to_owned(),
        Record::Settings(_) => "settings".to_owned(),
        Record::Invite(invite) => format!("invite {}", invite.hash),
        Record::Host(host) => format!("host {}", host.id),
        Record::Flow(flow) => format!("flow {}", flow.id),
        Record::PacketFlow(flow) => format!("packet flow {}", flow.id),
        Record::Tenant(tenant) => format!("tenant {}", tenant.id),
        Record::Measurement(leg) => format!("measurement {} {}", leg.source, leg.destination),
        Record::Handshakes(sum) => format!("handshakes {} {}", sum.source, sum.destination),
        Record::RateTest(test) => format!("test {} {}", test.source, test.destination),
        Record::Plan(plan) => format!("plan {:09}", plan.number),
        Record::Rollout(_) => "rollout".to_owned(),
        Record::Document(document) => format!("document {}", document.host),
        Record::Audit(entry) => format!("audit {:09}", entry.number),
        Record::Batch(batch) => format!("batch {}", batch.host),
        Record::Sessions(DaySessions { day, tally }) => {
            format!("sessions {day:09} {} {:?}", tally.flow, tally.key())
        }
        Record::Predicted(row) => format!("predicted {:09} {}", row.day, row.flow),
        Record::Relayed(row) => format!("relayed {:09} {} {}", row.day, row.flow, row.relay),
        Record::Usage(usage) => format!("usage {} {:09}", usage.flow, usage.day),
        Record::Packets(packets) => format!("packets {} {:09}", packets.flow, packets.day),
        Record::Proxies(proxies) => format!("proxies {}", proxies.site),
        Record::Learned(flow) => format!("learned {}", flow.id),
        Record::Spent(spent) => format!("spent {:09}", spent.day),
        Record::Billed(billed) => format!("billed {:09} {}", billed.day, billed.host),
        Record::Jumps(jumps) => format!("jumps {} {:09}", jumps.host, jumps.day),
        Record::Transfers(row) => {
            format!("transfers {:09} {} {}", row.day, row.source, row.destination)
        }
        Record::TakenBack(taken) => format!("taken back {}", taken.flow),
        Record::PathHistory(paths) => format!("paths {}", paths.flow),
        Record::FlowRemoved { .. }
        | Record::TenantRemoved { .. }
        | Record::ProxiesRemoved { .. }
        | Record::LearnedForgotten { .. }
        | Record::OldMeasurement(_)
        | Record::Doubt(_)
        | Record::Window(_)
        | Record::Seen(_)
        | Record::Learners(_)
        | Record::Probing(_)
        | Record::Watching(_) => unreachable!("not kept under a key"),
    }
}
