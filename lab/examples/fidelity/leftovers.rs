//! What remains when a lab ends, by whatever end: nothing.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tradewind_lab::privilege::Standing;
use tradewind_lab::supervisor::{self, Place, Source};
use tradewind_lab::{LabError, LabOptions};
use tradewind_model::Catalogue;
use tradewind_wan::Topology;

use crate::common::check::{Figure, Findings};
use crate::common::{host, start};
use crate::mechanisms::truth;

const TOPOLOGY: &str = "[[site]]\nid = \"a\"\n[[site]]\nid = \"b\"\n\
                        [[pair]]\nbetween = [\"a\", \"b\"]\nrtt = \"20 ms\"\n";
/// Longest that the kernel may take to end what was killed.
const PATIENCE: Duration = Duration::from_secs(3);
const SIGKILL: i32 = 9;

/// Does what this program's own child processes are for; `None` when it is not one.
pub(crate) fn child_role(arguments: &[String]) -> Option<Result<(), LabError>> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &words[..] {
        ["--hold"] => Some(hold()),
        ["--daemon", directory] => Some(daemon(&Place::at(*directory))),
        ["--exec", directory, program, rest @ ..] => {
            let rest: Vec<OsString> = rest.iter().map(OsString::from).collect();
            let program = OsString::from(program);
            let gone = supervisor::exec(&Place::at(*directory), &host("b"), &program, &rest);
            Some(gone.map(|never| match never {}))
        }
        _ => None,
    }
}

/// Holds a lab with a program on a host, tells the program's number, and waits to be killed.
fn hold() -> Result<(), LabError> {
    let lab = start(TOPOLOGY, &LabOptions::default())?;
    let mut command = lab.command(&host("a"), "sleep")?;
    // Started on a thread that ends at once: the program must not end with it.
    let sleeper = thread::scope(|scope| scope.spawn(|| command.arg("600").spawn()).join());
    let mut sleeper = sleeper.expect("spawning does not panic").expect("Debian has `sleep`");
    println!("{}", sleeper.id());
    // Whoever started us kills us long before the program's own end.
    let _ = sleeper.wait();
    Ok(())
}

fn daemon(place: &Place) -> Result<(), LabError> {
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
    Ok(Findings { figures, records: Vec::new() })
}

fn supervised(figures: &mut Vec<Figure>) -> Result<(), LabError> {
    let directory = std::env::temp_dir().join(format!("tradewind-lab-{}", std::process::id()));
    let place = Place::at(&directory);
    let name = directory.to_string_lossy().into_owned();
    let status = supervisor::up(&place, own_child(["--daemon", &name]))?;
    figures.push(truth("a supervised lab is up", status.hosts.len() == 2));
    let again = supervisor::up(&place, own_child(["--daemon", &name]));
    let refused =
        matches!(again, Err(LabError::AlreadyUp { process }) if process == status.process);
    figures.push(truth("a second one is refused", refused));
    supervisor::set(&place, "a,b", &["rtt=5ms".to_owned()])?;
    let mut program = own_child(["--exec", &name, "sleep", "600"]).spawn().expect("we exist");
    figures.push(truth("exec becomes the program", becomes_sleep(&program)));
    let down = supervisor::down(&place);
    let status = program.wait().expect("it is our child");
    down?;
    figures.push(truth("down ends the program", status.signal() == Some(SIGKILL)));
    let left = place.socket().exists() || place.state_file().exists();
    figures.push(truth("no file is left but the log", !left));
    // What a check made for itself goes with it.
    let _ = fs::remove_dir_all(&directory);
    Ok(())
}

fn own_child<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("Linux knows it"));
    command.args(arguments);
    command
}

/// Whether the process is there and no zombie.
fn runs(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    process != 0 && !status.is_empty() && !status.contains("State:\tZ")
}

fn ends(process: u32) -> bool {
    within_patience(|| !runs(process))
}

fn becomes_sleep(child: &Child) -> bool {
    let name = format!("/proc/{}/comm", child.id());
    within_patience(|| fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep"))
}

fn within_patience(holds: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while !holds() {
        if started.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}
