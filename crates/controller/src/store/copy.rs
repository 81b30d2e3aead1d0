//! Backups of a store, and their return.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OpenFlags};
use tradewind_control::Record;
use tradewind_control::record::{AuditEntry, Counters};

use super::{BUSY_TIMEOUT, Store, StoreError, schema};

/// Copies the store in `file` to `copy`, which must not exist; the controller may run meanwhile.
/// The copy is one file, complete at one moment, and holds no secret key.
///
/// # Errors
/// When the store cannot be read or the copy cannot be written.
pub fn backup(file: &Path, copy: &Path) -> Result<(), StoreError> {
    let connection = open_to_read(file)?;
    schema::check(file, &connection)?;
    vacuum_into(file, &connection, copy)
}

/// Puts the backup in `copy` in the place of the store in `file`, in a new epoch, and returns that.
/// The store from before is kept beside it: its name ends in `.before-restore`. The caller holds
/// the lock of the folder.
///
/// # Errors
/// When the backup is no store, damaged or newer than this program; nothing is changed then.
pub fn restore(file: &Path, copy: &Path) -> Result<u64, StoreError> {
    let backup = open_to_read(copy)?;
    let schema = schema::version(copy, &backup)?;
    if schema == 0 {
        return Err(StoreError::other(copy, &"is no backup of a controller's store"));
    }
    schema::check(copy, &backup)?;
    let draft = beside(file, "restoring");
    remove(&draft)?;
    vacuum_into(copy, &backup, &draft)?;
    let epoch = begin_epoch(&draft, epoch_of(file))?;
    // An older draft was copied before it was brought up to date; the backup is there.
    remove(&schema::copy_name(&draft, schema))?;
    let failed = |error: io::Error| StoreError::other(file, &error);
    // The write-ahead log belongs to the file beside it, so both move.
    for end in ["", "-wal", "-shm"] {
        let (old, kept) = (with_end(file, end), with_end(&beside(file, "before-restore"), end));
        remove(&kept)?;
        if old.exists() {
            fs::rename(&old, &kept).map_err(failed)?;
        }
    }
    fs::rename(&draft, file).map_err(failed)?;
    sync_folder_of(file).map_err(failed)?;
    Ok(epoch)
}

/// Raises the epoch of the store in `draft` above its own and `current`, the epoch of the store
/// that it replaces, and returns it. Where that one cannot be read, the time is above both.
fn begin_epoch(draft: &Path, current: Option<u64>) -> Result<u64, StoreError> {
    let mut store = Store::open(draft)?;
    let counters = counters_of(&store)?;
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let epoch = 1 + counters.epoch.max(current.unwrap_or(unix_s));
    let number = counters.next_audit;
    let entry = AuditEntry {
        number,
        unix_ms: unix_s * 1000,
        actor: "operator".to_owned(),
        action: format!("restored a backup as epoch {epoch}: changes after it was made are undone"),
    };
    let counters = Counters { epoch, next_audit: number + 1, ..counters };
    store.append(entry.unix_ms, &[Record::Counters(counters), Record::Audit(entry)])?;
    // Leaves no write-ahead log, so that the file alone is the store.
    let emptied = store.connection.execute_batch("PRAGMA journal_mode = DELETE;");
    emptied.map_err(|error| StoreError::of(draft, &error))?;
    Ok(epoch)
}

/// Returns the epoch of the store in `file`: 0 if there is none, `None` if it cannot be read.
fn epoch_of(file: &Path) -> Option<u64> {
    if !file.exists() {
        return Some(0);
    }
    let store = Store::open(file).ok()?;
    Some(counters_of(&store).ok()?.epoch)
}

fn counters_of(store: &Store) -> Result<Counters, StoreError> {
    let counters = store.records()?.into_iter().find_map(|record| match record {
        Record::Counters(counters) => Some(counters),
        _ => None,
    });
    Ok(counters.unwrap_or_default())
}

fn open_to_read(file: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |error| StoreError::of(file, &error);
    // SQLite's own words for a missing file are no help.
    File::open(file).map_err(|error| StoreError::other(file, &error))?;
    let connection = Connection::open_with_flags(file, flags).map_err(failed)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    Ok(connection)
}

/// Writes all of an open store to the new file `copy`, and has it on the disk.
pub(super) fn vacuum_into(
    file: &Path,
    connection: &Connection,
    copy: &Path,
) -> Result<(), StoreError> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(copy);
    let made = made.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => StoreError::Exists { file: copy.display().to_string() },
        _ => StoreError::other(copy, &error),
    })?;
    let written = copy
        .to_str()
        .ok_or_else(|| StoreError::other(copy, &"its name is no text (UTF-8)"))
        .and_then(|name| {
            let written = connection.execute("VACUUM INTO ?1", [name]);
            written.map_err(|error| StoreError::of(file, &error))
        })
        .and_then(|_| made.sync_all().map_err(|error| StoreError::other(copy, &error)));
    if written.is_err() {
        // Half a copy is worse than none.
        let _ = fs::remove_file(copy);
    }
    written
}

fn remove(file: &Path) -> Result<(), StoreError> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::other(file, &error))
        }
        _ => Ok(()),
    }
}

fn beside(file: &Path, end: &str) -> PathBuf {
    with_end(file, &format!(".{end}"))
}

fn with_end(file: &Path, end: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn sync_folder_of(file: &Path) -> io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
