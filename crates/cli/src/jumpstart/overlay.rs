//! `tradewind jumpstart overlay`: jump-start of all hosts of an overlay, by its controller.

use std::collections::BTreeSet;
use std::process::ExitCode;

use serde::Serialize;
use tradewind_control::jumpstart::{ArmsView, HostJumpstart};
use tradewind_control::learner::{JumpArm, LearnedWindow, WindowCount};
use tradewind_control::transfers::TransferQuantiles;
use tradewind_controller::view::{Jumpstart, JumpstartRequest, SettingsRequest, SettingsView};
use tradewind_units::{HostId, Ratio, Segments, SiteId};

use super::segments;
use crate::controller::access::{ControllerArgs, OutputArgs, TableArgs};
use crate::gain::estimate;
use crate::output::{self, Outcome, table};

#[derive(clap::Subcommand)]
pub(crate) enum OverlayCommand {
    /// Have relays and gateways of these hosts learn initial windows; of all if none is named
    On(OnArgs),
    /// Kill switch: have all hosts start connections by default
    Off(OffArgs),
    /// Show what hosts have learned, and what it gains
    Show(ShowArgs),
}

#[derive(clap::Args)]
pub(crate) struct OnArgs {
    /// The hosts, such as `office-1,gcp:us-east4-1`
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    hosts: Vec<HostId>,
    /// The sites and regions whose hosts do, such as `office,gcp:us-east4`
    #[arg(long, visible_alias = "regions", value_name = "SITES", value_delimiter = ',')]
    sites: Vec<SiteId>,
    /// Share of connections that keep the default window, to measure the benefit, such as `10%`;
    /// as before when absent, at first 5 %
    #[arg(long, value_name = "SHARE")]
    control_share: Option<Ratio>,
    /// The greatest initial window, in segments; as before when absent, at first 100
    #[arg(long, value_name = "SEGMENTS", value_parser = segments)]
    window_max: Option<Segments>,
    /// Each hour, have these hosts time transfers of 10, 50 and 100 KB to all other sites, with
    /// learned windows and without, within the bytes of rate tests; `--probes=false` ends that, and
    /// it stays as before when absent
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true")]
    probes: Option<bool>,
    /// Have the hosts of a site use each other's windows for destinations of which they have
    /// learned nothing; `--share-in-site=false` ends that, and it stays as before when absent
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true")]
    share_in_site: Option<bool>,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Args)]
