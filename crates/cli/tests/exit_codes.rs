//! Every mistake in a file or an argument ends with 2, in one line; a resource that the host lacks
//! ends with 1.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::net::TcpListener;
use std::path::Path;

use common::daemon::{is_root, skipped};
use common::{Files, command, ended, refusal};

/// A folder with keys and a grant.
struct Configured {
    files: Files,
    operator: String,
    remote: String,
    grant: String,
}

impl Configured {
    fn new(test: &str) -> Self {
        let files = Files::new(test);
        let keygen =
            |kind: &str, name: &str| files.prints(&["keygen", kind, name]).trim().to_owned();
        let operator = keygen("operator", "operator.key");
        keygen("identity", "relay.key");
        let remote = keygen("identity", "remote.key");
        let gateway = keygen("identity", "gateway.key");
        let specification = format!(
            "gateway = '{gateway}'\ndestinations = ['192.0.2.0/24:443']\nrelays = 'any'\n\
             expires = '1 h'\n"
        );
        files.write("grant.toml", specification);
        let issued = files.prints("grant issue --key operator.key grant.toml");
        Self { files, operator, remote, grant: issued.trim().to_owned() }
    }

    /// Returns a relay's configuration, with `more` before its sections.
    fn relay(&self, more: &str) -> String {
        format!(
            "listen = ['127.0.0.1:0']\nidentity_file = 'relay.key'\noperators = ['{}']\n{more}\n",
            self.operator
        )
    }

    fn gateway(&self, more: &str) -> String {
        let grant = &self.grant;
        format!("identity_file = 'gateway.key'\ngrant = '{grant}'\ndirect = true\n{more}\n")
    }

    /// Checks that `role` refuses each configuration in a line with these words.
    fn refuses(&self, role: &str, status: i32, cases: &[(String, &str)]) {
        let file = format!("{role}.toml");
        for (content, expected) in cases {
            self.files.write(&file, content);
            let arguments = [role, "--config", file.as_str()];
            let output = ended(&mut command(&arguments, &self.files.0));
            let line = refusal(&output);
            assert!(line.contains(expected), "{content}: {line}");
            assert_eq!(output.status.code(), Some(status), "{content}: {line}");
        }
    }
}

#[test]
fn invalid_relay_config_exits_with_2() {
    let configured = Configured::new("codes-of-relay");
    let mut cases: Vec<(String, &str)> = [
        ("colour = 1", "colour"),
        ("workers = 0", "workers"),
        ("metrics = '0.0.0.0:0'", "metrics_expose"),
        ("metrics = '[fe80::1]:9000'", "link-local"),
        ("revocations = 'absent'", "revocations absent: "),
        ("revocations = '/dev/zero'", "revocations /dev/zero: longer than 16 MiB"),
        ("previous_identity_file = 'absent'", "identity file absent: "),
        ("previous_identity_file = 'operator.key'", "this is a secret operator key"),
        ("[limits]\nsessions = 0", "limits.sessions"),
        ("[timeouts]\nkeepalive = '1 ms'", "timeouts.keepalive"),
        ("[policy]\nnext_hops = ['a.example:1']", "policy.next_hops"),
        ("[leg.dial]\ncongestion_control = 'wind'", "congestion control `wind`"),
        ("[leg.accept]\ncongestion_control = 'wind'", "congestion control `wind`"),
        ("[access_log]\nto = '/dev/null/access.log'", "access log /dev/null/access.log: "),
        ("[access_log]\nto = '/tmp/access.log'\nkeep = 0", "access_log.keep"),
        ("[audit_log]\nto = '/dev/null/audit.log'", "audit log /dev/null/audit.log: "),
        ("[packet]\nlisten = 'here'", "listen"),
        ("[packet]\nlisten = '[fe80::1]:7'", "link-local"),
        ("[packet]\nlisten = '127.0.0.1:0'\ncolour = 1", "colour"),
        ("[packet]\nlisten = '127.0.0.1:0'\ncoding = { within = '0 s' }", "coding"),
        ("[jumpstart]\ncolour = 1", "colour"),
        ("[jumpstart.act]\nthrough = 'routes'", "routes hold"),
    ]
    .map(|(more, expected)| (configured.relay(more), expected))
    .into();
    let without_identity = configured.relay("").replace("identity_file = 'relay.key'\n", "");
    cases.push((without_identity, "identity_file"));
    if is_root() {
        cases.push((
            configured.relay("run_as = 'tradewind-no-such-user'"),
            "user `tradewind-no-such-user`: no such user on this host",
        ))
    } else {
        skipped("run_as", "needs root")
    }
    configured.refuses("relay", 2, &cases);
}

