//! The agent's folder.
//!
//! | file | holds |
//! |---|---|
//! | `agent.key` | the agent's identity, made here |
//! | `controller.toml` | the controller, and the host's name and role there |
//! | `ceiling.toml` | the most that the host's owner allows |
//! | `document.json` | the last document that was applied, with its signature |
//! | `status.json` | what the agent last knew, for `tradewind agent status` |
//! | `draining.json` | processes that were told to end |
//! | `due.json` | processes that are still to be told of new files |
//! | `spent.json` | what the host has sent today, where `ceiling.toml` has `spend` |
//! | `data/` | the working directory of the processes |
//! | `data/data.key` | the identity of relay and gateway, made here |
//! | `data/NAME.toml`, ... | configurations and further files of the document |
//! | `data/NAME.ready` | what a process prints when it is ready |
//! | `data/learners/NAME.sock` | the control socket of a process's learner of initial windows |
//! | `data/sessions.sock` | the socket that gateways log their sessions to |
//! | `data/starter.sock` | the socket at which processes ask for their successors |

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tradewind_control::Ceiling;
use tradewind_control::ceiling::DATA_KEY;
use tradewind_control::message::{
    DocumentVersion, Process, ProcessStatus, RefusedDocument, SESSIONS_SOCKET, STARTER_SOCKET,
    SignedDocument,
};
use tradewind_control::record::Role;
use tradewind_grant::{IdentityKey, PublicIdentity};
use tradewind_net::processes::Running;
use tradewind_net::{capability, entropy, secret_file, text_file};
use tradewind_output::file::write_whole;
use tradewind_units::HostId;

use crate::AgentError;
use crate::spend::Spent;

/// Longest file that is read, in MiB. Chosen: twice the longest message.
const MAX_MIB: u64 = 32;
/// Most bytes of a key's file. Chosen: several times what one takes.
const MAX_KEY_BYTES: usize = 1024;

/// The controller that a host has joined: the file `controller.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The controller's address.
    pub controller: SocketAddr,
    /// The identity that it must prove.
    pub identity: PublicIdentity,
    /// The host's name there.
    pub host: HostId,
    /// The host's role.
    pub role: Role,
}

/// The state that the agent last knew: the file `status.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// 1.
    pub schema_version: u32,
    /// The host's name.
    pub host: HostId,
    /// The controller's address.
    pub controller: SocketAddr,
    /// True if the last request to the controller succeeded.
    pub is_linked: bool,
    /// The document that is applied.
    pub applied: Option<DocumentVersion>,
    /// The newer document that was refused, and why.
    pub refused: Option<RefusedDocument>,
    /// The processes.
    pub processes: Vec<ProcessStatus>,
}

/// A process that was told to end: it must not be told twice, which would cut its sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draining {
    /// Its name in the document.
    pub name: String,
    /// Its number.
    pub process: u32,
    /// Its start ([`Running::started`]).
    pub started: u64,
}

impl Draining {
    /// Returns the process.
    #[must_use]
    pub const fn running(&self) -> Running {
        Running { started: self.started, process: self.process }
    }
}

/// A signal that a process is still to get: it must not be lost with the agent, as the process goes
/// on with its old files without it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PendingSignal {
    /// None.
    #[default]
    Nothing,
    /// Read the files beside the configuration anew.
    Reload,
    /// Start a successor: keys changed that a running process does not apply.
    Upgrade,
}

/// The agent's folder.
#[derive(Debug, Clone)]
pub struct Home(PathBuf);

