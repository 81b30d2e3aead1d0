//! Streams and packet flows within one budget `[JQ 3.3]`, for every command that plans.
//!
//! What packet flows cost at most, on machines that nobody has paid, is taken off the budget before the streams are planned; then they
//! are planned over the relays that the streams buy, and others. So both stay within the budget, whoever plans the streams.

use serde::Serialize;
use tradewind_plan::packets::{PacketError, Reserve};
use tradewind_plan::{Answer, Packets, Problem, Status};
use tradewind_units::Money;

use super::packets::dollars;
use super::problem::Read;
use super::show::{NO_BUDGET_USD, optional};
use crate::output::BadFile;

/// The packet flows of a problem beside its streams.
pub(super) struct Joint<'a> {
    read: &'a Read,
    /// None where there are no packet flows.
    reserve: Option<Reserve>,
}

/// The problem of the streams and the packet flows beside it, or why there is no plan, whatever the algorithm and the budget.
pub(super) fn problem(read: &Read) -> Result<Result<(Problem, Joint<'_>), String>, BadFile> {
    let problem = match read.problem()? {
        Ok(problem) => problem,
        Err(reason) => return Ok(Err(reason)),
    };
    Ok(Joint::new(read)?.map(|joint| (problem, joint)))
}

impl<'a> Joint<'a> {
    /// Works out what packet flows cost at most, or says which of them no service carries.
    pub(super) fn new(read: &'a Read) -> Result<Result<Self, String>, BadFile> {
        if packets(read).is_none() {
            return Ok(Ok(Self { read, reserve: None }));
        }
        match read.file.packets.reserve(&read.file.inputs) {
            Ok(reserve) => Ok(Ok(Self { read, reserve: Some(reserve) })),
            Err(error) if error.is_without_plan() => Ok(Err(error.to_string())),
            Err(error) => Err(refused(read, &error)),
        }
    }

    /// What packet flows cost at most, if there are some.
    pub(super) fn reserve(&self) -> Option<Money> {
        self.reserve.map(Reserve::cost)
    }

    /// What packet flows leave the streams of a budget; all of it where there are none, or where the budget is none.
    pub(super) fn left_of(&self, budget: Money) -> Result<Money, PacketError> {
        match self.reserve {
            Some(reserve) if budget.as_usd() < NO_BUDGET_USD => reserve.left_of(budget),
            _ => Ok(budget),
        }
    }

    /// That there is no plan for such a budget as far as is known: relays that streams buy may save packet flows money.
    pub(super) fn unaffordable(
        &self,
        algorithm: &str,
        budget: Money,
        error: &PacketError,
    ) -> Answer {
        let objective = self.read.file.inputs.objective;
        Answer::without_plan(objective, budget, Status::Limited, algorithm, error.to_string())
    }

    /// The streams' answer with the packet flows planned over its relays, and verified.
    pub(super) fn with_packets(&self, problem: &Problem, answer: Answer) -> anyhow::Result<Answer> {
        let Some((packets, plan)) = packets(self.read).zip(answer.plan()) else {
            return Ok(answer);
        };
        let planned = packets
            .plan(problem.inputs(), Some(&plan))
            .map_err(|error| refused(self.read, &error))?;
        if let Some(first) = packets.verify(problem.inputs(), &plan, &planned).first() {
            anyhow::bail!("the plan of packet flows is wrong, which is a bug of ours: {first}");
        }
        Ok(Answer { packets: Some(planned), ..answer })
    }
}

/// What packet flows come to over the relays of a plan of the streams, in comparisons.
#[derive(Serialize)]
pub(super) struct JointCost {
    packets_cost_usd: Money,
    /// Of streams and packet flows together.
    pub(super) joint_cost_usd: Money,
    /// Relays that packet flows take and streams do not.
    packet_relays: usize,
}

impl JointCost {
    pub(super) const HEADINGS: [&str; 3] = ["packets $", "together $", "packet relays"];

    /// None where there are no packet flows, or no plan.
    pub(super) fn of(answer: &Answer) -> Option<Self> {
        let packets = answer.packets.as_ref()?;
        Some(Self {
            packets_cost_usd: packets.cost,
            joint_cost_usd: answer.joint_cost()?,
            packet_relays: packets.relays.len(),
        })
    }

    /// Its row under the headings.
    pub(super) fn cells(joint: Option<&Self>) -> [String; 3] {
        [
            optional(joint.map(|joint| dollars(joint.packets_cost_usd))),
            optional(joint.map(|joint| dollars(joint.joint_cost_usd))),
            optional(joint.map(|joint| joint.packet_relays.to_string())),
        ]
    }
}

/// The packet flows, if there are some.
fn packets(read: &Read) -> Option<&Packets> {
    Some(&read.file.packets).filter(|packets| !packets.flows.is_empty())
}

fn refused(read: &Read, error: &PacketError) -> BadFile {
    BadFile(format!("{}: {error}", read.asked.file))
}
