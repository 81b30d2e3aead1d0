//! The output of `tradewind plan configure` is sufficient: its processes carry bytes over the
//! relays of the plan.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};

use common::{Files, command};
use tradewind_config::GatewayConfig;
use tradewind_desired::Route;
use tradewind_grant::{IdentityKey, OperatorKey};

/// A flow that is fast only over three relays.
const PROBLEM: &str = r#"max_relays = 3
start_up = "ignored"
regions = ["gcp:europe-west2", "gcp:us-east4", "gcp:asia-northeast1"]
rtt_tables = ["rtt.csv"]
site = [{ id = "a" }, { id = "b" }]
flow = [{ id = "bulk", from = "a", to = "b", volume = "2 GB" }]
egress = { usd_per_gb = 0.08 }
"#;

const RTTS: &str = "src,dst,rtt_ms
a,b,900
a,gcp:europe-west2,10
a,gcp:us-east4,500
a,gcp:asia-northeast1,500
gcp:europe-west2,gcp:us-east4,10
gcp:us-east4,gcp:asia-northeast1,10
gcp:europe-west2,gcp:asia-northeast1,500
gcp:europe-west2,b,500
gcp:us-east4,b,500
gcp:asia-northeast1,b,10
";

const RELAYS: [&str; 3] = ["gcp:europe-west2.1", "gcp:us-east4.1", "gcp:asia-northeast1.1"];

/// A process of the program, killed with the test.
struct Running(Child);

impl Running {
    /// Starts `tradewind ROLE` with a configuration of `new`; returns once it is ready.
    fn start(files: &Files, role: &str, config: &str) -> Self {
        let mut command = command(&[role, "--config", config], &files.0);
        command.env("TRADEWIND_LOG", "warn").stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let running = Self(child);
        assert!(line.contains(&format!("\"ready\":\"{role}\"")), "{config}: {line}");
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Returns different ports without a listener.
fn free_ports<const N: usize>() -> [SocketAddr; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap())
}

fn identity(files: &Files, name: &str) -> String {
    files.prints(&format!("keygen identity new/{name}.key")).trim().to_owned()
}

/// Checks the written configurations against the schemas that `config schema` prints.
fn assert_follow_schemas(files: &Files) {
    let relays = RELAYS.map(|name| format!("relay-{}.toml", name.replace(':', "-")));
    for (kind, names) in [("relay", relays.to_vec()), ("gateway", vec!["gateway-a.toml".into()])] {
        let schema = files.prints(&format!("config schema {kind}"));
        let schema = serde_json::from_str(&schema).unwrap();
        let schema = jsonschema::draft202012::new(&schema).unwrap();
        for name in names {
            let written = toml::from_str(&files.read(&format!("new/{name}"))).unwrap();
            schema.validate(&written).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

#[test]
fn configured_three_relay_plan_carries_bytes() {
    let files = Files::new("configured");
    files.write("p.toml", PROBLEM);
    files.write("rtt.csv", RTTS);
    let plan = files.json("plan --problem p.toml --out plan.json -o json");
    assert_eq!(plan["flows"][0]["path"], serde_json::json!(RELAYS), "{plan}");

    let directory = files.0.join("new");
    std::fs::create_dir(&directory).unwrap();
    let operator = files.prints("keygen operator op.key");
    let [first, second, third, listen] = free_ports();
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut inventory = format!(
        "operators = ['{}']\ndirectory = '{}'\ndestinations.bulk = '{}'\n\
         listen.bulk = '{listen}'\n[[gateway]]\nsite = 'a'\nidentity = '{}'\n",
        operator.trim(),
        directory.display(),
        target.local_addr().unwrap(),
        identity(&files, "gateway-a"),
    );
    for (name, address) in RELAYS.iter().zip([first, second, third]) {
        let identity = identity(&files, &format!("relay-{}", name.replace(':', "-")));
        inventory += &format!(
            "[[relay]]\nname = '{name}'\naddress = '{address}'\nidentity = '{identity}'\n"
        );
    }
    files.write("inventory.toml", inventory);
    files.prints("plan configure plan.json --inventory inventory.toml --out new");
    let grant = files.prints("grant issue --key op.key new/grant-a.toml");
    files.write("new/gateway-a.grant", grant);

    assert_follow_schemas(&files);

    let relays = RELAYS.map(|name| {
        let config = format!("new/relay-{}.toml", name.replace(':', "-"));
        Running::start(&files, "relay", &config)
    });
    let gateway = Running::start(&files, "gateway", "new/gateway-a.toml");
    let config = GatewayConfig::parse(&files.read("new/gateway-a.toml")).unwrap();
    let (_, routes) = config.routes.routes_to(&config.forward[0].to);
    assert!(matches!(routes, [Route::Relays(hops)] if hops.len() == 3), "{routes:?}");

    let sent: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut near = TcpStream::connect(listen).unwrap();
    let (mut writer, to_send) = (near.try_clone().unwrap(), sent.clone());
    let sender = std::thread::spawn(move || {
        writer.write_all(&to_send).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    // A connection that the relays refuse ends at once, and none arrives.
    target.set_nonblocking(true).unwrap();
    let started = std::time::Instant::now();
    let mut remote = loop {
        match target.accept() {
            Ok((remote, _)) => break remote,
            Err(error) => assert!(started.elapsed().as_secs() < 60, "no connection: {error}"),
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    remote.set_nonblocking(false).unwrap();
    let mut received = Vec::new();
    remote.read_to_end(&mut received).unwrap();
    assert!(received == sent, "{} bytes of {}", received.len(), sent.len());
    remote.write_all(b"thanks").unwrap();
    drop(remote);
    let mut answer = String::new();
    near.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "thanks");
    sender.join().unwrap();
    drop((gateway, relays));
}

/// A window that no kernel allows: its settings cannot hold twice as much.
const WIDE: &str = "listen = ['127.0.0.1:0']\nworkers = 1\n[leg.dial]\nwindow = '1 GiB'\n";

#[test]
fn relay_and_doctor_report_kernel_limits_below_legs() {
    let files = Files::new("narrow");
    let identity = IdentityKey::from_entropy([1; 32]).to_secret_text();
    let operator = OperatorKey::from_entropy([2; 32]).public();
    let wide = format!("identity = '{}'\noperators = ['{operator}']\n{WIDE}", *identity);
    files.write("relay.toml", wide);
    let private = Permissions::from_mode(0o600);
    std::fs::set_permissions(files.0.join("relay.toml"), private).unwrap();
    let log = std::fs::File::create(files.0.join("log")).unwrap();
    let mut command = command("relay --config relay.toml", &files.0);
    command.env("TRADEWIND_LOG", "warn").stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    drop(Running(child));
    let log = files.read("log");
    assert!(log.contains("net.ipv4.tcp_rmem ends at") && log.contains("2147483647"), "{log}");

    let doctor = files.run("doctor --config relay.toml -o json");
    assert_eq!(doctor.status.code(), Some(3), "{doctor:?}");
    let report: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let first = report["shortfalls"][0].as_str().unwrap();
    assert!(first.starts_with("relay.toml: net.ipv4.tcp_rmem ends at"), "{report}");
    assert!(report["window_bytes"].as_u64().unwrap() > 0);
}
