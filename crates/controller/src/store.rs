//! The store: the kept records of the control plane in SQLite, the audit log, and the history of
//! measurements.
//!
//! A decision is stored in one transaction, and is on the disk when [`Store::append`] returns: the
//! journal is a write-ahead log with `synchronous = FULL`. There is one writer, which holds the
//! lock of the folder ([`crate::folder`]).

mod copy;
mod schema;

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior, params};
use schemars::JsonSchema;
use serde::Serialize;
use tradewind_control::Record;
use tradewind_control::message::Arm;
use tradewind_control::record::{AuditEntry, DAYS_IN_MEMORY, DaySessions};
use tradewind_model::measurement::{LegMeasurement, Method};
use tradewind_units::{Duration, RelayId, one_line};

pub use copy::{backup, restore};

/// Time for which raw measurements are kept. Chosen: long enough to compare a day with the same
/// day of the week before.
const RAW_MEASUREMENTS: Duration = Duration::from_hours(7 * 24);
/// Time for which audit entries are kept. Chosen: a year and a month.
const AUDIT: Duration = Duration::from_hours(400 * 24);
/// Time for which the sessions, the usage and the money of each day are kept. Chosen: a year and a
/// month.
const DAYS: Duration = Duration::from_hours(400 * 24);
/// Kinds of rows that there are of each day, which is the beginning of their keys.
const DAILY: [&str; 7] =
    ["jumps", "packets", "predicted", "relayed", "sessions", "transfers", "usage"];
/// Newest audit entries that are read at the start. Chosen: as many as the state holds.
const AUDIT_AT_START: u32 = 1000;
/// Longest problem that is shown, in bytes. Chosen: a line that a person reads.
const MAX_PROBLEM_BYTES: usize = 200;
/// Longest wait for a reader that holds the file, such as a backup. Chosen.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// A reason why the store cannot be used; each names the file.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file is damaged, or no store at all.
    #[error(
        "{file}: the store is damaged ({problem}); stop the controller, then bring a backup back \
         with `tradewind controller restore DIR FILE`"
    )]
    Damaged {
        /// The file.
        file: String,
        /// The problem.
        problem: String,
    },
    /// A newer program has written it.
    #[error(
        "{file}: the store has schema {found}, and this program knows up to {known}: run the \
         newer tradewind, or restore a backup made before the upgrade"
    )]
    Newer {
        /// The file.
        file: String,
        /// Its schema.
        found: u32,
        /// The newest schema that is known here.
        known: u32,
    },
    /// There is no room.
    #[error("{file}: the disk is full; nothing was changed")]
    Full {
        /// The file.
        file: String,
    },
    /// The file to be made is there already.
    #[error("{file}: is there already; name a new file")]
    Exists {
        /// The file.
        file: String,
    },
    /// Another failure.
    #[error("{file}: {problem}")]
    Other {
        /// The file.
        file: String,
        /// The failure.
        problem: String,
    },
}

impl StoreError {
    fn of(file: &Path, error: &rusqlite::Error) -> Self {
        use rusqlite::Error::{
            FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, SqlInputError,
            Utf8Error,
        };
        let name = file.display().to_string();
        let is_of_content = matches!(
            error,
            FromSqlConversionFailure(..)
                // A statement of ours does not fit the tables, which are therefore not ours.
                | SqlInputError { .. }
                | IntegralValueOutOfRange(..)
                | InvalidColumnType(..)
                | Utf8Error(..)
        );
        match error.sqlite_error_code() {
            // `Unknown`: a statement of ours does not fit the tables, which are therefore not ours.
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown) => {
                Self::damaged(file, error.to_string())
            }
            Some(ErrorCode::DiskFull) => Self::Full { file: name },
            _ if is_of_content => Self::damaged(file, error.to_string()),
            _ => Self::Other { file: name, problem: error.to_string() },
        }
    }

    fn damaged(file: &Path, problem: impl Into<String>) -> Self {
        // SQLite's findings have several lines.
        let problem = one_line(&problem.into(), MAX_PROBLEM_BYTES);
        Self::Damaged { file: file.display().to_string(), problem }
    }

    fn other(file: &Path, problem: &dyn std::fmt::Display) -> Self {
        Self::Other { file: file.display().to_string(), problem: problem.to_string() }
    }
}

