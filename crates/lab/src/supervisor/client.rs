//! The client side: the functions behind the commands.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

use tradewind_net::lifeline::{self, Reach};
use tradewind_net::netns::Namespace;
use tradewind_net::{descriptor, pidns, stand_in, userns};
use tradewind_units::{Duration, HostId};

use super::message::{Answer, Question, Status, hear, send_message, set_timeouts};
use super::runtime_directory::RuntimeDirectory;
use super::server::KEEP;
use crate::error::LabError;

/// Longest time for which `up` waits for another lab that is starting or ending to release the
/// directory. Chosen: a hundred hosts take a second or two.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time that the lab's process may take to answer. Chosen: above the time for which another
/// caller may occupy it.
const TO_ANSWER: Duration = Duration::from_secs(10);
/// Longest time that `down` may take: it includes the end of all programs on the hosts.
const TO_END: Duration = Duration::from_secs(30);
/// Exit code by which the lab's process says that its topology is at fault.
const BAD_FILE: i32 = 2;
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Starts the lab's process by `daemon`, a command that ends in [`super::serve`], and waits until
/// its lab is up. If this process ends before it returns, the lab's process ends, too.
///
/// # Errors
/// When a lab is up already, or when the process ends instead of coming up; the error then carries
/// its last line.
pub fn up(place: &RuntimeDirectory, daemon: Command) -> Result<Status, LabError> {
    let mut lab = hold(place, daemon)?;
    if let Some((_, mut starter)) = lab.held.take() {
        // From here on the process outlives this one. If it is gone, the next request reports that.
        let _ = starter.write_all(KEEP);
    }
    Ok(lab.status.clone())
}

/// A lab that ends with this process, however that ends, or when this is dropped.
#[derive(Debug)]
pub struct HeldLab {
    status: Status,
    /// The lab's process, and its standard input: when that is closed, it ends.
    held: Option<(Child, ChildStdin)>,
}

impl HeldLab {
    /// Returns its status at the start.
    #[must_use]
    pub const fn status(&self) -> &Status {
        &self.status
    }

    /// Returns whether the lab has ended by itself, or by [`down`].
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        let running = |(process, _): &mut (Child, _)| matches!(process.try_wait(), Ok(None));
        !self.held.as_mut().is_some_and(running)
    }
}

impl Drop for HeldLab {
    /// Waits until the lab and all programs on its hosts are gone.
    fn drop(&mut self) {
        if let Some((mut process, starter)) = self.held.take() {
            drop(starter);
            let _ = process.wait();
        }
    }
}

/// Starts a lab as [`up`] does, and holds it.
///
/// # Errors
/// As [`up`].
pub fn hold(place: &RuntimeDirectory, mut daemon: Command) -> Result<HeldLab, LabError> {
    place.prepare()?;
    let log = claim(place)?;
    place.sweep();
    daemon.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    let program: PathBuf = daemon.get_program().into();
    let started = daemon.spawn().map_err(|source| LabError::File { path: program, source });
    let mut child = started?;
    let stdout = child.stdout.take().expect("standard output was asked to be a pipe");
    let starter = child.stdin.take().expect("standard input was asked to be a pipe");
    let mut word = String::new();
    // A process that ends without a line has failed; its log has the reason.
    let _ = BufReader::new(stdout).read_line(&mut word);
    let word = word.trim_end();
    if word == "up" {
        let status = status(place)?;
        return Ok(HeldLab { status, held: Some((child, starter)) });
    }
    // It has closed its standard output, so it is ending.
    let ended = child.wait();
    let log = fs::read_to_string(place.log_file()).unwrap_or_default();
    let last = log.lines().rev().find(|line| !line.trim().is_empty());
    // On a full disk there is no log, so the line on standard output has precedence.
    let why = Some(word).filter(|word| !word.is_empty()).or(last);
    let why = why.unwrap_or("the lab's process ended without a word");
    let why = why.trim_start_matches("tradewind: ").to_owned();
    // As of every command: a bad file.
    let is_of_topology = ended.is_ok_and(|ended| ended.code() == Some(BAD_FILE));
    Err(if is_of_topology { LabError::BadInput(why) } else { LabError::Remote(why) })
}

