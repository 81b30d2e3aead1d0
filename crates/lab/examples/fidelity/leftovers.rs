//! Checks that a lab leaves nothing behind, however it ends.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tradewind_lab::privilege::Standing;
use tradewind_lab::supervisor::{self, RuntimeDirectory, Source};
use tradewind_lab::{LabError, LabOptions};
use tradewind_model::Catalogue;
use tradewind_wan::Topology;

use crate::common::check::{Figure, Findings};
use crate::common::{host, start};
use crate::mechanisms::truth;

const TOPOLOGY: &str = "[[site]]\nid = \"a\"\n[[site]]\nid = \"b\"\n\
                        [[pair]]\nbetween = [\"a\", \"b\"]\nrtt = \"20 ms\"\n";
/// Longest time for the kernel to end killed processes.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(3);
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// Runs the role of this program's own child processes; returns `None` when it is not one.
pub(crate) fn child_role(arguments: &[String]) -> Option<Result<(), LabError>> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &words[..] {
        ["--hold"] => Some(hold()),
        ["--daemon", directory] => Some(daemon(&RuntimeDirectory::at(*directory))),
        ["--exec", directory, program, rest @ ..] => {
            let rest: Vec<OsString> = rest.iter().map(OsString::from).collect();
            let program = OsString::from(program);
            let gone =
                supervisor::exec(&RuntimeDirectory::at(*directory), &host("b"), &program, &rest);
            Some(gone.map(|never| match never {}))
        }
        _ => None,
    }
}

/// Holds a lab with a program on a host, prints the program's process id, and waits to be killed.
fn hold() -> Result<(), LabError> {
    let lab = start(TOPOLOGY, &LabOptions::default())?;
    let mut command = lab.command(&host("a"), "sleep")?;
    // Started on a thread that ends at once: the program must not end with it.
    let sleeper = thread::scope(|scope| scope.spawn(|| command.arg("600").spawn()).join());
    let mut sleeper = sleeper.expect("spawning does not panic").expect("Debian has `sleep`");
    println!("{}", sleeper.id());
    // The starter kills this process long before the program ends.
    let _ = sleeper.wait();
    Ok(())
}

fn daemon(place: &RuntimeDirectory) -> Result<(), LabError> {
    let topology = Topology::parse(TOPOLOGY, &Catalogue::builtin()).expect("it is right");
    let source = Source { file: "two sites".to_owned(), standing: Standing::Privileged };
    supervisor::serve(place, &topology, &source, &LabOptions::default())
}

