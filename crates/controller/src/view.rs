//! The bodies of the operators' API: what is asked, and what is answered.
//!
//! `GET /v1/openapi.json` tells which request has which.
//!
//! Errors have a 4xx or 5xx status and an [`ErrorAnswer`](tradewind_control::message::ErrorAnswer).

mod measurements;
mod packets;
mod tenants;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

pub use measurements::{History, ImportRequest, MeasurementColumns, Measurements};
pub use packets::{PacketFlowRequest, PacketFlowView, PacketFlows};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use tenants::{
    DayCost, TenantRequest, TenantView, Tenants, TokenAnswer, TokenRequest, UnassignedDay,
};
use tradewind_control::ceiling::Bounds;
use tradewind_control::demand::Demand;
use tradewind_control::explain::Explanation;
use tradewind_control::front::Point;
use tradewind_control::gain::{DaySpent, FlowGain, RelayGain, Spending};
use tradewind_control::imported::Billed;
use tradewind_control::jumpstart::{ArmsView, HostJumpstart};
use tradewind_control::learned::Learned;
use tradewind_control::message::{DocumentVersion, ProcessStatus, RefusedDocument};
use tradewind_control::prediction_error::PredictionError;
use tradewind_control::proxies::Proxies;
use tradewind_control::record::{
    AuditEntry, FlowRecord, HourUsage, JumpstartSettings, Mode, PathChange, PlanRecord, Role,
    ShownRate, Step,
};
use tradewind_control::relayed::Compared;
use tradewind_control::tenants::TenantId;
use tradewind_control::terms::Terms;
use tradewind_control::transfers::TransferQuantiles;
use tradewind_control::what_if::{Supposed, Worth};
pub use tradewind_control::{JumpstartRequest, SettingsRequest};
use tradewind_grant::{Destination, DestinationRule, PublicIdentity};
use tradewind_units::{Bytes, Duration, FlowId, HostId, Money, Ratio, SiteId, time};

use crate::changes::Kind;

/// The version of all answers: raised when a field changes its meaning or is removed.
pub const SCHEMA_VERSION: u32 = 1;

/// A host to invite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InviteRequest {
    /// Its role.
    pub role: Role,
    /// Time for which the invite lasts, in milliseconds: up to 31 days.
    #[schemars(range(min = 1, max = 2_678_400_000_u64))]
    pub ttl_ms: u64,
}

/// An invite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InviteAnswer {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Its name, by which the controller tells who has used it: no secret.
    #[serde(default)]
    pub id: String,
    /// Its text.
    pub invite: String,
}

/// An invite as it stands now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InviteView {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The role of the host that it is for.
    pub role: Role,
    /// Time after which it is refused, in milliseconds since the Unix epoch.
    pub expires_unix_ms: u64,
    /// The host that has joined by it; null if none has.
    pub host: Option<HostId>,
}

/// All hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hosts {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The hosts, by name.
    pub hosts: Vec<HostView>,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostView {
    /// Its name.
    pub id: HostId,
    /// Its role.
    #[serde(flatten)]
    pub role: Role,
    /// The address at which neighbours reach it.
    pub address: IpAddr,
    /// Its agent's identity.
    pub identity: PublicIdentity,
    /// Its state.
    pub state: HostState,
    /// Time of its last report since the controller started, in milliseconds since the Unix epoch.
    pub seen_unix_ms: Option<u64>,
    /// The document that it should run.
    pub document: Option<DocumentVersion>,
    /// The document that it runs.
    pub applied: Option<DocumentVersion>,
    /// The document that it refused.
    pub refused: Option<RefusedDocument>,
    /// Its processes.
    pub processes: Vec<ProcessStatus>,
    /// Their open sessions, if they say.
    pub sessions: Option<u64>,
    /// The newest rate that its connections to each neighbour have shown, beside what is measured.
    #[serde(default)]
    pub shown: Vec<ShownRate>,
    /// The bytes that its relay has carried today (UTC), by its own counts; absent if it told none.
    #[serde(default)]
    pub bytes_today: Option<u64>,
    /// The version of its program.
    pub agent_version: Option<String>,
    /// The rate and spend of its owner's ceiling, if there are any.
    pub bounds: Option<Bounds>,
}

/// The state of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HostState {
    /// Runs what it should.
    Well,
    /// Has not reported yet since the controller started, a moment ago.
    Awaited,
    /// Has not applied its newest document yet.
    Behind,
    /// Has refused its document.
    Refuses,
    /// Has a process that failed, or that does not run by its newest configuration.
    Failing,
    /// The controller does not hear its agent: the agent or the host is down, or the way between.
    /// Its relay or gateway may go on.
    Away,
    /// No plan uses it any more.
    Drained,
    /// It is no longer trusted.
    Revoked,
}

impl HostState {
    /// Returns the state as it is written in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Awaited => "awaited",
            Self::Behind => "behind",
            Self::Refuses => "refuses",
            Self::Failing => "failing",
            Self::Away => "away",
            Self::Drained => "drained",
            Self::Revoked => "revoked",
        }
    }
}

