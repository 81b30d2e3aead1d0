//! `tradewind probe`: measures round-trip times and rates.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::TypedValueParser;
use tokio::signal::unix::{SignalKind, signal};
use tradewind_net::{sandbox, secret_file, signals};
use tradewind_probe::protocol::MAX_CONNECTIONS;
use tradewind_probe::rtt::MAX_SAMPLES;
use tradewind_probe::steady::StabilityRule;
use tradewind_probe::{
    Direction, ProbeError, RateOptions, RateReport, Responder, ResponderConfig, RttOptions,
    RttReport, Secret, rate, rtt,
};
use tradewind_units::{Bandwidth, Bytes, Duration, UnitError, address, time::parse_duration};

use crate::output::{self, BAD_USAGE, FAILED, Format, OrBadFile as _, Outcome, table};
use crate::privileges::RetainedRights;
use crate::relay::{Log, start_log};

/// Bytes of a secret's file that are read. Chosen: above the longest secret and white space.
const MAX_SECRET_BYTES: usize = 4096;

#[derive(clap::Subcommand)]
pub(crate) enum ProbeCommand {
    /// Measure round-trip times by TCP handshakes; any open port will do
    Rtt {
        /// HOST:PORT, one or more
        #[arg(required = true)]
        targets: Vec<String>,
        /// Handshakes for each target, 1 to 10000
        #[arg(
            long,
            default_value_t = 20,
            allow_negative_numbers = true,
            value_parser = up_to(MAX_SAMPLES)
        )]
        samples: u32,
        /// From one handshake's start to the next's
        #[arg(long, default_value = "100ms", value_parser = span, allow_hyphen_values = true)]
        interval: Duration,
        /// Form of the answer
        #[arg(short, long, value_enum, default_value = "table")]
        output: Format,
    },
    /// Measure the rate of TCP connections to or from a responder
    Rate {
        /// HOST:PORT of a `tradewind probe responder`
        target: String,
        /// Parallel connections, 1 to 64
        #[arg(
            long,
            default_value_t = 1,
            allow_negative_numbers = true,
            value_parser = up_to(MAX_CONNECTIONS)
        )]
        connections: u32,
        /// Direction of the data, seen from here
        #[arg(long, value_enum, default_value = "upload")]
        direction: DataDirection,
        /// Longest time of transfer
        #[arg(long, default_value = "10s", value_parser = span, allow_hyphen_values = true)]
        duration: Duration,
        /// Most data to transfer
        #[arg(long, allow_hyphen_values = true)]
        volume: Option<Bytes>,
        /// End early once the rate has been steady for this long; `0s` for never
        #[arg(long, default_value = "1s", value_parser = span)]
        steady_for: Duration,
        /// Most that each connection sends (uploads only)
        #[arg(long, value_name = "RATE")]
        max_rate: Option<Bandwidth>,
        /// Congestion control of the sending side
        #[arg(long)]
        congestion_control: Option<String>,
        /// A file with the responder's secret
        #[arg(long, value_name = "FILE")]
        secret: Option<PathBuf>,
        /// Form of the answer
        #[arg(short, long, value_enum, default_value = "table")]
        output: Format,
    },
    /// Answer rate tests until ended
    Responder {
        /// Address to listen on; reachable for your own hosts only
        #[arg(long, value_name = "ADDRESS:PORT", value_parser = address::parse)]
        listen: SocketAddr,
        /// Tests at once; more are refused
        #[arg(long, default_value_t = 4, allow_negative_numbers = true)]
        max_tests: usize,
        /// A file with a secret that callers must know
        #[arg(long, value_name = "FILE")]
        secret: Option<PathBuf>,
        /// The user to go on as when root starts it; `tradewind`, if there is one, when absent
        #[arg(long, value_name = "NAME")]
        user: Option<String>,
    },
}

/// The direction of the data.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum DataDirection {
    /// From here
    Upload,
    /// To here
    Download,
}

fn up_to(most: u32) -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=i64::from(most))
}

fn span(text: &str) -> Result<Duration, UnitError> {
    parse_duration(text)
}

