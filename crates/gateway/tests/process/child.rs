//! This program as its own child: a relay or a gateway.

use super::*;

pub(super) fn be_a_relay(file: &str) {
    let shutdown = be_a_child();
    let config = fs::read_to_string(file).unwrap();
    let relay = RelayConfig::parse(&config).map_err(StreamError::from);
    let relay = relay.and_then(|config| Relay::bind(&config));
    let relay = relay.unwrap_or_else(|error| {
        // As the program `tradewind` does.
        tradewind_net::handover::decline(&error.to_string());
        std::process::exit(1);
    });
    let reloads = Reloads::new(Path::new(file), &config).with(relay.reloader());
    reloads.start(false, &shutdown).unwrap();
    say_where(&relay.handle());
    relay.run(&shutdown).unwrap();
}

pub(super) fn be_a_gateway(file: &str) {
    let shutdown = be_a_child();
    let config = fs::read_to_string(file).unwrap();
    let gateway = Gateway::bind(&GatewayConfig::parse(&config).unwrap()).unwrap();
    let reloads = Reloads::new(Path::new(file), &config).with(gateway.reloader());
    reloads.start(false, &shutdown).unwrap();
    say_where(&gateway.handle());
    gateway.run(&shutdown).unwrap();
}

/// Handles signals, and ends when the tests do, however they end.
pub(super) fn be_a_child() -> Shutdown {
    std::thread::spawn(|| {
        let _closed = io::stdin().read(&mut [0]);
        std::process::exit(9);
    });
    if std::env::var_os(LOGS).is_some() {
        init_logs(LogFormat::Text, "info").unwrap();
    }
    Shutdown::on_signals().unwrap()
}

/// Prints the addresses on which it listens and serves metrics, in one line.
pub(super) fn say_where(handle: &Handle) {
    println!("{} {}", handle.local_addrs()[0], handle.metrics_addr().unwrap());
}

/// A relay or gateway in a process of its own; killed when dropped.
pub(super) struct Process {
    pub(super) child: Child,
    /// Held open apart, since waiting for a child closes it.
    pub(super) _stdin: ChildStdin,
    pub(super) hop: Hop,
    pub(super) metrics: SocketAddr,
    pub(super) file: PathBuf,
    /// The configuration at the start.
    pub(super) config: String,
    /// Its successors write here, too.
    pub(super) stdout: BufReader<ChildStdout>,
}

impl Process {
    pub(super) fn start() -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()))
    }

    pub(super) fn start_by(command: Command) -> Self {
        Self::start_at(command, relay_loopback())
    }

    pub(super) fn start_at(command: Command, listen: SocketAddr) -> Self {
        let key = identity();
        let config = relay_config_text(&key).replace("127.0.7.1:0", &listen.to_string());
        Self::start_as((RELAY_CONFIG, &config), key.public(), command)
    }

    /// Starts a gateway that forwards to `to` over a relay.
    pub(super) fn gateway(relay: &Hop, to: SocketAddr) -> Self {
        let key = identity();
        let config = gateway_config_text(&key, relay, to);
        let command = Command::new(std::env::current_exe().unwrap());
        Self::start_as((GATEWAY_CONFIG, &config), key.public(), command)
    }

    pub(super) fn start_as(
        (variable, config): (&str, &str),
        identity: PublicIdentity,
        mut command: Command,
    ) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("tradewind-process-{}-{number}.toml", std::process::id());
        let file = std::env::temp_dir().join(name);
        let config = format!("metrics = '127.0.0.1:0'\n{config}");
        fs::write(&file, &config).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        command.env(variable, &file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let (address, metrics) = line.trim().split_once(' ').unwrap();
        let hop =
            Hop { name: "process".parse().unwrap(), address: address.parse().unwrap(), identity };
        let stdin = child.stdin.take().unwrap();
        let metrics = metrics.parse().unwrap();
        Self { child, _stdin: stdin, hop, metrics, file, config, stdout }
    }

    /// Reloads it with another configuration.
    pub(super) fn reload(&self, config: &str) {
        fs::write(&self.file, config).unwrap();
        self.signal("HUP");
    }

    /// Sends SIGKILL, and waits until the process is gone.
    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(super) fn terminate(&self) {
        self.signal("TERM");
    }

    pub(super) fn signal(&self, name: &str) {
        let (name, pid) = (format!("-{name}"), self.child.id().to_string());
        assert!(Command::new("kill").args([&name, &pid]).status().unwrap().success());
    }

    /// Upgrades it, and waits until its successor is about to serve.
    pub(super) fn upgrade(&mut self) {
        self.signal("USR2");
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert!(line.starts_with(&self.hop.address.to_string()), "{line}");
    }

    /// Returns a value of its metrics, if it answers.
    pub(super) fn metric(&self, name: &str) -> Option<f64> {
        let text = get(self.metrics)?;
        text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    }
}

/// Returns the metrics at `address`, if it answers.
pub(super) fn get(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
        let _gone = fs::remove_file(&self.file);
    }
}

/// The log of a process, in a file that is removed with this.
pub(super) struct Log(pub(super) PathBuf);

impl Log {
    /// Returns the command of a process that logs there.
    pub(super) fn command(&self) -> Command {
        self.command_of(std::env::current_exe().unwrap())
    }

    pub(super) fn command_of(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env(LOGS, "1").stderr(fs::File::create(&self.0).unwrap());
        command
    }

    pub(super) fn new(name: &str) -> Self {
        let name = format!("tradewind-process-{}-{name}.log", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    /// Waits for a line with all of `words`, and returns it.
    pub(super) fn wait_for(&self, words: &[&str]) -> String {
        let mut found = None;
        wait_for(&format!("{words:?} in the log"), || {
            let text = fs::read_to_string(&self.0).unwrap();
            let is_it = |line: &&str| words.iter().all(|word| line.contains(word));
            found = text.lines().find(is_it).map(str::to_owned);
            found.is_some()
        });
        found.unwrap()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}