/// A flow to declare.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowRequest {
    /// The site whose gateway carries it.
    pub from: SiteId,
    /// Its destination.
    pub to: Destination,
    /// The site of that destination, for measurements; named after its host when absent.
    pub to_site: Option<SiteId>,
    /// The volume of a day.
    pub per_day: Bytes,
    /// Weight of its completion time; 1 when absent.
    #[schemars(range(min = 1))]
    pub weight: Option<u32>,
    /// The address at which its gateway accepts it; a free port on loopback when absent.
    pub listen: Option<SocketAddr>,
}

/// The proxies that a site's gateways should offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProxiesRequest {
    /// The address that accepts SOCKS5, on loopback; none when absent.
    pub socks5: Option<SocketAddr>,
    /// The address that accepts HTTP proxy requests, on loopback; none when absent.
    pub connect: Option<SocketAddr>,
    /// The destinations that sessions may go to; all public addresses and names when empty, or with
    /// a rule of all addresses and ports.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub destinations: Vec<DestinationRule>,
    /// The volume of a day from which on the controller makes a learned destination a flow; the
    /// operator alone does when absent.
    pub adopt_above: Option<Bytes>,
}

/// A learned destination to make a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdoptRequest {
    /// The volume of a day; its mean so far when absent.
    pub per_day: Option<Bytes>,
    /// Weight of its completion time; 1 when absent.
    #[schemars(range(min = 1))]
    pub weight: Option<u32>,
}

/// The destinations that gateways have learned, and the proxies that they learn from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LearnedView {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The proxies, by site.
    pub proxies: Vec<Proxies>,
    /// The destinations that no flow has, those with the most bytes a day first.
    pub learned: Vec<Learned>,
}

/// All flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Flows {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The flows, by name.
    pub flows: Vec<FlowView>,
}

/// A flow and its path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowView {
    /// The flow as it was declared.
    #[serde(flatten)]
    pub flow: FlowRecord,
    /// The volume that it is expected to carry in a day: as declared, or as forecast.
    pub demand: Demand,
    /// The hosts of its path now; empty: direct.
    pub path: Vec<HostId>,
    /// Those of them that are away, failing or revoked: they may carry nothing.
    #[serde(default)]
    pub unwell: Vec<HostId>,
    /// Seconds that a day's volume takes on that path, and directly; absent without a plan.
    pub seconds: Option<f64>,
    /// The same on the direct path.
    pub seconds_direct: Option<f64>,
    /// The cost of a day's traffic on that path, as planned; absent where no plan has the flow.
    pub usd_per_day: Option<Money>,
    /// The reason of that path, in one line.
    pub why: String,
    /// The tenant whose flow it is, if it is one's.
    #[serde(default)]
    pub tenant: Option<TenantId>,
    /// True while it goes direct as the budget of its tenant is zero or spent.
    #[serde(default)]
    pub is_stopped: bool,
    /// Time from which on it was in effect, in milliseconds since the Unix epoch; absent where that
    /// is not known.
    pub since_unix_ms: Option<u64>,
}

/// The usage of a flow in the last month.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The flow.
    pub flow: FlowId,
    /// The hours in which sessions ended, oldest first.
    pub hours: Vec<HourUsage>,
}

/// The settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SettingsView {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The most that a day may cost, in dollars.
    pub budget_usd_per_day: Money,
    /// Share of it that raises an alarm.
    pub alarm_share: Option<f64>,
    /// The one who applies plans.
    pub mode: Mode,
    /// Share of sessions over relays that go direct instead, by lot, to measure the gain.
    pub control_share: Ratio,
    /// Jump-start of the hosts.
    pub jumpstart: JumpstartSettings,
    /// Prices and relay types of the operator's own.
    #[serde(default)]
    pub terms: Terms,
    /// Share of the budget that rate tests may use; absent in answers of older controllers.
    #[serde(default)]
    pub tests_share: Option<Ratio>,
    /// Time that machines of relays take to set up, which a new plan waits for.
    #[serde(default, with = "time::as_text")]
    #[schemars(with = "time::Written")]
    pub relay_setup: Duration,
}

/// Jump-start of the hosts, and what it gains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Jumpstart {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The number of days that connections are compared over, today included.
    pub days: u64,
    /// The settings.
    pub settings: JumpstartSettings,
    /// The hosts that the settings cover, and others that have learned.
    pub hosts: Vec<HostJumpstart>,
    /// The comparison of both arms over all hosts.
    pub arms: ArmsView,
    /// The completion times of hourly transfers over those days, of which a week is kept.
    #[serde(default)]
    pub transfers: Vec<TransferQuantiles>,
}

/// A plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanView {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// True if it is in effect, or on its way there.
    pub is_applied: bool,
    /// The price of a day of each of its relays' machines, by host.
    #[serde(default)]
    pub machines_usd_per_day: BTreeMap<HostId, Money>,
    /// The plan.
    #[serde(flatten)]
    pub record: PlanRecord,
}

/// The plans of several budgets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Front {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Time when they were computed, in milliseconds since the Unix epoch.
    pub made_unix_ms: u64,
    /// The budget then.
    pub budget_usd_per_day: Money,
    /// The paths in effect then.
    pub present: Worth,
    /// The plans, the least budget first; with the last one nothing more pays.
    pub points: Vec<Point>,
}