#[test]
fn invalid_gateway_config_exits_with_2() {
    let configured = Configured::new("codes-of-gateway");
    let (socks5, packet) = ("socks5 = ['127.0.0.1:0']", "[[packet]]\nlisten = '127.0.0.1:0'");
    let route = "[routes]\ndefault = 'direct'";
    let remote =
        format!("remote = {{ address = '192.0.2.1:7', identity = '{}' }}", configured.remote);
    let tunnel = |name: &str| {
        format!(
            "{packet}\nto = '192.0.2.1:5'\n{remote}\n[packet_endpoint.tun]\nname = '{name}'\n\
                 sources = ['10.2.0.0/16:*']"
        )
    };
    let packets = |more: &str| format!("{packet}\n{remote}\n{more}");
    let cases: Vec<(String, &str)> = [
        (format!("{socks5}\ncolour = 1\n{route}"), "colour"),
        (format!("socks5 = ['0.0.0.0:0']\n{route}"), "expose"),
        (format!("socks5 = ['127.0.0.1:7', '127.0.0.1:7']\n{route}"), "listened on twice"),
        (format!("revocations = 'absent'\n{packet}\nto = '192.0.2.1:5'\n{remote}"), "absent: "),
        (format!("{socks5}\ngrant_file = 'absent'\n{route}"), "grant"),
        (format!("{socks5}\n{route}\n[access_log]\nto = '/dev/null/x'"), "access log /dev/null/x"),
        (
            format!("{socks5}\n{route}\n[leg.dial]\ncongestion_control = 'wind'"),
            "congestion control `wind`",
        ),
        (format!("{socks5}\n{route}\n[[user]]\nname = 'a'\npassword = 'b'"), "user[0].password"),
        (format!("{socks5}\n{route}\n[socks5_udp]\ncolour = 1"), "colour"),
        (packets("to = '192.0.2.1:5'\nbudget = '0 s'"), "budget"),
        (packets("to = '192.0.2.1:5'\ncolour = 1"), "colour"),
        (packets("to = '192.0.2.1:5'\n[packet_endpoint]\nlisten = 'here'"), "listen"),
        (packets("to = '192.0.2.1:5'\n[packet_endpoint]\nmembers = 'absent'"), "absent"),
        (
            packets("to = '192.0.2.1:5'\n[packet_endpoint]\nmembers = '/dev/zero'"),
            "/dev/zero: longer than 4 MiB",
        ),
        (packets("to = '192.0.2.1:5'\n[packet_endpoint]\nlisten = '[fe80::1]:7'"), "link-local"),
        (packets("to = '[fe80::1]:5'"), "link-local"),
        (packets("to = '192.0.2.1:5'").replacen("127.0.0.1:0", "[fe80::1]:7", 1), "link-local"),
        (packets("to = '192.0.2.1:5'").replace("192.0.2.1:7", "[fe80::1]:7"), "link-local"),
        (tunnel("a-name-that-is-too-long"), "packet_endpoint.tun"),
        (tunnel(""), "packet_endpoint.tun"),
    ]
    .map(|(more, expected)| (configured.gateway(&more), expected))
    .into();
    configured.refuses("gateway", 2, &cases);
    let without_identity = format!("direct = true\n{packet}\nto = '192.0.2.1:5'\n{remote}");
    configured.refuses("gateway", 2, &[(without_identity, "identity_file: missing")]);
}

