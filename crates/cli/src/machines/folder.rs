//! The folder beside a file of machines: what was asked for, Terraform's document and state.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File, TryLockError};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tradewind_machines::{Order, Tag};
use tradewind_units::{HostId, RegionId};

use super::terraform::Terraform;
use crate::output::{BadFile, OrBadFile as _, file::write_whole, read_text};

/// The name of the records in the folder.
const RECORDS: &str = "tradewind.json";

/// The record of all that was asked for, kept from run to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Records {
    /// 1.
    schema_version: u32,
    /// The tag of all that is made, which no other folder has.
    pub(super) tag: Tag,
    /// The regions that ever had machines.
    pub(super) regions: BTreeSet<RegionId>,
    /// The machines that were asked for, by name.
    pub(super) machines: BTreeMap<String, Record>,
    /// Hosts whose machines are gone or go, to be revoked.
    #[serde(default)]
    pub(super) retired: BTreeSet<HostId>,
    /// Ids of invites that were asked for again: whoever joins by one is to be revoked.
    #[serde(default)]
    pub(super) superseded: BTreeSet<String>,
    /// The identity of the controller that the machines join.
    #[serde(default)]
    pub(super) controller: Option<String>,
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
    /// The cloud's id of the machine in whose place it comes.
    #[serde(default)]
    pub(super) replaces: Option<String>,
}

impl Records {
    /// Notes that a machine goes: its host is to be revoked, also one that joins later.
    pub(super) fn retire(&mut self, record: Option<Record>) {
        match record {
            Some(Record { host: Some(host), .. }) => drop(self.retired.insert(host)),
            Some(Record { invite, .. }) => drop(self.superseded.insert(invite)),
            None => {}
        }
    }
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
    lock: Option<File>,
}

impl Folder {
    /// Returns the path of the folder of a file of machines: `net.machines` beside `net.toml`.
    pub(super) fn path_of(file: &Path) -> PathBuf {
        file.with_extension("machines")
    }

    /// Reads it, or refuses if nothing was ever made.
    pub(super) fn existing(file: &Path) -> anyhow::Result<Self> {
        let path = Self::path_of(file);
        let none = || BadFile(format!("{}: nothing was ever made from this file", path.display()));
        Ok(Self::read(file)?.ok_or_else(none)?)
    }

    /// Reads it; nothing if there is none.
    pub(super) fn read(file: &Path) -> anyhow::Result<Option<Self>> {
        let path = Self::path_of(file);
        if !path.join(RECORDS).exists() {
            return Ok(None);
        }
        let records = path.join(RECORDS);
        let records = serde_json::from_str(&read_text(&records)?).or_bad(&records)?;
        Ok(Some(Self { path, records, lock: None }))
    }

    /// Reads it for a change, or makes it, for an overlay of this name; any name where it is there
    /// and `name` is absent. No other run changes it meanwhile.
    pub(super) fn lock(file: &Path, name: Option<&str>) -> anyhow::Result<Self> {
        let path = Self::path_of(file);
        // Terraform's state holds the invites.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.with_context(|| path.display().to_string())?;
        let lock = File::create(path.join("lock")).with_context(|| path.display().to_string())?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!(BadFile(format!("{}: another run is at work there", path.display())));
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        if let Some(folder) = Self::read(file)? {
            let tag = &folder.records.tag;
            if let Some(name) = name.filter(|name| !tag.is_of(name)) {
                let (file, path) = (file.display(), path.display());
                bail!(BadFile(format!(
                    "{file}: `name` is `{name}`, and {path} is of `{tag}`: a name cannot change"
                )));
            }
            return Ok(Self { lock: Some(lock), ..folder });
        }
        let name = name.unwrap_or_default();
        let records = Records {
            schema_version: 1,
            tag: Tag::new(name, u32::from_le_bytes(tradewind_net::entropy::bytes()?)),
            regions: BTreeSet::new(),
            machines: BTreeMap::new(),
            retired: BTreeSet::new(),
            superseded: BTreeSet::new(),
            controller: None,
        };
        let folder = Self { path, records, lock: Some(lock) };
        folder.save()?;
        Ok(folder)
    }

    /// Returns Terraform in this folder. While it runs, the folder stays locked, also after this
    /// program was ended.
    pub(super) fn terraform(&self, program: &Path) -> anyhow::Result<Terraform> {
        let lock = self.lock.as_ref().map(File::try_clone).transpose()?;
        Ok(Terraform::new(program, &self.path).holding(lock))
    }

    /// Writes the records.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(&self.records)? + "\n";
        write_whole(&self.path.join(RECORDS), &text)
    }
}
