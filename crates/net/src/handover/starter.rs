//! Successors that the starter of a process starts for it, with rights of its own: those that the
//! process has given up are no limit to the next one.
//!
//! The process finds the starter by an environment variable, connects to its socket and sends one
//! end of the socket between the two processes. The starter answers with the number of the
//! successor, or closes the connection; the process then starts its successor itself.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, getsockopt, recv, sockopt};

use crate::descriptor;

/// The environment variable with the path of the starter's socket.
pub const STARTER: &str = "TRADEWIND_STARTER";

/// Longest wait for the starter's answer. Chosen: many looks at its socket, and far less than a
/// start may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Most connections that are accepted in one look. Chosen: far more than a host has processes.
const MAX_ACCEPTED: usize = 16;

/// Asks the starter of this process for a successor at the other end of `there`. Returns the
/// successor's number; `None` without a starter, or if it does not start one.
pub(super) fn start(there: &UnixStream) -> Option<u32> {
    ask(Path::new(&std::env::var_os(STARTER)?), there)
}

fn ask(path: &Path, there: &UnixStream) -> Option<u32> {
    let mut starter = UnixStream::connect(path).ok()?;
    starter.set_read_timeout(Some(ANSWER_LIMIT)).ok()?;
    descriptor::send(&starter, &[there.as_fd()]).ok()?;
    let mut number = [0; 4];
    starter.read_exact(&mut number).ok()?;
    Some(u32::from_be_bytes(number))
}

/// The socket at which processes ask for their successors.
#[derive(Debug)]
pub struct Starter {
    listener: UnixListener,
    /// Connections on which no request has come yet, one of a process.
    waiting: Vec<(u32, UnixStream)>,
}

/// A process's request for its successor. Dropping it refuses.
#[derive(Debug)]
pub struct Request {
    process: u32,
    answer: UnixStream,
    there: OwnedFd,
}

impl Starter {
    /// Listens at `path`, which must be free.
    ///
    /// # Errors
    /// When there can be no socket.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true).inspect_err(|_| drop(fs::remove_file(path)))?;
        Ok(Self { listener, waiting: Vec::new() })
    }

    /// Returns the requests that have come since the last call, at most one of a process, and waits
    /// for none. Connections of processes that may not ask are closed.
    pub fn requests(&mut self, may_ask: impl Fn(u32) -> bool) -> Vec<Request> {
        // A process whose connection fails starts its successor itself.
        let accepted = std::iter::from_fn(|| self.listener.accept().ok());
        for (stream, _) in accepted.take(MAX_ACCEPTED) {
            let Ok(peer) = getsockopt(&stream, sockopt::PeerCredentials) else { continue };
            let process = peer.pid().cast_unsigned();
            if self.waiting.iter().all(|(other, _)| *other != process) {
                self.waiting.push((process, stream));
            }
        }
        self.waiting.retain(|(process, _)| may_ask(*process));
        let has_sent = |(_, stream): &mut (u32, UnixStream)| peek(stream) != Err(Errno::EAGAIN);
        let sent = self.waiting.extract_if(.., has_sent);
        sent.filter_map(|(process, stream)| Request::read(process, stream)).collect()
    }
}

/// Returns the number of bytes that have come, one at most: none if the other end is closed, and
/// `EAGAIN` if it is open.
fn peek(stream: &UnixStream) -> nix::Result<usize> {
    recv(stream.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT)
}

impl Request {
    /// Reads what has come; `None` if that is no request, or its process waits no longer.
    fn read(process: u32, answer: UnixStream) -> Option<Self> {
        let there = descriptor::receive(&answer).ok()?.pop()?;
        (peek(&answer) == Err(Errno::EAGAIN)).then_some(Self { process, answer, there })
    }

    /// Returns the process that asks, as the kernel knows it.
    #[must_use]
    pub const fn process(&self) -> u32 {
        self.process
    }

    /// Starts the program of `command` as the successor, and tells the process.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(mut self, command: &mut Command) -> io::Result<Child> {
        let child = super::spawn(command, &self.there)?;
        // A process that has not waited starts another, and this one finds its socket closed.
        let _gone = self.answer.write_all(&child.id().to_be_bytes());
        Ok(child)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Stdio;
    use std::thread;

    use super::*;

    /// Returns a socket of a test's own.
    fn bound(name: &str) -> (PathBuf, Starter) {
        let path = std::env::temp_dir().join(format!("tw-{name}-{}", std::process::id()));
        let _none = fs::remove_file(&path);
        (path.clone(), Starter::bind(&path).unwrap())
    }

    /// Asks for a successor, and gives the requests of that moment to `answer`. Returns the answer,
    /// and the name that the kernel has for the successor's end of the socket.
    fn asked(name: &str, answer: impl FnOnce(Vec<Request>)) -> (Option<u32>, String) {
        let (path, mut starter) = bound(name);
        let (_here, there) = UnixStream::pair().unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", there.as_raw_fd())).unwrap();
        let asks = thread::spawn({
            let path = path.clone();
            move || ask(&path, &there)
        });
        let requests = loop {
            let requests = starter.requests(|_| true);
            if !requests.is_empty() {
                break requests;
            }
            thread::sleep(Duration::from_millis(1));
        };
        answer(requests);
        fs::remove_file(path).unwrap();
        (asks.join().unwrap(), link.display().to_string())
    }

    #[test]
    fn successor_gets_the_socket_of_the_process_that_asks() {
        let mut child = None;
        let (answer, socket) = asked("starter-starts", |mut requests| {
            let request = requests.pop().unwrap();
            assert_eq!((requests.len(), request.process()), (0, std::process::id()));
            let mut command = Command::new("sh");
            command.args(["-c", "exec readlink \"/proc/$$/fd/$TRADEWIND_PREDECESSOR\""]);
            child = Some(request.start(command.stdout(Stdio::piped())).unwrap());
        });
        let child = child.unwrap();
        assert_eq!(answer, Some(child.id()));
        let said = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(said.stdout).unwrap().trim(), socket);
    }

    #[test]
    fn refused_process_is_left_to_itself() {
        assert_eq!(asked("starter-refuses", drop).0, None);
        let (_here, there) = UnixStream::pair().unwrap();
        assert_eq!(ask(Path::new("/nonexistent/starter"), &there), None);
    }

    #[test]
    fn starter_waits_for_no_process_and_serves_none_that_is_gone() {
        let (path, mut starter) = bound("starter-waits");
        let connect = || UnixStream::connect(&path).unwrap();
        let (_here, there) = UnixStream::pair().unwrap();
        let send = |stream: &UnixStream| descriptor::send(stream, &[there.as_fd()]).unwrap();
        let is_closed = |stream: &UnixStream| peek(stream) != Err(Errno::EAGAIN);
        let silent = connect();
        assert!(starter.requests(|_| true).is_empty(), "and it has not waited");
        // A process has one request.
        let second = connect();
        send(&second);
        assert!(starter.requests(|_| true).is_empty());
        assert!(is_closed(&second) && !is_closed(&silent));
        send(&silent);
        assert_eq!(starter.requests(|_| true).len(), 1);
        let gone = connect();
        send(&gone);
        drop(gone);
        assert!(starter.requests(|_| true).is_empty());
        let other = connect();
        send(&other);
        assert!(starter.requests(|process| process != std::process::id()).is_empty());
        assert!(is_closed(&other));
        fs::remove_file(path).unwrap();
    }
}
