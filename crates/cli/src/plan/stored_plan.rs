//! Plans written by `tradewind plan --out`, with their problems.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use tradewind_plan::{Answer, PacketPlan, Plan, Problem, verify};

use super::problem::Read;
use crate::output::BadFile;
use crate::output::{self, read_text};

/// A plan from a file that passed the verifier.
pub(crate) struct StoredPlan {
    pub(crate) read: Read,
    pub(crate) problem: Problem,
    pub(crate) plan: Plan,
    /// Its packet flows.
    pub(crate) packets: Option<PacketPlan>,
}

impl StoredPlan {
    /// Reads `file`; the problem is that of `instead`, if given, else the one in the file.
    pub(crate) fn read(file: &Path, instead: Option<&Path>) -> anyhow::Result<Self> {
        let name = file.display().to_string();
        let text = read_text(file).map_err(|error| BadFile(output::one_line(&error)))?;
        let answer: Answer =
            serde_json::from_str(&text).map_err(|error| not_a_plan(&name, &error))?;
        let read = match (instead, &answer.problem) {
            (Some(file), _) => Read::from_file(file, Some(answer.budget))?,
            (None, Some(asked)) => Read::from_asked(asked, Some(answer.budget))?,
            (None, None) => {
                let problem = "it holds no problem: name the file by `--problem`";
                return Err(BadFile(format!("{name}: {problem}")).into());
            }
        };
        let Some(plan) = answer.plan() else {
            bail!("{name}: there is no plan in it: {}", answer.reason.unwrap_or_default());
        };
        let problem =
            read.problem()?.map_err(|reason| anyhow!(reason)).with_context(|| name.clone())?;
        if let Some(first) = verify(&problem, &plan).first() {
            return Err(not_for(&name, &read, first));
        }
        let packets = answer.packets;
        if let Some(packets) = &packets
            && let Some(first) = read.file.packets.verify(problem.inputs(), &plan, packets).first()
        {
            return Err(not_for(&name, &read, first));
        }
        Ok(Self { read, problem, plan, packets })
    }
}

fn not_a_plan(name: &str, error: &serde_json::Error) -> BadFile {
    BadFile(format!("{name}: expected a plan that `tradewind plan --out` wrote: {error}"))
}

/// Refuses a plan that does not answer the problem.
fn not_for(name: &str, read: &Read, violation: &impl std::fmt::Display) -> anyhow::Error {
    BadFile(format!("{name}: it is no plan for {}: {violation}", read.asked.file)).into()
}