/// The plan under changes that are supposed, beside what is in effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SupposedView {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Both, and how they differ.
    #[serde(flatten)]
    pub supposed: Supposed,
}

/// The state of everything, on one screen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The controller's identity.
    pub identity: PublicIdentity,
    /// Problems, and what to do about each; empty: all is well.
    pub problems: Vec<StatusProblem>,
    /// Hosts that are well, and all that should be.
    pub hosts_well: usize,
    /// Hosts that are neither drained nor revoked.
    pub hosts: usize,
    /// Declared flows.
    pub flows: usize,
    /// Flows whose path in effect has relays.
    pub flows_over_relays: usize,
    /// The settings.
    pub settings: SettingsView,
    /// The plan in effect; without one all flows go direct.
    pub plan: Option<u64>,
    /// The plan that is to be in effect when the rollout is done.
    pub rollout_to: Option<u64>,
    /// Its cost of a day, in dollars.
    pub usd_per_day: Money,
    /// The step of its rollout.
    pub step: Step,
    /// Time when that step began, in milliseconds since the Unix epoch.
    #[serde(default)]
    pub step_since_unix_ms: u64,
    /// The relays that it waits for.
    #[serde(default)]
    pub awaited: Vec<HostId>,
    /// The newest plan.
    pub newest_plan: Option<u64>,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatusProblem {
    /// The problem, in one line.
    pub what: String,
    /// The remedy, in one line.
    pub remedy: String,
}

/// The gain of the overlay, and its cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Gain {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The number of days, today included.
    pub days: u64,
    /// Share of sessions over relays that go direct instead, by lot, to measure the gain.
    pub control_share: Ratio,
    /// The gain of each flow in each day, oldest first.
    pub flows: Vec<FlowGain>,
    /// The error of predictions before today; none until nine flows and days were compared.
    pub prediction_error: Option<PredictionError>,
    /// The sessions that each flow has open now, of flows that have some.
    #[serde(default)]
    pub open_sessions: BTreeMap<FlowId, u64>,
    /// The use of each relay in each day, oldest first.
    pub relays: Vec<RelayGain>,
    /// The counts of relays themselves of each flow and day, beside what gateways told, oldest
    /// first.
    #[serde(default)]
    pub relayed: Vec<Compared>,
    /// The cost of each day, oldest first.
    #[serde(default)]
    pub spent: Vec<DaySpent>,
    /// The bills that were imported, by day and host, oldest first.
    #[serde(default)]
    pub billed: Vec<Billed>,
    /// The money of today.
    pub spending: Spending,
}

/// The gain of one flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GainOfFlow {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The flow.
    pub flow: FlowId,
    /// The number of days, today included.
    pub days: u64,
    /// Share of sessions over relays that go direct instead, by lot, to measure the gain.
    pub control_share: Ratio,
    /// Its gain in each day, oldest first.
    pub gain: Vec<FlowGain>,
    /// The error of predictions before today of all flows that the token sees; none until nine
    /// flows and days were compared.
    pub prediction_error: Option<PredictionError>,
    /// The sessions that it has open now, if a gateway of its site says.
    #[serde(default)]
    pub open_sessions: Option<u64>,
    /// The counts of relays themselves in each day, beside what gateways told, oldest first.
    pub relayed: Vec<Compared>,
}

/// The paths that a flow had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathsOfFlow {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The flow.
    pub flow: FlowId,
    /// The newest of its changes of path, oldest first; none while it has always gone direct.
    pub changes: Vec<PathChange>,
}

/// The explanation of a flow's path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explained {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The explanation.
    #[serde(flatten)]
    pub explanation: Explanation,
}

/// A change of what the API tells: the data of an event `change` of `/v1/events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The number of the newest change since the controller started.
    pub version: u64,
    /// The kinds that have changed since the event before; the first event names all.
    pub kinds: Vec<Kind>,
}

/// Bills to take in: all of them or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BillRequest {
    /// The entries, 1 to [`MAX_BILLED`](tradewind_control::billed::MAX_BILLED). Those of one day
    /// and host are added up, and replace what was imported for them before.
    pub billed: Vec<Billed>,
}

/// The places of sites and regions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Places {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Those of hosts and flows, by name; where one is not known, it is absent.
    pub places: Vec<SiteLocation>,
}

/// The place of a site or region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SiteLocation {
    /// The site; a region as a site.
    pub site: SiteId,
    /// Its city.
    pub label: String,
    /// Degrees north.
    pub latitude: f64,
    /// Degrees east.
    pub longitude: f64,
    /// True if it is a guess: a site that has the name of a region's city.
    pub is_guess: bool,
}

/// The rights of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AccessView {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// False if it only reads.
    pub may_write: bool,
    /// The tenant whose flows alone it sees.
    #[serde(default)]
    pub tenant: Option<TenantId>,
}

/// The newest entries of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Audit {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The entries, newest first.
    pub entries: Vec<AuditEntry>,
}
