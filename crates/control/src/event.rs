//! Events, and what the controller decides on them.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_grant::{IdentityKey, OperatorKey, PublicIdentity};
use tradewind_units::{Bytes, Duration, FlowId, HostId, Money, Ratio, Segments, SiteId, time};

use crate::imported::{Billed, Imported};
use crate::invite::Invite;
use crate::message::{JoinAnswer, JoinRequest, Report, ReportAnswer};
use crate::packet_flow::PacketFlowRecord;
use crate::proxies::Proxies;
use crate::record::{FlowRecord, Mode, PlanRecord, Record, Role};
use crate::tenant::{BudgetChange, TenantId, TenantToken};
use crate::terms::Terms;

/// The controller's keys.
#[derive(Debug)]
pub struct Keys {
    /// Its identity, which agents expect, and which signs documents.
    pub identity: IdentityKey,
    /// The operator's key that signs grants.
    pub operator: OperatorKey,
}

/// A plan of the streams, the packet flows beside them, and hosts for the relays of both.
#[derive(Debug, Clone, PartialEq)]
pub struct JointPlan {
    /// The plan as it is stored, but for its number.
    pub(crate) record: PlanRecord,
}

/// Settings to change; what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingsRequest {
    /// The most that a day may cost, in dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_usd_per_day: Option<Money>,
    /// Share of it that raises an alarm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alarm_share: Option<f64>,
    /// The one who applies plans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Share of sessions over relays that go direct instead, by lot, to measure the gain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_share: Option<Ratio>,
    /// Jump-start of the hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jumpstart: Option<JumpstartRequest>,
    /// Prices and relay types of your own, all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<Terms>,
    /// Share of the budget that rate tests may use; 0: none are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests_share: Option<Ratio>,
    /// Time that machines of relays take to set up, which a new plan waits for: up to 30 minutes.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "time::as_text::option")]
    #[schemars(with = "Option<time::Written>")]
    pub relay_setup: Option<Duration>,
}

/// Settings of jump-start to change; what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JumpstartRequest {
    /// True to turn it on for the hosts below, false to turn it off for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_on: Option<bool>,
    /// The hosts; all if neither hosts nor sites are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<BTreeSet<HostId>>,
    /// The sites and regions whose hosts do as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sites: Option<BTreeSet<SiteId>>,
    /// Share of connections that keep the default window, at most half.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_share: Option<Ratio>,
    /// The greatest initial window, 10 to 65535 segments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_max: Option<Segments>,
    /// True to time transfers between the hosts each hour, with learned windows and without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has_probes: Option<bool>,
    /// True to have the hosts of a site use each other's windows where they have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_shared: Option<bool>,
}

impl SettingsRequest {
    /// Sets the most that a day may cost.
    #[must_use]
    pub fn budget(usd_per_day: Money) -> Self {
        Self { budget_usd_per_day: Some(usd_per_day), ..Self::default() }
    }

    /// Changes jump-start.
    #[must_use]
    pub fn jumpstart(request: JumpstartRequest) -> Self {
        Self { jumpstart: Some(request), ..Self::default() }
    }

    /// Sets who applies plans.
    #[must_use]
    pub fn mode(mode: Mode) -> Self {
        Self { mode: Some(mode), ..Self::default() }
    }
}

/// Something that happened.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "events are handled one at a time, and not kept")]
pub enum Event {
    /// The operator invites a host.
    Invite {
        /// The host's role.
        role: Role,
        /// The time for which the invite lasts.
        ttl: Duration,
        /// The address of the listener for agents, which the invite names.
        controller: SocketAddr,
    },
    /// A host asks to join.
    Join {
        /// The identity that it proved.
        identity: PublicIdentity,
        /// The address that the request came from.
        from: IpAddr,
        /// The request.
        request: JoinRequest,
    },
    /// A host reports.
    Report {
        /// The identity that it proved.
        identity: PublicIdentity,
        /// The report.
        report: Report,
    },
    /// The operator adds a flow, or replaces the one of the same name.
    AddFlow(FlowRecord),
    /// The operator adds a packet flow, or replaces the one of the same name.
    AddPacketFlow(PacketFlowRecord),
    /// The operator removes a flow or packet flow.
    RemoveFlow(FlowId),
    /// The operator has a site's gateways offer proxies, or other ones.
    SetProxies(Proxies),
    /// The operator ends the proxies of a site's gateways.
    RemoveProxies(SiteId),
    /// The operator adds a tenant, or changes its budget and alarm; what is absent stays.
    SetTenant {
        /// Its name.
        tenant: TenantId,
        /// The most that its flows may cost in a day.
        budget: BudgetChange,
        /// Share of the budget whose use raises an alarm.
        alarm: Option<Ratio>,
    },
    /// The operator removes a tenant, whose flows are the overlay's own from then on.
    RemoveTenant(TenantId),
    /// The operator adds a token to a tenant, or removes all that it has.
    SetTenantTokens {
        /// Its name.
        tenant: TenantId,
        /// The token.
        added: Option<TenantToken>,
    },
    /// A flow is declared or removed for a tenant.
    OfTenant {
        /// Its name.
        tenant: TenantId,
        /// True if the tenant itself asks, which reaches no flow of others.
        is_own: bool,
        /// The event.
        event: Box<Event>,
    },
    /// The operator makes a learned destination a flow.
    Adopt {
        /// Its name.
        flow: FlowId,
        /// The volume of a day; its mean so far when absent.
        per_day: Option<Bytes>,
        /// Weight of its completion time; 1 when absent.
        weight: Option<u32>,
    },
    /// The operator changes settings, all of these or none.
    ChangeSettings(SettingsRequest),
    /// The operator takes a host out of service, or back into it.
    Drain {
        /// The host.
        host: HostId,
        /// False to take it back.
        is_drained: bool,
    },
    /// The operator imports measurements of others.
    Import(Vec<Imported>),
    /// The operator imports bills.
    Bill(Vec<Billed>),
    /// The operator revokes a host for good.
    Revoke(HostId),
    /// A plan was made of [`Controller::problem`](crate::Controller::problem).
    Planned(Box<JointPlan>),
    /// The operator has a plan put into effect.
    Apply {
        /// Its number.
        plan: u64,
    },
    /// Time has passed.
    Tick,
}

/// The result of an event: records to store and apply, and what to answer after that.
#[derive(Debug)]
pub struct Decision {
    /// The records, to be stored together.
    pub records: Vec<Record>,
    /// The answer.
    pub answer: Answer,
}

/// The answer to an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Nothing to say.
    Done,
    /// The invite.
    Invite(Invite),
    /// The host has joined.
    Joined(JoinAnswer),
    /// The answer to a report.
    Reported(ReportAnswer),
    /// The number of the plan.
    Planned(u64),
    /// The event was refused, and the attempt is recorded.
    Refused(Refusal),
}

/// The reason why an event was refused, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The sender may not do this.
    #[error("{0}")]
    Forbidden(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// The request is not valid.
    #[error("{0}")]
    Invalid(String),
    /// Something is in its way now.
    #[error("{0}")]
    Conflict(String),
}
