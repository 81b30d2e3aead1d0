//! Streams and packet flows within one budget `[JQ 3.3]`, for every planning command.
//!
//! The highest possible cost of the packet flows, on machines that they pay for themselves, is
//! reserved from the budget before the streams are planned; then the packet flows are planned over
//! the relays that the streams pay for, and others. So both stay within the budget, for every
//! algorithm.

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
    /// The reservation; `None` where there are no packet flows.
    reserve: Option<Reserve>,
}

/// Builds the problem of the streams, with the packet flows beside it, or returns the reason why
/// there is no plan for any algorithm and budget.
pub(super) fn problem(read: &Read) -> Result<Result<(Problem, Joint<'_>), String>, BadFile> {
    let problem = match read.problem()? {
        Ok(problem) => problem,
        Err(reason) => return Ok(Err(reason)),
    };
    Ok(Joint::new(read)?.map(|joint| (problem, joint)))
}

impl<'a> Joint<'a> {
    /// Computes the reservation of the packet flows, or returns which of them no service can carry.
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

    /// Returns the reservation of the packet flows, if there are some.
    pub(super) fn reserve(&self) -> Option<Money> {
        self.reserve.map(Reserve::cost)
    }

    /// Returns the streams' part of a budget after the reservation; all of it where there are no
    /// packet flows, or no budget.
    pub(super) fn left_of(&self, budget: Money) -> Result<Money, PacketError> {
        match self.reserve {
            Some(reserve) if budget.as_usd() < NO_BUDGET_USD => reserve.left_of(budget),
            _ => Ok(budget),
        }
    }

    /// Creates the answer that no plan for such a budget is known: relays paid for by streams might
    /// save packet flows money.
    pub(super) fn unaffordable(
        &self,
        algorithm: &str,
        budget: Money,
        error: &PacketError,
    ) -> Answer {
        let objective = self.read.file.inputs.objective;
        Answer::without_plan(objective, budget, Status::Limited, algorithm, error.to_string())
    }

    /// Returns the streams' answer with the packet flows planned over its relays, and verified.
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

/// The costs of packet flows over the relays of a streams' plan, for comparisons.
#[derive(Serialize)]
pub(super) struct JointCost {
    packets_cost_usd: Money,
    /// The cost of streams and packet flows together.
    pub(super) joint_cost_usd: Money,
    /// Number of relays that packet flows use and streams do not.
    packet_relays: usize,
}

impl JointCost {
    pub(super) const HEADINGS: [&str; 3] = ["packets $", "together $", "packet relays"];

    /// Returns the costs; `None` where there are no packet flows, or no plan.
    pub(super) fn of(answer: &Answer) -> Option<Self> {
        let packets = answer.packets.as_ref()?;
        Some(Self {
            packets_cost_usd: packets.cost,
            joint_cost_usd: answer.joint_cost()?,
            packet_relays: packets.relays.len(),
        })
    }

    /// Returns the cells of its row.
    pub(super) fn cells(joint: Option<&Self>) -> [String; 3] {
        [
            optional(joint.map(|joint| dollars(joint.packets_cost_usd))),
            optional(joint.map(|joint| dollars(joint.joint_cost_usd))),
            optional(joint.map(|joint| joint.packet_relays.to_string())),
        ]
    }
}

/// Returns the packet flows, if there are some.
fn packets(read: &Read) -> Option<&Packets> {
    Some(&read.file.packets).filter(|packets| !packets.flows.is_empty())
}

fn refused(read: &Read, error: &PacketError) -> BadFile {
    BadFile(format!("{}: {error}", read.asked.file))
}
