//! Two hosts on one link, with a daemon on the near one.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tradewind_net::capability::may_make_networks;
use tradewind_net::iproute::{Tool, batch};
use tradewind_net::netns::Namespace;
use tradewind_net::tcp_info::TcpInfo;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_tradewind");
/// Longest wait: far above any normal duration, reached only by a failed test.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The remote host.
const REMOTE: &str = "10.1.0.2";

/// Reports that a test was skipped, past the capture of passing tests' output.
pub(crate) fn skipped(test: &str, why: &dyn std::fmt::Display) {
    let _written = std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes());
}

/// Two hosts on one link, and a listener on the remote one.
pub(crate) struct World {
    pub(crate) near: Arc<Namespace>,
    pub(crate) listener: TcpListener,
    pub(crate) remote: Arc<Namespace>,
    port: u16,
    pub(crate) directory: PathBuf,
}

impl World {
    /// Creates the hosts; `None`, with a message, where namespaces cannot be made.
    pub(crate) fn new(test: &str) -> Option<Self> {
        if !may_make_networks() {
            skipped(test, &"no right to make network namespaces");
            return None;
        }
        let (near, remote) = (Namespace::create().unwrap(), Namespace::create().unwrap());
        let holder = near.run(|| Command::new("sleep").arg("600").spawn().unwrap()).unwrap();
        let mut holder = Guard(holder);
        ip(&remote, &format!("link add dev wb type veth peer name wa netns {}", holder.0.id()));
        for line in [
            "addr add 10.1.0.2/24 dev wb",
            "addr add fd10::2/64 dev wb nodad",
            "link set lo up",
            "link set wb up",
        ] {
            ip(&remote, line);
        }
        for line in [
            "addr add 10.1.0.1/24 dev wa",
            "addr add fd10::1/64 dev wa nodad",
            "link set lo up",
            "link set wa up",
            "route add 10.5.0.0/16 via 10.1.0.2",
        ] {
            ip(&near, line);
        }
        holder.end();
        Some(Self::between(Arc::new(near), Arc::new(remote), test))
    }

