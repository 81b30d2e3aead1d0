//! Records: the facts that the controller's state consists of. Each replaces the one before with
//! the same key, so that a store is a table of the newest of each.
//!
//! Some are kept in the store, others only in memory ([`Record::is_kept`]): what agents report
//! again anyway.

mod day_predicted;
mod day_relayed;
mod given_up;
mod paths;
mod rollout;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_grant::{Destination, PublicIdentity};
use tradewind_model::measurement::LegMeasurement;
use tradewind_plan::Plan;
use tradewind_units::{Bytes, FlowId, HostId, Money, RegionId, RelayId, RelayTypeId, SiteId};

pub use crate::settings::{JumpstartSettings, Mode, Settings};
pub use day_predicted::{ClassPredicted, DayPredicted};
pub use day_relayed::{Carried, DayRelayed};
pub use given_up::GivenUp;
pub use paths::{MisledLeg, PathChange, PathHistory, TakenBack, TakenPath};
pub use rollout::{RetiringPlan, Rollout, Step};

use crate::bounds::Bounds;
use crate::by_path::Handshakes;
use crate::demand::Demand;
use crate::imported::Billed;
use crate::invite::InviteHash;
use crate::learner::{DayJumps, HostLearners};
use crate::message::{
    Document, DocumentVersion, Probe, ProcessStatus, RefusedDocument, SessionTally,
};
use crate::packet_flow::{DayPackets, PacketFlowRecord, PlannedPackets};
use crate::proxies::{LearnedFlow, Proxies};
use crate::tenant::{Tenant, TenantId};
use crate::transfer_times::DayTransfers;

/// The role of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "role")]
pub enum Role {
    /// Runs a relay when a plan uses it.
    Relay {
        /// The region that it is in.
        region: RegionId,
        /// Its type, which gives its capacity and price.
        relay_type: RelayTypeId,
    },
    /// Runs a gateway, for the flows of its site.
    Gateway {
        /// The site.
        site: SiteId,
    },
    /// Only answers and runs probes, for a site.
    Probe {
        /// The site.
        site: SiteId,
    },
}

impl Role {
    /// Returns the place whose measurements the host makes: its site, or its region as a site.
    #[must_use]
    pub fn site(&self) -> SiteId {
        match self {
            Self::Relay { region, .. } => region.clone().into(),
            Self::Gateway { site } | Self::Probe { site } => site.clone(),
        }
    }
}

/// Days whose sessions, usage and money are kept in memory; the store keeps those of 13 months.
/// Chosen: a month.
pub const DAYS_IN_MEMORY: usize = 31;

/// A fact of the controller's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "record")]
pub enum Record {
    /// Numbers that only grow.
    Counters(Counters),
    /// The operator's settings.
    Settings(Settings),
    /// An invite, by its hash.
    Invite(InviteRecord),
    /// A host, by its name.
    Host(Host),
    /// A flow, by its name.
    Flow(FlowRecord),
    /// A packet flow, by its name.
    PacketFlow(PacketFlowRecord),
    /// A tenant, by its name.
    Tenant(Tenant),
    /// A tenant that is no more.
    TenantRemoved {
        /// Its name.
        tenant: TenantId,
    },
    /// A flow or packet flow that is no more.
    FlowRemoved {
        /// Its name.
        flow: FlowId,
    },
    /// The newest measurement of a leg, by its ends; its time is that of the round-trip time.
    Measurement(LegMeasurement),
    /// A measurement as it was made elsewhere, for the history alone: the [`Record::Measurement`]
    /// right behind it, if there is one, has figures of other times as well, and no entry of its
    /// own in the history.
    OldMeasurement(LegMeasurement),
    /// The last rate test of a leg, by its ends.
    RateTest(RateTest),
    /// Handshakes of probes between the sites of packet flows, by these.
    Handshakes(Handshakes),
    /// A plan, by its number.
    Plan(PlanRecord),
    /// The state of putting a plan into effect; there is one.
    Rollout(Rollout),
    /// The document of a host, by the host's name.
    Document(Document),
    /// A line of the audit log, by its number.
    Audit(AuditEntry),
    /// The last batch of sessions that was taken of a host, by the host's name.
    Batch(BatchTaken),
    /// The sessions of one day, flow, arm, size class and path, by all of these.
    Sessions(DaySessions),
    /// The predicted speedups of one day and flow, by both.
    Predicted(DayPredicted),
    /// The sessions of one day, flow and relay, as both sides tell them, by all of these.
    Relayed(DayRelayed),
    /// The proxies of a site's gateways, by the site.
    Proxies(Proxies),
    /// Proxies that are no more.
    ProxiesRemoved {
        /// The site.
        site: SiteId,
    },
    /// A destination that a gateway has learned, by its name.
    Learned(LearnedFlow),
    /// A learned destination that is known no more.
    LearnedForgotten {
        /// The site of its gateway.
        from: SiteId,
        /// Its name.
        flow: FlowId,
    },
    /// The usage of a flow in the hours of one day, by the flow and the day.
    Usage(DayUsage),
    /// The packets of one day and packet flow, by both.
    Packets(DayPackets),
    /// The money of one day, by the day.
    Spent(Spent),
    /// The bill of a host for one day, by both.
    Billed(Billed),
    /// The ended connections of one host and day, by both.
    Jumps(DayJumps),
    /// The timed transfers of one day between two places, by the day and both.
    Transfers(DayTransfers),
    /// The paths that were taken back from a flow, by the flow.
    TakenBack(TakenBack),
    /// The paths that a flow had, by the flow.
    PathHistory(PathHistory),
    /// A doubt in a leg's rate, by the leg's ends. Not kept.
    Doubt(Doubt),
    /// The sessions of a flow since its path was judged last, by the flow. Not kept.
    Window(Window),
    /// The last report of a host, by the host's name. Not kept.
    Seen(Seen),
    /// The learners of a host, by the host's name. Not kept.
    Learners(HostLearners),
    /// A probe that a host runs, by its number; `None` once it has ended. Not kept.
    Probing(Probing),
    /// The time for which the controller has watched its hosts; there is one. Not kept.
    Watching(Watching),
}