/// A measurement as it once was.
#[derive(Debug, Clone, PartialEq, Serialize, serde::Deserialize, JsonSchema)]
pub struct MeasuredOnce {
    /// Time when it was made, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// The least round-trip time, in milliseconds.
    pub rtt_min_ms: f64,
    /// The median, in milliseconds.
    pub rtt_median_ms: f64,
    /// From the 10th to the 90th percentile, in milliseconds.
    pub rtt_spread_ms: f64,
    /// The rate, in Mbit/s, if it was measured.
    pub rate_mbps: Option<f64>,
    /// Connections of that rate.
    pub connections: Option<u32>,
    /// The method: of the rate, if there is one.
    pub method: Method,
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    file: PathBuf,
    connection: Connection,
}

impl Store {
    /// Opens the store in `file`, and creates it when there is none. One of an older schema is
    /// copied, then brought up to date.
    ///
    /// # Errors
    /// When it is damaged, newer than this program, or cannot be read.
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let failed = |error| StoreError::of(file, &error);
        // SQLite would let others read it; the files beside it get the same mode.
        let made =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(file);
        made.map_err(|error| StoreError::other(file, &error))?;
        let mut connection = Connection::open_with_flags(file, flags).map_err(failed)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
        connection
            .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
            .map_err(failed)?;
        schema::check(file, &connection)?;
        schema::migrate(file, &mut connection, schema::MIGRATIONS)?;
        Ok(Self { file: file.to_owned(), connection })
    }

    /// Stores records of one decision together: all of them or none. Those that are not kept
    /// ([`Record::is_kept`]) are left out.
    ///
    /// # Errors
    /// When they cannot be stored, as on a full disk; nothing is changed then.
    pub fn append(&mut self, unix_ms: u64, records: &[Record]) -> Result<(), StoreError> {
        let kept = || records.iter().filter(|record| record.is_kept());
        if kept().next().is_none() {
            return Ok(());
        }
        let Self { file, connection } = self;
        let stored = (|| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut before = None;
            for record in kept() {
                put(&transaction, record)?;
                if let Record::Measurement(leg) | Record::OldMeasurement(leg) = record
                    && !is_of_history(before, record)
                {
                    put_measured(&transaction, unix_ms, leg)?;
                }
                before = Some(record);
            }
            transaction.commit()
        })();
        stored.map_err(|error| StoreError::of(file, &error))
    }

    /// Reads all records, in an order in which the state can take them in.
    ///
    /// # Errors
    /// When the store is damaged.
    pub fn records(&self) -> Result<Vec<Record>, StoreError> {
        let mut records = Vec::new();
        // The rollout tells which plans are used, so it comes before them.
        // Days are read as far as the state holds them; a key begins with its day.
        let newest = DAILY.map(|kind| {
            format!(
                "OR kind = '{kind}' AND substr(key, 1, 20) IN (\
                     SELECT DISTINCT substr(key, 1, 20) FROM records \
                     WHERE kind = '{kind}' ORDER BY 1 DESC LIMIT ?1)"
            )
        });
        let query = format!(
            "SELECT kind, key, body, sum FROM records WHERE kind NOT IN ('{}') {} \
             ORDER BY kind = 'plan', kind, key",
            DAILY.join("', '"),
            newest.join(" ")
        );
        let failed = |error| StoreError::of(&self.file, &error);
        let mut rows = self.connection.prepare(&query).map_err(failed)?;
        let mut rows = rows.query([DAYS_IN_MEMORY]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let text = |at: usize| row.get::<_, String>(at).map_err(failed);
            let (kind, key, body) = (text(0)?, text(1)?, text(2)?);
            let sum: Option<i64> = row.get(3).map_err(failed)?;
            if sum.is_some_and(|sum| sum != sum_of(&[&kind, &key, &body])) {
                return Err(StoreError::damaged(&self.file, format!("{kind} `{key}` is altered")));
            }
            let record = serde_json::from_str(&body).map_err(|error| {
                StoreError::damaged(&self.file, format!("{kind} `{key}`: {error}"))
            })?;
            records.push(record);
        }
        let audit = self.audit(AUDIT_AT_START)?.into_iter().rev();
        records.extend(audit.map(Record::Audit));
        Ok(records)
    }

    /// Returns the newest entries of the audit log, newest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn audit(&self, most: u32) -> Result<Vec<AuditEntry>, StoreError> {
        let query =
            "SELECT number, unix_ms, actor, action, sum FROM audit ORDER BY number DESC LIMIT ?1";
        let read = self.connection.prepare(query).and_then(|mut query| {
            let entry = |row: &rusqlite::Row<'_>| {
                let entry = AuditEntry {
                    number: row.get(0)?,
                    unix_ms: row.get(1)?,
                    actor: row.get(2)?,
                    action: row.get(3)?,
                };
                Ok((entry, row.get(4)?))
            };
            query.query_map([most], entry)?.collect::<Result<Vec<(_, Option<i64>)>, _>>()
        });
        let read = read.map_err(|error| StoreError::of(&self.file, &error))?;
        let checked = |(entry, sum): (AuditEntry, Option<i64>)| match sum {
            Some(sum) if sum != sum_of_entry(&entry) => {
                let problem = format!("audit entry {} is altered", entry.number);
                Err(StoreError::damaged(&self.file, problem))
            }
            _ => Ok(entry),
        };
        read.into_iter().map(checked).collect()
    }

    /// Returns the kept measurements of a leg, oldest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn history(&self, from: &str, to: &str) -> Result<Vec<MeasuredOnce>, StoreError> {
        let query = "SELECT unix_ms, rtt_min_ms, rtt_median_ms, rtt_spread_ms, rate_mbps, \
                     connections, method \
                     FROM measured WHERE source = ?1 AND destination = ?2 ORDER BY unix_ms";
        let read = self.connection.prepare(query).and_then(|mut query| {
            let once = |row: &rusqlite::Row<'_>| {
                Ok(MeasuredOnce {
                    unix_ms: row.get(0)?,
                    rtt_min_ms: row.get(1)?,
                    rtt_median_ms: row.get(2)?,
                    rtt_spread_ms: row.get(3)?,
                    rate_mbps: row.get(4)?,
                    connections: row.get(5)?,
                    method: method_of(row, 6)?,
                })
            };
            query.query_map([from, to], once)?.collect()
        });
        read.map_err(|error| StoreError::of(&self.file, &error))
    }

    /// Removes plans other than `used`, and measurements, audit entries, sessions, usage and money
    /// that are too old.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn prune(&mut self, unix_ms: u64, used: &BTreeSet<u64>) -> Result<(), StoreError> {
        let before = |kept: Duration| {
            unix_ms.saturating_sub(u64::try_from(kept.as_millis()).unwrap_or(u64::MAX))
        };
        let Self { file, connection } = self;
        let pruned = (|| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let plans: Vec<String> = {
                let mut query =
                    transaction.prepare("SELECT key FROM records WHERE kind = 'plan'")?;
                query.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?
            };
            let used: BTreeSet<String> = used.iter().map(|number| numbered(*number)).collect();
            for key in plans.iter().filter(|key| !used.contains(*key)) {
                let remove = "DELETE FROM records WHERE kind = 'plan' AND key = ?1";
                transaction.execute(remove, [key])?;
            }
            let measured = "DELETE FROM measured WHERE unix_ms < ?1";
            transaction.execute(measured, [before(RAW_MEASUREMENTS)])?;
            transaction.execute("DELETE FROM audit WHERE unix_ms < ?1", [before(AUDIT)])?;
            for kind in DAILY.iter().chain(&["billed", "spent"]) {
                let kept = if *kind == "transfers" { RAW_MEASUREMENTS } else { DAYS };
                let days = "DELETE FROM records WHERE kind = ?1 AND key < ?2";
                transaction.execute(days, [*kind, &numbered(before(kept) / 86_400_000)])?;
            }
            transaction.commit()
        })();
        pruned.map_err(|error| StoreError::of(file, &error))
    }
}