pub(crate) struct OffArgs {
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Args)]
pub(crate) struct ShowArgs {
    /// Number of days over which connections are compared, today included
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    days: u64,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

pub(super) fn run(command: OverlayCommand) -> Outcome {
    match command {
        OverlayCommand::On(args) => {
            let OnArgs { hosts, sites, control_share, window_max, .. } = args;
            let request = JumpstartRequest {
                is_on: Some(true),
                hosts: Some(BTreeSet::from_iter(hosts)),
                sites: Some(BTreeSet::from_iter(sites)),
                control_share,
                window_max,
                has_probes: args.probes,
                is_shared: args.share_in_site,
            };
            change(request, &args.controller, &args.output)?;
        }
        OverlayCommand::Off(OffArgs { controller, output }) => {
            let request = JumpstartRequest { is_on: Some(false), ..JumpstartRequest::default() };
            change(request, &controller, &output)?;
        }
        OverlayCommand::Show(args) => show(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn change(
    request: JumpstartRequest,
    controller: &ControllerArgs,
    output: &OutputArgs,
) -> anyhow::Result<()> {
    let client = controller.client()?;
    let settings: SettingsView =
        client.put("/v1/settings", &SettingsRequest::jumpstart(request))?;
    output.print(&settings, |settings| output::line(&settings.jumpstart))
}

/// The columns of CSV: each destination of a host beside the host's arms.
const COLUMNS: [&str; 15] = [
    "host",
    "is_covered",
    "is_acting",
    "why_not",
    "destination",
    "window_segments",
    "samples",
    "is_in_force",
    "jumped_connections",
    "control_connections",
    "jumped_resent_per_mb",
    "control_resent_per_mb",
    "speedup.value",
    "speedup.low",
    "speedup.high",
];

/// A row of CSV.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    host: &'a HostJumpstart,
    #[serde(flatten)]
    window: Option<&'a LearnedWindow>,
}

fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let client = args.controller.client()?;
    let known: Jumpstart = client.get(&format!("/v1/jumpstart?days={}", args.days))?;
    let rows: Vec<Row<'_>> = known.hosts.iter().flat_map(rows).collect();
    args.output.print(&known, &COLUMNS, &rows, |known| {
        output::line(&known.settings)?;
        if known.hosts.is_empty() {
            return Ok(());
        }
        let hosts: Vec<Vec<String>> = known.hosts.iter().map(host_row).collect();
        let all = (known.hosts.len() > 1).then(|| arms_row("all", "", &known.arms));
        table::print(&HEADING, &hosts.into_iter().chain(all).collect::<Vec<_>>(), 2)?;
        for host in &known.hosts {
            show_windows(host)?;
        }
        if known.transfers.is_empty() {
            return Ok(());
        }
        let rows: Vec<Vec<String>> = known.transfers.iter().map(transfer_row).collect();
        table::print(&TRANSFERS, &rows, 2)
    })
}

/// Returns a host's rows of CSV: of each destination, or one without.
fn rows(host: &HostJumpstart) -> Vec<Row<'_>> {
    if host.destinations.is_empty() {
        return vec![Row { host, window: None }];
    }
    host.destinations.iter().map(|window| Row { host, window: Some(window) }).collect()
}

/// The heading of hosts.
const HEADING: [&str; 6] =
    ["host", "learns", "jumped", "control", "speedup (95 %)", "resent/MB (control)"];

/// The heading of timed transfers.
const TRANSFERS: [&str; 7] =
    ["transfers of", "window", "count", "25 % (ms)", "50 % (ms)", "75 % (ms)", "95 % (ms)"];

fn transfer_row(of: &TransferQuantiles) -> Vec<String> {
    let window = match of.arm {
        JumpArm::Jumped => "learned",
        JumpArm::Control => "default",
    };
    let first =
        [format!("{} KB", of.size_bytes / 1000), window.to_owned(), of.transfers.to_string()];
    let times = [of.p25_ms, of.p50_ms, of.p75_ms, of.p95_ms].map(|ms| format!("{ms:.1}"));
    first.into_iter().chain(times).collect()
}

fn host_row(host: &HostJumpstart) -> Vec<String> {
    let state = match (host.is_covered, host.is_acting) {
        (_, true) => "yes",
        (true, false) => "no",
        (false, false) => "not to",
    };
    arms_row(host.host.as_str(), state, &host.arms)
}

fn arms_row(name: &str, state: &str, arms: &ArmsView) -> Vec<String> {
    let resent = |figure: Option<f64>| figure.map_or("-".to_owned(), |it| format!("{it:.2}"));
    vec![
        name.to_owned(),
        state.to_owned(),
        arms.jumped_connections.to_string(),
        arms.control_connections.to_string(),
        estimate(arms.speedup, 2),
        format!("{} ({})", resent(arms.jumped_resent_per_mb), resent(arms.control_resent_per_mb)),
    ]
}

/// Shows the destinations of a host, and how its windows are spread.
fn show_windows(host: &HostJumpstart) -> anyhow::Result<()> {
    if let Some(why) = &host.why_not {
        output::line(format_args!("{}: sets no windows: {why}", host.host))?;
    }
    if host.destinations.is_empty() {
        return Ok(());
    }
    let row = |known: &LearnedWindow| {
        vec![
            host.host.to_string(),
            known.destination.to_string(),
            known.window_segments.to_string(),
            match known.samples {
                0 => "of its site".to_owned(),
                samples => samples.to_string(),
            },
            if known.is_in_force { "yes" } else { "no" }.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = host.destinations.iter().map(row).collect();
    table::print(&["host", "destination", "window", "samples", "in force"], &rows, 2)?;
    let class =
        |class: &WindowCount| format!("from {}: {}", class.from_segments, class.destinations);
    let classes: Vec<String> = host.windows.iter().map(class).collect();
    let others = match host.others {
        0 => String::new(),
        others => format!("; {others} more are not listed"),
    };
    output::line(format_args!("destinations by window: {}{others}", classes.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_without_enough_connections_say_so() {
        let arms = ArmsView { jumped_connections: 3, ..ArmsView::default() };
        let row = arms_row("office-1", "yes", &arms);
        assert_eq!(row, ["office-1", "yes", "3", "0", "too few", "- (-)"]);
    }
}
