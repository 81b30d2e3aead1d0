//! Successors that the starter of a process starts for it, with rights of its own: those that the
//! process has given up are no limit to the next one.
//!
//! The process finds the starter by an environment variable, connects to its socket and sends one
//! end of the socket between the two processes. The starter answers with the number of the
//! successor, or closes the connection; the process then starts its successor itself.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};

use crate::descriptor;

/// The environment variable with the path of the starter's socket.
pub const STARTER: &str = "TRADEWIND_STARTER";

/// Longest wait for the starter's answer. Chosen: many looks at its socket, and far less than a
/// start may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait for a request on a connection, which is sent with it. Chosen: a turn of a loaded
/// machine.
const REQUEST_LIMIT: Duration = Duration::from_millis(100);

/// Most requests that are read in one look. Chosen: far more than a host has processes.
const MOST_REQUESTS: usize = 16;

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
pub struct Starter(UnixListener);

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
        Ok(Self(listener))
    }

    /// Returns the requests that have come since the last call.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        // A process whose connection fails starts its successor itself.
        let accepted = std::iter::from_fn(|| self.0.accept().ok().map(|(stream, _)| stream));
        accepted.take(MOST_REQUESTS).filter_map(|stream| Request::read(stream).ok()).collect()
    }
}

impl Request {
    fn read(answer: UnixStream) -> io::Result<Self> {
        answer.set_nonblocking(false)?;
        answer.set_read_timeout(Some(REQUEST_LIMIT))?;
        let process = getsockopt(&answer, sockopt::PeerCredentials)?.pid().cast_unsigned();
        let received = descriptor::receive(&answer).map_err(io::Error::other)?.pop();
        let there = received.ok_or_else(|| io::Error::other("no socket came"))?;
        Ok(Self { process, answer, there })
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
    use std::os::fd::AsRawFd as _;
    use std::process::Stdio;
    use std::thread;

    use super::*;

    /// Asks for a successor, and gives the requests of that moment to `answer`. Returns the answer,
    /// and the name that the kernel has for the successor's end of the socket.
    fn asked(name: &str, answer: impl FnOnce(Vec<Request>)) -> (Option<u32>, String) {
        let path = std::env::temp_dir().join(format!("tw-{name}-{}", std::process::id()));
        let _none = fs::remove_file(&path);
        let starter = Starter::bind(&path).unwrap();
        let (_here, there) = UnixStream::pair().unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", there.as_raw_fd())).unwrap();
        let asks = thread::spawn({
            let path = path.clone();
            move || ask(&path, &there)
        });
        let requests = loop {
            let requests = starter.requests();
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
}
