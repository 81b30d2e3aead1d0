//! The state machine of the controller.

use std::collections::BTreeMap;

use tradewind_grant::PublicIdentity;
use tradewind_plan::{Plan, Problem};
use tradewind_units::{FlowId, HostId, Money, Timestamp};

pub use crate::event::{Answer, Decision, Event, Keys, Refusal};

use crate::draft::{Draft, OPERATOR, unix_ms};
use crate::explain::Explanation;
use crate::joint::JointPlan;
use crate::message::{DocumentVersion, SignedDocument};
use crate::packet_flow::{PacketFlowRecord, PlannedPackets};
use crate::record::{Record, Role};
use crate::state::State;
use crate::{
    billed, documents, enrolment, explain, import, learned, operator, packets, planning, reports,
    rollout, staleness, tenants,
};

/// The controller.
#[derive(Debug)]
pub struct Controller {
    keys: Keys,
    state: State,
}

impl Controller {
    /// Creates one of the records of a store.
    pub fn new(keys: Keys, records: impl IntoIterator<Item = Record>) -> Self {
        let mut state = State::default();
        // The rollout tells which plans are kept, so it comes first.
        let is_rollout = |record: &Record| matches!(record, Record::Rollout(_));
        let (first, others): (Vec<_>, Vec<_>) = records.into_iter().partition(is_rollout);
        first.into_iter().chain(others).for_each(|record| state.apply(record));
        Self { keys, state }
    }

    /// Returns the state.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Decides what an event changes; changes nothing itself. `entropy` is used for secrets.
    ///
    /// A refusal that the audit log records is no error: its decision has records, and the answer
    /// [`Answer::Refused`].
    ///
    /// # Errors
    /// When the event is refused; nothing changes then.
    pub fn decide(
        &self,
        now: Timestamp,
        event: &Event,
        entropy: [u8; 32],
    ) -> Result<Decision, Refusal> {
        if let Event::Report { identity, report } = event {
            return reports::report(&self.state, now, identity, report);
        }
        let mut draft = Draft::new(&self.state, now);
        let answer = self.change(&mut draft, event, entropy)?;
        Ok(Decision { records: draft.into_records(), answer })
    }

    /// Makes the changes of an event, and of the documents that follow from it.
    fn change(
        &self,
        draft: &mut Draft,
        event: &Event,
        entropy: [u8; 32],
    ) -> Result<Answer, Refusal> {
        let answer = match event {
            Event::Invite { role, ttl, controller } => {
                let by = (*controller, self.keys.identity.public());
                return enrolment::invite(draft, role, *ttl, by, entropy).map(Answer::Invite);
            }
            Event::Join { identity, from, request } => {
                enrolment::join(draft, identity, *from, request)?
            }
            Event::AddFlow(flow) => operator::add_flow(draft, flow, &self.keys)?,
            Event::AddPacketFlow(flow) => operator::add_packet_flow(draft, flow, &self.keys)?,
            Event::RemoveFlow(flow) => operator::remove_flow(draft, flow)?,
            Event::SetProxies(proxies) => learned::set_proxies(draft, proxies)?,
            Event::RemoveProxies(site) => learned::remove_proxies(draft, site)?,
            Event::Adopt { flow, per_day, weight } => {
                learned::adopt(draft, flow, *per_day, *weight, OPERATOR, &self.keys)?
            }
            Event::ChangeSettings(request) => {
                let answer = operator::change_settings(draft, request)?;
                if request.mode.is_some() {
                    rollout::apply_newest(draft);
                }
                answer
            }
            Event::Drain { host, is_drained } => {
                let answer = operator::drain(draft, host, *is_drained)?;
                rollout::forgive(draft, host);
                answer
            }
            Event::Import(all) => return import::import(draft, all),
            Event::Bill(all) => return billed::import(draft, all),
            Event::Revoke(host) => operator::revoke(draft, host)?,
            Event::SetTenant { tenant, budget, alarm } => {
                tenants::set(draft, tenant, *budget, *alarm)?
            }
            Event::RemoveTenant(tenant) => tenants::remove(draft, tenant)?,
            Event::SetTenantTokens { tenant, added } => {
                return tenants::set_tokens(draft, tenant, added.as_ref());
            }
            Event::OfTenant { tenant, is_own, event } => {
                tenants::claim(draft, tenant, *is_own, event)?;
                return self.change(draft, event, entropy);
            }
            Event::Planned(plan) => planning::planned(draft, plan)?,
            Event::Apply { plan } => rollout::apply(draft, *plan)?,
            Event::Report { .. } => unreachable!("reports change no documents"),
            Event::Tick => {
                let adopts = learned::tick(draft, &self.keys);
                if !rollout::tick(draft) && !adopts {
                    return Ok(Answer::Done);
                }
                Answer::Done
            }
        };
        documents::renew(draft, &self.keys);
        while rollout::advance(draft) {
            documents::renew(draft, &self.keys);
        }
        Ok(answer)
    }

