//! `tradewind jumpstart` beside real connections, in network namespaces made for the test: the next
//! connection starts with what was learned, and nothing is left behind, however the daemon ends.
//!
//! Times are waited for, not asserted.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tradewind_net::capability::may_make_networks;
use tradewind_net::iproute::{Tool, batch};
use tradewind_net::netns::Namespace;
use tradewind_net::tcp_info::TcpInfo;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tradewind");
/// Far beyond what anything here takes; only a failed test waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two hosts on one link, and a listener on the far one.
struct World {
    near: Namespace,
    listener: TcpListener,
    address: SocketAddr,
    directory: PathBuf,
}

impl World {
    /// `None`, said aloud, where no namespaces can be made.
    fn new(test: &str) -> Option<Self> {
        if !may_make_networks() {
            eprintln!("SKIPPED {test}: no right to make network namespaces");
            return None;
        }
        let (near, far) = (Namespace::create().unwrap(), Namespace::create().unwrap());
        let holder = near.run(|| Command::new("sleep").arg("600").spawn().unwrap()).unwrap();
        let mut holder = Guard(holder);
        ip(&far, &format!("link add dev wb type veth peer name wa netns {}", holder.0.id()));
        for line in ["addr add 10.1.0.2/24 dev wb", "link set lo up", "link set wb up"] {
            ip(&far, line);
        }
        for line in [
            "addr add 10.1.0.1/24 dev wa",
            "link set lo up",
            "link set wa up",
            "route add 10.5.0.0/16 via 10.1.0.2",
        ] {
            ip(&near, line);
        }
        holder.end();
        let listener = far.run(|| TcpListener::bind("10.1.0.2:0").unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let directory = std::env::temp_dir().join(format!("tw-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let config = "[learn]\nttl = \"1 s\"\n[observe]\ninterval = \"100 ms\"\n";
        std::fs::write(directory.join("config.toml"), config).unwrap();
        Some(Self { near, listener, address, directory })
    }

    /// A connection from the near host, both ends.
    fn connect(&self) -> (TcpStream, TcpStream) {
        let near = self.near.run(|| TcpStream::connect(self.address).unwrap()).unwrap();
        (near, self.listener.accept().unwrap().0)
    }

    /// The congestion window that a new connection starts with.
    fn first_window(&self) -> u32 {
        let (near, _far) = self.connect();
        TcpInfo::of(&near).unwrap().congestion_window.unwrap().as_u32()
    }

    /// A connection whose window is `segments`, as if it had grown so.
    fn connection_with_window(&self, segments: u32) -> (TcpStream, TcpStream) {
        let route = "route replace 10.1.0.0/24 dev wa proto kernel scope link src 10.1.0.1";
        ip(&self.near, &format!("{route} initcwnd {segments}"));
        let ends = self.connect();
        ip(&self.near, route);
        ends
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("jumpstart").args(arguments).current_dir(&self.directory);
        command.env("TRADEWIND_RUNTIME_DIR", &self.directory).env("TRADEWIND_LOG", "off");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn daemon(&self, more: &[&str]) -> Guard {
        let arguments = [&["run", "--config", "config.toml"], more].concat();
        let child = self.near.run(|| self.command(&arguments).spawn().unwrap()).unwrap();
        Guard(child)
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).stdout(Stdio::piped()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// The near host's routes of the daemon's protocol.
    fn ours(&self) -> String {
        self.routes(&["proto", "82"])
    }

    fn routes(&self, more: &[&str]) -> String {
        let show = || Command::new("ip").args(["route", "show"]).args(more).output().unwrap();
        String::from_utf8(self.near.run(show).unwrap().stdout).unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A child that does not outlive its test.
struct Guard(Child);

impl Guard {
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// SIGTERM, and the exit code.
    fn terminate(&mut self) -> Option<i32> {
        let status = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        assert!(status.unwrap().success());
        self.0.wait().unwrap().code()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end();
    }
}

fn ip(namespace: &Namespace, line: &str) {
    batch(namespace, Tool::Ip, &[line.to_owned()]).unwrap();
}

fn until(what: &str, mut true_now: impl FnMut() -> bool) {
    let started = Instant::now();
    while !true_now() {
        assert!(started.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_next_connection_starts_with_what_was_learned_until_it_is_forgotten() {
    let Some(world) = World::new("jumpstart-learns") else { return };
    assert_eq!(world.first_window(), 10);
    let before = world.routes(&[]);
    let open = [world.connection_with_window(40), world.connection_with_window(60)];
    let mut daemon = world.daemon(&[]);
    until("a route", || world.ours().contains("10.1.0.2 dev wa"));
    // The mean of what is open [RT Fig. 7], and what is seen of it in the next connection.
    assert!(world.ours().contains("initcwnd 50 initrwnd 100"), "{}", world.ours());
    assert_eq!(world.first_window(), 50);
    let told = world.ask(&["explain", "10.1.0.2", "--output", "json"]);
    assert!(told.contains("\"window_segments\": 50"), "{told}");
    assert!(world.ask(&["status"]).contains("10.1.0.2/32"));
    // What nobody uses any more is forgotten after its time to live.
    drop(open);
    until("the route's end", || world.ours().is_empty());
    assert_eq!(world.first_window(), 10);
    assert_eq!(daemon.terminate(), Some(0));
    assert_eq!(world.routes(&[]), before);
    assert!(!world.directory.join("jumpstart.sock").exists());
}

#[test]
fn hints_flush_and_stop_reach_the_routes() {
    let Some(world) = World::new("jumpstart-stops") else { return };
    let before = world.routes(&[]);
    let _open = world.connection_with_window(40);
    let mut daemon = world.daemon(&[]);
    until("a route", || !world.ours().is_empty());
    assert_eq!(
        world.ask(&["hint", "10.1.0.0/16", "--at-most", "20", "--for", "1min"]).lines().count(),
        1
    );
    until("the hint's window", || world.ours().contains("initcwnd 20"));
    world.ask(&["hint", "10.1.0.0/16", "--scale", "0.75", "--for", "1min"]);
    until("the next hint's window", || world.ours().contains("initcwnd 30"));
    assert_eq!(world.ask(&["flush"]), "forgotten: 1\n");
    until("what is open to be learned again", || world.ours().contains("initcwnd 30"));
    assert_eq!(daemon.terminate(), Some(0));
    assert_eq!(world.routes(&[]), before);
    assert_eq!(world.first_window(), 10);
}

#[test]
fn what_a_killed_daemon_left_is_swept_at_the_next_start() {
    let Some(world) = World::new("jumpstart-crashes") else { return };
    let before = world.routes(&[]);
    let open = world.connection_with_window(40);
    let mut daemon = world.daemon(&[]);
    until("a route", || !world.ours().is_empty());
    daemon.end();
    drop(open);
    assert!(!world.ours().is_empty(), "IPv4 routes have no expiry: they outlive a crash");
    let mut daemon = world.daemon(&[]);
    until("the sweep", || world.ours().is_empty());
    assert_eq!(world.routes(&[]), before, "others' routes are as they were");
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn what_is_wrong_or_missing_is_told_in_one_line() {
    let directory = std::env::temp_dir().join(format!("tw-jumpstart-wrong-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("wrong.toml"), "[learn]\nc_max = 5\n").unwrap();
    std::fs::write(directory.join("sizes"), "10 kB\nmany\n").unwrap();
    for (arguments, expected) in [
        (&["run", "--config", "wrong.toml"][..], "wrong.toml: configuration, `learn`: c_min: 10"),
        (&["run", "--config", "none.toml"], "none.toml: No such file"),
        (&["status"], "no jump-start daemon answers"),
        (&["explain", "10.0.0.300"], "10.0.0.300"),
        (&["hint", "10.0.0.0/8", "--for", "1min"], "--freeze, --at-most or --scale"),
        (&["model", "--sizes-file", "sizes", "--rtts", "10ms"], "sizes, line 2"),
        (&["model", "--sizes", "10 kB"], "--rtts"),
    ] {
        let mut command = Command::new(PROGRAM);
        command.arg("jumpstart").args(arguments).current_dir(&directory);
        command.env("TRADEWIND_RUNTIME_DIR", &directory).env("TRADEWIND_LOG", "off");
        let output = command.stdin(Stdio::null()).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && line.lines().count() == 1, "{arguments:?}: {line}");
        assert!(
            line.starts_with("tradewind: ") && line.contains(expected),
            "{arguments:?}: {line}"
        );
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_dry_run_learns_and_changes_nothing() {
    let Some(world) = World::new("jumpstart-dry") else { return };
    let before = world.routes(&[]);
    let _open = world.connection_with_window(40);
    let mut daemon = world.daemon(&["--dry-run"]);
    until("a value", || world.ask(&["status"]).contains("10.1.0.2/32"));
    assert_eq!((world.routes(&[]), world.first_window()), (before, 10));
    assert_eq!(daemon.terminate(), Some(0));
}
