//! The runtime directory of a user's lab.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use tradewind_net::capability;

use crate::error::LabError;

/// The variable that names another directory than the user's default; there is one lab per
/// directory.
const RUNTIME_DIR: &str = "TRADEWIND_RUNTIME_DIR";

/// Advice for errors about an unusable directory.
const OTHER_PLACE: &str = "TRADEWIND_RUNTIME_DIR names another directory";

/// Longest path of a Unix socket: `sun_path` less its final zero (unix(7)).
const MAX_SOCKET_PATH: usize = 107;

/// Bits of a directory's mode that let its group or all others write.
const WRITABLE_FOR_OTHERS: u32 = 0o022;

/// The directory that holds the lab's socket, state file and log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeDirectory {
    directory: PathBuf,
}

impl RuntimeDirectory {
    /// Returns the calling user's directory: `$TRADEWIND_RUNTIME_DIR` if it is set, else
    /// `/run/tradewind` for root, else `$XDG_RUNTIME_DIR/tradewind`, else a directory of the user's
    /// own under `/tmp`. Must be called before entering a user namespace, in which everybody is
    /// root.
    #[must_use]
    pub fn of_this_user() -> Self {
        // An empty variable counts as unset.
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self::of(capability::user_id(), variable)
    }

    fn of(user: u32, variable: impl Fn(&'static str) -> Option<OsString>) -> Self {
        let directory = match (variable(RUNTIME_DIR), variable("XDG_RUNTIME_DIR")) {
            (Some(chosen), _) => PathBuf::from(chosen),
            (None, _) if user == 0 => PathBuf::from("/run/tradewind"),
            (None, Some(runtime)) => PathBuf::from(runtime).join("tradewind"),
            (None, None) => PathBuf::from(format!("/tmp/tradewind-{user}")),
        };
        Self { directory }
    }

    /// Uses `directory`.
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Returns the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of the socket on which the lab's process answers.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join("lab.sock")
    }

    /// Returns the path of the JSON file that describes the lab last started.
    #[must_use]
    pub fn state_file(&self) -> PathBuf {
        self.directory.join("lab.json")
    }

    /// Returns the path of the log of the lab's process.
    #[must_use]
    pub fn log_file(&self) -> PathBuf {
        self.directory.join("lab.log")
    }

    /// Creates the directory, accessible to its owner alone.
    pub(crate) fn prepare(&self) -> Result<(), LabError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.directory);
        made.map_err(|source| self.error(source))?;
        self.check()
    }

    /// Refuses a directory of another user, or one in which others may write: they could answer
    /// instead of the lab, and anybody may create one under `/tmp`. A missing directory passes.
    pub(crate) fn check(&self) -> Result<(), LabError> {
        let socket = self.socket();
        let length = socket.as_os_str().len();
        if length > MAX_SOCKET_PATH {
            let what = format!(
                "{length} bytes, and a socket's path has at most {MAX_SOCKET_PATH}: \
                 {OTHER_PLACE}"
            );
            let source = io::Error::new(ErrorKind::InvalidInput, what);
            return Err(LabError::File { path: socket, source });
        }
        let refused = |what: String| {
            let what = format!("{what}; {OTHER_PLACE}");
            Err(self.error(io::Error::new(ErrorKind::PermissionDenied, what)))
        };
        match fs::symlink_metadata(&self.directory) {
            Ok(found) if !found.is_dir() => Err(self.error(ErrorKind::NotADirectory.into())),
            Ok(found) if found.uid() != capability::user_id() => {
                refused(format!("it belongs to user {}, not to you", found.uid()))
            }
            Ok(found) if found.mode() & WRITABLE_FOR_OTHERS != 0 => {
                refused(format!("others may write there (mode {:o})", found.mode() & 0o7777))
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(self.error(error)),
        }
    }

    fn error(&self, source: io::Error) -> LabError {
        LabError::File { path: self.directory.clone(), source }
    }

    /// Returns the id of the process that wrote the state file; it may be gone.
    pub(crate) fn holder(&self) -> Option<u64> {
        let text = fs::read(self.state_file()).ok()?;
        serde_json::from_slice::<serde_json::Value>(&text).ok()?.get("process")?.as_u64()
    }

    /// Removes the socket and the state file.
    pub(crate) fn sweep(&self) {
        for path in [self.socket(), self.state_file()] {
            // A missing file needs no removal.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn environment_variable_precedes_system_directories() {
        let place = |user, set: &[(&str, &str)]| {
            let variable = |name: &str| set.iter().find(|(key, _)| *key == name);
            let value = |name| variable(name).map(|(_, value)| OsString::from(value));
            RuntimeDirectory::of(user, value).directory.display().to_string()
        };
        let chosen = ("TRADEWIND_RUNTIME_DIR", "/tmp/mine");
        let offered = ("XDG_RUNTIME_DIR", "/run/user/7");
        assert_eq!(place(0, &[chosen, offered]), "/tmp/mine");
        assert_eq!(place(7, &[chosen, offered]), "/tmp/mine");
        assert_eq!(place(0, &[offered]), "/run/tradewind");
        assert_eq!(place(7, &[offered]), "/run/user/7/tradewind");
        assert_eq!(place(7, &[]), "/tmp/tradewind-7");
    }

    #[test]
    fn path_that_is_no_directory_is_refused_by_name() {
        let file = std::env::temp_dir().join(format!("tradewind-place-{}", std::process::id()));
        fs::write(&file, "").unwrap();
        let error = RuntimeDirectory::at(&file).check().unwrap_err().to_string();
        fs::remove_file(&file).unwrap();
        assert!(error.contains("tradewind-place-") && error.contains("not a directory"), "{error}");
        assert!(RuntimeDirectory::at("/nonexistent/place").check().is_ok());
    }

    #[test]
    fn refused_directory_names_the_variable() {
        let directory = std::env::temp_dir().join(format!("tradewind-open-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let opened = |mode| {
            fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
            RuntimeDirectory::at(&directory).check().map_err(|error| error.to_string())
        };
        let (own, open) = (opened(0o755), opened(0o1777));
        fs::remove_dir(&directory).unwrap();
        assert_eq!(own, Ok(()));
        // `/` is root's, or nobody's in a user namespace.
        let others = RuntimeDirectory::at("/").check().map_err(|error| error.to_string());
        let long = RuntimeDirectory::at(format!("/tmp/{}", "x".repeat(200))).check();
        let long = long.map_err(|error| error.to_string());
        assert!(others.is_ok() || others.as_ref().is_err_and(|line| line.contains(OTHER_PLACE)));
        for (line, says) in [(open, "others may write there (mode 1777)"), (long, "at most 107")] {
            let line = line.unwrap_err();
            assert!(line.contains(says) && line.contains(OTHER_PLACE), "{line}");
        }
    }
}
