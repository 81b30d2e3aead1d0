//! `tradewind flow` and `tradewind flows`: the flows that an overlay carries.

use std::net::SocketAddr;
use std::process::ExitCode;

use tradewind_control::tenants::TenantId;
use tradewind_controller::view::{AdoptRequest, FlowRequest, FlowView, Flows};
use tradewind_grant::Destination;
use tradewind_units::{Bytes, FlowId, SiteId};

use crate::controller::access::{ControllerArgs, OutputArgs, TableArgs};
use crate::output::{self, Outcome, table};
use crate::packet_flows::{self, AddPacketsArgs};

#[derive(clap::Subcommand)]
pub(crate) enum FlowCommand {
    /// Declare a flow, or change the one of the same name
    Add(AddArgs),
    /// Declare a packet flow from one gateway to another, or change the one of the same name
    ///
    /// Datagrams that applications send to the gateway at --from leave at the gateway of --to-site,
    /// over the cheapest packet service that meets the latency budget.
    AddPackets(AddPacketsArgs),
    /// Make a learned destination a flow (`tradewind learned` lists them)
    Adopt(AdoptArgs),
    /// Remove a flow or packet flow
    Remove {
        /// Its name
        name: FlowId,
        #[command(flatten)]
        controller: ControllerArgs,
    },
}

#[derive(clap::Args)]
pub(crate) struct AddArgs {
    /// Its name
    name: FlowId,
    /// The site whose gateway carries it
    #[arg(long, value_name = "SITE")]
    from: SiteId,
    /// Its destination
    #[arg(long, value_name = "HOST:PORT")]
    to: Destination,
    /// The site of that destination, where a probe or gateway measures; its host's name if absent
    #[arg(long, value_name = "SITE")]
    to_site: Option<SiteId>,
    /// The volume of a day, such as `200GB`
    #[arg(long, value_name = "SIZE")]
    per_day: Bytes,
    /// Weight of its time against other flows'
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    weight: u32,
    /// Address at which the gateway accepts it; a free port on loopback if absent
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    tenant: TenantArgs,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The tenant of a flow.
#[derive(clap::Args)]
pub(crate) struct TenantArgs {
    /// The tenant whose flow it is; if absent it stays whose it is, a new one is the overlay's own
    #[arg(long, value_name = "TENANT")]
    tenant: Option<TenantId>,
}

impl TenantArgs {
    /// Returns a path that names it.
    pub(crate) fn path(&self, path: &str) -> String {
        self.tenant.as_ref().map_or(path.to_owned(), |tenant| format!("{path}?tenant={tenant}"))
    }
}

#[derive(clap::Args)]
pub(crate) struct AdoptArgs {
    /// Its name
    name: FlowId,
    /// The volume of a day; its mean so far if absent
    #[arg(long, value_name = "SIZE")]
    per_day: Option<Bytes>,
    /// Weight of its time against other flows'
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    weight: Option<u32>,
    #[command(flatten)]
    tenant: TenantArgs,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Args)]
pub(crate) struct FlowsArgs {
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

/// The columns of flows as CSV.
const COLUMNS: [&str; 12] = [
    "id",
    "from",
    "to",
    "to_site",
    "listen",
    "per_day",
    "weight",
    "path",
    "seconds_direct",
    "seconds",
    "tenant",
    "is_stopped",
];

pub(crate) fn run(command: FlowCommand) -> Outcome {
    match command {
        FlowCommand::Add(args) => add(args),
        FlowCommand::AddPackets(args) => packet_flows::add(args),
        FlowCommand::Adopt(args) => adopt(args),
        FlowCommand::Remove { name, controller } => {
            controller.client()?.delete(&format!("/v1/flows/{name}"))?;
            output::note(format_args!("removed flow {name}"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn add(args: AddArgs) -> Outcome {
    let AddArgs { name, from, to, to_site, per_day, weight, listen, tenant, controller, output } =
        args;
    let request = FlowRequest { from, to, to_site, per_day, weight: Some(weight), listen };
    let flow: FlowView =
        controller.client()?.put(&tenant.path(&format!("/v1/flows/{name}")), &request)?;
    output.print(&flow, show_declared)?;
    Ok(ExitCode::SUCCESS)
}

fn adopt(args: AdoptArgs) -> Outcome {
    let AdoptArgs { name, per_day, weight, tenant, controller, output } = args;
    let request = AdoptRequest { per_day, weight };
    let path = tenant.path(&format!("/v1/learned/{name}/adopt"));
    let flow: FlowView = controller.client()?.post(&path, &request)?;
    output.print(&flow, show_declared)?;
    Ok(ExitCode::SUCCESS)
}

fn show_declared(FlowView { flow, .. }: &FlowView) -> anyhow::Result<()> {
    output::line(format_args!(
        "flow {}: applications at {} connect to {}, and arrive at {}",
        flow.id, flow.from, flow.listen, flow.to
    ))
}

pub(crate) fn list(args: &FlowsArgs) -> Outcome {
    let flows: Flows = args.controller.client()?.get("/v1/flows")?;
    args.output.print(&flows, &COLUMNS, &flows.flows, show)?;
    Ok(ExitCode::SUCCESS)
}

fn show(flows: &Flows) -> anyhow::Result<()> {
    if flows.flows.is_empty() {
        return output::line("no flows: `tradewind flow add` declares one");
    }
    let row = |view: &FlowView| {
        let FlowView { flow, demand, path, seconds, seconds_direct, .. } = view;
        let hops: Vec<&str> = path.iter().map(tradewind_units::HostId::as_str).collect();
        let path = if hops.is_empty() { "direct".to_owned() } else { hops.join(" > ") };
        let optional = |seconds: &Option<f64>| seconds.map_or(String::new(), |s| format!("{s:.1}"));
        vec![
            flow.id.to_string(),
            flow.from.to_string(),
            flow.listen.to_string(),
            flow.to.to_string(),
            path,
            demand.per_day.to_string(),
            optional(seconds_direct),
            optional(seconds),
        ]
    };
    let rows: Vec<Vec<String>> = flows.flows.iter().map(row).collect();
    let heading = ["flow", "from", "listens", "to", "path", "a day", "direct s", "planned s"];
    table::print(&heading, &rows, 5)?;
    let mut stopped = flows.flows.iter().filter(|view| view.is_stopped);
    stopped.try_for_each(|FlowView { flow, why, .. }| {
        output::line(format_args!("flow {} goes direct: {why}", flow.id))
    })?;
    let mut forecast = flows.flows.iter().filter(|view| view.demand.forecast.is_some());
    forecast.try_for_each(|FlowView { flow, demand, .. }| {
        output::line(format_args!("flow {}: {}", flow.id, demand.in_words()))
    })
}