#[test]
fn config_check_names_key_and_line() {
    let configured = Configured::new("codes-of-check");
    let files = &configured.files;
    files.write("relay.toml", configured.relay("[packet]\nlisten = '127.0.0.1:0'"));
    files.write("gateway.toml", configured.gateway("socks5 = ['127.0.0.1:0']\n[jumpstart]"));
    files.write("jumpstart.toml", "[learn]\nmode = 'paced'");
    let printed = files.prints("config check relay.toml gateway.toml jumpstart.toml");
    let expected = "relay.toml: a relay's configuration, without mistakes\n\
                    gateway.toml: a gateway's configuration, without mistakes\n\
                    jumpstart.toml: jump-start's configuration, without mistakes\n";
    assert_eq!(printed, expected);
    for (content, expected) in [
        (configured.relay("[limits]\nsessions = 0"), "`limits.sessions` (line 5): expected at"),
        (
            configured.relay("[packet]\nlisten = '127.0.0.1:0'\ncolour = 1"),
            "`packet.colour` (line 6)",
        ),
        (
            configured.gateway("[[packet]]\nlisten = '127.0.0.1:0'"),
            "`packet[0]` (line 4): expected",
        ),
        (
            configured.gateway("socks5 = ['127.0.0.1:0']\n[socks5_udp]\ncolour = 1"),
            "`socks5_udp.colour` (line 6)",
        ),
        ("[learn]\ncolour = 1".to_owned(), "`learn.colour` (line 2): unknown field"),
    ] {
        files.write("wrong.toml", &content);
        let expected = format!("wrong.toml: configuration, {expected}");
        files.refuses_with("config check wrong.toml", 2, &expected);
    }
    files.refuses_with("config check --kind relay gateway.toml", 2, "gateway.toml: configuration");
}

#[test]
fn missing_host_resources_exit_with_1() {
    let configured = Configured::new("codes-of-host");
    let in_use = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let held = TcpListener::bind(in_use).unwrap();
    let cases = [
        (configured.relay(&format!("metrics = '{in_use}'")), "already in use"),
        (configured.relay("").replace("127.0.0.1:0", &in_use.to_string()), "already in use"),
        (configured.relay("[packet]\nlisten = '203.0.113.9:7'"), "203.0.113.9:7"),
    ];
    configured.refuses("relay", 1, &cases);
    drop(held);
}

#[test]
fn mistakes_of_jumpstart_end_with_2() {
    let files = Files::new("codes-of-jumpstart");
    files.write("sizes", "10 kB\nmany\n");
    files.write("empty", "# none\n");
    let config = |text: &str| files.write("jumpstart.toml", text);
    for (text, expected) in [
        ("colour = 1", "colour"),
        ("socket = 'x.off'", "ends in `.off`"),
        ("metrics = '0.0.0.0:0'", "metrics"),
        ("metrics = '[fe80::1]:7'", "link-local"),
        ("hints = 1", "hints"),
        ("[learn]\nprefixes = ['10.1.2.3/30']", "expected `10.1.2.0/30`"),
        ("[observe]\nwithin = ['10.1.2.3/30']", "expected `10.1.2.0/30`"),
        ("[observe]\nexcept = ['10.1.2.3/30']", "expected `10.1.2.0/30`"),
        ("[observe]\ncgroup = '/dev/null/none'", "`observe.cgroup`"),
        ("[act]\ncgroup = '/dev/null/none'", "`act.cgroup`"),
        ("[learn]\nmode = 'strict'\n[act]\nthrough = 'routes'", "mode `strict` paces"),
        ("[act]\nthrough = 'routes'\ncgroup = '/sys/fs/cgroup'", "`act.cgroup`"),
    ] {
        config(text);
        let arguments = ["jumpstart", "run", "--config", "jumpstart.toml"];
        let output = ended(&mut command(&arguments, &files.0));
        let line = refusal(&output);
        assert!(line.contains(expected), "{text}: {line}");
        assert_eq!(output.status.code(), Some(2), "{text}: {line}");
    }
    for (arguments, expected) in [
        ("jumpstart hint 10.0.0.0/8 --for 1min", "say what to do"),
        ("jumpstart hint 10.0.0.1/8 --freeze --for 1min", "invalid value '10.0.0.1/8'"),
        ("jumpstart flush --within 10.0.0.1/8", "invalid value '10.0.0.1/8'"),
        ("probe responder --listen [fe80::1]:7", "invalid value '[fe80::1]:7'"),
        ("jumpstart model --sizes-file sizes --rtts 10ms", "sizes, line 2"),
        ("jumpstart model --sizes-file empty --rtts 10ms", "empty: holds no value"),
        ("jumpstart model --sizes 10kB --rtts 10ms --segment 0B", "--segment"),
    ] {
        files.refuses_with(arguments, 2, expected);
    }
}