    /// Uses two existing hosts, with a listener on the remote one.
    pub(crate) fn between(near: Arc<Namespace>, remote: Arc<Namespace>, test: &str) -> Self {
        let listener = remote.run(|| TcpListener::bind("[::]:0").unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let directory = std::env::temp_dir().join(format!("tw-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let config = "[learn]\nttl = \"1 s\"\ncontrol_share = 0\n[observe]\ninterval = \"100 ms\"\n\
                      [act]\nthrough = \"routes\"\n";
        std::fs::write(directory.join("config.toml"), config).unwrap();
        Self { near, remote, listener, port, directory }
    }

    /// Opens a connection from the near host to an address of the remote one; returns both ends.
    pub(crate) fn connect_to(&self, address: &str) -> (TcpStream, TcpStream) {
        let address = SocketAddr::new(address.parse().unwrap(), self.port);
        let near = self.near.run(|| TcpStream::connect(address).unwrap()).unwrap();
        (near, self.listener.accept().unwrap().0)
    }

    /// Opens so many connections at once: their near ends, and the remote ones in any order.
    pub(crate) fn connect_at_once(
        &self,
        count: usize,
        address: &str,
    ) -> (Vec<TcpStream>, Vec<TcpStream>) {
        let address = SocketAddr::new(address.parse().unwrap(), self.port);
        let dial = || self.near.run(|| TcpStream::connect(address).unwrap()).unwrap();
        std::thread::scope(|scope| {
            let dialled: Vec<_> = (0..count).map(|_| scope.spawn(dial)).collect();
            let remote = dialled.iter().map(|_| self.listener.accept().unwrap().0).collect();
            (dialled.into_iter().map(|near| near.join().unwrap()).collect(), remote)
        })
    }

    /// Returns the congestion window that a new connection starts with.
    pub(crate) fn initial_window(&self) -> u32 {
        self.initial_window_to(REMOTE)
    }

    pub(crate) fn initial_window_to(&self, address: &str) -> u32 {
        let (near, _remote) = self.connect_to(address);
        TcpInfo::of(&near).unwrap().congestion_window.unwrap().as_u32()
    }

    /// Opens a connection whose window is `segments`, as if it had grown to that.
    pub(crate) fn connection_with_window(&self, segments: u32) -> (TcpStream, TcpStream) {
        let route = "10.1.0.0/24 dev wa proto kernel scope link src 10.1.0.1";
        self.with_window(segments, REMOTE, route, "")
    }

    /// Opens such a connection to an address that `route` and its next `hops` lead to.
    pub(crate) fn with_window(
        &self,
        segments: u32,
        address: &str,
        route: &str,
        hops: &str,
    ) -> (TcpStream, TcpStream) {
        ip(&self.near, &format!("route replace {route} initcwnd {segments} {hops}"));
        let ends = self.connect_to(address);
        ip(&self.near, &format!("route replace {route} {hops}"));
        ends
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("jumpstart").args(arguments).current_dir(&self.directory);
        command.env("TRADEWIND_RUNTIME_DIR", &self.directory).env("TRADEWIND_LOG", "off");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    pub(crate) fn daemon(&self, more: &[&str]) -> Guard {
        let arguments = [&["run", "--config", "config.toml"], more].concat();
        let child = self.near.run(|| self.command(&arguments).spawn().unwrap()).unwrap();
        Guard(child)
    }

    /// Starts a daemon through `wrapper`, with another configuration for `[act]`; returns it with
    /// its first line.
    pub(crate) fn daemon_by(&self, wrapper: &[&str], act: &str) -> (Guard, String) {
        let config = std::fs::read_to_string(self.directory.join("config.toml")).unwrap();
        let config = config.replace("through = \"routes\"", act);
        std::fs::write(self.directory.join("act.toml"), config).unwrap();
        let tail = [PROGRAM, "jumpstart", "run", "--config", "act.toml"];
        let line = [wrapper, &tail[..]].concat();
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).current_dir(&self.directory);
        command.env("TRADEWIND_RUNTIME_DIR", &self.directory).env("TRADEWIND_LOG", "off");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut daemon = Guard(self.near.run(|| command.spawn().unwrap()).unwrap());
        let mut ready = String::new();
        BufReader::new(daemon.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        (daemon, ready)
    }

    pub(crate) fn ask(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).stdout(Stdio::piped()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the near host's routes of the daemon's protocol.
    pub(crate) fn ours(&self) -> String {
        self.routes(&["proto", "82"])
    }

    /// Returns the near host's routes of a family, `-4` or `-6`.
    pub(crate) fn routes_of(&self, family: &str) -> String {
        let show = || Command::new("ip").args([family, "route", "show"]).output().unwrap();
        String::from_utf8(self.near.run(show).unwrap().stdout).unwrap()
    }

    /// Limits later daemons to the connections of this control group.
    pub(crate) fn look_at(&self, group: &Path) {
        let config = format!(
            "[observe]\ninterval = \"100 ms\"\ncgroup = \"{}\"\n[act]\nthrough = \"routes\"\n",
            group.display()
        );
        std::fs::write(self.directory.join("config.toml"), config).unwrap();
    }

    pub(crate) fn routes(&self, more: &[&str]) -> String {
        let show = || Command::new("ip").args(["route", "show"]).args(more).output().unwrap();
        String::from_utf8(self.near.run(show).unwrap().stdout).unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A child process that is killed with its test.
pub(crate) struct Guard(pub(crate) Child);

impl Guard {
    pub(crate) fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    pub(crate) fn signal(&self, name: &str) {
        let signal = format!("-{name}");
        let status = Command::new("kill").args([signal, self.0.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Sends SIGTERM, and returns the exit code.
    pub(crate) fn terminate(&mut self) -> Option<i32> {
        self.signal("TERM");
        self.0.wait().unwrap().code()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn ip(namespace: &Namespace, line: &str) {
    batch(namespace, Tool::Ip, &[line.to_owned()]).unwrap();
}

pub(crate) fn until(what: &str, mut true_now: impl FnMut() -> bool) {
    let started = Instant::now();
    while !true_now() {
        assert!(started.elapsed() < TEST_TIMEOUT, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
