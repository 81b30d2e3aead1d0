//! The tables of the store, and how older ones become the newest.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, TransactionBehavior};

use super::StoreError;

/// The steps from an empty file to the newest tables. A store's `user_version` is the number of
/// those that it has behind it; a step is never changed once it was released.
pub(super) const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE records (
        kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, key)
    ) WITHOUT ROWID;
    CREATE TABLE audit (
        number INTEGER PRIMARY KEY, unix_ms INTEGER NOT NULL, actor TEXT NOT NULL,
        action TEXT NOT NULL
    );
    CREATE TABLE measured (
        unix_ms INTEGER NOT NULL, source TEXT NOT NULL, destination TEXT NOT NULL,
        rtt_min_ms REAL NOT NULL, rtt_median_ms REAL NOT NULL, rate_mbps REAL,
        connections INTEGER
    );
    CREATE INDEX measured_legs ON measured (source, destination, unix_ms);
    CREATE INDEX measured_times ON measured (unix_ms);
    PRAGMA application_id = 0x54574e44;
",
    "
    ALTER TABLE records ADD COLUMN sum INTEGER;
    ALTER TABLE audit ADD COLUMN sum INTEGER;
    ALTER TABLE measured ADD COLUMN rtt_spread_ms REAL NOT NULL DEFAULT 0;
    ALTER TABLE measured ADD COLUMN method TEXT NOT NULL DEFAULT 'tcp';
",
    "
    CREATE INDEX days_of_flows ON records (substr(key, 22)) WHERE kind IN ('usage', 'packets');
",
    // From here on there are records of tenants, handshakes, timed transfers, flows' former paths
    // and predictions, which older programs do not know.
    "
    PRAGMA application_id = 0x54574e44;
",
];

/// The mark of our files: `TWND`.
const APPLICATION: u32 = 0x5457_4e44;

/// Checks that `file` holds a store of this program's or of an older schema, or nothing yet.
///
/// # Errors
/// When it is damaged, another program's, or newer.
pub(super) fn check(file: &Path, connection: &Connection) -> Result<(), StoreError> {
    let failed = |error| StoreError::of(file, &error);
    let version = version(file, connection)?;
    let known = u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX);
    if version > known {
        let file = file.display().to_string();
        return Err(StoreError::Newer { file, found: version, known });
    }
    let marked: u32 =
        connection.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(failed)?;
    let tables: u32 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed)?;
    if tables > 0 && (marked != APPLICATION || version == 0) {
        return Err(StoreError::damaged(file, "it is another program's"));
    }
    let found: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
    if found == "ok" { Ok(()) } else { Err(StoreError::damaged(file, found)) }
}

/// Returns the number of migrations that a store has behind it.
pub(super) fn version(file: &Path, connection: &Connection) -> Result<u32, StoreError> {
    let read = connection.pragma_query_value(None, "user_version", |row| row.get(0));
    read.map_err(|error| StoreError::of(file, &error))
}

/// Brings a store up to date, each step in one transaction; a store with something in it is copied
/// before, to a file beside it whose name ends in its schema.
///
/// # Errors
/// When a step fails: it has changed nothing then, and can be tried again.
pub(super) fn migrate(
    file: &Path,
    connection: &mut Connection,
    steps: &[&str],
) -> Result<(), StoreError> {
    let failed = |error| StoreError::of(file, &error);
    let old = version(file, connection)?;
    let done = usize::try_from(old).unwrap_or(usize::MAX);
    if done > 0 && done < steps.len() {
        let copy = copy_name(file, old);
        if !copy.exists() {
            super::copy::vacuum_into(file, connection, &copy)?;
        }
    }
    for (number, step) in steps.iter().enumerate().skip(done) {
        let behavior = TransactionBehavior::Immediate;
        let transaction = connection.transaction_with_behavior(behavior).map_err(failed)?;
        transaction.execute_batch(step).map_err(failed)?;
        transaction.pragma_update(None, "user_version", (number + 1) as u64).map_err(failed)?;
        transaction.commit().map_err(failed)?;
    }
    Ok(())
}

/// Returns the name of the copy of a store made before it left schema `old`.
pub(super) fn copy_name(file: &Path, old: u32) -> PathBuf {
    file.with_extension(format!("db.schema-{old}"))
}
