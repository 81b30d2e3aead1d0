//! `tradewind jumpstart`: the daemon that learns initial windows, questions to it, and the paper's
//! model.

mod overlay;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use serde_json::Value;
use tradewind_config::JumpstartConfig;
use tradewind_config::jumpstart::Through;
use tradewind_jumpstart::figures::{PAPER_SEGMENT, WindowFigures, figures};
use tradewind_jumpstart::{IpNet, Order, prefix};
use tradewind_jumpstart_daemon::{Daemon, DaemonError, Request, Switch, ask};
use tradewind_net::capability::{may_change_routes, user_id};
use tradewind_net::privileges::Capability;
use tradewind_net::route::Routes;
use tradewind_net::signals::Signals;
use tradewind_units::time::{as_millis_f64, parse_duration};
use tradewind_units::{Bytes, Duration, Ratio, Segments, UnitError};

use crate::output::{self, BadFile, Format, OrBadFile as _, Outcome, read_text, table};
use crate::privileges::RetainedRights;
use crate::relay::{Log, start_log};

/// The default directory of root's control socket.
const RUNTIME_DIRECTORY: &str = "/run/tradewind";

#[derive(clap::Subcommand)]
pub(crate) enum JumpstartCommand {
    /// Learn, and let new connections start with what was learned, until SIGTERM or SIGINT
    Run(RunArgs),
    /// Show what the running daemon has learned
    Status(AskArgs),
    /// Show why connections to an address start as they do
    Explain {
        /// The address
        address: IpAddr,
        #[command(flatten)]
        ask: AskArgs,
    },
    /// Lower or freeze what was learned for a while, as before a load shift
    Hint(HintArgs),
    /// Forget what was learned; without a running daemon, remove the routes that one has left
    Flush {
        /// Only inside this prefix
        #[arg(long, value_name = "PREFIX", value_parser = prefix::parse)]
        within: Option<IpNet>,
        #[command(flatten)]
        ask: AskArgs,
    },
    /// Kill switch: have everything start by default from now on, across restarts of the daemon
    Off(AskArgs),
    /// Turn the kill switch back
    On(AskArgs),
    /// Jump-start of all hosts of an overlay, by its controller
    #[command(subcommand)]
    Overlay(overlay::OverlayCommand),
    /// Show what larger initial windows save, by the paper's model, for given file sizes and
    /// round-trip times
    Model(ModelArgs),
}

#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// The configuration (TOML, see docs/reference/jumpstart.md); without one, the paper's settings
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Learn and show, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// The control socket, instead of the configuration's
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// Form of the log on standard error; TRADEWIND_LOG filters it
    #[arg(long, value_enum, default_value = "text")]
    log: Log,
}