/// Keeps other agents out of a folder until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Home {
    /// Names the folder, and does not touch it yet.
    ///
    /// # Errors
    /// When this process has no working directory to complete the path.
    pub fn at(dir: &Path) -> Result<Self, AgentError> {
        std::path::absolute(dir).map(Self).map_err(|error| AgentError::file(dir, error))
    }

    /// Returns its path, which is absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the working directory of the processes.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    /// Returns the configuration file of a process.
    #[must_use]
    pub fn config(&self, name: &str) -> PathBuf {
        self.data().join(format!("{name}.toml"))
    }

    /// Returns the file that a process prints its ready line to.
    #[must_use]
    pub fn ready(&self, name: &str) -> PathBuf {
        self.data().join(format!("{name}.ready"))
    }

    /// Creates the folder where it is missing, and keeps other agents out.
    ///
    /// # Errors
    /// When it cannot be created, or another agent runs there.
    pub fn lock(&self) -> Result<Lock, AgentError> {
        // Processes that root starts go on as another user, and read their files again.
        let mode = if capability::user_id() == 0 { 0o711 } else { 0o700 };
        for folder in [self.0.clone(), self.data()] {
            let made = DirBuilder::new().recursive(true).mode(mode).create(&folder);
            made.map_err(|error| AgentError::file(&folder, error))?;
        }
        let path = self.0.join("lock");
        let opened = File::options().create(true).append(true).open(&path);
        let file = opened.map_err(|error| AgentError::file(&path, error))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(AgentError::Running(self.0.clone())),
            Err(TryLockError::Error(error)) => Err(AgentError::file(&path, error)),
        }
    }

    /// Returns whether an agent runs here.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        let file = File::open(self.0.join("lock"));
        file.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    }

    /// Returns the agent's identity, which is made the first time.
    ///
    /// # Errors
    /// When its file cannot be written, or is not a key's.
    pub fn agent_key(&self) -> Result<IdentityKey, AgentError> {
        key(&self.0.join("agent.key"))
    }

    /// Returns the identity of relay and gateway, which is made the first time.
    ///
    /// # Errors
    /// As [`Home::agent_key`].
    pub fn data_key(&self) -> Result<IdentityKey, AgentError> {
        key(&self.data().join(DATA_KEY))
    }

    /// Returns the controller that this host has joined, if it has.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn membership(&self) -> Result<Option<Membership>, AgentError> {
        read_toml(&self.0.join("controller.toml"))
    }

    /// Writes the controller that this host has joined.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_membership(&self, membership: &Membership) -> Result<(), AgentError> {
        write_toml(&self.0.join("controller.toml"), membership)
    }

    /// Returns the ceiling that the host's owner has given, if they have.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn ceiling(&self) -> Result<Option<Ceiling>, AgentError> {
        read_toml(&self.0.join("ceiling.toml"))
    }

    /// Writes the ceiling.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_ceiling(&self, ceiling: &Ceiling) -> Result<(), AgentError> {
        write_toml(&self.0.join("ceiling.toml"), ceiling)
    }

    /// Returns the last document that was applied, if there is one that can be read.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn document(&self) -> Result<Option<SignedDocument>, AgentError> {
        read_json(&self.0.join("document.json"))
    }

    /// Keeps a document that was applied.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_document(&self, document: &SignedDocument) -> Result<(), AgentError> {
        write_json(&self.0.join("document.json"), document)
    }

    /// Returns what the agent last knew.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn status(&self) -> Result<Option<Status>, AgentError> {
        read_json(&self.0.join("status.json"))
    }

    /// Writes what the agent knows.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_status(&self, status: &Status) -> Result<(), AgentError> {
        write_json(&self.0.join("status.json"), status)
    }

    /// Returns the processes that were told to end.
    ///
    /// # Errors
    /// When their file cannot be read.
    pub fn draining(&self) -> Result<Vec<Draining>, AgentError> {
        read_json(&self.0.join("draining.json")).map(Option::unwrap_or_default)
    }

    /// Writes the processes that were told to end.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn set_draining(&self, draining: &[Draining]) -> Result<(), AgentError> {
        write_json(&self.0.join("draining.json"), &draining)
    }

    /// Returns the signals that processes are still to get, by their names.
    ///
    /// # Errors
    /// When their file cannot be read.
    pub fn due(&self) -> Result<BTreeMap<String, PendingSignal>, AgentError> {
        read_json(&self.0.join("due.json")).map(Option::unwrap_or_default)
    }

    /// Writes the signals that processes are still to get.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn set_due(&self, due: &BTreeMap<String, PendingSignal>) -> Result<(), AgentError> {
        write_json(&self.0.join("due.json"), due)
    }

    /// Returns what the host has sent on the last day of which that was kept.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn spent(&self) -> Result<Spent, AgentError> {
        read_json(&self.0.join("spent.json")).map(Option::unwrap_or_default)
    }

    /// Writes what the host has sent.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn set_spent(&self, spent: &Spent) -> Result<(), AgentError> {
        write_json(&self.0.join("spent.json"), spent)
    }

    /// Returns the names of the processes that have a configuration here.
    #[must_use]
    pub fn configured(&self) -> Vec<String> {
        let entries = fs::read_dir(self.data()).into_iter().flatten().flatten();
        let name = |entry: fs::DirEntry| {
            Some(entry.file_name().to_str()?.strip_suffix(".toml")?.to_owned())
        };
        entries.filter_map(name).collect()
    }

    /// Returns what [`Home::write_process`] will change.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn change(&self, process: &Process) -> Result<Change, AgentError> {
        let mut change = Change { config_before: None, files: false };
        for (name, text) in &process.files {
            change.files |= read_text(&self.data().join(name))?.as_deref() != Some(text);
        }
        let before = read_text(&self.config(&process.name))?;
        let has_changed = before.as_deref() != Some(&process.config);
        change.config_before = has_changed.then(|| before.unwrap_or_default());
        Ok(change)
    }

    /// Writes the files of a process that changed, its configuration last: the process may read it
    /// at once. The names have been checked by the ceiling.
    ///
    /// # Errors
    /// When one cannot be written.
    pub fn write_process(&self, process: &Process) -> Result<(), AgentError> {
        let files = process.files.iter().map(|(name, text)| (self.data().join(name), text));
        for (file, text) in files.chain([(self.config(&process.name), &process.config)]) {
            if read_text(&file)?.as_ref() != Some(text) {
                write(&file, text)?;
            }
        }
        Ok(())
    }

    /// Removes all files of processes except `kept`, the identity and the agent's sockets.
    pub fn remove_others(&self, kept: &BTreeSet<String>) {
        for entry in fs::read_dir(self.data()).into_iter().flatten().flatten() {
            let is_kept = entry.file_name().to_str().is_some_and(|name| {
                [DATA_KEY, SESSIONS_SOCKET, STARTER_SOCKET].contains(&name)
                    || kept.contains(name)
                    || name.contains(".new-")
            });
            if !is_kept {
                // It harms nobody where it is.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// The changes in the files of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The configuration before, if it changed; empty if there was none.
    pub config_before: Option<String>,
    /// True if another file changed.
    pub files: bool,
}

fn key(file: &Path) -> Result<IdentityKey, AgentError> {
    let problem = |error: &dyn std::fmt::Display| AgentError::file(file, error);
    match secret_file::read(file, MAX_KEY_BYTES) {
        Ok(secret) => secret.trim().parse().map_err(|error| problem(&error)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let entropy = entropy::bytes().map_err(AgentError::system("entropy"))?;
            let key = IdentityKey::from_entropy(entropy);
            let written = secret_file::write_new(file, &key.to_secret_text());
            written.map_err(|error| problem(&error))?;
            Ok(key)
        }
        Err(error) => Err(problem(&error)),
    }
}

fn read_text(file: &Path) -> Result<Option<String>, AgentError> {
    match text_file::read(file, MAX_MIB) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(AgentError::file(file, error)),
    }
}

fn write(file: &Path, text: &str) -> Result<(), AgentError> {
    write_whole(file, text).map_err(|error| AgentError::file(file, error.root_cause()))
}

fn read_toml<T: DeserializeOwned>(file: &Path) -> Result<Option<T>, AgentError> {
    let parse = |text: String| {
        toml::from_str(&text).map_err(|error| AgentError::file(file, error.message()))
    };
    read_text(file)?.map(parse).transpose()
}

fn write_toml(file: &Path, value: &impl Serialize) -> Result<(), AgentError> {
    let text = toml::to_string(value).map_err(|error| AgentError::file(file, error))?;
    write(file, &text)
}

fn read_json<T: DeserializeOwned>(file: &Path) -> Result<Option<T>, AgentError> {
    let parse =
        |text: String| serde_json::from_str(&text).map_err(|error| AgentError::file(file, error));
    read_text(file)?.map(parse).transpose()
}

fn write_json(file: &Path, value: &impl Serialize) -> Result<(), AgentError> {
    let text = serde_json::to_string(value).map_err(|error| AgentError::file(file, error))?;
    write(file, &text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tradewind_config::Kind;

    use super::*;

    /// A folder of a test, removed at its end.
    struct Folder(Home);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("tradewind-home-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _none = fs::remove_dir_all(&path);
            Self(Home::at(&path).unwrap())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _gone = fs::remove_dir_all(self.0.path());
        }
    }

    #[test]
    fn keys_are_made_once_and_for_the_owner_alone() {
        let folder = Folder::new("keys");
        let home = &folder.0;
        let lock = home.lock().unwrap();
        let (agent, data) = (home.agent_key().unwrap(), home.data_key().unwrap());
        assert_ne!(agent.public(), data.public());
        assert_eq!(home.agent_key().unwrap().public(), agent.public());
        assert_eq!(home.data_key().unwrap().public(), data.public());
        for file in [home.path().join("agent.key"), home.data().join(DATA_KEY)] {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(matches!(home.lock(), Err(AgentError::Running(_))));
        assert!(home.is_locked());
        drop(lock);
        assert!(!home.is_locked());
        drop(home.lock().unwrap());
    }

    #[test]
    fn files_of_a_process_are_written_when_they_change() {
        let folder = Folder::new("files");
        let home = &folder.0;
        let _lock = home.lock().unwrap();
        home.data_key().unwrap();
        let mut process = Process {
            name: "relay".to_owned(),
            kind: Kind::Relay,
            config: "workers = 1".to_owned(),
            files: BTreeMap::from([("revoked".to_owned(), "none".to_owned())]),
        };
        let change = |before: Option<&str>, files| Change {
            config_before: before.map(str::to_owned),
            files,
        };
        let write = |process: &Process| {
            let change = home.change(process).unwrap();
            home.write_process(process).unwrap();
            change
        };
        assert_eq!(write(&process), change(Some(""), true));
        assert_eq!(write(&process), change(None, false));
        process.config = "workers = 2".to_owned();
        assert_eq!(write(&process), change(Some("workers = 1"), false));
        process.files.insert("revoked".to_owned(), "one".to_owned());
        assert_eq!(write(&process), change(None, true));
        assert_eq!(home.configured(), ["relay"]);
        home.remove_others(&BTreeSet::from(["relay.toml".to_owned()]));
        let left = fs::read_dir(home.data()).unwrap().map(|entry| entry.unwrap().file_name());
        let left: BTreeSet<_> = left.collect();
        assert_eq!(left, [DATA_KEY.into(), "relay.toml".into()].into());
    }

    #[test]
    fn malformed_file_is_named_in_one_line() {
        let folder = Folder::new("malformed");
        let home = &folder.0;
        let _lock = home.lock().unwrap();
        assert_eq!(home.ceiling().unwrap(), None);
        fs::write(home.path().join("ceiling.toml"), "roles = [").unwrap();
        let line = home.ceiling().unwrap_err().to_string();
        assert!(line.contains("ceiling.toml: ") && !line.contains('\n'), "{line}");
        fs::write(home.path().join("document.json"), "{}").unwrap();
        assert!(home.document().unwrap_err().to_string().contains("document.json: "));
    }
}