/// Opens the log and locks it. The lab's process inherits this open file and so holds the lock
/// until it ends: of several that want the directory, exactly one gets it.
fn claim(place: &RuntimeDirectory) -> Result<File, LabError> {
    let path = place.log_file();
    let at_log = |source| LabError::File { path: path.clone(), source };
    let opened =
        OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(&path);
    let log = opened.map_err(at_log)?;
    let deadline = Instant::now() + REPLY_TIMEOUT;
    loop {
        match status(place) {
            Ok(running) => return Err(LabError::AlreadyUp { process: running.process }),
            Err(silent @ LabError::NoAnswer { .. }) => return Err(silent),
            Err(_) => {}
        }
        match log.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(source)) => return Err(at_log(source)),
            // The holder is just starting or ending.
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(LOOK_AGAIN);
            }
            Err(TryLockError::WouldBlock) => {
                let place = place.directory().display();
                let busy = format!("{place}: a lab's process holds this place and does not answer");
                return Err(LabError::Remote(busy));
            }
        }
    }
    log.set_len(0).map_err(at_log)?;
    Ok(log)
}

/// Returns the status of the lab that is up.
///
/// # Errors
/// When no lab is up.
pub fn status(place: &RuntimeDirectory) -> Result<Status, LabError> {
    match ask(place, &Question::Status)?.0 {
        Answer::Status(status) => Ok(*status),
        other => Err(unexpected(other)),
    }
}

/// Changes a pair of sites: `hamina,tokyo` (both ways) or `hamina->tokyo`, with settings like
/// `rtt=30ms`.
///
/// # Errors
/// When no lab is up, or when it refuses the change.
pub fn set(place: &RuntimeDirectory, pair: &str, settings: &[String]) -> Result<(), LabError> {
    let question = Question::Set { pair: pair.to_owned(), settings: settings.to_vec() };
    done(ask(place, &question)?.0)
}

/// Ends the lab and all programs on its hosts; returns when they are gone.
///
/// # Errors
/// When no lab is up.
pub fn down(place: &RuntimeDirectory) -> Result<(), LabError> {
    done(ask_within(place, &Question::Down, TO_END)?.0)
}

/// Listens on a TCP port of `host` of the lab that is up. The listener works in this process,
/// wherever it is; connections to it come from the lab's hosts.
///
/// # Errors
/// When no lab is up, it has no such host, or the port is in use there.
pub fn listen(place: &RuntimeDirectory, host: &HostId, port: u16) -> Result<TcpListener, LabError> {
    let (answer, stream) = ask(place, &Question::Listen { host: host.clone(), port })?;
    done(answer)?;
    let received = descriptor::receive(&stream)?;
    let [listener] = <[_; 1]>::try_from(received)
        .map_err(|_| LabError::Remote("the lab's process did not send the listener".to_owned()))?;
    Ok(TcpListener::from(listener))
}

/// Runs `program` on `host` of the lab that is up and stands in for it: signals are passed on to
/// it, and this process exits with its status. The program and its descendants die with the lab.
/// Must be called before any thread is started.
///
/// # Errors
/// When no lab is up, it has no such host, or the program cannot be started. Otherwise it does not
/// return.
pub fn exec(
    place: &RuntimeDirectory,
    host: &HostId,
    program: &OsString,
    arguments: &[OsString],
) -> Result<Infallible, LabError> {
    let (answer, stream) = ask(place, &Question::Enter { host: host.clone() })?;
    done(answer)?;
    let received = descriptor::receive(&stream)?;
    let [user, network, processes, lifeline] = <[_; 4]>::try_from(received).map_err(|_| {
        LabError::Remote("the lab's process did not send the host's descriptors".to_owned())
    })?;
    userns::enter(&user)?;
    Namespace::from_descriptor(network).enter()?;
    pidns::enter(&processes)?;
    // The kernel kills everything in the PID namespace; this process stays outside.
    lifeline::hold_on(&lifeline, Reach::Child)?;
    let mut command = Command::new(program);
    command.args(arguments);
    stand_in::stand_for(command).map_err(|source| LabError::File { path: program.into(), source })
}

