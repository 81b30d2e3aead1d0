//! Records: the facts that the controller's state consists of. Each replaces the one before with
//! the same key, so that a store is a table of the newest of each.
//!
//! Some are kept in the store, others only in memory ([`Record::is_kept`]): what agents report
//! again anyway.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use tradewind_grant::{Destination, PublicIdentity};
use tradewind_model::measurement::LegMeasurement;
use tradewind_plan::Plan;
use tradewind_units::{Bytes, FlowId, HostId, Money, RegionId, RelayId, RelayTypeId, SiteId};

use crate::invite::InviteHash;
use crate::message::{Document, DocumentVersion, Probe, ProcessStatus, RefusedDocument};

/// The role of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// A flow that is no more.
    FlowRemoved {
        /// Its name.
        flow: FlowId,
    },
    /// The newest measurement of a leg, by its ends; its time is that of the round-trip time.
    Measurement(LegMeasurement),
    /// The last rate test of a leg, by its ends.
    RateTest(RateTest),
    /// A plan, by its number.
    Plan(PlanRecord),
    /// The state of putting a plan into effect; there is one.
    Rollout(Rollout),
    /// The document of a host, by the host's name.
    Document(Document),
    /// A line of the audit log, by its number.
    Audit(AuditEntry),
    /// The last report of a host, by the host's name. Not kept.
    Seen(Seen),
    /// A probe that a host runs, by its number; `None` once it has ended. Not kept.
    Probing(Probing),
    /// The time for which the controller has watched its hosts; there is one. Not kept.
    Watching(Watching),
}

impl Record {
    /// Returns whether a store keeps it.
    #[must_use]
    pub const fn is_kept(&self) -> bool {
        !matches!(self, Self::Seen(_) | Self::Probing(_) | Self::Watching(_))
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

/// The operator's settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The most that relays and their traffic may cost in a day.
    pub budget_usd_per_day: Money,
    /// Share of the budget whose use raises an alarm.
    pub alarm_share: Option<f64>,
    /// The one who applies plans.
    pub mode: Mode,
}

impl Default for Settings {
    fn default() -> Self {
        Self { budget_usd_per_day: Money::ZERO, alarm_share: None, mode: Mode::Suggest }
    }
}

/// The one who applies plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The operator.
    Suggest,
    /// The controller.
    Auto,
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
}

/// A flow that the operator declared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// The basis of its seconds, in a line each: which legs were measured, when, and which were
    /// not.
    pub rests_on: Vec<String>,
    /// The measurements between its places.
    #[serde(default)]
    pub measurements: Vec<LegMeasurement>,
    /// The number of legs that were known when it was made.
    #[serde(default)]
    pub known_legs: usize,
}

/// The state of putting a plan into effect: make before break.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// The plan in effect before; `None`: none, all flows go direct.
    pub from: Option<u64>,
    /// The plan to put into effect.
    pub to: Option<u64>,
    /// The step that it is at.
    pub step: Step,
    /// Time when that began, in milliseconds since the Unix epoch.
    #[serde(default)]
    pub since_unix_ms: u64,
}

/// The steps of a rollout, in order. Each is entered only when all hosts that can be reached have
/// applied the one before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Relays of both plans run, and allow what either needs.
    Relays,
    /// Gateways take the new plan's paths.
    Gateways,
    /// Relays of the new plan alone run; others drain.
    #[default]
    Done,
}

/// A line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
