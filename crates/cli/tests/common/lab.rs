//! Processes on the hosts of a test's lab, and sessions between them.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::common::daemon::until;
use crate::common::{Files, PROGRAM, command, text};

/// Returns the processes of the lab of `folder`: all inherit its place by the environment.
pub(crate) fn processes_of(folder: &Path) -> Vec<u32> {
    let place = format!("TRADEWIND_RUNTIME_DIR={}/place", folder.display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let has_it = |entry: &fs::DirEntry| {
        let all = fs::read(entry.path().join("environ")).unwrap_or_default();
        all.split(|byte| *byte == 0).any(|one| one == place.as_bytes())
    };
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    processes.filter(has_it).filter_map(number).collect()
}

/// Sends back what comes, in a process on a host of a lab; does nothing elsewhere.
#[test]
fn echo_server() {
    let Some(address) = std::env::var_os("TRADEWIND_TEST_ECHO_SERVER") else { return };
    for stream in TcpListener::bind(address.to_str().unwrap()).unwrap().incoming() {
        let mut stream = stream.unwrap();
        let mut reader = stream.try_clone().unwrap();
        thread::spawn(move || std::io::copy(&mut reader, &mut stream));
    }
}

/// Sends bytes one by one over one connection, and says so when they have come back, in a process
/// on a host of a lab; does nothing elsewhere.
#[test]
fn echo_client() {
    let Some(address) = std::env::var_os("TRADEWIND_TEST_ECHO_CLIENT") else { return };
    let mut stream = TcpStream::connect(address.to_str().unwrap()).unwrap();
    loop {
        stream.write_all(&[1]).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        println!("came back");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a megabyte and reads it back, then says so and holds the connection, in a process on a
/// host of a lab; does nothing elsewhere.
#[test]
fn bulk_client() {
    let Some(address) = std::env::var_os("TRADEWIND_TEST_BULK_CLIENT") else { return };
    let mut stream = TcpStream::connect(address.to_str().unwrap()).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sender = thread::spawn(move || writer.write_all(&vec![7; 1 << 20]).unwrap());
    stream.read_exact(&mut vec![0; 1 << 20]).unwrap();
    sender.join().unwrap();
    println!("came back");
    thread::sleep(Duration::from_secs(600));
}

/// A process that is killed when it is dropped.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn output(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.0.stdout.take().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// A lab whose processes end with it.
pub(crate) struct Lab(pub(crate) Files);

impl Lab {
    /// Starts the lab of a topology, and makes the folder of a controller on its host `office`.
    pub(crate) fn up(test: &str, topology: &str) -> Self {
        let lab = Self(Files::new(test));
        let files = &lab.0;
        files.write("wan.toml", topology);
        let rules = "destinations = ['10.200.0.0/16:*']\nnext_hops = ['10.200.0.0/16:*']\n";
        files.write("ceiling.toml", format!("roles = ['relay', 'gateway']\n{rules}"));
        files.prints("lab up wan.toml");
        files.prints("controller init net --agents 10.200.0.1:7440 --api 127.0.0.1:7441");
        lab
    }

    /// Starts the controller on `office`, and waits until it is ready.
    pub(crate) fn control(&self) -> Process {
        self.start("office", &["controller", "run", "net"])
    }

    /// Has a host join as what these options of `invite` say, and waits until its agent is ready.
    pub(crate) fn join(&self, host: &str, role: &str) -> Process {
        let invite = self.prints(&format!("invite {role}"));
        let invite = invite.trim().rsplit(' ').next().unwrap();
        let (folder, ceiling) = (folder_of(host), ["--ceiling", "ceiling.toml"]);
        self.start(host, &[&["agent", "join", invite, "--dir", &folder], &ceiling[..]].concat())
    }

    /// Starts the agent of a host that has joined.
    pub(crate) fn run_agent(&self, host: &str) -> Process {
        let words = [PROGRAM, "agent", "run", "--dir", &folder_of(host)];
        Process::spawn(&mut self.on(host, &words))
    }

    /// Waits until the controller sees all hosts well.
    pub(crate) fn until_well(&self) {
        until("all hosts are well", || {
            let hosts: Value = serde_json::from_str(&self.prints("hosts -o json")).unwrap();
            hosts["hosts"].as_array().unwrap().iter().all(|host| host["state"] == "well")
        });
    }

    /// Returns a command on a host.
    pub(crate) fn on(&self, host: &str, words: &[&str]) -> Command {
        command(&[&["lab", "exec", host, "--"], words].concat(), &self.0.0)
    }

    /// Starts the program on a host, and waits until it is ready.
    pub(crate) fn start(&self, host: &str, words: &[&str]) -> Process {
        self.ready(host, &[&[PROGRAM], words].concat())
    }

    /// Starts a command on a host, and waits until it says that it is ready.
    pub(crate) fn ready(&self, host: &str, words: &[&str]) -> Process {
        let mut process = Process::spawn(&mut self.on(host, words));
        let mut line = String::new();
        process.output().read_line(&mut line).unwrap();
        assert!(line.contains("\"ready\""), "{words:?}: {line}");
        process
    }

    /// Returns what a command prints on the controller's host.
    pub(crate) fn prints(&self, words: &str) -> String {
        let words: Vec<&str> = [PROGRAM].into_iter().chain(words.split(' ')).collect();
        let output = self.on("office", &words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Starts one of the tests of this module on a host.
    pub(crate) fn echo(&self, host: &str, test: &str, variable: &str, address: &str) -> Process {
        let this = std::env::current_exe().unwrap();
        let test = format!("lab::{test}");
        let words = [this.to_str().unwrap(), "--exact", &test, "--nocapture"];
        let mut command = self.on(host, &words);
        Process::spawn(command.env(variable, address))
    }

    /// Opens a session over the gateway's port, as soon as one can be opened.
    pub(crate) fn session(&self, port: u16) -> Session {
        let address = format!("127.0.0.1:{port}");
        let mut opened = None;
        until("a session", || {
            let mut client =
                self.echo("office", "echo_client", "TRADEWIND_TEST_ECHO_CLIENT", &address);
            let mut lines = client.output().lines();
            let count = Arc::new(AtomicUsize::new(0));
            if !lines.by_ref().map_while(Result::ok).any(|line| line.contains("came back")) {
                return false;
            }
            let counted = Arc::clone(&count);
            thread::spawn(move || {
                lines.map_while(Result::ok).for_each(|_| {
                    counted.fetch_add(1, Ordering::Relaxed);
                });
            });
            opened = Some(Session { count, _client: client });
            true
        });
        opened.unwrap()
    }
}

/// Returns the folder of a host's agent.
fn folder_of(host: &str) -> String {
    format!("agent-{}", host.replace(':', "-"))
}

impl Drop for Lab {
    fn drop(&mut self) {
        for process in processes_of(&self.0.0) {
            let _gone = Command::new("kill").args(["-KILL", &process.to_string()]).output();
        }
    }
}

/// An open session: the number of bytes that have come back.
pub(crate) struct Session {
    count: Arc<AtomicUsize>,
    _client: Process,
}

impl Session {
    pub(crate) fn goes_on(&self) {
        let before = self.count.load(Ordering::Relaxed);
        until("bytes come back", || self.count.load(Ordering::Relaxed) > before + 3);
    }
}
