//! Requests and commands from the command line: a line of JSON each way over a Unix socket.
//!
//! The socket's directory and the socket are accessible to their owner alone, so any client may
//! give commands.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration as Wait;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockAddr, Socket, Type};
use tradewind_jumpstart::{Order, prefix};
use tradewind_net::private_directory::{PrivateDirectory, check_place_of};
use tradewind_units::time::as_seconds;
use tradewind_units::{Duration, Segments};

use crate::DaemonError;

/// Timeout of a request's line and of its response. Chosen: both ends are on this machine, and the
/// loop waits meanwhile.
const REQUEST_TIMEOUT: Wait = Wait::from_millis(500);
/// Timeout of a client: a round over many connections may be under way.
const REPLY_TIMEOUT: Wait = Wait::from_secs(10);
/// Longest request, in bytes. Chosen: a hundred shared windows.
const MAX: u64 = 16 * 1024;

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The daemon's state.
    Status {},
    /// An explanation of an address's value.
    Explain {
        /// The address.
        address: IpAddr,
    },
    /// A command to forget learned values.
    Flush {
        /// The destinations to forget; all when absent.
        #[serde(default, deserialize_with = "prefix::option")]
        within: Option<IpNet>,
    },
    /// A command to read the kill switch now.
    Switch {},
    /// Windows that other hosts have learned, instead of those before.
    Share {
        /// The windows.
        windows: Vec<SharedWindow>,
        /// The time for which they count.
        #[serde(with = "as_seconds")]
        lasts_s: Duration,
    },
    /// A hint from outside.
    Hint {
        /// The destinations that it covers.
        #[serde(deserialize_with = "prefix::one")]
        within: IpNet,
        /// The instruction.
        order: Order,
        /// Its duration.
        #[serde(with = "as_seconds")]
        lasts_s: Duration,
    },
}

/// A window that other hosts have learned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedWindow {
    /// The destination.
    #[serde(deserialize_with = "prefix::one")]
    pub destination: IpNet,
    /// The window.
    pub window_segments: Segments,
}

impl Request {
    /// Parses a request from the control socket.
    ///
    /// # Errors
    /// In one line what is wrong with it.
    pub fn parse(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|error| format!("no question of ours: {error}"))
    }
}

/// The daemon's end. Dropping it removes the socket, unless another process still listens on it.
#[derive(Debug)]
pub(crate) struct Control {
    // Declared before `place`, so that it is closed first.
    pub(crate) listener: UnixListener,
    place: SocketPath,
}

/// Path of the socket.
#[derive(Debug)]
struct SocketPath(PathBuf);

impl Drop for SocketPath {
    fn drop(&mut self) {
        if matches!(Found::at(&self.0), Ok(Found::Dead)) {
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// State of the path at which a control socket is to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    /// A socket whose process has ended.
    Dead,
    /// A socket with a listener.
    InUse,
}

impl Found {
    /// Checks the path without waiting for a listener there.
    ///
    /// # Errors
    /// When something else is there, or access is denied.
    fn at(path: &Path) -> io::Result<Self> {
        let kind = match fs::symlink_metadata(path) {
            Ok(found) => found.file_type(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Nothing),
            Err(error) => return Err(error),
        };
        if !kind.is_socket() {
            let problem = "something else is there: name a path of its own";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&SockAddr::unix(path)?) {
            // The queue of the listener is full.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Self::InUse),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(Self::Dead),
            Err(error) => Err(error),
            Ok(()) => Ok(Self::InUse),
        }
    }
}

impl Control {
    /// Creates the socket at `path`; one without a listener is a dead daemon's and is replaced.
    pub(crate) fn open(path: &Path) -> Result<Self, DaemonError> {
        let refused = |source| DaemonError::Socket { path: path.to_owned(), source };
        let found = Found::at(path).map_err(refused)?;
        if found == Found::InUse {
            return Err(DaemonError::Running(path.to_owned()));
        }
        let make = || {
            PrivateDirectory::make(directory_of(path))?;
            if found == Found::Dead {
                fs::remove_file(path)?;
            }
            let listener = UnixListener::bind(path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = make().map_err(refused)?;
        Ok(Self { listener, place: SocketPath(path.to_owned()) })
    }

    /// Takes over the socket at `path`, which the process before this one handed on.
    pub(crate) fn go_on(listener: OwnedFd, path: &Path) -> Result<Self, DaemonError> {
        let listener = UnixListener::from(listener);
        let refused = |source| DaemonError::Socket { path: path.to_owned(), source };
        listener.set_nonblocking(true).map_err(refused)?;
        Ok(Self { listener, place: SocketPath(path.to_owned()) })
    }

    /// Returns another descriptor of the socket, for the process that takes over.
    pub(crate) fn another_hold(&self) -> Result<OwnedFd, DaemonError> {
        let refused = |source| DaemonError::Socket { path: self.path().to_owned(), source };
        self.listener.try_clone().map(OwnedFd::from).map_err(refused)
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.place.0
    }

    /// Returns the next request of the waiting clients. An invalid one is answered here.
    pub(crate) fn next_question(&self) -> Option<Question> {
        while let Ok((stream, _)) = self.listener.accept() {
            match read(&stream) {
                Ok(Ok(request)) => return Some(Question { request, stream }),
                Ok(Err(error)) => reply(&stream, &serde_json::json!({ "error": error })),
                Err(error) => tracing::debug!(%error, "a question did not come in time"),
            }
        }
        None
    }
}

/// A request, and the connection of the client that waits for the response.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) request: Request,
    stream: UnixStream,
}

impl Question {
    /// Sends the response.
    pub(crate) fn reply(self, answer: &serde_json::Value) {
        reply(&self.stream, answer);
    }
}

/// Returns the directory of `path`.
pub(crate) fn directory_of(path: &Path) -> &Path {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

fn read(stream: &UnixStream) -> io::Result<Result<Request, String>> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX)).read_line(&mut line)?;
    Ok(Request::parse(&line))
}

fn reply(mut stream: &UnixStream, answer: &serde_json::Value) {
    if let Err(error) = writeln!(stream, "{answer}") {
        tracing::debug!(%error, "who asked did not wait for the answer");
    }
}

/// Sends a request to the daemon at `path`; returns the response.
///
/// # Errors
/// When there is no daemon, or it does not answer; the error tells them apart.
pub fn ask(path: &Path, request: &Request) -> Result<serde_json::Value, DaemonError> {
    let unanswered = |source| DaemonError::Unanswered { path: path.to_owned(), source };
    match check_place_of(path) {
        // Nothing can listen there; the attempt below reports it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        checked => checked.map_err(unanswered)?,
    }
    let mut stream = UnixStream::connect(path).map_err(|source| match source.kind() {
        // The socket of a daemon that was killed refuses connections.
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            DaemonError::NoDaemon { path: path.to_owned(), source }
        }
        _ => unanswered(source),
    })?;
    let mut asked = || {
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        writeln!(stream, "{}", serde_json::to_string(request)?)?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    };
    asked().map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::WouldBlock => unanswered(io::ErrorKind::TimedOut.into()),
        _ => unanswered(source),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hundred_windows_of_the_longest_prefixes_are_one_request() {
        let destination = "1111:2222:3333:4444:5555:6666:7777:8888/128".parse().unwrap();
        let window = SharedWindow { destination, window_segments: Segments::new(65_535).unwrap() };
        let windows = vec![window; 100];
        let request = Request::Share { windows, lasts_s: Duration::from_secs(30) };
        let (mut client, daemon) = UnixStream::pair().unwrap();
        writeln!(client, "{}", serde_json::to_string(&request).unwrap()).unwrap();
        assert_eq!(read(&daemon).unwrap(), Ok(request));
    }