/// Returns a number as a key whose order as text is the numbers' order.
fn numbered(number: u64) -> String {
    format!("{number:020}")
}

/// Returns the kind and the key of a record.
fn kind_and_key(record: &Record) -> (&'static str, String) {
    match record {
        Record::Counters(_) => ("counters", String::new()),
        Record::Settings(_) => ("settings", String::new()),
        Record::Invite(invite) => ("invite", invite.hash.to_string()),
        Record::Host(host) => ("host", host.id.to_string()),
        Record::Flow(flow) => ("flow", flow.id.to_string()),
        Record::PacketFlow(flow) => ("packet-flow", flow.id.to_string()),
        Record::Tenant(tenant) => ("tenant", tenant.id.to_string()),
        Record::TenantRemoved { tenant } => ("tenant", tenant.to_string()),
        Record::FlowRemoved { flow } => ("flow", flow.to_string()),
        // No name holds a space.
        Record::Measurement(leg) | Record::OldMeasurement(leg) => {
            ("measurement", format!("{} {}", leg.source, leg.destination))
        }
        Record::RateTest(test) => ("rate-test", format!("{} {}", test.source, test.destination)),
        Record::Handshakes(sum) => ("handshakes", format!("{} {}", sum.source, sum.destination)),
        Record::Plan(plan) => ("plan", numbered(plan.number)),
        Record::Rollout(_) => ("rollout", String::new()),
        Record::Document(document) => ("document", document.host.to_string()),
        Record::Audit(entry) => ("audit", numbered(entry.number)),
        Record::Batch(batch) => ("batch", batch.host.to_string()),
        Record::Sessions(DaySessions { day, tally }) => {
            let arm = match tally.arm {
                Arm::Overlay => "overlay",
                Arm::Control => "control",
                Arm::Other => "other",
            };
            let path: Vec<&str> = tally.path.iter().map(RelayId::as_str).collect();
            let (flow, class, path) = (&tally.flow, tally.size_class, path.join(" "));
            ("sessions", format!("{} {flow} {arm} {class} {path}", numbered(*day)))
        }
        Record::Packets(packets) => {
            ("packets", format!("{} {}", numbered(packets.day), packets.flow))
        }
        Record::Predicted(row) => ("predicted", format!("{} {}", numbered(row.day), row.flow)),
        Record::Relayed(row) => {
            ("relayed", format!("{} {} {}", numbered(row.day), row.flow, row.relay))
        }
        Record::Usage(usage) => ("usage", format!("{} {}", numbered(usage.day), usage.flow)),
        Record::Proxies(proxies) => ("proxies", proxies.site.to_string()),
        Record::ProxiesRemoved { site } => ("proxies", site.to_string()),
        Record::Learned(flow) => ("learned", flow.id.to_string()),
        Record::LearnedForgotten { flow, .. } => ("learned", flow.to_string()),
        Record::Spent(spent) => ("spent", numbered(spent.day)),
        Record::Billed(billed) => ("billed", format!("{} {}", numbered(billed.day), billed.host)),
        Record::Jumps(jumps) => ("jumps", format!("{} {}", numbered(jumps.day), jumps.host)),
        Record::Transfers(row) => {
            let ends = format!("{} {}", row.source, row.destination);
            ("transfers", format!("{} {ends}", numbered(row.day)))
        }
        Record::Learners(learners) => ("learners", learners.host.to_string()),
        Record::TakenBack(taken) => ("taken-back", taken.flow.to_string()),
        Record::PathHistory(paths) => ("paths", paths.flow.to_string()),
        Record::Doubt(doubt) => ("doubt", format!("{} {}", doubt.source, doubt.destination)),
        Record::Window(window) => ("window", window.flow.to_string()),
        Record::Seen(seen) => ("seen", seen.host.to_string()),
        Record::Probing(probing) => ("probing", numbered(probing.id)),
        Record::Watching(_) => ("watching", String::new()),
    }
}

