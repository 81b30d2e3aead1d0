//! The access log and the audit log: a line for each session, with its peer, destination, bytes and
//! end; and outputs that stall.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tradewind_config::{AccessLogConfig, AuditLogConfig, Forward, GatewayConfig, RelayConfig};
use tradewind_desired::{Route, RouteTable};
use tradewind_gateway::Gateway;
use tradewind_relay::Relay;
use tradewind_stream::Resolver;
use tradewind_units::Ratio;

use crate::support::{
    Running, closed_port, connect, destination, digest, echo, forward, gateway_config, loopback,
    open_relay_config, operator, relay_config, reset, route_over, send, wait_for,
};

/// A temporary folder of a test, removed at its end.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let name = format!("tradewind-access-log-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _none = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Waits for `count` lines of a log, and returns them.
    pub(super) fn lines(&self, log: &str, count: usize) -> Vec<Value> {
        let mut lines = Vec::new();
        wait_for("lines of a log", || {
            let text = std::fs::read_to_string(self.0.join(log)).unwrap_or_default();
            lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            lines.len() >= count
        });
        assert_eq!(lines.len(), count, "{lines:#?}");
        lines
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn access_log(text: &str) -> Option<AccessLogConfig> {
    Some(toml::from_str(text).unwrap())
}

pub(super) fn access_log_in(folder: &Folder, name: &str) -> Option<AccessLogConfig> {
    access_log(&format!("to = '{}'", folder.0.join(name).display()))
}

fn relay_with_logs(folder: &Folder) -> RelayConfig {
    let mut config = relay_config();
    config.access_log = access_log_in(folder, "relay");
    let audit = format!("to = '{}'", folder.0.join("audit").display());
    config.audit_log = Some(toml::from_str::<AuditLogConfig>(&audit).unwrap());
    config
}

#[test]
fn ended_session_is_logged_at_both_ends() {
    let folder = Folder::new("ended");
    let (to, served) = destination(|mut stream| {
        let received = digest(&mut stream).unwrap().0;
        send(&mut stream, b"answer");
        received
    });
    let relay = Running::relay(&relay_with_logs(&folder));
    let hop = relay.hop("relay-1");
    let mut config = gateway_config(route_over(std::slice::from_ref(&relay)));
    config.access_log = access_log_in(&folder, "gateway");
    config.forward = vec![forward(to)];
    let gateway = Running::gateway(&config);
    let mut stream = connect(gateway.address());
    let client = stream.local_addr().unwrap().to_string();
    send(&mut stream, &[7; 300_000]);
    assert_eq!(digest(&mut stream).unwrap().0, 6);
    assert_eq!(served.join().unwrap(), 300_000);

    let grant = config.grant.as_ref().unwrap();
    let (id, holder) = (grant.id().to_string(), grant.unverified().gateway.to_string());
    for log in ["gateway", "relay"] {
        let line = &folder.lines(log, 1)[0];
        assert_eq!(line["program"], log);
        assert_eq!(
            (line["grant"].as_str(), line["gateway"].as_str()),
            (Some(&*id), Some(&*holder))
        );
        assert_eq!(line["destination"], to.to_string());
        assert_eq!((&line["bytes_up"], &line["bytes_down"]), (&300_000.into(), &6.into()));
        assert_eq!((&line["outcome"], &line["ended_by"]), (&"ended".into(), &"upstream".into()));
        assert_eq!((&line["timeout"], &line["cause"]), (&Value::Null, &Value::Null));
        let ms = |name: &str| line[name].as_f64().unwrap();
        assert!(0.0 < ms("first_byte_ms") && ms("first_byte_ms") <= ms("duration_ms"), "{line}");
        assert_eq!(line["flow"], "test");
    }
    let line = &folder.lines("gateway", 1)[0];
    assert_eq!((&line["path"], &line["source"]), (&"relay-1".into(), &client.into()));
    let line = &folder.lines("relay", 1)[0];
    assert_eq!((&line["path"], &line["neighbour"]), (&to.to_string().into(), &holder.into()));
    let line = &folder.lines("audit", 1)[0];
    assert_eq!((&line["grant"], &line["destination"]), (&id.into(), &to.to_string().into()));
    assert_eq!((&line["hop"], &line["hops"]), (&1.into(), &1.into()));
    drop(hop);
}

#[test]
fn refusals_by_rules_are_not_audited() {
    let folder = Folder::new("refused");
    let mut config = relay_with_logs(&folder);
    config.policy.destinations = vec!["127.0.0.1/32:*".parse().unwrap()];
    config.policy.next_hops.clear();
    let relays = [Running::relay(&config), Running::relay(&relay_config())];
    let refused: SocketAddr = "127.0.0.2:9".parse().unwrap();
    for route in [route_over(&relays[..1]), route_over(&relays)] {
        let mut config = gateway_config(route);
        config.forward = vec![forward(refused)];
        let gateway = Running::gateway(&config);
        assert!(digest(&mut connect(gateway.address())).is_err());
    }
    let outcomes = folder.lines("relay", 2).into_iter().map(|line| line["outcome"].clone());
    assert_eq!(outcomes.collect::<Vec<_>>(), ["destination_refused", "next_hop_refused"]);
    let (to, served) = destination(|mut stream| send(&mut stream, b"answer"));
    let mut config = gateway_config(route_over(&relays[..1]));
    config.forward = vec![forward(to)];
    let gateway = Running::gateway(&config);
    assert_eq!(digest(&mut connect(gateway.address())).unwrap().0, 6);
    served.join().unwrap();
    assert_eq!(folder.lines("audit", 1)[0]["destination"], to.to_string());
}

#[test]
fn log_names_the_cause_of_the_end() {
    let folder = Folder::new("why");
    let relay = Running::relay(&relay_with_logs(&folder));
    let mut config = gateway_config(route_over(std::slice::from_ref(&relay)));
    config.access_log = access_log_in(&folder, "gateway");
    config.timeouts.idle = Some(Duration::from_millis(300));
    config.timeouts.half_closed = Some(Duration::from_millis(200));
    let nobody = closed_port();
    config.forward = vec![forward(nobody.address), forward(echo())];
    let gateway = Running::gateway(&config);
    let listener = |index: usize| gateway.handle.local_addrs()[index];

    assert!(digest(&mut connect(listener(0))).is_err());
    let line = &folder.lines("gateway", 1)[0];
    assert_eq!(
        (&line["outcome"], &line["ended_by"]),
        (&"connection_refused".into(), &"downstream".into())
    );
    assert!(line["cause"].as_str().unwrap().contains("connection refused"), "{line}");
    let line = &folder.lines("relay", 1)[0];
    assert_eq!(line["outcome"], "connection_refused");

    let mut silent = connect(listener(1));
    silent.write_all(b"ping").unwrap();
    assert!(digest(&mut silent).is_err());
    let line = &folder.lines("gateway", 2)[1];
    assert_eq!((&line["outcome"], &line["ended_by"]), (&"idle".into(), &"self".into()));
    assert_eq!((&line["timeout"], &line["bytes_down"]), (&"idle".into(), &4.into()));

    let mut gone = connect(listener(1));
    gone.write_all(b"ping").unwrap();
    gone.read_exact(&mut [0; 4]).unwrap();
    reset(gone);
    let line = &folder.lines("gateway", 3)[2];
    assert_eq!((&line["outcome"], &line["ended_by"]), (&"broken".into(), &"upstream".into()));
    assert!(line["cause"].as_str().unwrap().contains("reset"), "{line}");
    assert_eq!(folder.lines("audit", 3).len(), 3, "admitted, whatever became of them");
}

#[test]
fn orderly_sessions_are_sampled() {
    let folder = Folder::new("sampled");
    let mut config = gateway_config(tradewind_desired::Route::Direct);
    let to = folder.0.join("gateway");
    config.access_log = access_log(&format!("to = '{}'\none_in = 4", to.display()));
    config.forward = vec![forward(echo())];
    let gateway = Running::gateway(&config);
    for _ in 0..8 {
        let mut stream = connect(gateway.address());
        send(&mut stream, b"ping");
        assert_eq!(digest(&mut stream).unwrap().0, 4);
    }
    wait_for("the sessions' ends", || gateway.handle.snapshot().outcome("ended") == 8);
    drop(gateway);
    let line = &folder.lines("gateway", 2)[0];
    assert_eq!((&line["path"], &line["arm"]), (&"direct".into(), &Value::Null));
}

/// Returns the configuration of a gateway that logs and draws half of the sessions over `relay`.
fn config_with_control_arm(folder: &Folder, relay: &Running) -> GatewayConfig {
    let over = route_over(std::slice::from_ref(relay));
    let mut config = gateway_config(Route::Refuse);
    config.routes = RouteTable::with_fallbacks(Vec::new(), vec![over, Route::Direct]).unwrap();
    config.access_log = access_log_in(folder, "gateway");
    config.control_share = Ratio::new(0.5).unwrap();
    config
}

/// Carries `count` sessions, one after the other.
fn carry(gateway: &Running, count: usize) {
    for _ in 0..count {
        let mut stream = connect(gateway.address());
        send(&mut stream, b"ping");
        assert_eq!(digest(&mut stream).unwrap().0, 4);
    }
}

/// Returns how many of `lines` have this path and arm.
fn of_arm(lines: &[Value], path: &str, arm: Option<&str>) -> usize {
    lines.iter().filter(|line| line["path"] == path && line["arm"].as_str() == arm).count()
}

#[test]
fn drawn_sessions_go_direct_and_the_log_tells_both_arms() {
    let folder = Folder::new("arms");
    let relay = Running::relay(&relay_config());
    let mut config = config_with_control_arm(&folder, &relay);
    config.forward = vec![forward(echo())];
    let gateway = Gateway::bind(&config).unwrap();
    let reloader = gateway.reloader();
    let gateway = Running::gateway_of(gateway);
    carry(&gateway, 60);
    let lines = folder.lines("gateway", 60);
    let arms =
        [of_arm(&lines, "relay-1", Some("overlay")), of_arm(&lines, "direct", Some("control"))];
    // One in a thousand million million runs has less of one.
    assert!(arms[0] + arms[1] == 60 && arms[0] > 1 && arms[1] > 1, "{arms:?}");
    config.control_share = Ratio::ZERO;
    reloader.apply(&config).unwrap();
    carry(&gateway, 40);
    let lines = folder.lines("gateway", 100);
    assert_eq!(of_arm(&lines[60..], "relay-1", Some("overlay")), 40);
}

#[test]
fn drawn_session_whose_direct_path_fails_goes_over_relays() {
    let folder = Folder::new("arm-fails");
    let to = echo();
    let name = |ip: [u8; 4]| Resolver::by(move |_| vec![ip.into()]);
    let mut relay = relay_config();
    relay.policy.destinations.push("db.example.com:*".parse().unwrap());
    let relay = Relay::bind(&relay).unwrap().with_resolver(name([127, 0, 0, 1]));
    let relay = Running::relay_of(relay);
    let mut config = config_with_control_arm(&folder, &relay);
    let named = format!("db.example.com:{}", to.port()).parse().unwrap();
    config.forward = vec![Forward { to: named, ..forward(to) }];
    let mut grant = config.grant.as_ref().unwrap().unverified().clone();
    grant.destinations.push("db.example.com:*".parse().unwrap());
    config.grant = Some(grant.sign(&operator()).unwrap());
    // Nobody listens there.
    let gateway = Gateway::bind(&config).unwrap().with_resolver(name([127, 0, 0, 77]));
    let gateway = Running::gateway_of(gateway);
    carry(&gateway, 60);
    let lines = folder.lines("gateway", 60);
    let arms =
        [of_arm(&lines, "relay-1", Some("overlay")), of_arm(&lines, "relay-1", Some("control"))];
    assert!(arms[0] + arms[1] == 60 && arms[0] > 1 && arms[1] > 1, "{arms:?}");
}

#[test]
fn session_whose_relays_fail_stays_in_their_arm() {
    let folder = Folder::new("arm-falls-back");
    let relay = Running::relay(&relay_config());
    let mut config = config_with_control_arm(&folder, &relay);
    config.control_share = Ratio::ZERO;
    config.forward = vec![forward(echo())];
    drop(relay);
    let gateway = Running::gateway(&config);
    carry(&gateway, 1);
    let lines = folder.lines("gateway", 1);
    assert_eq!(of_arm(&lines, "direct", Some("overlay")), 1, "{lines:?}");
}

#[test]
fn stalled_collector_stops_no_session() {
    let folder = Folder::new("stalled");
    // It exists and reads nothing: the kernel holds a few lines for it.
    let path = folder.0.join("collector");
    let collector = UnixDatagram::bind(&path).unwrap();
    let mut config = open_relay_config();
    config.access_log = access_log(&format!("to = 'unix:{}'", path.display()));
    let relay = Running::relay(&config);
    let mut config = gateway_config(route_over(std::slice::from_ref(&relay)));
    config.forward = vec![forward(echo())];
    let gateway = Running::gateway(&config);
    for _ in 0..600 {
        let mut stream = connect(gateway.address());
        send(&mut stream, b"ping");
        assert_eq!(digest(&mut stream).unwrap().0, 4);
    }
    wait_for("their ends", || relay.handle.snapshot().outcome("ended") == 600);
    let mut bytes = [0; 2000];
    for _ in 0..600 {
        let length = collector.recv(&mut bytes).unwrap();
        let line: Value = serde_json::from_slice(&bytes[..length]).unwrap();
        assert_eq!(line["outcome"], "ended");
    }
}

/// Starts an HTTP server that answers each request of a connection with `body`.
fn http_server(body: &'static str) -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut request = Vec::new();
                let mut byte = [0];
                while stream.read(&mut byte).is_ok_and(|read| read == 1) {
                    request.push(byte[0]);
                    if request.ends_with(b"\r\n\r\n") {
                        request.clear();
                        let length = body.len();
                        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
                    }
                }
            });
        }
    });
    address
}

