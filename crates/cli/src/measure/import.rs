//! `tradewind measure import`: files of other tools, as measurements of legs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tradewind_control::imported::{Imported, MAX_IMPORTED};
use tradewind_controller::view::{ImportRequest, Measurements};
use tradewind_grant::date::from_date;
use tradewind_units::{SiteId, UnitError};

use super::given::Given;
use super::{atlas, iperf3, pings, tables};
use crate::controller::access::ControllerArgs;
use crate::output::{self, BadFile, Outcome, read_text};

#[derive(clap::Args)]
pub(crate) struct ImportArgs {
    /// The file
    file: PathBuf,
    /// The program or service that wrote it
    #[arg(long, value_enum)]
    format: ImportFormat,
    /// The place that measured; with iperf3, the one that sent
    #[arg(long, value_name = "PLACE", requires = "to")]
    from: Option<SiteId>,
    /// The place that was measured
    #[arg(long, value_name = "PLACE", requires = "from")]
    to: Option<SiteId>,
    /// Time of the measurement, such as `2026-11-27T13:00:00Z`, where the file has none
    #[arg(long, value_name = "TIME", value_parser = at)]
    at: Option<u64>,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// The program or service that wrote a file.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ImportFormat {
    /// A table with columns as `tradewind measure export` prints them
    Csv,
    /// `iperf3 --json` of a TCP test in one direction
    Iperf3,
    /// `ping`, with -D for the time
    Ping,
    /// `fping -c` with -D for the time, `-C` or `-e`, of one target
    Fping,
    /// Results of a ping measurement of RIPE Atlas, of one probe
    RipeAtlas,
}

/// Reads a time with its zone; returns milliseconds since the Unix epoch.
fn at(text: &str) -> Result<u64, UnitError> {
    let time = text.parse().ok().and_then(|written| from_date(&written));
    let expected = "a date with time and zone, such as `2026-11-27T13:00:00Z`";
    let time = time.ok_or_else(|| UnitError::new("time", expected, text))?;
    Ok(time.as_nanos() / 1_000_000)
}

pub(super) fn run(args: &ImportArgs) -> Outcome {
    let given = Given { ends: args.from.clone().zip(args.to.clone()), at: args.at };
    let text = read_text(&args.file)?;
    let refused = |problem: String| BadFile(format!("{}: {problem}", args.file.display()));
    let mut all = read(args.format, &text, &given).map_err(refused)?;
    if all.is_empty() {
        return Err(refused("holds no measurement".to_owned()).into());
    }
    let client = args.controller.client()?;
    if args.format == ImportFormat::Iperf3 {
        // Its round trips hold the queues that it fills, so they count where none are known.
        let known: Measurements = client.get("/v1/measurements")?;
        let known: BTreeSet<_> =
            known.legs.iter().map(|leg| (&leg.source, &leg.destination)).collect();
        all.iter_mut().filter(|one| known.contains(&(&one.from, &one.to))).for_each(|one| {
            one.rtt = None;
        });
    }
    // The newest last, so that it is what is known of its leg.
    all.sort_by_key(|one| one.unix_ms);
    let mut taken = 0;
    for part in all.chunks(MAX_IMPORTED) {
        let request = ImportRequest { measurements: part.to_vec() };
        client.send("/v1/measurements", &request).map_err(|error| {
            let before = if taken == 0 { "none is" } else { "those before are" };
            anyhow::Error::new(error).context(format!("{}: {before} taken", shown(&args.file)))
        })?;
        taken += part.len();
    }
    output::note(format_args!("imported {taken} measurements"));
    Ok(ExitCode::SUCCESS)
}

fn shown(file: &Path) -> String {
    file.display().to_string()
}

fn read(format: ImportFormat, text: &str, given: &Given) -> Result<Vec<Imported>, String> {
    match format {
        ImportFormat::Csv => tables::read(text, given),
        ImportFormat::Iperf3 => iperf3::read(text, given).map(|one| vec![one]),
        ImportFormat::Ping => pings::read_ping(text, given).map(|one| vec![one]),
        ImportFormat::Fping => pings::read_fping(text, given).map(|one| vec![one]),
        ImportFormat::RipeAtlas => atlas::read(text, given),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_need_a_zone() {
        assert_eq!(at("2026-11-20T13:00:00Z").unwrap(), 1_795_179_600_000);
        for wrong in ["2026-11-20", "2026-11-20T13:00:00", "now"] {
            let refused = at(wrong).unwrap_err().to_string();
            assert!(refused.contains("with time and zone"), "{refused}");
        }
    }
}
