//! A controller with a lab of its own: `tradewind controller run --lab`.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::daemon::{is_root, skipped, until};
use common::{Files, command};
use serde_json::Value;

const RUN: &str = "controller run net --lab wan.toml";
const INIT: &str = "controller init net --agents 10.200.0.1:7440 --api 127.0.0.1:0";

/// Returns a topology of two sites and one region.
fn topology() -> String {
    let site = |id: &str, longitude: f64| {
        format!(
            "[[site]]\nid = \"{id}\"\naccess_rtt = \"4 ms\"\n\
             location = {{ latitude = 60.0, longitude = {longitude:.1} }}\n"
        )
    };
    site("office", 25.0) + &site("plant", 10.0) + "[[site]]\nregion = \"gcp:europe-north1\"\n"
}

/// Starts the controller, and writes the port that it got where commands look.
fn start(files: &Files) -> Child {
    let mut process = command(RUN, &files.0);
    let mut process = process.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&ready["ready"], &ready["agents"]),
        (&"controller".into(), &"10.200.0.1:7440".into())
    );
    let access = files.read("net/admin.toml");
    let (_, token) = access.split_once('\n').unwrap();
    let api = ready["api"].as_str().unwrap();
    files.write("net/admin.toml", format!("api = \"http://{api}\"\n{token}"));
    process
}

