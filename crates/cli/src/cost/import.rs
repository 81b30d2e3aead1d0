//! `tradewind cost import`: bills of clouds, by day and host.

use std::path::PathBuf;
use std::process::ExitCode;

use tradewind_control::billed::MAX_BILLED;
use tradewind_control::imported::Billed;
use tradewind_controller::view::BillRequest;
use tradewind_grant::date::from_date;
use tradewind_units::{Money, shown};

use crate::controller::access::ControllerArgs;
use crate::output::{self, BadFile, Outcome, read_text};

/// The columns of a file.
const COLUMNS: [&str; 3] = ["day", "host", "usd"];
/// Nanoseconds of a day.
const DAY: u64 = 86_400_000_000_000;

#[derive(clap::Args)]
pub(crate) struct ImportArgs {
    /// The file: CSV with the columns `day` (such as 2026-11-27, UTC), `host` and `usd`
    file: PathBuf,
    #[command(flatten)]
    controller: ControllerArgs,
}

pub(super) fn run(args: &ImportArgs) -> Outcome {
    let text = read_text(&args.file)?;
    let refused = |problem: String| BadFile(format!("{}: {problem}", args.file.display()));
    let all = read(&text).map_err(refused)?;
    if all.is_empty() {
        return Err(refused("holds no bill".to_owned()).into());
    }
    let client = args.controller.client()?;
    let mut taken = 0;
    for part in parts(all) {
        let count = part.len();
        client.send("/v1/bills", &BillRequest { billed: part }).map_err(|error| {
            let before = if taken == 0 { "none is" } else { "those of days before are" };
            anyhow::Error::new(error).context(format!("{}: {before} taken", args.file.display()))
        })?;
        taken += count;
    }
    output::note(format_args!("imported {taken} bills of a day and host"));
    Ok(ExitCode::SUCCESS)
}

/// Returns the entries in parts that the controller takes, those of a day and host added up, as
/// each part replaces what was there.
fn parts(mut all: Vec<Billed>) -> Vec<Vec<Billed>> {
    all.sort_by(|a, b| (a.day, &a.host).cmp(&(b.day, &b.host)));
    all.dedup_by(|next, kept| {
        let is_same = (next.day, &next.host) == (kept.day, &kept.host);
        if is_same {
            kept.usd = kept.usd + next.usd;
        }
        is_same
    });
    all.chunks(MAX_BILLED).map(<[Billed]>::to_vec).collect()
}

/// Reads a heading of the columns in any order, then a row for each bill.
fn read(text: &str) -> Result<Vec<Billed>, String> {
    let mut reader = csv::ReaderBuilder::new()
        .comment(Some(b'#'))
        .trim(csv::Trim::All)
        .from_reader(text.trim_start_matches('\u{feff}').as_bytes());
    let heading = reader.headers().map_err(|error| error.to_string())?.clone();
    let place = |name: &str| heading.iter().position(|column| column == name);
    let places: Option<Vec<usize>> = COLUMNS.iter().map(|name| place(name)).collect();
    let Some([day, host, usd]) = places.as_deref().and_then(<[usize]>::as_array).copied() else {
        return Err(format!("line 1: expected the columns {}", COLUMNS.join(",")));
    };
    let mut all = Vec::new();
    for row in reader.records() {
        let cells = row.map_err(|error| error.to_string())?;
        let line = cells.position().map_or(0, csv::Position::line);
        let cell = |at: usize| cells.get(at).unwrap_or_default();
        let refused = |name: &str, text: &str, expected: &str| {
            format!("line {line}: {name}: `{}`: expected {expected}", shown(text))
        };
        let bad_day = || refused("day", cell(day), "a date such as 2026-11-27");
        let bad_host = |_| refused("host", cell(host), "the name of a host");
        let bad_usd = || refused("usd", cell(usd), "dollars such as 1.25");
        let dollars = cell(usd).parse().ok().and_then(|usd| Money::from_usd(usd).ok());
        all.push(Billed {
            day: day_number(cell(day)).ok_or_else(bad_day)?,
            host: cell(host).parse().map_err(bad_host)?,
            usd: dollars.ok_or_else(bad_usd)?,
        });
    }
    Ok(all)
}

/// Returns a day in days since the Unix epoch.
fn day_number(text: &str) -> Option<u64> {
    let time = from_date(&format!("{text}T00:00:00Z").parse().ok()?)?;
    Some(time.as_nanos() / DAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn billed(day: u64, host: &str, usd: f64) -> Billed {
        Billed { day, host: host.parse().unwrap(), usd: Money::from_usd(usd).unwrap() }
    }

    #[test]
    fn bills_are_read_and_added_up() {
        let text = "# of November\nusd, host, day\n1.25, gcp:a-1, 2026-11-28\n\
                    3,gcp:a-1,2026-11-27\n0.75,gcp:a-1,2026-11-28\n0,b-1,2026-11-28\n";
        let all = read(text).unwrap();
        assert_eq!(all[0], billed(20_785, "gcp:a-1", 1.25));
        let expected = vec![
            billed(20_784, "gcp:a-1", 3.0),
            billed(20_785, "b-1", 0.0),
            billed(20_785, "gcp:a-1", 2.0),
        ];
        assert_eq!(parts(all), [expected]);
        let many: Vec<Billed> = (0..2001).map(|day| billed(day, "b-1", 1.0)).collect();
        let lengths: Vec<usize> = parts(many).iter().map(Vec::len).collect();
        assert_eq!(lengths, [1000, 1000, 1]);
    }

    #[test]
    fn refusals_name_line_and_column() {
        for (text, expected) in [
            ("day,host\n", "line 1: expected the columns day,host,usd"),
            ("day,host,usd\n27.11.2026,a,1\n", "line 2: day: `27.11.2026`: expected a date"),
            ("day,host,usd\n2026-11-27,a b,1\n", "line 2: host: `a b`: expected the name"),
            ("day,host,usd\n2026-11-27,a,1\n2026-11-27,a,-1\n", "line 3: usd: `-1`: expected"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.starts_with(expected), "{refused}");
        }
    }
}
