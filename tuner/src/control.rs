//! Questions and orders from the command line: a line of JSON each way over a Unix socket.
//!
//! The socket's directory and the socket are its owner's alone, so whoever can ask may order.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration as Wait;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tradewind_jumpstart::Order;
use tradewind_units::Duration;
use tradewind_units::time::as_seconds;

use crate::TunerError;

/// Longest wait for a line. Chosen: both ends are on this machine, and the loop waits meanwhile.
const PATIENCE: Wait = Wait::from_millis(500);
/// How long the asking end waits: a round over many connections may be under way.
const ASKERS_PATIENCE: Wait = Wait::from_secs(10);
/// Longest question.
const LONGEST: u64 = 4096;

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// How the daemon does.
    Status {},
    /// Why an address has the value it has.
    Explain {
        /// The address.
        address: IpAddr,
    },
    /// Forget.
    Flush {
        /// Inside this; everything when absent.
        within: Option<IpNet>,
    },
    /// Look at the kill switch now.
    Switch {},
    /// An outsider's hint.
    Hint {
        /// About whom.
        within: IpNet,
        /// What to do.
        order: Order,
        /// For how long.
        #[serde(with = "as_seconds")]
        lasts_s: Duration,
    },
}

impl Request {
    /// Reads a question as it comes over the control socket.
    ///
    /// # Errors
    /// In one line what is wrong with it.
    pub fn parse(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|error| format!("no question of ours: {error}"))
    }
}

/// The daemon's end. Dropping it removes the socket.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// Makes the socket at `path`; one that nobody answers on is a dead daemon's and is replaced.
    pub(crate) fn open(path: &Path) -> Result<Self, TunerError> {
        if UnixStream::connect(path).is_ok() {
            return Err(TunerError::Running(path.to_owned()));
        }
        let make = || {
            if let Some(directory) = path.parent().filter(|directory| !directory.exists()) {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            }
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener =
            make().map_err(|source| TunerError::Socket { path: path.to_owned(), source })?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Answers all who wait.
    pub(crate) fn serve(&self, mut answer: impl FnMut(Request) -> serde_json::Value) {
        while let Ok((stream, _)) = self.listener.accept() {
            if let Err(error) = serve_one(&stream, &mut answer) {
                tracing::debug!(%error, "a question on the control socket failed");
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn serve_one(
    mut stream: &UnixStream,
    answer: &mut impl FnMut(Request) -> serde_json::Value,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut line)?;
    let reply = match Request::parse(&line) {
        Ok(request) => answer(request),
        Err(error) => serde_json::json!({ "error": error }),
    };
    writeln!(stream, "{reply}")
}

/// Asks the daemon at `path`.
///
/// # Errors
/// When none answers.
pub fn ask(path: &Path, request: &Request) -> Result<serde_json::Value, TunerError> {
    let asked = || {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ASKERS_PATIENCE))?;
        stream.set_write_timeout(Some(ASKERS_PATIENCE))?;
        writeln!(stream, "{}", serde_json::to_string(request)?)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    };
    asked().map_err(|source| TunerError::NoDaemon { path: path.to_owned(), source })
}
