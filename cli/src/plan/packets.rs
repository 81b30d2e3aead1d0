//! Packet flows beside streams: planned within one budget, shown, and explained `[JQ 3.3]`.

use tradewind_model::packet::PacketService;
use tradewind_plan::packets::{ConsideredService, PacketError, PacketVerdict, PlannedPacketFlow};
use tradewind_plan::{Answer, Problem, Status};
use tradewind_units::{Duration, Money, RelayId, time};

use super::problem::{BadFile, Read};
use super::show::NO_BUDGET_USD;
use crate::output::{self, table};

/// The streams' answer by `solve`, and that of the packet flows over its relays.
///
/// Both fit in the budget: what packet flows cost at most, on machines that nobody has paid, is taken off before the streams are planned.
pub(super) fn joint(
    read: &Read,
    problem: Problem,
    algorithm: &str,
    solve: impl FnOnce(&Problem) -> anyhow::Result<Answer>,
) -> anyhow::Result<Answer> {
    let packets = &read.file.packets;
    if packets.flows.is_empty() {
        return solve(&problem);
    }
    let refused = |error: PacketError| BadFile(format!("{}: {error}", read.asked.file));
    let budget = problem.budget();
    let reserved = match packets.reserve(problem.inputs(), budget) {
        Ok(reserved) => reserved,
        Err(error) if error.is_without_plan() => {
            return Ok(without_plan(read, algorithm, &error));
        }
        Err(error) => return Err(refused(error).into()),
    };
    // Where there is no budget nothing is taken off it.
    let problem = match budget.checked_sub(reserved) {
        Some(left) if budget.as_usd() < NO_BUDGET_USD => problem.with_budget(left),
        _ => problem,
    };
    let mut answer = solve(&problem)?;
    if let Some(plan) = answer.plan() {
        let planned = packets.plan(problem.inputs(), Some(&plan)).map_err(refused)?;
        if let Some(first) = packets.verify(problem.inputs(), &plan, &planned).first() {
            anyhow::bail!("the plan of packet flows is wrong, which is a bug of ours: {first}");
        }
        answer.packets = Some(planned);
    }
    Ok(answer)
}

/// Relays of streams may save packet flows money: that all is too dear is not proven.
fn without_plan(read: &Read, algorithm: &str, error: &PacketError) -> Answer {
    let answer = read.infeasible(algorithm, error.to_string());
    match error {
        PacketError::OverBudget { .. } => Answer { status: Status::Limited, ..answer },
        _ => answer,
    }
}

/// Services, relays and costs of the packet flows, if there are some.
pub(super) fn show(answer: &Answer) -> anyhow::Result<()> {
    let Some(packets) = &answer.packets else { return Ok(()) };
    let row = |flow: &PlannedPacketFlow| {
        vec![
            flow.id.to_string(),
            flow.service.to_string(),
            path(&flow.path),
            millis(flow.delivery),
            millis(flow.budget),
            dollars(flow.cost),
            why(flow),
        ]
    };
    let rows: Vec<_> = packets.flows.iter().map(row).collect();
    let heading = ["packet flow", "service", "path", "delivery ms", "budget ms", "cost $", "why"];
    table::print(&heading, &rows, 3)?;
    let names = |runs: bool| {
        let relays = packets.relays.iter().filter(move |relay| relay.runs == runs);
        relays.map(|relay| relay.id.as_str()).collect::<Vec<_>>().join(", ")
    };
    let (new, running) = (names(false), names(true));
    if !new.is_empty() {
        output::line(format_args!("relays for packet flows alone: {new}"))?;
    }
    if !running.is_empty() {
        output::line(format_args!("relays that run and packet flows take: {running}"))?;
    }
    let all = answer.cost.unwrap_or_default() + packets.cost;
    output::line(format_args!(
        "packet flows cost ${}, streams and packet flows together ${}",
        dollars(packets.cost),
        dollars(all)
    ))
}

/// Why a packet flow is carried as it is: what came of each service.
pub(crate) fn explain(flow: &PlannedPacketFlow) -> anyhow::Result<()> {
    output::line(format_args!(
        "packet flow {}: {} ({}), {} ms of {} ms",
        flow.id,
        flow.service,
        path(&flow.path),
        millis(flow.delivery),
        millis(flow.budget)
    ))?;
    output::line(format_args!(
        "  {}; {:.3} % of its packets are expected to be lost on the Internet",
        why(flow),
        flow.internet_loss.as_f64() * 100.0
    ))?;
    let costs = flow.costs;
    output::line(format_args!(
        "  pays ${}: first relay ${}, last relay ${}, machines ${}, storage ${}, uplink ${}",
        dollars(flow.cost),
        dollars(costs.ingress_relay),
        dollars(costs.egress_relay),
        dollars(costs.compute),
        dollars(costs.storage),
        dollars(costs.uplink)
    ))?;
    let row = |one: &ConsideredService| {
        let regions: Vec<&str> = one.regions.iter().map(|region| region.as_str()).collect();
        let over = if regions.is_empty() { "the Internet".into() } else { regions.join(" > ") };
        let verdict = verdict(one.verdict).to_owned();
        vec![one.service.to_string(), over, verdict, millis(one.delivery), dollars(one.cost)]
    };
    let rows: Vec<_> = flow.services.iter().map(row).collect();
    table::print(&["service", "over", "why not", "delivery ms", "cost $"], &rows, 3)
}

/// What speaks against the services that cost less.
fn why(flow: &PlannedPacketFlow) -> String {
    let against = |verdict: PacketVerdict, word: &str| {
        let such = flow.services.iter().filter(|one| one.verdict == verdict);
        let names: Vec<String> = such.map(|one| one.service.to_string()).collect();
        (!names.is_empty()).then(|| format!("{} {word}", names.join(", ")))
    };
    let direct = flow.service == PacketService::Direct;
    let first = if direct { "the Internet will do" } else { "the cheapest in its budget" };
    let others =
        [against(PacketVerdict::Lossy, "loses too much"), against(PacketVerdict::Late, "too late")];
    let parts: Vec<String> =
        std::iter::once(first.to_owned()).chain(others.into_iter().flatten()).collect();
    parts.join("; ")
}

fn verdict(verdict: PacketVerdict) -> &'static str {
    match verdict {
        PacketVerdict::Taken => "taken",
        PacketVerdict::Dearer => "costs more",
        PacketVerdict::Late => "too late",
        PacketVerdict::Lossy => "loses too much",
    }
}

fn path(relays: &[RelayId]) -> String {
    let names: Vec<&str> = relays.iter().map(RelayId::as_str).collect();
    if names.is_empty() { "direct".to_owned() } else { names.join(" > ") }
}

fn millis(span: Duration) -> String {
    format!("{:.1}", time::as_millis_f64(span))
}

/// Packet flows cost cents, of which two digits would show little.
fn dollars(amount: Money) -> String {
    format!("{:.4}", amount.as_usd())
}
