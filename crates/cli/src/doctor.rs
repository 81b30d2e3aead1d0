//! `tradewind doctor`: the features that this kernel grants this process, found by trying, and
//! whether its settings suffice for a configuration's legs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use tradewind_config::{GatewayConfig, Kind, LegProfiles, Limits, RelayConfig};
use tradewind_net::capability;
use tradewind_net::kernel_feature::{KERNEL_FEATURES, KernelFeature};
use tradewind_node::host_shortfall;
use tradewind_stream::dial::local_ports;
use tradewind_stream::limits::buffers::host_buffers;

use crate::output::{self, Format, OrBadFile as _, Outcome, read_text, table};

#[derive(clap::Args)]
pub(crate) struct DoctorArgs {
    /// A relay's or gateway's configuration, to check this host's windows, buffers and local ports
    /// against its legs and sessions; repeatable
    #[arg(short, long, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Form of the answer
    #[arg(short, long, alias = "format", value_enum, default_value = "table")]
    output: Format,
}

/// The result of trying one feature.
#[derive(Serialize)]
struct Finding {
    kernel_feature: &'static str,
    works: bool,
    needed: bool,
    used_for: &'static str,
    /// Result of the trial, or the reason why it does not work.
    detail: String,
}

/// The results of all trials.
#[derive(Serialize)]
struct Report {
    schema_version: u32,
    kernel: String,
    user_id: u32,
    /// Mechanism that sets initial windows here: `sockops`, `routes` or `none`.
    initial_window: &'static str,
    /// Mechanism that jump-start acts through here: `sockops`, `routes` or `none`.
    jumpstart: &'static str,
    /// Largest number of bytes in flight of a connection with this kernel's settings.
    window_bytes: Option<u64>,
    /// Settings of this kernel that are too low for the configurations.
    shortfalls: Vec<String>,
    kernel_features: Vec<Finding>,
}

pub(crate) fn run(args: &DoctorArgs) -> Outcome {
    let (host, ports) = (host_buffers(), local_ports::host_ports());
    let mut shortfalls = Vec::new();
    for file in &args.config {
        let Needs { limits, legs, has_packets } = needs_of(file)?;
        let place = |line: String| format!("{}: {line}", file.display());
        let needs = legs.buffer_needs();
        shortfalls.extend(host.iter().flat_map(|host| needs.shortfalls(host)).map(place));
        let of_ports = |ports| local_ports::shortfalls(&limits, &legs, ports);
        shortfalls.extend(ports.into_iter().flat_map(of_ports).map(place));
        shortfalls.extend(has_packets.then(host_shortfall).flatten().map(place));
    }
    // Before the trials, as one of them may change the user of this process.
    let (kernel, user_id) = (capability::kernel_release(), capability::user_id());
    let kernel_features: Vec<Finding> = KERNEL_FEATURES.iter().map(examine).collect();
    let report = Report {
        schema_version: 1,
        kernel,
        user_id,
        initial_window: first_that_works(&kernel_features, "sockops"),
        jumpstart: first_that_works(&kernel_features, "learned windows"),
        window_bytes: host.map(|host| host.window().as_u64()),
        shortfalls,
        kernel_features,
    };
    match args.output {
        Format::Json => output::json(&report)?,
        Format::Table => show(&report)?,
    }
    let is_missing = |finding: &&Finding| finding.needed && !finding.works;
    let missing: Vec<&str> = report
        .kernel_features
        .iter()
        .filter(is_missing)
        .map(|finding| finding.kernel_feature)
        .collect();
    report.shortfalls.iter().for_each(output::complain);
    if !missing.is_empty() {
        output::complain(format_args!("needed and missing: {}", missing.join(", ")));
    }
    if missing.is_empty() && report.shortfalls.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(output::CHECK_FAILED.into())
}

/// The parts of a relay's or gateway's configuration that the kernel's settings must suffice for.
struct Needs {
    limits: Limits,
    legs: LegProfiles,
    has_packets: bool,
}

/// Returns those of a file, all of whose sections are checked.
fn needs_of(file: &Path) -> anyhow::Result<Needs> {
    let text = read_text(file)?;
    if Kind::of(&text) == Kind::Relay {
        let config = RelayConfig::parse(&text).or_bad(file)?;
        let has_packets = config.packet.is_some();
        return Ok(Needs { limits: config.limits, legs: config.leg, has_packets });
    }
    let config = GatewayConfig::parse(&text).or_bad(file)?;
    let has_packets = config.has_packets();
    Ok(Needs { limits: config.limits, legs: config.leg, has_packets })
}

fn examine(kernel_feature: &KernelFeature) -> Finding {
    let (works, detail) = match (kernel_feature.try_it)() {
        Ok(detail) => (true, detail),
        Err(error) => (false, output::one_line(&error.into())),
    };
    let KernelFeature { name, used_for, needed, .. } = *kernel_feature;
    Finding { kernel_feature: name, works, needed, used_for, detail }
}

/// Returns the mechanism that sets windows here, for relays with `initial_window` or for jumpstart:
/// the program whose feature is `program`, else routes, else none.
fn first_that_works(kernel_features: &[Finding], program: &str) -> &'static str {
    let works = |name: &str| {
        kernel_features.iter().any(|finding| finding.kernel_feature == name && finding.works)
    };
    match (works(program), works("window routes")) {
        (true, _) => "sockops",
        (false, true) => "routes",
        (false, false) => "none",
    }
}

fn show(report: &Report) -> anyhow::Result<()> {
    let row = |finding: &Finding| {
        let word = match (finding.works, finding.needed) {
            (true, _) => "works",
            (false, true) => "MISSING",
            (false, false) => "no",
        };
        let kernel_feature = finding.kernel_feature.to_owned();
        vec![kernel_feature, word.to_owned(), finding.used_for.to_owned(), finding.detail.clone()]
    };
    let rows: Vec<_> = report.kernel_features.iter().map(row).collect();
    table::print(&["feature", "here", "used for", "what was seen"], &rows, 4)?;
    let initial_window = match report.initial_window {
        "sockops" => "by sockops, for each connection",
        "routes" => "by routes, for neighbours of leg.to only",
        _ => "not available: connections start with the kernel's",
    };
    if let Some(window) = report.window_bytes {
        let window = window as f64 / 1e6;
        output::line(format_args!(
            "Windows grow to {window:.1} MB (net.ipv4.tcp_rmem, tcp_wmem). `--config` holds them \
             against what legs need."
        ))?;
    }
    output::line(format_args!(
        "Linux {}, user {}. Initial windows: {initial_window}. Jump-start acts through: {}. Not \
         needed: io_uring, modules of our own.",
        report.kernel, report.user_id, report.jumpstart
    ))
}