fn signal(process: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &process.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Returns the processes of the lab of `folder`: all inherit its place by the environment.
fn processes_of(folder: &Path) -> Vec<u32> {
    let place = format!("TRADEWIND_RUNTIME_DIR={}/place", folder.display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let has_it = |entry: &fs::DirEntry| {
        let all = fs::read(entry.path().join("environ")).unwrap_or_default();
        all.split(|byte| *byte == 0).any(|one| one == place.as_bytes())
    };
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    processes.filter(has_it).filter_map(number).collect()
}

fn is_in_use(folder: &Path) -> bool {
    !processes_of(folder).is_empty()
}

#[test]
fn lab_has_an_agent_on_each_host_and_ends_with_its_controller() {
    if !is_root() {
        return skipped("a controller with a lab", "needs root");
    }
    let files = Files::new("controlled-lab");
    files.write("wan.toml", topology());
    files.prints(INIT);
    let mut process = start(&files);
    assert!(is_in_use(&files.0));
    let hosts = files.json("hosts -o json");
    let hosts = hosts["hosts"].as_array().unwrap();
    let named: Vec<[&str; 3]> = hosts
        .iter()
        .map(|host| ["id", "role", "address"].map(|key| host[key].as_str().unwrap()))
        .collect();
    let expected = [
        ["gcp:europe-north1-1", "relay", "10.200.0.3"],
        ["office-1", "gateway", "10.200.0.1"],
        ["plant-1", "gateway", "10.200.0.2"],
    ];
    assert_eq!(named, expected);
    files
        .prints("flow add backup --from office --to 10.200.0.2:8000 --to-site plant --per-day 1GB");
    // The agents take what the controller asks: the ceiling allows the lab.
    until("a gateway listens", || {
        let hosts = files.json("hosts -o json");
        hosts["hosts"][1]["processes"][0]["listen"][0] == "127.0.0.1:15000"
    });
    // The lab is one as any other, meanwhile.
    files.prints("lab set office,plant rtt=30ms");
    files.prints("lab exec plant -- true");
    files.refuses("lab up wan.toml", "a lab is up already");
    files.refuses("controller run other --lab wan.toml", "a lab is up already");
    files.refuses_with(RUN, 1, "net: another controller runs with this folder");
    files.prints("host revoke gcp:europe-north1-1");
    signal(&process, "-TERM");
    assert!(process.wait().unwrap().success());
    assert!(!is_in_use(&files.0));

    // The same hosts come back, and nobody waits for the one that is revoked.
    let mut process = start(&files);
    let again = files.json("hosts -o json");
    let names = again["hosts"].as_array().unwrap().iter().map(|host| host["id"].as_str().unwrap());
    assert!(names.eq(expected.map(|[id, ..]| id)), "{again}");
    signal(&process, "-KILL");
    process.wait().unwrap();
    until("all of the lab ends", || !is_in_use(&files.0));

    files.write("wan.toml", topology().replace("plant", "mine"));
    let expected = "net: it knows `plant-1` at 10.200.0.2, which wan.toml does not have";
    files.refuses_with(RUN, 2, expected);
    files.write("net/agents/plant/controller.toml", "nonsense");
    files.write("wan.toml", topology());
    files.refuses_with(RUN, 1, "net/agents/plant: ");
    assert!(!is_in_use(&files.0));
}

#[test]
fn topology_and_folder_must_fit() {
    let files = Files::new("controlled-lab-input");
    files.refuses_with(RUN, 2, "wan.toml: ");
    files.write("wan.toml", "[[site]]\nregion = \"gcp:europe-north1\"\n");
    files.refuses_with(RUN, 2, "wan.toml: all of its sites are regions");
    let (sites, _) =
        topology().split_once("[[site]]\nregion").map(|(a, b)| (a.to_owned(), b.len())).unwrap();
    files.write("wan.toml", sites);
    files.refuses_with(RUN, 2, "wan.toml: no site of it has a `region`");
    assert!(!files.0.join("net").exists());
    files.write("wan.toml", topology());
    files.prints("controller init net --agents 127.0.0.1:7440");
    let expected = "net: its agents dial 127.0.0.1:7440, which wan.toml does not have";
    files.refuses_with(RUN, 2, expected);
}

#[test]
fn busy_port_ends_the_lab_in_one_line() {
    if !is_root() {
        return skipped("a controller with a lab", "needs root");
    }
    let files = Files::new("controlled-lab-busy");
    files.write("wan.toml", topology());
    // If it fails, another has the port, which serves as well.
    let _taken = TcpListener::bind("127.0.0.1:7441");
    files.refuses_with(RUN, 1, "api: listen on 127.0.0.1:7441: ");
    assert!(files.read("net/controller.toml").contains("agents = \"10.200.0.1:7440\""));
    assert!(!is_in_use(&files.0));
}

/// Sends back what comes, in a process on a host of the test below; does nothing elsewhere.
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
/// on a host of the test below; does nothing elsewhere.
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
/// host of the test below; does nothing elsewhere.
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
struct Process(Child);

impl Process {
    fn spawn(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn output(&mut self) -> BufReader<ChildStdout> {
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
struct Lab(Files);

impl Lab {
    /// Returns a command on a host.
    fn on(&self, host: &str, words: &[&str]) -> Command {
        command(&[&["lab", "exec", host, "--"], words].concat(), &self.0.0)
    }

    /// Starts the program on a host, and waits until it is ready.
    fn start(&self, host: &str, words: &[&str]) -> Process {
        let mut command = self.on(host, &[&[common::PROGRAM], words].concat());
        let mut process = Process::spawn(&mut command);
        let mut line = String::new();
        process.output().read_line(&mut line).unwrap();
        assert!(line.contains("\"ready\""), "{words:?}: {line}");
        process
    }

    /// Returns what a command prints on the controller's host.
    fn prints(&self, words: &str) -> String {
        let words: Vec<&str> = [common::PROGRAM].into_iter().chain(words.split(' ')).collect();
        let output = self.on("office", &words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", common::text(&output.stderr));
        common::text(&output.stdout)
    }

    /// Starts one of the tests above on a host.
    fn echo(&self, host: &str, test: &str, variable: &str, address: &str) -> Process {
        let this = std::env::current_exe().unwrap();
        let words = [this.to_str().unwrap(), "--exact", test, "--nocapture"];
        let mut command = self.on(host, &words);
        Process::spawn(command.env(variable, address))
    }

    /// Opens a session over the gateway's port, as soon as one can be opened.
    fn session(&self, port: u16) -> Session {
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

impl Drop for Lab {
    fn drop(&mut self) {
        for process in processes_of(&self.0.0) {
            let _gone = Command::new("kill").args(["-KILL", &process.to_string()]).output();
        }
    }
}

/// An open session: the number of bytes that have come back.
struct Session {
    count: Arc<AtomicUsize>,
    _client: Process,
}

impl Session {
    fn goes_on(&self) {
        let before = self.count.load(Ordering::Relaxed);
        until("bytes come back", || self.count.load(Ordering::Relaxed) > before + 20);
    }
}

#[test]
fn sessions_go_on_while_controller_and_agent_are_killed() {
    if !is_root() {
        return skipped("a killed controller with a lab", "needs root");
    }
    let lab = Lab(Files::new("killed-controller"));
    let files = &lab.0;
    files.write("wan.toml", topology());
    let rules = "roles = ['gateway']\nnext_hops = []\ndestinations = ['10.200.0.0/16:*']\n";
    files.write("ceiling.toml", rules);
    files.prints("lab up wan.toml");
    files.prints("controller init net --agents 10.200.0.1:7440 --api 127.0.0.1:7441");
    let _server = lab.echo("plant", "echo_server", "TRADEWIND_TEST_ECHO_SERVER", "10.200.0.2:8000");
    let controller = lab.start("office", &["controller", "run", "net"]);
    let invite = lab.prints("invite --role gateway --site office");
    let invite = invite.trim().rsplit(' ').next().unwrap();
    let joins = ["agent", "join", invite, "--dir", "host", "--ceiling", "ceiling.toml"];
    let agent = lab.start("office", &joins);
    let flow = "--from office --to 10.200.0.2:8000 --to-site plant --per-day 1GB";
    lab.prints(&format!("flow add first {flow}"));
    let first = lab.session(15_000);
    first.goes_on();
    drop(controller);
    drop(agent);
    first.goes_on();
    let second = lab.session(15_000);
    // The agent comes back first, and runs on by its last document.
    let agent = [common::PROGRAM, "agent", "run", "--dir", "host"];
    let _agent = Process::spawn(&mut lab.on("office", &agent));
    first.goes_on();
    lab.session(15_000).goes_on();
    let _controller = lab.start("office", &["controller", "run", "net"]);
    until("the host is well", || {
        let hosts: Value = serde_json::from_str(&lab.prints("hosts -o json")).unwrap();
        hosts["hosts"][0]["state"] == "well"
    });
    // What is declared now comes into effect.
    lab.prints(&format!("flow add other {flow}"));
    lab.session(15_001).goes_on();
    first.goes_on();
    second.goes_on();
}

/// Returns the number of descriptors of programs and maps of the kernel that processes hold.
fn programs_of(folder: &Path) -> usize {
    let descriptors = |process: &u32| {
        let entries = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect::<Vec<_>>()
    };
    let all = processes_of(folder);
    let is_of_bpf = |link: &PathBuf| link.to_string_lossy().contains("bpf");
    all.iter().flat_map(descriptors).filter(is_of_bpf).count()
}

#[test]
fn hosts_learn_windows_until_the_controllers_kill_switch() {
    if !is_root() {
        return skipped("jump-start of hosts in a lab", "needs root");
    }
    let lab = Lab(Files::new("fleet-jump"));
    let files = &lab.0;
    files.write("wan.toml", topology());
    let rules = "roles = ['gateway']\nnext_hops = []\ndestinations = ['10.200.0.0/16:*']\n";
    files.write("ceiling.toml", rules);
    files.prints("lab up wan.toml");
    files.prints("controller init net --agents 10.200.0.1:7440 --api 127.0.0.1:7441");
    let _server = lab.echo("plant", "echo_server", "TRADEWIND_TEST_ECHO_SERVER", "10.200.0.2:8000");
    let _controller = lab.start("office", &["controller", "run", "net"]);
    let invite = lab.prints("invite --role gateway --site office");
    let invite = invite.trim().rsplit(' ').next().unwrap();
    let joins = ["agent", "join", invite, "--dir", "host", "--ceiling", "ceiling.toml"];
    let _agent = lab.start("office", &joins);
    let flow = "--from office --to 10.200.0.2:8000 --to-site plant --per-day 1GB";
    lab.prints(&format!("flow add bulk {flow}"));
    let first = lab.session(15_000);
    let shown = || -> Value {
        serde_json::from_str(&lab.prints("jumpstart overlay show -o json")).unwrap()
    };
    assert_eq!(shown()["hosts"], serde_json::json!([]));

    // Beyond the ceiling its host refuses, and goes on as before.
    lab.prints("jumpstart overlay on --window-max 101");
    let refuses = "it refuses its document: process `gateway`: jumpstart.learn.c_max: 101 segments";
    until("the host refuses", || {
        shown()["hosts"][0]["why_not"].as_str().is_some_and(|why| why.starts_with(refuses))
    });
    first.goes_on();
    lab.prints("jumpstart overlay on --sites office --control-share 10% --window-max 60");
    until("a learner reports", || {
        let host = &shown()["hosts"][0];
        let why = host["why_not"].as_str().unwrap_or_default();
        host["is_acting"] == true
            || !why.is_empty() && !why.contains("document") && !why.contains("not reported")
    });
    let is_acting = shown()["hosts"][0]["is_acting"] == true;
    if !is_acting {
        skipped("windows in the kernel", &shown()["hosts"][0]["why_not"].to_string());
    }
    assert_eq!(programs_of(&files.0) > 0, is_acting);
    let bulk = lab.echo("office", "bulk_client", "TRADEWIND_TEST_BULK_CLIENT", "127.0.0.1:15000");
    until("a window is learned", || {
        let known = &shown()["hosts"][0]["destinations"][0];
        known["destination"] == "10.200.0.2/32"
            && known["window_segments"].as_u64().is_some_and(|window| (11..=60).contains(&window))
            && known["is_in_force"] == is_acting
    });
    let text = lab.prints("jumpstart overlay show");
    assert!(text.contains("10.200.0.2/32") && text.contains("too few"), "{text}");

    lab.prints("jumpstart overlay off");
    until("nothing is learned or set", || {
        let host = &shown()["hosts"][0];
        let windows = host["destinations"].as_array();
        host["is_acting"] != true && windows.is_none_or(Vec::is_empty)
    });
    assert!(!files.read("host/data/gateway.toml").contains("jumpstart"));
    let socket = files.0.join("host/data/learners/gateway.sock");
    until("the learner's socket is gone", || !socket.exists());
    // The program itself goes with the last session that is older.
    first.goes_on();
    drop((first, bulk));
    until("the kernel has no program", || programs_of(&files.0) == 0);
}
