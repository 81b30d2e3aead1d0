//! The reason why a host is not as it should be.

use std::fmt;

use serde::Serialize;
use tradewind_controller::ClientError;

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Reason {
    /// `ssh` does not reach the host.
    Unreachable,
    /// Its host key is not known, or another one.
    HostKey,
    /// It takes none of the user's keys.
    KeyRefused,
    /// The user cannot become root.
    NoRights,
    /// Its disk is full.
    NoSpace,
    /// It is in a state from which this file leads nowhere.
    Unsuited,
    /// It does not take the package.
    PackageRefused,
    /// `tradewind doctor` misses something needed.
    DoctorFailed,
    /// The host does not reach the controller.
    ControllerUnreachable,
    /// The controller does not let it join.
    JoinRefused,
    /// The agent does not start or end.
    AgentNotStarted,
    /// The controller does not hear the agent, or the agent does not run what it should.
    AgentNotConnected,
    /// The controller does not answer here, or refuses.
    Controller,
    /// Another command failed.
    Failed,
}

impl Reason {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::HostKey => "host key not trusted",
            Self::KeyRefused => "key refused",
            Self::NoRights => "no rights",
            Self::NoSpace => "no space",
            Self::Unsuited => "not possible",
            Self::PackageRefused => "package refused",
            Self::DoctorFailed => "doctor failed",
            Self::ControllerUnreachable => "controller not reachable from there",
            Self::JoinRefused => "join refused",
            Self::AgentNotStarted => "agent not started",
            Self::AgentNotConnected => "agent not connected",
            Self::Controller => "controller",
            Self::Failed => "failed",
        }
    }
}

/// A failure: its kind, and one line about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) reason: Reason,
    pub(super) detail: String,
}

impl Failure {
    /// Creates one. Hosts' words may be anything: they become one short line.
    pub(super) fn new(reason: Reason, detail: impl AsRef<str>) -> Self {
        /// Most characters that are kept. Chosen: two lines of a terminal.
        const MAX: usize = 200;
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let detail = detail.as_ref().trim().chars().map(plain).take(MAX).collect();
        Self { reason, detail }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.as_str(), self.detail)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::new(Reason::Controller, error.to_string())
    }
}
