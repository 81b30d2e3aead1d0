//! `tradewind measure import`: files of other tools, as measurements of legs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tradewind_control::import::{Imported, ImportedRtt, MOST_IMPORTED};
use tradewind_controller::view::{ImportRequest, Measurements};
use tradewind_grant::date::from_date;
use tradewind_probe::statistics::{ascending, quantile};
use tradewind_units::{SiteId, UnitError};

use super::{atlas, iperf3, pings, tables};
use crate::controller::access::ControllerArgs;
use crate::output::{self, BadFile, Outcome, read_text};

#[derive(clap::Args)]
pub(crate) struct ImportArgs {
    /// The file
    file: PathBuf,
    /// What wrote it
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

/// What wrote a file.
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

/// The ends of a leg, and the time of a measurement that has none of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) ends: Option<(SiteId, SiteId)>,
    pub(super) at: Option<u64>,
}

impl Given {
    /// Returns the ends, which only tables hold themselves.
    pub(super) fn ends(&self) -> Result<(SiteId, SiteId), String> {
        let none = || "holds no places: name them by --from and --to".to_owned();
        self.ends.clone().ok_or_else(none)
    }

    /// Returns the time of a measurement: the one that `--at` names, or its own.
    pub(super) fn time(&self, own: Option<u64>, hint: &str) -> Result<u64, String> {
        let none = || format!("holds no time: {hint}, or name it by --at 2026-11-27T13:00:00Z");
        self.at.or(own).ok_or_else(none)
    }
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
    for part in all.chunks(MOST_IMPORTED) {
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

/// Returns the summary of round-trip times, in milliseconds; `None` if there are none.
pub(super) fn summary(times: Vec<f64>) -> Option<ImportedRtt> {
    let sorted = ascending(times);
    Some(ImportedRtt {
        min_ms: *sorted.first()?,
        median_ms: quantile(&sorted, 0.5)?,
        spread_ms: quantile(&sorted, 0.9)? - quantile(&sorted, 0.1)?,
        samples: u32::try_from(sorted.len()).unwrap_or(u32::MAX),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns two places, and no time.
    pub(in crate::measure) fn given() -> Given {
        let site = |name: &str| SiteId::new(name).unwrap();
        Given { ends: Some((site("office"), site("plant"))), at: None }
    }

    #[test]
    fn summaries_have_the_spread_of_the_middle_eight_tenths() {
        let rtt = summary((0..=10).map(f64::from).rev().collect()).unwrap();
        assert_eq!((rtt.min_ms, rtt.median_ms, rtt.spread_ms, rtt.samples), (0.0, 5.0, 8.0, 11));
        assert_eq!(summary(Vec::new()), None);
    }

    #[test]
    fn times_need_a_zone() {
        assert_eq!(at("2026-11-20T13:00:00Z").unwrap(), 1_795_179_600_000);
        for wrong in ["2026-11-20", "2026-11-20T13:00:00", "now"] {
            let refused = at(wrong).unwrap_err().to_string();
            assert!(refused.contains("with time and zone"), "{refused}");
        }
    }
}