/// Returns the sum by which an altered row is found, which SQLite does not look for.
fn sum_of(parts: &[&str]) -> i64 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
    }
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    i64::from_le_bytes(bytes)
}

fn sum_of_entry(entry: &AuditEntry) -> i64 {
    let AuditEntry { number, unix_ms, actor, action } = entry;
    sum_of(&[&number.to_string(), &unix_ms.to_string(), actor, action])
}

/// Stores one record.
fn put(connection: &Connection, record: &Record) -> rusqlite::Result<()> {
    let (kind, key) = kind_and_key(record);
    match record {
        Record::Audit(entry) => {
            let insert = "INSERT OR REPLACE INTO audit VALUES (?1, ?2, ?3, ?4, ?5)";
            let sum = sum_of_entry(entry);
            let values = params![entry.number, entry.unix_ms, entry.actor, entry.action, sum];
            connection.prepare_cached(insert)?.execute(values)?;
            return Ok(());
        }
        Record::FlowRemoved { .. }
        | Record::TenantRemoved { .. }
        | Record::LearnedForgotten { .. }
        | Record::ProxiesRemoved { .. } => return remove(connection, kind, &key),
        Record::OldMeasurement(_) => return Ok(()),
        _ => {}
    }
    let body = serde_json::to_string(record)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let insert = "INSERT OR REPLACE INTO records VALUES (?1, ?2, ?3, ?4)";
    let sum = sum_of(&[kind, &key, &body]);
    connection.prepare_cached(insert)?.execute(params![kind, key, body, sum])?;
    Ok(())
}