#[derive(clap::Args)]
pub(crate) struct AskArgs {
    /// The control socket of the daemon, or of a relay or gateway that learns for itself
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

#[derive(clap::Args)]
pub(crate) struct HintArgs {
    /// The destinations that it is about, a prefix such as 192.0.2.0/24
    #[arg(value_parser = prefix::parse)]
    within: IpNet,
    /// Let no value rise
    #[arg(long, group = "order")]
    freeze: bool,
    /// No window above so many segments
    #[arg(long, value_name = "SEGMENTS", group = "order")]
    at_most: Option<u32>,
    /// Only this share of what was learned, such as `0.5`
    #[arg(long, value_name = "SHARE", group = "order")]
    scale: Option<Ratio>,
    /// For how long, such as `10min`
    #[arg(long = "for", value_name = "SPAN", value_parser = span)]
    lasts: Duration,
    #[command(flatten)]
    ask: AskArgs,
}

#[derive(clap::Args)]
pub(crate) struct ModelArgs {
    /// File sizes, such as `10 kB,50 kB,100 kB`
    #[arg(long, value_delimiter = ',', required_unless_present = "sizes_file")]
    sizes: Vec<Bytes>,
    /// File sizes from a file, one a line
    #[arg(long, value_name = "FILE", conflicts_with = "sizes")]
    sizes_file: Option<PathBuf>,
    /// Round-trip times, such as `20ms,125ms`
    #[arg(long, value_delimiter = ',', value_parser = span, required_unless_present = "rtts_file")]
    rtts: Vec<Duration>,
    /// Round-trip times from a file, one a line
    #[arg(long, value_name = "FILE", conflicts_with = "rtts")]
    rtts_file: Option<PathBuf>,
    /// Initial windows in segments; the first is what others are compared with
    #[arg(long, value_delimiter = ',', value_parser = segments, default_value = "10,25,50,100")]
    windows: Vec<Segments>,
    /// Payload of a segment; the paper counts 1500 bytes
    #[arg(long, default_value_t = PAPER_SEGMENT)]
    segment: Bytes,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

fn span(text: &str) -> Result<Duration, UnitError> {
    parse_duration(text)
}

fn segments(text: &str) -> Result<Segments, String> {
    let count: u32 = text.parse().map_err(|_| format!("a number of segments, not `{text}`"))?;
    Segments::new(count).map_err(|error| error.to_string())
}

pub(crate) fn run(command: JumpstartCommand) -> Outcome {
    match command {
        JumpstartCommand::Run(args) => daemon(&args)?,
        JumpstartCommand::Status(args) => status(&args)?,
        JumpstartCommand::Explain { address, ask } => explain(address, &ask)?,
        JumpstartCommand::Hint(args) => hint(&args)?,
        JumpstartCommand::Flush { within, ask } => flush(within, &ask)?,
        JumpstartCommand::Off(args) => switch(true, &args)?,
        JumpstartCommand::On(args) => switch(false, &args)?,
        JumpstartCommand::Overlay(command) => return overlay::run(command),
        JumpstartCommand::Model(args) => model(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the default directory of control sockets.
fn runtime_directory() -> PathBuf {
    let named =
        |variable| std::env::var_os(variable).filter(|name| !name.is_empty()).map(PathBuf::from);
    match (named("TRADEWIND_RUNTIME_DIR"), named("XDG_RUNTIME_DIR")) {
        (Some(named), _) => named,
        (None, Some(of_user)) if user_id() != 0 => of_user.join("tradewind"),
        _ => PathBuf::from(RUNTIME_DIRECTORY),
    }
}

fn socket_at(given: Option<&Path>) -> PathBuf {
    given.map_or_else(|| runtime_directory().join("jumpstart.sock"), Path::to_owned)
}

/// Returns the control socket of a relay or gateway that was started with `file`: never the
/// daemon's.
pub(crate) fn own_socket(file: &Path) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    runtime_directory().join(format!("jumpstart-{stem}.sock"))
}

fn daemon(args: &RunArgs) -> anyhow::Result<()> {
    let mut config = match &args.config {
        Some(file) => {
            let text = read_text(file)?;
            JumpstartConfig::parse(&text).or_bad(file)?
        }
        None => JumpstartConfig::default(),
    };
    if args.dry_run {
        config.act.through = Through::None;
    }
    // Before the log's thread is started: a signal delivered to it would end the process.
    let stop = Signals::take_of_service()?;
    // Its socket and its kill switch are in a directory that must be root's.
    let changes_something = config.act.through != Through::None;
    let capabilities: &[_] =
        if changes_something { &[Capability::NetAdmin, Capability::Bpf] } else { &[] };
    let warnings = RetainedRights { stays_root: true, capabilities, ..RetainedRights::default() }
        .drop_others()?;
    start_log(args.log)?;
    warnings.iter().for_each(|line| tracing::warn!("{line}"));
    let socket = socket_at(args.socket.as_deref().or(config.socket.as_deref()));
    let daemon = Daemon::open(&config, &socket)?;
    let (through, why) = daemon.acts_through();
    output::line(serde_json::json!({
        "schema_version": 1,
        "ready": "jumpstart",
        "through": through,
        "why": why,
        "socket": socket,
        "metrics": daemon.metrics_addr(),
    }))?;
    Ok(daemon.run(&stop)?)
}

/// Returns the daemon's answer; an error in it becomes this command's.
fn answer(args: &AskArgs, request: &Request) -> anyhow::Result<Value> {
    let answer = ask(&socket_at(args.socket.as_deref()), request)?;
    if let Some(error) = answer.get("error").and_then(Value::as_str) {
        bail!("the daemon refused: {error}");
    }
    Ok(answer)
}

fn status(args: &AskArgs) -> anyhow::Result<()> {
    let answer = answer(args, &Request::Status {})?;
    if args.output == Format::Json {
        return output::json(&answer);
    }
    output::line(format_args!(
        "mode {}, through {}, connections {}",
        word(&answer["mode"]),
        word(&answer["through"]),
        answer["connections"]
    ))?;
    if answer["off"] == true {
        output::line(
            "off by the kill switch: connections start by default (`jumpstart on` turns it back)",
        )?;
    }
    if answer["to_take_back"] == true {
        output::line("not all that was set could be taken back yet; it is tried again each round")?;
    }
    for line in ["why", "limit", "hints"].iter().filter_map(|key| answer[key].as_str()) {
        output::line(line)?;
    }
    let columns = ["window_segments", "samples", "average_segments", "pacing_mbps", "expires_in_s"];
    let row = |known: &Value| {
        let mut row = vec![word(&known["prefix"])];
        row.extend(columns.map(|column| word(&known[column])));
        let is_control = known["control"] == true;
        row.push(if is_control { "control".to_owned() } else { word(&known["outcome"]) });
        row.push(word(&known["reason"]));
        row
    };
    let known = answer["destinations"].as_array().cloned().unwrap_or_default();
    let rows: Vec<Vec<String>> = known.iter().map(row).collect();
    let heading = [
        "destination",
        "window",
        "samples",
        "average",
        "pacing Mbit/s",
        "expires s",
        "outcome",
        "why",
    ];
    table::print(&heading, &rows, 1)
}

/// Formats a value of the daemon for people.
fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => format!("{float:.1}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

fn explain(address: IpAddr, args: &AskArgs) -> anyhow::Result<()> {
    let answer = answer(args, &Request::Explain { address })?;
    if args.output == Format::Json {
        return output::json(&answer);
    }
    let Some(known) = answer["destination"].as_object() else {
        return output::line(format_args!(
            "{address}: nothing is known of it; connections start by default"
        ));
    };
    let rows: Vec<Vec<String>> =
        known.iter().map(|(key, value)| vec![key.clone(), word(value)]).collect();
    table::print(&["", address.to_string().as_str()], &rows, 1)
}

fn hint(args: &HintArgs) -> anyhow::Result<()> {
    let order = match (args.freeze, args.at_most, args.scale) {
        (true, ..) => Order::Freeze,
        (_, Some(most), _) => Order::AtMost(Segments::new(most)?),
        (.., Some(share)) => Order::Scale(share),
        _ => return bad("say what to do: --freeze, --at-most or --scale".to_owned()),
    };
    let request = Request::Hint { within: args.within, order, lasts_s: args.lasts };
    let answer = answer(&args.ask, &request)?;
    match args.ask.output {
        Format::Json => output::json(&answer),
        Format::Table => output::line(format_args!("{}: {}", args.within, word(&answer["hint"]))),
    }
}

fn flush(within: Option<IpNet>, args: &AskArgs) -> anyhow::Result<()> {
    let answer = match answer(args, &Request::Flush { within }) {
        Ok(answer) => answer,
        // The values of a named socket's process ended with it; routes of another one are not its.
        Err(error) if within.is_none() && args.socket.is_none() && is_no_daemon(&error) => {
            let flushed = Routes::open()?.sweep()?;
            serde_json::json!({ "schema_version": 1, "flushed": flushed })
        }
        Err(error) => return Err(error),
    };
    match args.output {
        Format::Json => output::json(&answer),
        Format::Table => output::line(format_args!("forgotten: {}", answer["flushed"])),
    }
}

fn switch(off: bool, args: &AskArgs) -> anyhow::Result<()> {
    let socket = socket_at(args.socket.as_deref());
    Switch::beside(&socket)?.turn(off)?;
    let word = if off { "off" } else { "on" };
    let answer = match answer(args, &Request::Switch {}) {
        Ok(answer) => answer,
        Err(error) if is_no_daemon(&error) => {
            if off && args.socket.is_none() && may_change_routes() {
                Routes::open()?.sweep()?;
            }
            serde_json::json!({ "schema_version": 1, "off": off, "daemon": false })
        }
        Err(error) => return Err(error.context(format!("turned {word}, and not all done yet"))),
    };
    match args.output {
        Format::Json => output::json(&answer),
        Format::Table if answer["daemon"] == false => output::line(format_args!(
            "{word} for daemons that start with the socket {}: none answers there now",
            socket.display()
        )),
        Format::Table if off => output::line("off: connections start by default"),
        Format::Table => output::line("on"),
    }
}

fn is_no_daemon(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(DaemonError::NoDaemon { .. }))
}

fn model(args: &ModelArgs) -> anyhow::Result<()> {
    let sizes = match &args.sizes_file {
        Some(file) => lines(file, |line| line.parse::<Bytes>())?,
        None => args.sizes.clone(),
    };
    let rtts = match &args.rtts_file {
        Some(file) => lines(file, parse_duration)?,
        None => args.rtts.clone(),
    };
    if args.segment == Bytes::ZERO {
        return bad("--segment: a size above 0".to_owned());
    }
    let all = figures(&args.windows, &sizes, &rtts, args.segment);
    if args.output == Format::Json {
        return output::json(&serde_json::json!({
            "schema_version": 1,
            "files": sizes.len(),
            "rtt_ms": rtts.iter().map(|rtt| as_millis_f64(*rtt)).collect::<Vec<_>>(),
            "windows": all,
        }));
    }
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let row = |figures: &WindowFigures| {
        let through =
            |trips: usize| percent(figures.through_ratio.get(trips - 1).copied().unwrap_or(1.0));
        vec![
            figures.window_segments.to_string(),
            through(1),
            through(2),
            through(3),
            percent(figures.saved_ratio),
            format!("{:.0}", figures.time_ms_p50),
            format!("{:.0}", figures.time_ms_p90),
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let heading =
        ["window", "1 trip", "2 trips", "3 trips", "trips saved", "median ms", "90th pct. ms"];
    table::print(&heading, &rows, 0)
}

/// Refuses an argument or a file.
fn bad<T>(problem: String) -> anyhow::Result<T> {
    Err(BadFile(problem).into())
}

/// Parses the values of a file, one a line; empty lines and those that begin with `#` are skipped.
fn lines<T, E: std::fmt::Display>(
    file: &Path,
    parse: impl Fn(&str) -> Result<T, E>,
) -> anyhow::Result<Vec<T>> {
    let text = read_text(file)?;
    let mut values = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match parse(line) {
            Ok(value) => values.push(value),
            Err(error) => {
                return bad(format!("{}, line {}: {error}", file.display(), number + 1));
            }
        }
    }
    if values.is_empty() {
        return bad(format!("{}: holds no value", file.display()));
    }
    Ok(values)
}