    #[test]
    fn control_socket_stays_with_its_successor() {
        let name = format!("tw-control-on-{}", std::process::id());
        let path = std::env::temp_dir().join(name).join("jumpstart.sock");
        let first = Control::open(&path).unwrap();
        let handed_on = || first.another_hold().unwrap();
        drop(Control::go_on(handed_on(), &path).unwrap());
        assert!(path.exists(), "one that ends before it has taken over leaves it to the first");
        let next = Control::go_on(handed_on(), &path).unwrap();
        assert!(matches!(Control::open(&path), Err(DaemonError::Running(_))));
        drop(first);
        assert!(UnixStream::connect(&path).is_ok());
        drop(next);
        assert!(!path.exists());
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn only_dead_sockets_are_replaced() {
        let place = std::env::temp_dir().join(format!("tw-control-kept-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let refusal = |path: &Path| Control::open(path).unwrap_err().to_string();
        let file = place.join("notes.txt");
        fs::write(&file, "precious").unwrap();
        assert!(refusal(&file).ends_with("something else is there: name a path of its own"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        let datagrams = place.join("log");
        let other = std::os::unix::net::UnixDatagram::bind(&datagrams).unwrap();
        assert!(refusal(&datagrams).contains("control socket"));
        assert!(datagrams.exists());
        drop(other);
        // A listener that does not accept: the check does not wait for it.
        let busy = place.join("busy");
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        listener.bind(&SockAddr::unix(&busy).unwrap()).unwrap();
        listener.listen(0).unwrap();
        let _in_line = UnixStream::connect(&busy).unwrap();
        assert!(refusal(&busy).contains("another process's jump-start answers there"));
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn socket_in_an_open_directory_is_refused() {
        let name = format!("tw-control-open-{}", std::process::id());
        let place = std::env::temp_dir().join(name);
        fs::create_dir_all(&place).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
        let path = place.join("jumpstart.sock");
        let refusal = Control::open(&path).unwrap_err().to_string();
        assert!(refusal.contains("others may write there (mode 777)"), "{refusal}");
        // Another user has created one there.
        let _theirs = UnixListener::bind(&path).unwrap();
        let refusal = ask(&path, &Request::Status {}).unwrap_err().to_string();
        assert!(refusal.contains("others may write there"), "{refusal}");
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn missing_daemon_differs_from_silent_daemon() {
        let name = format!("tw-control-{}", std::process::id());
        let path = std::env::temp_dir().join(name).join("jumpstart.sock");
        let asked = || ask(&path, &Request::Status {}).unwrap_err();
        assert!(matches!(asked(), DaemonError::NoDaemon { .. }));
        fs::create_dir_all(directory_of(&path)).unwrap();
        // As a killed daemon leaves it.
        drop(UnixListener::bind(&path).unwrap());
        assert!(matches!(asked(), DaemonError::NoDaemon { .. }));
        fs::remove_file(&path).unwrap();
        // Accepts the request and ends.
        let listener = UnixListener::bind(&path).unwrap();
        let daemon = std::thread::spawn(move || drop(listener.accept()));
        assert!(matches!(asked(), DaemonError::Unanswered { .. }));
        daemon.join().unwrap();
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