#[test]
fn each_plain_request_is_logged() {
    let folder = Folder::new("requests");
    let servers = [http_server("one"), http_server("twelve bytes")];
    let mut config = gateway_config(tradewind_desired::Route::Direct);
    config.routes = tradewind_desired::RouteTable::new(
        vec![("127.0.0.0/8:*".parse().unwrap(), tradewind_desired::Route::Direct)],
        tradewind_desired::Route::Refuse,
    )
    .unwrap();
    config.access_log = access_log_in(&folder, "gateway");
    config.connect = vec![loopback()];
    let gateway = Running::gateway(&config);
    let closed = closed_port();
    let mut stream = connect(gateway.address());
    for (at, body) in [(0, "one"), (1, "twelve bytes"), (0, "one")] {
        let to = servers[at];
        write!(stream, "GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let mut byte = [0];
        while !answer.ends_with(format!("\r\n\r\n{body}").as_bytes()) {
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
    }
    let to = closed.address;
    write!(stream, "GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
    assert!(digest(&mut stream).unwrap().0 > 0, "a refusal");
    let lines = folder.lines("gateway", 4);
    let of = |key: &str| lines.iter().map(|line| line[key].clone()).collect::<Vec<_>>();
    let to = [servers[0], servers[1], servers[0], closed.address];
    assert_eq!(of("destination"), to.map(|to| to.to_string()));
    assert_eq!(of("outcome"), ["ended", "ended", "ended", "connection_refused"]);
    let down: Vec<u64> = of("bytes_down").iter().map(|bytes| bytes.as_u64().unwrap()).collect();
    assert_eq!(down[0], down[2]);
    // The longer body, and one more digit of its length.
    assert_eq!(down[1], down[0] + 10);
}