impl Record {
    /// Returns whether a store keeps it.
    #[must_use]
    pub const fn is_kept(&self) -> bool {
        !matches!(
            self,
            Self::Doubt(_)
                | Self::Window(_)
                | Self::Seen(_)
                | Self::Learners(_)
                | Self::Probing(_)
                | Self::Watching(_)
        )
    }
}

/// Numbers that only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// The epoch of the store, from 1; raised when it is restored from a backup.
    pub epoch: u64,
    /// The next plan's number.
    pub next_plan: u64,
    /// The next audit entry's number.
    pub next_audit: u64,
    /// The next document's version.
    pub next_version: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self { epoch: 1, next_plan: 1, next_audit: 1, next_version: 1 }
    }
}

/// An invite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InviteRecord {
    /// The hash of its secret.
    pub hash: InviteHash,
    /// The host's role.
    pub role: Role,
    /// Time after which it is refused, in milliseconds since the Unix epoch.
    pub expires_unix_ms: u64,
    /// The identity that used it, if one did.
    pub used_by: Option<PublicIdentity>,
}

/// A host that has joined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its name: the region or site, and a number.
    pub id: HostId,
    /// Its role.
    pub role: Role,
    /// The agent's identity.
    pub identity: PublicIdentity,
    /// The identity of its relay or gateway.
    pub data_identity: PublicIdentity,
    /// The address at which neighbours reach it.
    pub address: IpAddr,
    /// Time when it joined, in milliseconds since the Unix epoch.
    pub joined_unix_ms: u64,
    /// False once it was revoked: its agent is refused, and no plan uses it.
    pub is_trusted: bool,
    /// True if no plan should use it any more.
    pub is_drained: bool,
    /// The [`CONFIG_VERSION`](crate::message::CONFIG_VERSION) of its agent.
    #[serde(default)]
    pub config_version: u32,
    /// Time from which its relay counts all that it carries, in milliseconds since the Unix epoch;
    /// absent: always. Before, a process may still drain that an older agent started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts_from_unix_ms: Option<u64>,
}

/// A flow that the operator declared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowRecord {
    /// Its name.
    pub id: FlowId,
    /// The site whose gateway carries it.
    pub from: SiteId,
    /// Its destination.
    pub to: Destination,
    /// The site of that destination, for measurements; a name made of its host when absent.
    pub to_site: SiteId,
    /// The volume of a day.
    pub per_day: Bytes,
    /// Weight of its completion time; at least 1.
    pub weight: u32,
    /// The address at which its gateway accepts it.
    pub listen: SocketAddr,
}

