//! The state of putting a plan into effect.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::GivenUp;

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
    /// Milliseconds of the step that the controller has watched, and of each retirement, are noted
    /// as of this time, in milliseconds since the Unix epoch: a restart begins no wait anew.
    #[serde(default)]
    pub noted_unix_ms: u64,
    /// Milliseconds for which the controller has watched the step by then.
    #[serde(default)]
    pub waited_ms: u64,
    /// Plans whose sessions may still be open, the newest last.
    #[serde(default)]
    pub retiring: Vec<RetiringPlan>,
    /// Hosts whose relays were waited for in vain.
    #[serde(default)]
    pub given_up: Vec<GivenUp>,
    /// The plan from which the operator went back while it was put into effect: the controller does
    /// not apply it by itself.
    #[serde(default)]
    pub set_aside: Option<u64>,
}

/// A plan that gateways do not follow any more, and whose relays go on for the sessions that began
/// before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetiringPlan {
    /// Its number.
    pub plan: u64,
    /// Time when its relays end, in milliseconds since the Unix epoch.
    pub until_unix_ms: u64,
    /// Milliseconds for which the controller has watched it retire by
    /// [`Rollout::noted_unix_ms`].
    #[serde(default)]
    pub waited_ms: u64,
}

/// The steps of a rollout, in order. Each is entered only when all hosts that can be reached have
/// applied the one before.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Relays of both plans run, and allow what either needs.
    Relays,
    /// Gateways take the new plan's paths.
    Gateways,
    /// Relays of the plan run, and those of retiring ones.
    #[default]
    Done,
}