pub(crate) fn nothing_remains() -> Result<Findings, LabError> {
    let mut figures = Vec::new();
    let mut holder = own_child(["--hold"]).stdout(Stdio::piped()).spawn().expect("we exist");
    let mut line = String::new();
    let stdout = holder.stdout.take().expect("it was asked to be a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("a pipe can be read");
    let sleeper: u32 = line.trim().parse().unwrap_or_default();
    thread::sleep(Duration::from_millis(300));
    figures.push(truth("a program on a host runs", runs(sleeper)));
    holder.kill().expect("it is our child");
    holder.wait().expect("it is our child");
    figures.push(truth("kill -9 of the lab ends it", ends(sleeper)));
    supervised(&mut figures)?;
    killed(&mut figures)?;
    troubled(&mut figures)?;
    Ok(Findings { figures, records: Vec::new() })
}

fn supervised(figures: &mut Vec<Figure>) -> Result<(), LabError> {
    let scratch = Scratch::new("down");
    let (place, name) = (scratch.place(), scratch.name());
    let status = supervisor::up(&place, own_child(["--daemon", &name]))?;
    figures.push(truth("a supervised lab is up", status.hosts.len() == 2));
    let again = supervisor::up(&place, own_child(["--daemon", &name]));
    let refused =
        matches!(again, Err(LabError::AlreadyUp { process }) if process == status.process);
    figures.push(truth("a second one is refused", refused));
    supervisor::set(&place, "a,b", &["rtt=5ms".to_owned()])?;
    let mut failing = own_child(["--exec", &name, "sh", "-c", "exit 7"]);
    let code = failing.status().expect("we exist").code();
    figures.push(truth("exec ends by the program's exit code", code == Some(7)));
    let mut program = Family::start(&name, 1);
    let signalled = kill(Pid::from_raw(program.exec.id() as i32), Signal::SIGTERM).is_ok();
    let ended =
        signalled && program.exec.wait().expect("it is our child").signal() == Some(SIGTERM);
    figures.push(truth("a signal to exec ends the program", ended));
    let mut program = Family::start(&name, 2);
    figures.push(truth("exec runs the program and its daemon", program.is_complete()));
    let down = supervisor::down(&place);
    let status = program.exec.wait().expect("it is our child");
    down?;
    figures.push(truth("down ends the program", status.signal() == Some(SIGKILL)));
    figures.push(truth("and its daemon", program.is_gone()));
    figures.push(truth("no file is left but the log", scratch.is_swept()));
    Ok(())
}

/// Checks that after `kill -9` of the lab's process, a descendant that left its group and its
/// parent ends nevertheless.
fn killed(figures: &mut Vec<Figure>) -> Result<(), LabError> {
    let scratch = Scratch::new("killed");
    let (place, name) = (scratch.place(), scratch.name());
    let status = supervisor::up(&place, own_child(["--daemon", &name]))?;
    let mut program = Family::start(&name, 3);
    let complete = program.is_complete();
    let signalled = kill(Pid::from_raw(status.process as i32), Signal::SIGKILL).is_ok();
    let ended = program.exec.wait().expect("it is our child").signal() == Some(SIGKILL);
    let gone = complete && signalled && ended && program.is_gone();
    figures.push(truth("kill -9 ends the program and its daemon", gone));
    supervisor::up(&place, own_child(["--daemon", &name]))?;
    figures.push(truth("the next lab starts in its place", true));
    supervisor::down(&place)
}

/// Checks a lab's process whose starter is gone, whose log is full, and whose state cannot be
/// written.
fn troubled(figures: &mut Vec<Figure>) -> Result<(), LabError> {
    let scratch = Scratch::new("troubled");
    let (place, name) = (scratch.place(), scratch.name());
    let full = || OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let start = |stderr: Stdio| {
        let mut daemon = own_child(["--daemon", &name]);
        daemon.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = daemon.spawn().expect("we exist");
        let mut word = String::new();
        let stdout = child.stdout.take().expect("it was asked to be a pipe");
        BufReader::new(stdout).read_line(&mut word).expect("a pipe can be read");
        (child, word)
    };
    let (mut child, word) = start(Stdio::null());
    drop(child.stdin.take());
    let ended = word == "up\n" && child.wait().expect("it is our child").success();
    figures.push(truth("a lab ends with an `up` that is cut off", ended && scratch.is_swept()));

    let (mut child, _) = start(full().into());
    let down = supervisor::down(&place);
    let ended = child.wait().expect("it is our child").success();
    down?;
    figures.push(truth("a lab with a full log ends in order", ended && scratch.is_swept()));

    fs::create_dir(place.state_file()).expect("the place is ours");
    let (mut child, word) = start(full().into());
    let failed = !child.wait().expect("it is our child").success();
    let reported = failed && word.contains("lab.json: ") && !place.socket().exists();
    figures.push(truth("a lab that cannot keep its state says so", reported));
    Ok(())
}

/// A directory of one check, removed with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(what: &str) -> Self {
        let name = format!("tradewind-lab-{what}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).recursive(true).create(&path);
        made.expect("there is room for a directory");
        Self(path)
    }

    fn place(&self) -> RuntimeDirectory {
        RuntimeDirectory::at(&self.0)
    }

    fn name(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }

    fn is_swept(&self) -> bool {
        let place = self.place();
        !place.socket().exists() && !place.state_file().exists()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program on a host, and a descendant that left its group and its parent.
struct Family {
    exec: Child,
    marks: [String; 2],
}

impl Family {
    /// Starts a family; `number` distinguishes the programs of several.
    fn start(place: &str, number: u32) -> Self {
        let process = std::process::id();
        let marks = ["1", "2"].map(|member| format!("600.{process}{number}{member}"));
        let script = format!("setsid sleep {} & exec sleep {}", marks[0], marks[1]);
        let exec = own_child(["--exec", place, "sh", "-c", &script]).spawn().expect("we exist");
        let family = Self { exec, marks };
        family.is_complete();
        family
    }

    fn is_complete(&self) -> bool {
        within_patience(|| self.marks.iter().all(|mark| is_argument(mark)))
    }

    fn is_gone(&self) -> bool {
        within_patience(|| !self.marks.iter().any(|mark| is_argument(mark)))
    }
}

/// Returns whether a process `sleep` with this argument exists.
fn is_argument(mark: &str) -> bool {
    let wanted = format!("sleep\0{mark}\0");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.any(|line| line == wanted.as_bytes())
}

fn own_child<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("Linux knows it"));
    command.args(arguments);
    command
}

/// Returns whether the process exists and is no zombie.
fn runs(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    process != 0 && !status.is_empty() && !status.contains("State:\tZ")
}

fn ends(process: u32) -> bool {
    within_patience(|| !runs(process))
}

fn within_patience(holds: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while !holds() {
        if started.elapsed() > CLEANUP_TIMEOUT {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}
