//! The printed form of packet flows: their services and relays, and the reasons `[JQ 3.3]`.

use tradewind_model::packet::PacketService;
use tradewind_plan::Answer;
use tradewind_plan::packets::{ConsideredService, PacketVerdict, PlannedPacketFlow};
use tradewind_units::{Duration, Money, RelayId, time};

use crate::output::{self, table};

/// Prints services, relays and costs of the packet flows, if there are some.
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
    let all = answer.joint_cost().unwrap_or_default();
    output::line(format_args!(
        "packet flows cost ${}, streams and packet flows together ${}",
        dollars(packets.cost),
        dollars(all)
    ))
}

/// Prints the reasons for a packet flow's service: the result of each service.
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
        "  pays ${}: first relay ${}, last relay ${}, machines ${}, storage ${}, \
         uplink ${}, source's cloud ${}",
        dollars(flow.cost),
        dollars(costs.ingress_relay),
        dollars(costs.egress_relay),
        dollars(costs.compute),
        dollars(costs.storage),
        dollars(costs.uplink),
        dollars(costs.source)
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

/// Returns the reasons against cheaper services.
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
        PacketVerdict::Selected => "selected",
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

/// Formats dollars with four decimals: packet flows cost cents.
pub(super) fn dollars(amount: Money) -> String {
    format!("{:.4}", amount.as_usd())
}
