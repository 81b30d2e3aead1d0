//! The folder beside a file of machines: what was asked for, Terraform's document and state.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tradewind_machines::{Order, Tag};
use tradewind_units::{HostId, RegionId};

use crate::output::{BadFile, OrBadFile as _, file::write_whole, read_text};

/// The name of the records in the folder.
const RECORDS: &str = "tradewind.json";

/// What was asked for, kept from run to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Records {
    /// 1.
    schema_version: u32,
    /// Digits of the tag, which no other folder has.
    pub(super) digits: u32,
    /// The regions that ever had machines.
    pub(super) regions: BTreeSet<RegionId>,
    /// The machines that were asked for, by name.
    pub(super) machines: BTreeMap<String, Record>,
    /// Hosts whose machines are gone or go, to be revoked.
    #[serde(default)]
    pub(super) retired: BTreeSet<HostId>,
}

/// A machine that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) region: RegionId,
    pub(super) machine_type: String,
    /// The id of its invite at the controller.
    pub(super) invite: String,
    /// Its name at the controller, once it has joined.
    pub(super) host: Option<HostId>,
}

impl Record {
    /// Returns whether the order is for another machine than this one.
    pub(super) fn differs(&self, order: &Order) -> bool {
        self.machine_type != order.machine_type
    }
}

/// The folder.
pub(super) struct Folder {
    path: PathBuf,
    pub(super) records: Records,
    /// Held while it lives: another run must wait.
    _lock: Option<File>,
}

impl Folder {
    /// Returns the path of the folder of a file of machines: `net.machines` beside `net.toml`.
    pub(super) fn path_of(file: &Path) -> PathBuf {
        file.with_extension("machines")
    }

    /// Reads it; nothing if there is none.
    pub(super) fn read(file: &Path) -> anyhow::Result<Option<Self>> {
        let path = Self::path_of(file);
        if !path.join(RECORDS).exists() {
            return Ok(None);
        }
        let records = path.join(RECORDS);
        let records = serde_json::from_str(&read_text(&records)?).or_bad(&records)?;
        Ok(Some(Self { path, records, _lock: None }))
    }

    /// Reads it for a change, or makes it. No other run changes it meanwhile.
    pub(super) fn lock(file: &Path) -> anyhow::Result<Self> {
        let path = Self::path_of(file);
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        let lock = File::create(path.join("lock")).with_context(|| path.display().to_string())?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!(BadFile(format!("{}: another run is at work there", path.display())));
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        if let Some(folder) = Self::read(file)? {
            return Ok(Self { _lock: Some(lock), ..folder });
        }
        let records = Records {
            schema_version: 1,
            digits: u32::from_le_bytes(tradewind_net::entropy::bytes()?),
            regions: BTreeSet::new(),
            machines: BTreeMap::new(),
            retired: BTreeSet::new(),
        };
        let folder = Self { path, records, _lock: Some(lock) };
        folder.save()?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the tag of all that is made from it.
    pub(super) fn tag(&self, name: &str) -> Tag {
        Tag::new(name, self.records.digits)
    }

    /// Writes the records.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(&self.records)? + "\n";
        write_whole(&self.path.join(RECORDS), &text)
    }
}