#[test]
fn mistakes_in_plans_and_arguments_end_with_2() {
    let files = Files::new("codes-of-plan");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/plan");
    let problem = |name: &str| repository.join(name).display().to_string();
    let (cities, other) = (problem("four-cities.toml"), problem("one-to-many.toml"));
    files.prints(&["plan", "--problem", &cities, "--out", "plan.json"]);
    let about = |problem| vec!["explain", "plan.json", "hamina-london", "--problem", problem];
    files.refuses_with(&about(other.as_str()), 2, "plan.json: it is no plan for");
    files.refuses_with("explain plan.json nowhere", 2, "plan.json: ");
    files.write(
        "gateway.toml",
        "socks5 = ['127.0.0.1:0']\ndirect = true\n[routes]\ndefault = 'direct'\n",
    );
    files.refuses_with("packet status --config gateway.toml", 2, "gateway.toml: `metrics` names");
    files.write("scenario.toml", "nonsense = 1");
    files.refuses_with("demo --scenario scenario.toml", 2, "scenario.toml: ");
    files.refuses_with("demo --scenario absent", 2, "absent: ");
    for arguments in ["probe rtt nohost", "probe rtt a:99999", "probe rate nohost"] {
        files.refuses_with(arguments, 2, "probe of ");
    }
    files.refuses_with("password", 2, "a password of 0 bytes");
    let mut filtered = command("relay --config relay.toml", &files.0);
    let configured = Configured::new("codes-of-filter");
    files.write(
        "relay.toml",
        configured.relay("").replace(
            "'relay.key'",
            &format!("'{}'", configured.files.0.join("relay.key").display()),
        ),
    );
    let output = ended(filtered.env("TRADEWIND_LOG", "a=b=c"));
    assert!(refusal(&output).contains("TRADEWIND_LOG"));
    assert_eq!(output.status.code(), Some(2));
}

/// Two sites, 10 ms apart, with these settings before them.
fn topology(settings: &str) -> String {
    format!(
        "{settings}\n[[site]]\nid = 'a'\nlocation = {{ latitude = 1, longitude = 1 }}\n\
         [[site]]\nid = 'b'\nlocation = {{ latitude = 2, longitude = 2 }}\n\
         [[pair]]\nbetween = ['a', 'b']\nrtt = '10 ms'\n"
    )
}

#[test]
fn unsupported_topology_exits_with_2() {
    if !is_root() {
        return skipped("topology", "needs root");
    }
    let files = Files::new("codes-of-lab");
    files.write("wind.toml", topology("[default.host]\ncongestion_control = 'wind'"));
    files.refuses_with("lab up wind.toml", 2, "lab: host a: this kernel has no congestion");
}

#[test]
fn mistakes_about_a_running_lab_end_with_2() {
    if !is_root() {
        return skipped("a running lab", "needs root");
    }
    let files = Files::new("codes-of-running-lab");
    files.write("two.toml", topology(""));
    files.prints("lab up two.toml");
    for (arguments, expected) in [
        ("lab set nowhere rtt=30ms", "lab: `nowhere` is no pair of sites"),
        ("lab set a,nowhere rtt=30ms", "lab: no site `nowhere`"),
        ("lab set a,b colour=1", "lab: `colour=1` cannot be set"),
        ("lab set a,b rtt=wind", "lab: rtt: "),
        ("lab set a,b loss=2", "lab: loss: "),
        ("lab set a,b rtt=30ms rtt=40ms", "lab: `rtt=40ms` sets what"),
        ("lab exec nowhere -- true", "lab: no host `nowhere`"),
    ] {
        files.refuses_with(arguments, 2, expected);
    }
    files.prints("lab set a,b rtt=30ms");
    files.prints("lab down");
}
