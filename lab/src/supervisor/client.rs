//! The commands' side.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use tradewind_net::lifeline::{self, Reach};
use tradewind_net::netns::Namespace;
use tradewind_net::{descriptor, userns};
use tradewind_units::{Duration, HostId};

use super::message::{Answer, Question, Status, hear, say};
use super::place::Place;
use crate::error::LabError;

/// How long a lab may take to start or end before another one gives the place up. Chosen: a hundred
/// hosts take a second or two.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Starts the lab's process by `daemon`, a command that ends in [`super::serve`], and waits until
/// its lab is up.
///
/// # Errors
/// When a lab is up already, or the process ends instead of coming up: then its last word.
pub fn up(place: &Place, mut daemon: Command) -> Result<Status, LabError> {
    place.prepare()?;
    let log = claim(place)?;
    place.sweep();
    daemon.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let program: PathBuf = daemon.get_program().into();
    let started = daemon.spawn().map_err(|source| LabError::File { path: program, source });
    let mut child = started?;
    let stdout = child.stdout.take().expect("standard output was asked to be a pipe");
    let mut word = String::new();
    // An end without a word is a process that failed; its log says why.
    let _ = BufReader::new(stdout).read_line(&mut word);
    if word.trim_end() == "up" {
        return status(place);
    }
    // It has closed its output, so it is ending.
    let _ = child.wait();
    let log = fs::read_to_string(place.log_file()).unwrap_or_default();
    let last = log.lines().rev().find(|line| !line.trim().is_empty());
    let why = last.unwrap_or("the lab's process ended without a word");
    Err(LabError::Remote(why.trim_start_matches("tradewind: ").to_owned()))
}

/// Opens the log and locks it. The lab's process writes to this opening and so holds the lock until
/// it ends, however it ends: of several that want the place one gets it.
fn claim(place: &Place) -> Result<File, LabError> {
    let path = place.log_file();
    let at_log = |source| LabError::File { path: path.clone(), source };
    let opened =
        OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(&path);
    let log = opened.map_err(at_log)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(running) = status(place) {
            return Err(LabError::AlreadyUp { process: running.process });
        }
        match log.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(source)) => return Err(at_log(source)),
            // One that just starts or ends.
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

/// What is up, and how it is.
///
/// # Errors
/// When no lab is up.
pub fn status(place: &Place) -> Result<Status, LabError> {
    match ask(place, &Question::Status)?.0 {
        Answer::Status(status) => Ok(*status),
        other => Err(unexpected(other)),
    }
}

/// Alters a pair of sites: `hamina,tokyo` (both ways) or `hamina->tokyo`, and `rtt=30ms` and the
/// like.
///
/// # Errors
/// When no lab is up, or the change makes no sense to it.
pub fn set(place: &Place, pair: &str, settings: &[String]) -> Result<(), LabError> {
    let question = Question::Set { pair: pair.to_owned(), settings: settings.to_vec() };
    done(ask(place, &question)?.0)
}

/// Ends the lab and all programs on its hosts; returns when they are gone.
///
/// # Errors
/// When no lab is up.
pub fn down(place: &Place) -> Result<(), LabError> {
    done(ask(place, &Question::Down)?.0)
}

/// Becomes `program`, run on `host` of the lab that is up; it dies with the lab. To be called
/// before any thread is started.
///
/// # Errors
/// When no lab is up, it has no such host, or the program cannot be started. There is no return
/// otherwise.
pub fn exec(
    place: &Place,
    host: &HostId,
    program: &OsString,
    arguments: &[OsString],
) -> Result<Infallible, LabError> {
    let (answer, stream) = ask(place, &Question::Enter { host: host.clone() })?;
    done(answer)?;
    let received = descriptor::receive(&stream)?;
    let [user, network, lifeline] = <[_; 3]>::try_from(received)
        .map_err(|_| LabError::Remote("the lab's process sent no way in".to_owned()))?;
    userns::enter(&user)?;
    Namespace::from_descriptor(network).enter()?;
    lifeline::hold_on(&lifeline, Reach::Child)?;
    let source = Command::new(program).args(arguments).exec();
    Err(LabError::File { path: program.into(), source })
}

fn ask(place: &Place, question: &Question) -> Result<(Answer, UnixStream), LabError> {
    place.check_owner()?;
    let path = place.socket();
    let mut stream = UnixStream::connect(&path).map_err(|source| match source.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            LabError::NotUp { path: path.clone() }
        }
        _ => LabError::File { path: path.clone(), source },
    })?;
    say(&mut stream, question)?;
    Ok((hear(&stream)?, stream))
}

fn done(answer: Answer) -> Result<(), LabError> {
    match answer {
        Answer::Done => Ok(()),
        other => Err(unexpected(other)),
    }
}

fn unexpected(answer: Answer) -> LabError {
    match answer {
        Answer::Refused(reason) => LabError::Remote(reason),
        Answer::Done | Answer::Status(_) => {
            LabError::Remote("the lab's process answered another question".to_owned())
        }
    }
}
