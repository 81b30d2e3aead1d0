//! Programs on the lab's hosts: services that run until they are dropped, and commands that answer
//! once.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;
pub(crate) use tradewind_demo::processes::scratch::Scratch;
use tradewind_demo::processes::scratch::failed;

use super::{ProcessError, Stop};

/// The interval of checks on a program that is expected to end.
const LOOK: Duration = Duration::from_millis(10);
/// The time within which a foreign program must listen.
const LISTEN_WITHIN: Duration = Duration::from_secs(10);

/// Returns whether a foreign program is installed.
pub(crate) fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("-version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

/// A running service; ended when dropped.
#[derive(Debug)]
pub(crate) struct Service {
    child: Child,
}

/// The line by which a service reports that it is ready.
#[derive(Debug, Deserialize)]
pub(crate) struct Ready {
    /// Its addresses, if it listens.
    #[serde(default)]
    pub(crate) listen: Vec<SocketAddr>,
}

impl Service {
    /// Returns its process id.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Starts a service and waits until it reports that it is ready.
    pub(crate) fn start(
        mut command: Command,
        name: &str,
        scratch: &Scratch,
    ) -> Result<(Self, Ready), ProcessError> {
        let (log, log_path) = scratch.create(&format!("{name}.log"))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = spawn(&mut command, name)?;
        let stdout = child.stdout.take().expect("standard output was asked to be a pipe");
        let service = Self { child };
        let mut line = String::new();
        // A program that ends without a line has failed; its log has the reason.
        let _ = BufReader::new(stdout).read_line(&mut line);
        match serde_json::from_str(&line) {
            Ok(ready) => Ok((service, ready)),
            Err(_) => Err(failed(name, &log_path)),
        }
    }

    /// Starts a foreign program, which does not report readiness, and waits until `listens` returns
    /// `true`.
    pub(crate) fn start_listening(
        mut command: Command,
        name: &str,
        scratch: &Scratch,
        listens: impl Fn() -> Result<bool, ProcessError>,
    ) -> Result<Self, ProcessError> {
        let (log, log_path) = scratch.create(&format!("{name}.log"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut service = Self { child: spawn(&mut command, name)? };
        let begun = Instant::now();
        while !listens()? {
            let has_ended = service.child.try_wait().is_ok_and(|status| status.is_some());
            if has_ended {
                return Err(failed(name, &log_path));
            }
            if begun.elapsed() > LISTEN_WITHIN {
                let why = format!("it does not listen after {} s", LISTEN_WITHIN.as_secs());
                return Err(ProcessError::Program { name: name.to_owned(), why });
            }
            std::thread::sleep(LOOK);
        }
        Ok(service)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that does something and ends; killed when dropped.
#[derive(Debug)]
pub(crate) struct Task {
    name: String,
    service: Service,
    log: PathBuf,
}

impl Task {
    /// Starts the program and discards its output.
    pub(crate) fn start(
        command: Command,
        name: &str,
        scratch: &Scratch,
    ) -> Result<Self, ProcessError> {
        Self::start_into(command, Stdio::null(), name, scratch)
    }

    /// Starts the program with its standard output redirected to `output`.
    fn start_into(
        mut command: Command,
        output: impl Into<Stdio>,
        name: &str,
        scratch: &Scratch,
    ) -> Result<Self, ProcessError> {
        let (log_file, log) = scratch.create(&format!("{name}.log"))?;
        command.stdin(Stdio::null()).stdout(output).stderr(log_file);
        let child = spawn(&mut command, name)?;
        Ok(Self { name: name.to_owned(), service: Service { child }, log })
    }

    /// Starts a program and waits until `listens` returns `true`.
    pub(crate) fn start_listening(
        command: Command,
        name: &str,
        scratch: &Scratch,
        listens: impl Fn() -> Result<bool, ProcessError>,
    ) -> Result<Self, ProcessError> {
        let service = Service::start_listening(command, name, scratch, listens)?;
        Ok(Self { name: name.to_owned(), service, log: scratch.file(&format!("{name}.log")) })
    }

    /// Checks that the program is still running.
    ///
    /// # Errors
    /// When it has ended; with the last line of its log.
    pub(crate) fn check(&mut self) -> Result<(), ProcessError> {
        match self.service.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(failed(&self.name, &self.log)),
            Err(source) => Err(ProcessError::Start { name: self.name.clone(), source }),
        }
    }

    /// Waits until it ends, for `within` at most.
    pub(crate) fn end(mut self, within: Duration, stop: &Stop) -> Result<(), ProcessError> {
        self.wait(Some(within), stop)
    }

    fn wait(&mut self, within: Option<Duration>, stop: &Stop) -> Result<(), ProcessError> {
        let begun = Instant::now();
        loop {
            stop.check()?;
            match self.service.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(_)) => return Err(failed(&self.name, &self.log)),
                Ok(None) if within.is_some_and(|within| begun.elapsed() > within) => {
                    let why = format!("it has not ended within {} s", begun.elapsed().as_secs());
                    return Err(ProcessError::Program { name: self.name.clone(), why });
                }
                Ok(None) => std::thread::sleep(LOOK),
                Err(source) => return Err(ProcessError::Start { name: self.name.clone(), source }),
            }
        }
    }
}

/// A program that answers once, in JSON on its standard output.
#[derive(Debug)]
pub(crate) struct Question {
    task: Task,
    answer: PathBuf,
}

impl Question {
    /// Starts the program.
    pub(crate) fn ask(
        command: Command,
        name: &str,
        scratch: &Scratch,
    ) -> Result<Self, ProcessError> {
        let (answer_file, answer) = scratch.create(&format!("{name}.json"))?;
        Ok(Self { task: Task::start_into(command, answer_file, name, scratch)?, answer })
    }

    /// Waits until it ends and parses its output.
    pub(crate) fn answer<T: DeserializeOwned>(mut self, stop: &Stop) -> Result<T, ProcessError> {
        self.task.wait(None, stop)?;
        let read = fs::read_to_string(&self.answer);
        let text =
            read.map_err(|source| ProcessError::File { path: self.answer.clone(), source })?;
        serde_json::from_str(&text)
            .map_err(|source| ProcessError::Answer { name: self.task.name.clone(), source })
    }
}

fn spawn(command: &mut Command, name: &str) -> Result<Child, ProcessError> {
    command.spawn().map_err(|source| ProcessError::Start { name: name.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_program_is_quoted_and_scratch_is_removed() {
        let scratch = Scratch::new().unwrap();
        let directory = scratch.path().to_owned();
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'port 7 is in use' >&2; exit 1"]);
        let question = Question::ask(command, "probe a:b", &scratch).unwrap();
        let error = question.answer::<u32>(&Stop::default()).unwrap_err();
        assert_eq!(error.to_string(), "probe a:b: port 7 is in use");

        let mut command = Command::new("sh");
        command.args(["-c", "echo 42"]);
        let question = Question::ask(command, "answer", &scratch).unwrap();
        assert_eq!(question.answer::<u32>(&Stop::default()).unwrap(), 42);

        let mut command = Command::new("sh");
        command.args(["-c", "echo '{\"listen\": [\"127.0.0.1:7\"]}'; exec sleep 60"]);
        let (service, ready) = Service::start(command, "service", &scratch).unwrap();
        assert_eq!(ready.listen.len(), 1);
        drop((service, scratch));
        assert!(!directory.exists());
    }
}