    /// Refuses a role that no host can join with: of a relay type or region that is not known.
    ///
    /// # Errors
    /// In one line, as an invite for it would be refused.
    pub fn check_role(&self, role: &Role) -> Result<(), Refusal> {
        enrolment::check_role(&self.state.settings.terms, role)
    }

    /// Takes a record in, which has been stored.
    pub fn apply(&mut self, record: Record) {
        self.state.apply(record);
    }

    /// Returns the planning problem of the state now: flows, relay hosts, measurements, budget.
    ///
    /// # Errors
    /// In one line, when there is nothing to plan or too little is known.
    pub fn problem(&self, now: Timestamp) -> Result<Problem, Refusal> {
        Self::problem_of(&self.state, now)
    }

    /// Returns the planning problem of a copy of the state: it takes seconds where flows are many,
    /// and events need not wait for it.
    ///
    /// # Errors
    /// As [`Controller::problem`].
    pub fn problem_of(state: &State, now: Timestamp) -> Result<Problem, Refusal> {
        planning::problem(state, now)
    }

    /// Returns the plan of the packet flows beside a plan of the streams, and hosts for both, by a
    /// copy of the state.
    ///
    /// # Errors
    /// When no hosts are left for the relays of the streams' plan.
    pub fn joint_of(state: &State, now: Timestamp, streams: Plan) -> Result<JointPlan, Refusal> {
        JointPlan::new(state, now, streams)
    }

    /// Returns the part of a day's budget that is reserved for packet flows, which the problem's
    /// budget is without.
    #[must_use]
    pub fn reserved_of(state: &State, now: Timestamp) -> Money {
        planning::reserved(state, now)
    }

    /// Returns the reasons, in a line each, why a new plan should be made; none if the newest one
    /// still fits.
    #[must_use]
    pub fn staleness(&self, now: Timestamp) -> Vec<String> {
        staleness::reasons(&self.state, now)
    }

    /// Explains why a flow takes its path, and not another.
    ///
    /// # Errors
    /// When there is no such flow of streams; of a packet flow the error says why it has its
    /// service.
    pub fn explain(&self, now: Timestamp, flow: &FlowId) -> Result<Explanation, Refusal> {
        Self::explain_of(&self.state, now, flow)
    }

    /// Returns the same by a copy of the state, which nothing waits for.
    ///
    /// # Errors
    /// As [`Controller::explain`].
    pub fn explain_of(
        state: &State,
        now: Timestamp,
        flow: &FlowId,
    ) -> Result<Explanation, Refusal> {
        if let Some(packets) = state.packet_flows.get(flow) {
            let why = why_packets(state, now, packets);
            return Err(Refusal::NotFound(format!("`{flow}` is a packet flow: {why}")));
        }
        explain::explain(state, now, flow)
    }

    /// Returns the hosts that each flow passes now; none for a flow that goes direct: by plan, or
    /// since its path was taken back, or since nothing may be spent.
    #[must_use]
    pub fn paths_in_effect(&self, now: Timestamp) -> BTreeMap<&FlowId, Vec<&HostId>> {
        planning::paths_in_effect(&self.state, unix_ms(now))
    }

    /// Returns the packet flows of the plan in effect; `None` without one, and while nothing may be
    /// spent.
    #[must_use]
    pub fn packets_in_effect(&self, now: Timestamp) -> Option<&PlannedPackets> {
        planning::packets_in_effect(&self.state, unix_ms(now))
    }

    /// Returns the reason for which a packet flow has its service and relays now.
    #[must_use]
    pub fn why_packets(&self, now: Timestamp, flow: &PacketFlowRecord) -> String {
        why_packets(&self.state, now, flow)
    }

    /// Returns the signed document of a host, if there is one newer than `have`: one of a higher
    /// version, or of another epoch.
    #[must_use]
    pub fn document(
        &self,
        identity: &PublicIdentity,
        have: Option<DocumentVersion>,
    ) -> Option<SignedDocument> {
        let host = self.state.host_of(identity).filter(|host| host.is_trusted)?;
        let document = self.state.documents.get(&host.id)?;
        let is_newer = have.is_none_or(|have| {
            have.epoch != document.version.epoch || have.version < document.version.version
        });
        let sign = || SignedDocument::sign(document, &self.keys.identity.signer()).ok();
        is_newer.then(sign).flatten()
    }
}

/// Returns the reason for which a packet flow has its service and relays now.
fn why_packets(state: &State, now: Timestamp, flow: &PacketFlowRecord) -> String {
    let now = unix_ms(now);
    let stopped = tenants::why_stopped(state, now, &flow.id);
    packets::why(state, flow, planning::packets_in_effect(state, now), stopped)
}