fn ask(place: &RuntimeDirectory, question: &Question) -> Result<(Answer, UnixStream), LabError> {
    ask_within(place, question, TO_ANSWER)
}

fn ask_within(
    place: &RuntimeDirectory,
    question: &Question,
    timeout: Duration,
) -> Result<(Answer, UnixStream), LabError> {
    place.check()?;
    let path = place.socket();
    let mut stream = UnixStream::connect(&path).map_err(|source| match source.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            LabError::NotUp { path: path.clone() }
        }
        _ => LabError::File { path: path.clone(), source },
    })?;
    set_timeouts(&stream, timeout)?;
    match send_message(&mut stream, question).and_then(|()| hear(&stream)) {
        Ok(answer) => Ok((answer, stream)),
        Err(LabError::Silent) => {
            let process =
                place.holder().map_or("unknown".to_owned(), |process| process.to_string());
            Err(LabError::NoAnswer { process, waited: timeout })
        }
        Err(other) => Err(other),
    }
}

fn done(answer: Answer) -> Result<(), LabError> {
    match answer {
        Answer::Done => Ok(()),
        other => Err(unexpected(other)),
    }
}

fn unexpected(answer: Answer) -> LabError {
    match answer {
        Answer::Refused { reason, is_bad_input: true } => LabError::BadInput(reason),
        Answer::Refused { reason, is_bad_input: false } => LabError::Remote(reason),
        Answer::Done | Answer::Status(_) => {
            LabError::Remote("the lab's process answered another question".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// A directory of one test, removed when dropped.
    struct TestPlace(RuntimeDirectory);

    impl TestPlace {
        fn new(name: &str) -> Self {
            let name = format!("tradewind-client-{name}-{}", std::process::id());
            let place = RuntimeDirectory::at(std::env::temp_dir().join(name));
            place.prepare().unwrap();
            Self(place)
        }
    }

    impl Drop for TestPlace {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.directory());
        }
    }

    #[test]
    fn silent_process_times_out_and_is_named() {
        let place = TestPlace::new("silent");
        let _listener = UnixListener::bind(place.0.socket()).unwrap();
        fs::write(place.0.state_file(), "{\"schema_version\":1,\"process\":77}").unwrap();
        let timeout = Duration::from_millis(20);
        let error = ask_within(&place.0, &Question::Status, timeout).unwrap_err().to_string();
        assert!(error.contains("process (77) has not answered"), "{error}");
        assert_eq!(error.lines().count(), 1);
    }

    #[test]
    fn last_line_of_ended_process_is_reported_with_empty_log() {
        let place = TestPlace::new("word");
        let mut daemon = Command::new("sh");
        daemon.args(["-c", "echo 'lab.json: No space left on device'"]);
        let error = up(&place.0, daemon).unwrap_err().to_string();
        assert_eq!(error, "lab.json: No space left on device");
    }

    #[test]
    fn unreachable_process_is_not_kept() {
        let place = TestPlace::new("kept");
        let found = place.0.directory().join("found");
        let mut daemon = Command::new("sh");
        // It stores what it reads after `up`: nothing, because nobody answers on the socket.
        daemon.args(["-c", "echo up; cat > \"$0.new\"; mv \"$0.new\" \"$0\""]).arg(&found);
        assert!(matches!(up(&place.0, daemon), Err(LabError::NotUp { .. })));
        while !found.exists() {
            std::thread::sleep(LOOK_AGAIN);
        }
        assert_eq!(fs::read(&found).unwrap(), b"");
    }
}