/// Removes a row, and what is kept of the flow that it was alone.
fn remove(connection: &Connection, kind: &str, key: &str) -> rusqlite::Result<()> {
    // Flows of both kinds have names of their own.
    let kinds: &[&str] = if kind == "flow" { &["flow", "packet-flow", "paths"] } else { &[kind] };
    for kind in kinds {
        let remove = "DELETE FROM records WHERE kind = ?1 AND key = ?2";
        connection.prepare_cached(remove)?.execute([kind, key])?;
    }
    // The usage of a learned destination stays with the flow that it became.
    // The name of the flow comes after the 20 digits of the day and a space.
    // The index of these days is found by these very words.
    let remove = "DELETE FROM records \
                  WHERE kind IN ('usage', 'packets') AND substr(key, 22) = ?1 \
                  AND NOT EXISTS (SELECT 1 FROM records WHERE kind = 'flow' AND key = ?1) \
                  AND ?2 IN ('flow', 'learned')";
    connection.prepare_cached(remove)?.execute([key, kind])?;
    // Handshakes are kept between sites of packet flows.
    let remove = "DELETE FROM records WHERE kind = 'handshakes' AND key NOT IN (\
                  SELECT json_extract(body, '$.from') || ' ' || json_extract(body, '$.to_site') \
                  FROM records WHERE kind = 'packet-flow')";
    connection.prepare_cached(remove)?.execute([])?;
    Ok(())
}

/// Returns whether the record `before` a measurement has it as it was made.
fn is_of_history(before: Option<&Record>, measurement: &Record) -> bool {
    match (before, measurement) {
        (Some(Record::OldMeasurement(made)), Record::Measurement(leg)) => {
            (&made.source, &made.destination) == (&leg.source, &leg.destination)
        }
        _ => false,
    }
}

/// Adds a measurement to the history, by the time when it was made: ours is made when it is stored.
fn put_measured(
    connection: &Connection,
    stored_unix_ms: u64,
    leg: &LegMeasurement,
) -> rusqlite::Result<()> {
    let is_imported = leg.method == Method::Imported;
    let unix_ms = leg.measured_at_unix_ms.filter(|_| is_imported).unwrap_or(stored_unix_ms);
    let method = serde_json::to_value(leg.method)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let insert = "INSERT INTO measured VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let millis = tradewind_units::time::as_millis_f64;
    connection.prepare_cached(insert)?.execute(params![
        unix_ms,
        leg.source.as_str(),
        leg.destination.as_str(),
        millis(leg.rtt.min),
        millis(leg.rtt.median),
        leg.rate.map(|rate| rate.rate.as_mbps()),
        leg.rate.map(|rate| rate.connections),
        millis(leg.rtt.spread),
        method.as_str(),
    ])?;
    Ok(())
}

/// Reads a method, as [`put_measured`] wrote it.
fn method_of(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<Method> {
    let name: String = row.get(at)?;
    serde_json::from_value(name.into()).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, error.into())
    })
}

#[cfg(test)]
mod tests;
