//! `tradewind events`: the audit log of an overlay, and what happens there now.

use std::process::ExitCode;
use std::thread::{self, sleep};

use serde::Serialize;
use serde_json::json;
use tradewind_control::record::AuditEntry;
use tradewind_controller::changes::Kind;
use tradewind_controller::view::{Audit, Change, SCHEMA_VERSION};
use tradewind_controller::{Client, ClientError};
use tradewind_grant::date::Date;
use tradewind_net::NetError;
use tradewind_net::epoll::Epoll;
use tradewind_stream::clock::unix_now;
use tradewind_units::Duration;

use crate::controller::access::{ControllerArgs, TableArgs};
use crate::output::{self, Outcome, TableFormat, csv, table};

/// The pause before a controller that is away is tried again. Chosen: people see no difference.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub(crate) struct EventsArgs {
    /// Go on: tell of new entries of the audit log, and of which kinds of things change, as they
    /// happen; one JSON object a line with `-o json`, entries alone with `-o csv`
    #[arg(short, long)]
    follow: bool,
    /// Number of entries to show
    #[arg(long, value_name = "N", default_value = "100", conflicts_with = "follow")]
    last: usize,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

/// The columns of the audit log as CSV.
const COLUMNS: [&str; 4] = ["number", "unix_ms", "actor", "action"];

pub(crate) fn run(args: &EventsArgs) -> Outcome {
    if args.follow {
        return follow(&args.controller, args.output.output);
    }
    let mut audit: Audit = args.controller.client()?.get("/v1/audit")?;
    audit.entries.truncate(args.last);
    args.output.print(&audit, &COLUMNS, &audit.entries, show)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the entries with the newest last, where a terminal shows it.
fn show(audit: &Audit) -> anyhow::Result<()> {
    let row =
        |entry: &AuditEntry| vec![time(entry.unix_ms), entry.actor.clone(), entry.action.clone()];
    let rows: Vec<Vec<String>> = audit.entries.iter().rev().map(row).collect();
    table::print(&["time", "by", "did"], &rows, 3)
}

fn time(unix_ms: u64) -> String {
    Date(unix_ms / 1000).to_string()
}

/// Tells of events until the reader of standard output has enough, or the controller refuses.
fn follow(controller: &ControllerArgs, form: TableFormat) -> Outcome {
    end_with_reader()?;
    let mut told = Told { form, newest: None };
    let mut is_away = false;
    loop {
        // The address and the token are read anew: a controller may have moved meanwhile.
        let client = controller.client()?;
        match listen(&client, &mut told, &mut is_away) {
            Ok(()) => return Ok(ExitCode::SUCCESS),
            Err(error) => {
                let is_lost = matches!(
                    error.downcast_ref(),
                    Some(
                        ClientError::Unreachable { .. } | ClientError::Refused { status: 503, .. }
                    )
                );
                if !is_lost || told.newest.is_none() {
                    return Err(error);
                }
                if !is_away {
                    let problem = output::one_line(&error);
                    output::complain(format_args!("{problem}; waits until it is back"));
                    is_away = true;
                }
            }
        }
        sleep(PAUSE);
    }
}

/// Has the process end in order as soon as nobody reads standard output any more: on a quiet
/// overlay nothing is written by which that would show. What has no end, as a file, is not watched.
fn end_with_reader() -> anyhow::Result<()> {
    let mut ends = Epoll::new()?;
    if ends.watch_end(&std::io::stdout(), 0).is_err() {
        return Ok(());
    }
    let wait = move || {
        let is_over = |ends: &mut Epoll| Ok::<_, NetError>(ends.wait(None)?.next().is_some());
        // A signal that is handled elsewhere interrupts the wait.
        while let Ok(is_over) = is_over(&mut ends) {
            if is_over {
                tradewind_telemetry::flush_logs();
                std::process::exit(0);
            }
        }
    };
    thread::Builder::new().name("reader".to_owned()).spawn(wait)?;
    Ok(())
}

/// That which has been told so far.
struct Told {
    form: TableFormat,
    /// The number of the newest entry of the audit log.
    newest: Option<u64>,
}

/// Listens over one connection; ends without an error when standard output is closed.
fn listen(client: &Client, told: &mut Told, is_away: &mut bool) -> anyhow::Result<()> {
    let mut events = client.events()?;
    // The first event names all kinds, and so says nothing.
    let mut is_first = true;
    loop {
        let change = events.wait()?;
        if is_first && *is_away {
            output::complain("the controller is back");
            *is_away = false;
        }
        if change.kinds.contains(&Kind::Audit) && !told.tell_entries(&client.get("/v1/audit")?)? {
            return Ok(());
        }
        if !is_first && !told.tell_change(&change)? {
            return Ok(());
        }
        is_first = false;
    }
}

impl Told {
    /// Tells of entries that are new; of none at the start. Returns false if nobody reads.
    fn tell_entries(&mut self, audit: &Audit) -> anyhow::Result<bool> {
        let newest = audit.entries.first().map_or(0, |entry| entry.number);
        let Some(before) = self.newest.replace(newest) else {
            let has_heading = self.form == TableFormat::Csv;
            return if has_heading { output::put(COLUMNS.join(",")) } else { Ok(true) };
        };
        if newest < before {
            output::complain("the controller has an older audit log now: it was restored");
            return Ok(true);
        }
        let new = audit.entries.iter().rev().filter(|entry| entry.number > before);
        for entry in new {
            let AuditEntry { unix_ms, actor, action, .. } = entry;
            let line = || format!("{}  {actor}: {action}", time(*unix_ms));
            if !self.put("audit", entry, line)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Tells which kinds have changed, beside the audit log. Returns false if nobody reads.
    fn tell_change(&self, change: &Change) -> anyhow::Result<bool> {
        let kinds: Vec<&Kind> = change.kinds.iter().filter(|kind| **kind != Kind::Audit).collect();
        // A table of entries has no place for them.
        if kinds.is_empty() || self.form == TableFormat::Csv {
            return Ok(true);
        }
        let now_ms = unix_now().as_nanos() / 1_000_000;
        let names: Vec<String> = kinds
            .iter()
            .filter_map(|kind| Some(serde_json::to_value(kind).ok()?.as_str()?.to_owned()))
            .collect();
        let line = || format!("{}  changed: {}", time(now_ms), names.join(", "));
        self.put("change", &json!({ "unix_ms": now_ms, "kinds": kinds }), line)
    }

    fn put(
        &self,
        event: &str,
        value: &impl Serialize,
        line: impl FnOnce() -> String,
    ) -> anyhow::Result<bool> {
        match self.form {
            TableFormat::Table => return output::put(line()),
            TableFormat::Csv => return output::put(csv::row(&COLUMNS, value)?),
            TableFormat::Json => {}
        }
        let mut object = json!({ "schema_version": SCHEMA_VERSION, "event": event });
        if let (Some(object), Ok(serde_json::Value::Object(fields))) =
            (object.as_object_mut(), serde_json::to_value(value))
        {
            object.extend(fields);
        }
        output::put(object)
    }
}