/// A plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanRecord {
    /// Its number.
    pub number: u64,
    /// Time when it was made, in milliseconds since the Unix epoch.
    pub made_unix_ms: u64,
    /// The plan; its relays have the names of hosts.
    pub plan: Plan,
    /// The host of each of its relays.
    pub hosts: BTreeMap<RelayId, HostId>,
    /// The cost of what it uses in a day.
    pub usd_per_day: Money,
    /// The flows that it was made for.
    pub flows: Vec<FlowRecord>,
    /// The volumes of a day that it was made for; of flows without one, as they are declared.
    #[serde(default)]
    pub demands: BTreeMap<FlowId, Demand>,
    /// The basis of its seconds, in a line each: legs measured, and when, and legs that were not.
    pub rests_on: Vec<String>,
    /// The measurements between its places.
    #[serde(default)]
    pub measurements: Vec<LegMeasurement>,
    /// The measurements then of the legs of the plan that was in effect, or put into it.
    #[serde(default)]
    pub measurements_in_effect: Vec<LegMeasurement>,
    /// The number of legs that were known when it was made.
    #[serde(default)]
    pub known_legs: usize,
    /// The budget that it was made for, if that is known.
    #[serde(default)]
    pub budget: Option<Money>,
    /// The most that it may cost for each tenant that has a bound.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tenants: BTreeMap<TenantId, Money>,
    /// Its packet flows.
    #[serde(default)]
    pub packets: Box<PlannedPackets>,
    /// Time since when each flow has its path, in milliseconds since the Unix epoch, once the plan
    /// is in effect: a plan before that gave the same path counts as well.
    #[serde(default)]
    pub paths_since: BTreeMap<FlowId, u64>,
    /// True once gateways were told of it: sessions over its relays may be open.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_used: bool,
}

impl PlanRecord {
    /// Returns each flow with its relays.
    pub fn paths(&self) -> impl Iterator<Item = (&FlowRecord, &[RelayId])> {
        // Both lists have one order.
        self.flows.iter().enumerate().filter_map(|(index, flow)| {
            let at_index = self.plan.flows.get(index).filter(|planned| planned.id == flow.id);
            let planned = at_index
                .or_else(|| self.plan.flows.iter().find(|planned| planned.id == flow.id))?;
            Some((flow, planned.path.as_slice()))
        })
    }

    /// Returns the volume of a day that it was made for.
    #[must_use]
    pub fn per_day(&self, flow: &FlowRecord) -> Bytes {
        self.demands.get(&flow.id).map_or(flow.per_day, |demand| demand.per_day)
    }

    /// Returns a flow as the plan knows it, and its relays.
    #[must_use]
    pub fn path_of(&self, flow: &FlowId) -> Option<(&FlowRecord, &[RelayId])> {
        self.paths().find(|(known, _)| known.id == *flow)
    }

    /// Returns the places of a flow's path over these relays, both ends included.
    #[must_use]
    pub fn places(&self, flow: &FlowRecord, path: &[RelayId]) -> Vec<SiteId> {
        let region = |id: &RelayId| -> Option<SiteId> {
            let relay = self.plan.relays.iter().find(|relay| relay.id == *id)?;
            Some(relay.region.clone().into())
        };
        let relays = path.iter().filter_map(region);
        [flow.from.clone()].into_iter().chain(relays).chain([flow.to_site.clone()]).collect()
    }
}

/// A line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    /// Its number.
    pub number: u64,
    /// Time, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// The actor: `operator`, `controller` or a host.
    pub actor: String,
    /// The action, in one line.
    pub action: String,
}

/// The last report of a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// The host.
    pub host: HostId,
    /// Time of the report, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// The document that it has applied.
    pub applied: Option<DocumentVersion>,
    /// The document that it refused.
    pub refused: Option<RefusedDocument>,
    /// Its processes.
    pub processes: Vec<ProcessStatus>,
    /// The version of its program.
    pub agent_version: String,
    /// The rate and spend of its owner's ceiling.
    #[serde(default)]
    pub bounds: Option<Bounds>,
    /// The newest rate that its connections to each neighbour have shown.
    #[serde(default)]
    pub shown: Vec<ShownRate>,
}

/// The rate of a leg that connections have shown, while the network alone limited them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ShownRate {
    /// The place at the other end.
    pub to: SiteId,
    /// The rate of all connections together, in Mbit/s.
    pub rate_mbps: f64,
    /// Connections that carried it.
    pub connections: u32,
    /// Share of bytes that were sent again.
    pub retransmitted: Option<f64>,
    /// Time of the report, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
}

impl Seen {
    /// Returns whether the host relays nothing more today, by its owner's spend.
    #[must_use]
    pub fn is_used_up(&self) -> bool {
        self.bounds.and_then(|bounds| bounds.spend).is_some_and(|spend| spend.is_used_up)
    }
}

/// A probe that a host runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probing {
    /// Its number.
    pub id: u64,
    /// The host.
    pub host: HostId,
    /// The probe, and the time after which it counts as lost, in milliseconds since the Unix
    /// epoch; `None` once it has ended.
    pub probe: Option<(Probe, u64)>,
    /// True if its host has reported that it failed.
    pub has_failed: bool,
}