pub(crate) fn run(command: ProbeCommand) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match command {
        ProbeCommand::Rtt { targets, samples, interval, output } => {
            let options = RttOptions { samples, interval, ..RttOptions::default() };
            let answers = runtime.block_on(rtt::measure_all(&targets, &options));
            show_rtts(answers, output)
        }
        ProbeCommand::Rate {
            target,
            connections,
            direction,
            duration,
            volume,
            steady_for,
            max_rate,
            congestion_control,
            secret,
            output,
        } => {
            let defaults = RateOptions::default();
            let options = RateOptions {
                direction: match direction {
                    DataDirection::Upload => Direction::Upload,
                    DataDirection::Download => Direction::Download,
                },
                connections,
                duration,
                volume,
                stop_when_stable: (!steady_for.is_zero())
                    .then(|| StabilityRule { span: steady_for, ..StabilityRule::default() }),
                max_rate,
                congestion_control,
                secret: read_secret(secret.as_ref())?,
                ..defaults
            };
            match runtime.block_on(rate::measure(&target, &options)) {
                Ok(report) => show_rate(&report, output),
                Err(error) => failed(error),
            }
        }
        ProbeCommand::Responder { listen, max_tests, secret, user } => {
            sandbox::hide()?;
            let secret = read_secret(secret.as_ref())?;
            let config = ResponderConfig { max_tests, secret, ..ResponderConfig::new(listen) };
            runtime.block_on(respond(config, user.as_deref()))
        }
    }
}

/// Reports a failure; an invalid option is wrong usage, named as on the command line.
fn failed(error: ProbeError) -> Outcome {
    let ProbeError::Option { option, expected, value } = error else { return Err(error.into()) };
    output::complain(format_args!("--{}: {expected}, not `{value}`", option.replace('_', "-")));
    Ok(BAD_USAGE.into())
}

async fn respond(config: ResponderConfig, user: Option<&str>) -> Outcome {
    let ended = termination()?;
    let responder = match Responder::bind(config).await {
        Ok(responder) => responder,
        Err(error) => return failed(error),
    };
    // It needs no right but that to the port, which it has opened.
    let warnings = RetainedRights { user, ..RetainedRights::default() }.drop_others()?;
    start_log(Log::Text)?;
    warnings.iter().for_each(|line| tracing::warn!("{line}"));
    output::line(serde_json::json!({
        "schema_version": 1,
        "ready": "responder",
        "listen": [responder.local_addr()],
    }))?;
    responder.run(ended).await;
    Ok(ExitCode::SUCCESS)
}

/// Returns what is done once SIGTERM or SIGINT arrives. Other signals that would end this process
/// are ignored with a line.
fn termination() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    for (number, name) in signals::ending() {
        // Not every system lets all of them be caught.
        let Ok(mut other) = signal(SignalKind::from_raw(number)) else { continue };
        tokio::spawn(async move {
            while other.recv().await.is_some() {
                tracing::warn!("{name} has no meaning here and is ignored");
            }
        });
    }
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

fn read_secret(file: Option<&PathBuf>) -> anyhow::Result<Option<Secret>> {
    let Some(file) = file else { return Ok(None) };
    let text = secret_file::read(file, MAX_SECRET_BYTES).or_bad(file)?;
    if text.len() == MAX_SECRET_BYTES {
        let problem = "longer than any secret; expected 16 to 1024 bytes";
        return Err(anyhow::anyhow!(problem)).or_bad(file);
    }
    Secret::new(&text).map(Some).or_bad(file)
}

/// Shows the targets that answered; names those that did not, and then fails.
fn show_rtts(answers: Vec<Result<RttReport, ProbeError>>, output: Format) -> Outcome {
    let (mut reports, mut code) = (Vec::new(), ExitCode::SUCCESS);
    for answer in answers {
        match answer {
            Ok(report) => reports.push(report),
            Err(error) => {
                let is_usage = error.is_of_configuration();
                code = if is_usage { output::BAD_USAGE } else { FAILED }.into();
                output::complain(error);
            }
        }
    }
    match output {
        Format::Json => output::json(&reports)?,
        // An empty frame would tell nothing: every target's error stands above.
        Format::Table if reports.is_empty() => {}
        Format::Table => {
            let rows: Vec<Vec<String>> = reports
                .iter()
                .map(|report| {
                    let figures = [report.rtt_min_ms, report.rtt_median_ms, report.rtt_spread_ms];
                    let mut row = vec![report.target.clone()];
                    row.extend(figures.iter().map(|figure| format!("{figure:.3}")));
                    row.extend([report.samples.to_string(), report.failures.to_string()]);
                    row
                })
                .collect();
            let heading = ["target", "min ms", "median ms", "spread ms", "samples", "failures"];
            table::print(&heading, &rows, 1)?;
        }
    }
    Ok(code)
}

fn show_rate(report: &RateReport, output: Format) -> Outcome {
    match output {
        Format::Json => output::json(report)?,
        Format::Table => {
            let settled = if report.settled { "steady" } else { "not steady yet" };
            output::line(format_args!(
                "{}: {:.1} Mbit/s ({settled}; spread {:.1}) over {:.1} s, {} bytes, {} retransmits",
                report.target,
                report.rate_mbps,
                report.rate_spread_mbps,
                report.duration_s,
                report.total_bytes,
                report.retransmits
            ))?;
            let window = Bytes::new(report.window_effective_bytes);
            output::line(format_args!("round trip {:.3} ms; window {window}", report.rtt_min_ms))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
