//! The commands' side.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use tradewind_net::lifeline::{self, Reach};
use tradewind_net::netns::Namespace;
use tradewind_net::{descriptor, userns};
use tradewind_units::HostId;

use super::message::{Answer, Question, Status, hear, say};
use super::place::Place;
use crate::error::LabError;

/// Starts the lab's process by `daemon`, a command that ends in [`super::serve`], and waits until
/// its lab is up.
///
/// # Errors
/// When a lab is up already, or the process ends instead of coming up: then its last word.
pub fn up(place: &Place, mut daemon: Command) -> Result<Status, LabError> {
    if let Ok(running) = status(place) {
        return Err(LabError::AlreadyUp { process: running.process });
    }
    place.prepare()?;
    place.sweep();
    let path = place.log_file();
    let at_log = |source| LabError::File { path: path.clone(), source };
    let log = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&path);
    let log = log.map_err(at_log)?;
    daemon.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let program = daemon.get_program().into();
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
    let log = fs::read_to_string(&path).unwrap_or_default();
    let last = log.lines().rev().find(|line| !line.trim().is_empty());
    Err(LabError::Remote(last.unwrap_or("the lab's process ended without a word").to_owned()))
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