/// The last rate test of a leg.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateTest {
    /// The sender.
    pub source: SiteId,
    /// The receiver.
    pub destination: SiteId,
    /// Time of its end, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Bytes that all tests of that day (UTC) have carried, this one included.
    pub bytes_of_day: u64,
    /// True if it was made because connections contradicted the rate before.
    #[serde(default)]
    pub was_doubted: bool,
}

/// The time that the controller has watched its hosts without a pause or a jump of its clock. It
/// concludes nothing from a host's silence before then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watching {
    /// Time since when, in milliseconds since the Unix epoch.
    pub since_unix_ms: u64,
    /// Time of the last [`Event::Tick`](crate::Event::Tick), in milliseconds since the Unix epoch.
    pub last_unix_ms: u64,
}

/// The last batch of sessions that was taken of a host. It is stored together with what the batch
/// was added to, so that a batch that is repeated counts once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchTaken {
    /// The host.
    pub host: HostId,
    /// The run of its agent.
    pub run: u64,
    /// The number of the batch in that run.
    pub number: u64,
}

/// The sessions of one day, flow, arm, size class and path. A flow with two paths and ten size
/// classes takes some 10 KB a day in the store, so a hundred such flows 400 MB in 13 months.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaySessions {
    /// The day, in days since the Unix epoch (UTC), on which their batches came in.
    pub day: u64,
    /// Their sums.
    pub tally: SessionTally,
}

/// The usage of a flow in the hours of one day. Some 2 KB in the store, so a hundred flows take
/// 80 MB in 13 months.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayUsage {
    /// The flow.
    pub flow: FlowId,
    /// The day, in days since the Unix epoch (UTC).
    pub day: u64,
    /// The hours in which sessions ended, in order.
    pub hours: Vec<HourUsage>,
}

/// The usage of a flow in one hour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HourUsage {
    /// The hour, in hours since the Unix epoch (UTC).
    pub hour: u64,
    /// Sessions that ended in it, whether or not in order.
    pub sessions: u64,
    /// Bytes of all of them, both ways.
    pub bytes: u64,
    /// The most of them that were open at the same time at one gateway; 0: its agent does not tell.
    pub concurrent: u64,
}

/// The money of one day.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// The day, in days since the Unix epoch (UTC).
    pub day: u64,
    /// Time up to which machines are counted, in milliseconds since the Unix epoch.
    pub until_unix_ms: u64,
    /// The cost of each host that ran a relay, by the time for which it did.
    pub machines: BTreeMap<HostId, Money>,
    /// The cost of traffic, by the bytes of sessions that have ended.
    pub traffic: Money,
    /// The cost as plans estimated it, each for the time for which it was in effect.
    #[serde(default)]
    pub estimated: Money,
    /// The cost of what relays sent in rate tests.
    #[serde(default)]
    pub tests: Money,
    /// The bytes that rate tests carried; absent where rows of older programs do not tell.
    #[serde(default)]
    pub test_bytes: Option<u64>,
    /// True while machines are counted on this day.
    #[serde(default)]
    pub is_metering: bool,
    /// True once the audit log says that the alarm's share is spent.
    #[serde(default)]
    pub has_alarmed: bool,
    /// True once the audit log says that the budget is spent.
    #[serde(default)]
    pub has_stopped: bool,
}

impl Spent {
    /// Returns the cost of all machines.
    #[must_use]
    pub fn of_machines(&self) -> Money {
        self.machines.values().copied().sum()
    }

    /// Returns the cost of machines, traffic and tests.
    #[must_use]
    pub fn total(&self) -> Money {
        self.of_machines() + self.traffic + self.tests
    }
}

/// The successive reports in which connections contradicted the rate of a leg.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    /// The sender.
    pub source: SiteId,
    /// The receiver.
    pub destination: SiteId,
    /// The number of reports; none: the rate is in no doubt.
    pub reports: u32,
}

/// The sessions of a flow since its path was judged last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// The flow.
    pub flow: FlowId,
    /// The path.
    pub path: Vec<RelayId>,
    /// Time when it began, in milliseconds since the Unix epoch.
    pub since_unix_ms: u64,
    /// Its sessions over the path, by size class.
    pub sessions: Vec<SessionTally>,
    /// The number of successive windows before it in which the path was worse than predicted.
    pub worse: u32,
    /// The finding of the last of those.
    pub finding: String,
    /// The sessions of the last of those.
    pub judged: Vec<SessionTally>,
}
