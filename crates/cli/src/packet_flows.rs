//! `tradewind packets` and `tradewind flow add-packets`: the packet flows that an overlay carries.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::ValueEnum;
use tradewind_controller::view::{PacketFlowRequest, PacketFlowView, PacketFlows};
use tradewind_desired::packets::Chooser;
use tradewind_units::{
    Bytes, Duration, FlowId, HostId, Ratio, SiteId, UnitError, address, time::parse_duration,
};

use crate::controller::access::{ControllerArgs, OutputArgs, TableArgs};
use crate::flow::TenantArgs;
use crate::output::{self, Outcome, table};

#[derive(clap::Args)]
pub(crate) struct AddPacketsArgs {
    /// Its name
    name: FlowId,
    /// The site whose gateway sends it
    #[arg(long, value_name = "SITE")]
    from: SiteId,
    /// The address that the receiving gateway delivers to; its host's ceiling must allow it
    #[arg(long, value_name = "ADDR:PORT", value_parser = address::parse)]
    to: SocketAddr,
    /// The site whose gateway receives it
    #[arg(long, value_name = "SITE")]
    to_site: SiteId,
    /// Packets a second
    #[arg(long, value_name = "NUMBER")]
    packets_per_second: f64,
    /// Size of a packet, such as `200B`
    #[arg(long, value_name = "SIZE")]
    packet: Bytes,
    /// Latency budget, such as `150ms`; at most 65 s
    #[arg(long, value_name = "SPAN", value_parser = span)]
    budget: Duration,
    /// Share of packets that may be late or lost; 0.001 if absent
    #[arg(long, value_name = "SHARE")]
    max_loss: Option<Ratio>,
    /// Address at which the gateway accepts it; a free port on loopback if absent
    #[arg(long, value_name = "ADDR:PORT", value_parser = address::parse)]
    listen: Option<SocketAddr>,
    /// The selection of its service while it runs
    #[arg(long, value_enum, default_value = "auto")]
    service: Service,
    #[command(flatten)]
    tenant: TenantArgs,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The selection of a packet flow's service.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Service {
    /// The gateway, from its measurements and its receiver's reports
    Auto,
    /// The plan
    Planned,
}

fn span(text: &str) -> Result<Duration, UnitError> {
    parse_duration(text)
}

#[derive(clap::Args)]
pub(crate) struct PacketsArgs {
    /// Number of days to tell of, today included
    #[arg(long, value_name = "NUMBER", default_value = "1",
        value_parser = clap::value_parser!(u64).range(1..=31))]
    days: u64,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

/// The columns of packet flows as CSV.
const COLUMNS: [&str; 22] = [
    "id",
    "from",
    "to",
    "to_site",
    "listen",
    "packets_per_second",
    "packet",
    "budget",
    "max_loss",
    "service_now",
    "path",
    "counts.packets",
    "counts.expected",
    "counts.in_time",
    "counts.lost_by_internet",
    "counts.recovered_cache",
    "counts.recovered_in_stream",
    "counts.recovered_cross_stream",
    "counts.late",
    "counts.lost",
    "counts.relay_bytes",
    "counts.usd",
];

pub(crate) fn add(args: AddPacketsArgs) -> Outcome {
    let request = PacketFlowRequest {
        from: args.from,
        to: args.to,
        to_site: args.to_site,
        packets_per_second: args.packets_per_second,
        packet: args.packet,
        budget: args.budget,
        max_loss: args.max_loss,
        listen: args.listen,
        service: Some(match args.service {
            Service::Auto => Chooser::Auto,
            Service::Planned => Chooser::Planned,
        }),
    };
    let path = args.tenant.path(&format!("/v1/packets/{}", args.name));
    let flow: PacketFlowView = args.controller.client()?.put(&path, &request)?;
    args.output.print(&flow, |PacketFlowView { flow, .. }| {
        output::line(format_args!(
            "packet flow {}: applications at {} send to {}, and {} delivers to {}",
            flow.id, flow.from, flow.listen, flow.to_site, flow.to
        ))
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn list(args: &PacketsArgs) -> Outcome {
    let path = format!("/v1/packets?days={}", args.days);
    let flows: PacketFlows = args.controller.client()?.get(&path)?;
    args.output.print(&flows, &COLUMNS, &flows.flows, show)?;
    Ok(ExitCode::SUCCESS)
}

fn show(flows: &PacketFlows) -> anyhow::Result<()> {
    if flows.flows.is_empty() {
        return output::line("no packet flows: `tradewind flow add-packets` declares one");
    }
    let row = |view: &PacketFlowView| {
        let PacketFlowView { flow, path, service_now, counts, recovered, .. } = view;
        let hops: Vec<&str> = path.iter().map(HostId::as_str).collect();
        let path = if hops.is_empty() { "Internet".to_owned() } else { hops.join(" > ") };
        let mut row = vec![
            flow.id.to_string(),
            flow.from.to_string(),
            flow.listen.to_string(),
            flow.to.to_string(),
            service_now.clone().unwrap_or_default(),
            path,
        ];
        let numbers =
            [counts.packets, counts.lost_by_internet, *recovered, counts.late, counts.lost];
        row.extend(numbers.map(|count| count.to_string()));
        row.push(counts.usd.to_string());
        row
    };
    let rows: Vec<Vec<String>> = flows.flows.iter().map(row).collect();
    let heading = [
        "flow",
        "from",
        "listens",
        "to",
        "service",
        "relays",
        "sent",
        "Internet lost",
        "recovered",
        "late",
        "lost",
        "cost",
    ];
    table::print(&heading, &rows, 6)?;
    flows.flows.iter().try_for_each(|PacketFlowView { flow, why, .. }| {
        output::line(format_args!("packet flow {}: {why}", flow.id))
    })
}
