//! The answer of `tradewind deploy`: a line for each host.

use serde::Serialize;
use tradewind_config::HostConfig;
use tradewind_units::HostId;

use super::failure::{Failure, Reason};
use super::steps::Observed;
use crate::output::{self, table as tables};

/// The outcome of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    /// It was as it should be.
    Unchanged,
    /// It is now.
    Done,
    /// It would be changed.
    WouldChange,
    /// Another upgrade has failed before.
    NotTried,
    /// It is not, and is as it was.
    Failed,
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Done => "done",
            Self::WouldChange => "would change",
            Self::NotTried => "not tried",
            Self::Failed => "failed",
        }
    }
}

/// The answer about a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct HostAnswer {
    /// Its name in the file of hosts.
    pub(super) host: String,
    pub(super) outcome: Outcome,
    /// Its name at the controller.
    pub(super) joined: Option<HostId>,
    /// The version that was found there.
    pub(super) found: Option<String>,
    /// The steps that were to be done.
    pub(super) steps: Vec<&'static str>,
    /// The kind of failure.
    pub(super) reason: Option<Reason>,
    pub(super) problem: Option<String>,
    /// The words of doctor.
    pub(super) doctor: Option<String>,
}

impl HostAnswer {
    pub(super) fn new(host: &HostConfig, observed: Option<&Observed>) -> Self {
        Self {
            host: host.name.clone(),
            outcome: Outcome::Unchanged,
            joined: observed.and_then(|it| it.joined.clone()),
            found: observed.and_then(|it| it.package.clone().or_else(|| it.program.clone())),
            steps: Vec::new(),
            reason: None,
            problem: None,
            doctor: None,
        }
    }

    pub(super) fn failed(self, failure: &Failure) -> Self {
        let (reason, problem) = (Some(failure.reason), Some(failure.to_string()));
        Self { outcome: Outcome::Failed, reason, problem, ..self }
    }
}

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Answer {
    /// 1.
    schema_version: u32,
    hosts: Vec<HostAnswer>,
}

impl Answer {
    pub(super) const fn new(hosts: Vec<HostAnswer>) -> Self {
        Self { schema_version: 1, hosts }
    }

    /// Returns whether a host is not as it should be.
    pub(super) fn has_failures(&self) -> bool {
        let failed = [Outcome::Failed, Outcome::NotTried];
        self.hosts.iter().any(|host| failed.contains(&host.outcome))
    }
}

/// Prints it for people.
pub(super) fn table(answer: &Answer) -> anyhow::Result<()> {
    let row = |host: &HostAnswer| {
        vec![
            host.host.clone(),
            host.outcome.as_str().to_owned(),
            host.joined.as_ref().map(ToString::to_string).unwrap_or_default(),
            host.found.clone().unwrap_or_default(),
            host.problem.clone().unwrap_or_else(|| host.steps.join(", ")),
        ]
    };
    let rows: Vec<Vec<String>> = answer.hosts.iter().map(row).collect();
    tables::print(&["host", "outcome", "joined as", "found", "steps, or why"], &rows, usize::MAX)?;
    if answer.hosts.iter().all(|host| host.outcome == Outcome::Unchanged) {
        output::note("nothing to do: all hosts are as they should be");
    }
    Ok(())
}
