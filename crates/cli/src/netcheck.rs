//! `tradewind netcheck`: the paths of a gateway, the one that it takes, and the reason.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use tradewind_config::GatewayConfig;
use tradewind_gateway::report::{PathOptionReport, RuleReport, Source};
use tradewind_gateway::{PathsReport, survey};
use tradewind_units::{Duration, address};

use crate::output::{self, BadFile, Format, OrBadFile as _, Outcome, read_text, table};

/// Longest wait for a running gateway's answer. Chosen: it answers from memory.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest answer. Chosen: far above any table.
const MAX_BYTES: u64 = 64 << 20;

/// The source of the paths' states. Paths that a gateway does not probe itself, as they have no
/// alternative, are probed from here.
#[derive(clap::Args)]
pub(crate) struct From {
    /// The gateway's configuration; a running gateway is queried at its `metrics` address
    #[arg(short, long, value_name = "FILE", required_unless_present = "gateway")]
    config: Option<PathBuf>,
    /// Query the gateway whose metrics are at this address instead
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        conflicts_with = "probe",
        value_parser = address::parse
    )]
    gateway: Option<SocketAddr>,
    /// Probe from here even if a gateway runs
    #[arg(long)]
    probe: bool,
    /// Probes of each path when no gateway is queried, 1 to 1000
    #[arg(
        short = 'n',
        long,
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    count: u32,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

#[derive(clap::Args)]
pub(crate) struct NetcheckArgs {
    #[command(flatten)]
    from: From,
}

pub(crate) fn run(args: &NetcheckArgs) -> Outcome {
    args.from.show(None)
}

impl From {
    /// Prints the paths, or those to one destination. Ends with failure when no path to one is
    /// usable.
    pub(crate) fn show(&self, to: Option<&str>) -> Outcome {
        let report = self.report(to)?;
        match self.output {
            Format::Json => output::json(&report)?,
            Format::Table => print(&report)?,
        }
        let is_fit =
            |option: &PathOptionReport| option.chosen && option.state.as_deref() != Some("dead");
        let are_fit = |rule: &RuleReport| {
            rule.options.iter().any(is_fit)
                || rule.options.iter().all(|option| option.kind == "refuse")
        };
        let all_fit = report.rules.iter().all(are_fit);
        Ok(if all_fit { ExitCode::SUCCESS } else { output::FAILED.into() })
    }

    fn report(&self, to: Option<&str>) -> anyhow::Result<PathsReport> {
        if let Some(address) = self.gateway {
            return self.ask(address, to);
        }
        let config = self.read_config()?;
        if let Some(address) = config.metrics.filter(|address| address.port() != 0 && !self.probe) {
            match TcpStream::connect_timeout(&reachable(address), ANSWER_TIMEOUT) {
                Ok(_) => return self.ask(address, to),
                Err(_) => {
                    output::note(format_args!("no gateway answers at {address}: probing from here"))
                }
            }
        }
        self.survey(&config, to)
    }

    fn survey(&self, config: &GatewayConfig, to: Option<&str>) -> anyhow::Result<PathsReport> {
        let to = to.map(str::parse).transpose()?;
        let file = self.config.as_deref().unwrap_or(Path::new("")).display();
        survey(config, to.as_ref(), self.count).with_context(|| file.to_string())
    }

    fn read_config(&self) -> anyhow::Result<GatewayConfig> {
        let missing = "--config: nothing else tells how the paths are reached";
        let file = self.config.as_deref().ok_or_else(|| BadFile(missing.to_owned()))?;
        read_config(file)
    }

    /// Queries the running gateway, and probes from here the paths that it does not probe.
    fn ask(&self, address: SocketAddr, to: Option<&str>) -> anyhow::Result<PathsReport> {
        let mut report = ask(address, to).with_context(|| format!("gateway at {address}"))?;
        if report.rules.iter().flat_map(|rule| &rule.options).any(is_unprobed) {
            let probed = self.read_config().and_then(|config| self.survey(&config, to));
            match probed {
                Ok(probed) => fill_in(&mut report, &probed),
                Err(error) => output::note(format_args!("no probes from here: {error:#}")),
            }
        }
        Ok(report)
    }
}

/// Returns whether it is a path over relays that the gateway does not probe, since it has no
/// alternative.
fn is_unprobed(option: &PathOptionReport) -> bool {
    option.kind == "relays" && option.state.is_none()
}

/// Replaces paths that the gateway does not probe by the results of probes from here.
fn fill_in(report: &mut PathsReport, probed: &PathsReport) {
    let options = report.rules.iter_mut().flat_map(|rule| &mut rule.options);
    for option in options.filter(|option| is_unprobed(option)) {
        let mut found = probed.rules.iter().flat_map(|rule| &rule.options);
        if let Some(found) = found.find(|found| found.relays == option.relays) {
            let cause = format!("the only path; probed from here: {}", found.cause);
            *option = PathOptionReport { chosen: option.chosen, cause, ..found.clone() };
        }
    }
}

pub(crate) fn read_config(file: &Path) -> anyhow::Result<GatewayConfig> {
    let text = read_text(file)?;
    GatewayConfig::parse(&text).or_bad(file)
}

/// Returns the address at which a listener on all addresses is reached from the same host.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        std::net::IpAddr::V4(ip) if ip.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
        std::net::IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Queries a running gateway.
fn ask(address: SocketAddr, to: Option<&str>) -> anyhow::Result<PathsReport> {
    let query = to.map(|to| format!("?to={to}")).unwrap_or_default();
    if query.contains(|c: char| c.is_whitespace() || c.is_control()) {
        let problem = format!("destination `{}`: expected HOST:PORT", to.unwrap_or_default());
        return Err(BadFile(problem).into());
    }
    let page = page(address, &format!("/paths{query}"))?;
    serde_json::from_str(&page).context("the answer is no report of paths")
}

/// Returns the page of a running process at `target` of its `metrics` address.
pub(crate) fn page(address: SocketAddr, target: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect_timeout(&reachable(address), ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    write!(stream, "GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(MAX_BYTES).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is no HTTP")?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        Some("404") => bail!("whatever listens there is no gateway of this version"),
        _ => bail!("{}", body.trim()),
    }
}

fn print(report: &PathsReport) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for rule in &report.rules {
        let destination = rule.destination.as_deref().unwrap_or("(default)");
        for (index, option) in rule.options.iter().enumerate() {
            let first = if index == 0 { destination } else { "" };
            rows.push(row(first, option));
        }
    }
    let heading = ["destination", "", "path", "state", "why", "RTT ms", "legs ms"];
    table::print(&heading, &rows, 5)?;
    output::note(match report.source {
        Source::Gateway => "> marks what new sessions take, as the running gateway tells",
        Source::Probes => "> marks what a gateway would take, by probes made just now",
    });
    Ok(())
}

fn row(destination: &str, option: &PathOptionReport) -> Vec<String> {
    let names: Vec<_> = option.relays.iter().map(|relay| relay.name.as_str()).collect();
    let path = if names.is_empty() { option.kind.clone() } else { names.join(" > ") };
    let ms = |ms: &f64| format!("{ms:.1}");
    let legs: Vec<_> = option.legs_ms.iter().map(ms).collect();
    vec![
        destination.to_owned(),
        if option.chosen { ">" } else { "" }.to_owned(),
        path,
        option.state.clone().unwrap_or_default(),
        option.cause.clone(),
        option.rtt_ms.as_ref().map(ms).unwrap_or_default(),
        legs.join(" + "),
    ]
}
