//! Metrics and alert rules as Prometheus reads them: its linter, and a server that scrapes.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::daemon::{skipped, until};
use common::{Files, command, text};
use serde_json::Value;

/// The alert rules that users copy.
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/alerts.yml");

/// The dashboard that they import into Grafana, and the metrics that users read of.
const DASHBOARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/grafana.json");
const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a daemon, and returns the address of its metrics.
fn start(files: &Files, words: &str, metrics: SocketAddr) -> Running {
    let mut process = command(words, &files.0);
    process.env("TRADEWIND_TRACES", "http://127.0.0.1:9");
    let mut process = process.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("ready"), "{words}: {line}");
    assert!(TcpStream::connect(metrics).is_ok(), "{words}");
    Running(process)
}

/// Returns an address of loopback that nobody listens on.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Starts a controller, a relay and a gateway; returns them with the addresses of their metrics.
fn daemons(files: &Files) -> [(Running, SocketAddr); 3] {
    let keygen = |words: &str| files.prints(&format!("keygen {words}")).trim().to_owned();
    let (_, operator) = (keygen("identity relay.key"), keygen("operator operator.key"));
    keygen("identity gateway.key");
    let [controller, relay, gateway] = [free(), free(), free()];
    files.prints(
        "controller init net --agents 127.0.0.1:0 --api 127.0.0.1:0 --advertise 192.0.2.1:7440",
    );
    let settings = files.read("net/controller.toml");
    files.write("net/controller.toml", format!("{settings}metrics = \"{controller}\"\n"));
    files.write(
        "relay.toml",
        format!(
            "listen = ['127.0.0.1:0']\nidentity_file = 'relay.key'\noperators = ['{operator}']\n\
             metrics = '{relay}'\n[packet]\nlisten = '127.0.0.1:0'\n"
        ),
    );
    files.write(
        "gateway.toml",
        format!(
            "identity_file = 'gateway.key'\ndirect = true\nmetrics = '{gateway}'\n\
             [[forward]]\nlisten = '127.0.0.1:0'\nto = '192.0.2.1:9'\n"
        ),
    );
    [
        (start(files, "controller run net", controller), controller),
        (start(files, "relay --config relay.toml", relay), relay),
        (start(files, "gateway --config gateway.toml", gateway), gateway),
    ]
}

/// Returns the body of a page; by HTTP 1.0 Prometheus sends it in one piece.
fn page(address: SocketAddr, version: &str, target: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    write!(stream, "GET {target} HTTP/{version}\r\nHost: {address}\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}

/// Returns metrics in the older text form, which the linter reads: there a counter has its suffix
/// in its heading, and there are no units, no infos and no end.
fn in_text_form(metrics: &str) -> String {
    let kind = |name: &str| {
        let heading = format!("# TYPE {name} ");
        metrics.lines().find_map(|line| line.strip_prefix(&heading)).unwrap_or_default()
    };
    let mut form = String::new();
    for line in metrics.lines().filter(|line| !line.starts_with("# UNIT") && *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        let (first, second, name, rest) = (words.next(), words.next(), words.next(), words.next());
        let line = match (first, second, name, rest) {
            (Some("#"), Some(heading), Some(name), Some(rest)) => match kind(name) {
                "counter" => format!("# {heading} {name}_total {rest}"),
                "info" if heading == "TYPE" => format!("# TYPE {name}_info gauge"),
                "info" => format!("# {heading} {name}_info {rest}"),
                _ => line.to_owned(),
            },
            _ => line.to_owned(),
        };
        form.push_str(&line);
        form.push('\n');
    }
    form
}

/// Runs `promtool` with this standard input; returns whether it is content, and what it says.
fn promtool(arguments: &[&str], input: &str) -> (bool, String) {
    let mut tool = Command::new("promtool");
    tool.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tool = tool.spawn().unwrap();
    tool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

/// Returns whether a program is there; says aloud that the test is left out otherwise.
fn has(program: &str, test: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        skipped(test, &format!("needs {program} (Debian: prometheus)"));
    }
    is_there
}

/// Returns the names of our metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_part(c));
    words.filter(|word| word.starts_with("tradewind_")).map(str::to_owned).collect()
}

/// Returns the queries of the dashboard, as Grafana would ask them.
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_slice(&std::fs::read(DASHBOARD).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let filled = |target: &Value| {
        let query = target["expr"].as_str().unwrap();
        query.replace("$__rate_interval", "1m").replace("$instance", ".*")
    };
    targets.map(filled).collect()
}

/// Returns whether the reference has a metric: by its name, or by that without the prefix of the
/// section.
fn is_documented(reference: &str, name: &str) -> bool {
    let prefixes = ["relay_", "gateway_", "controller_", "jumpstart", ""];
    prefixes.iter().any(|prefix| {
        let rest = name.strip_prefix("tradewind_").and_then(|rest| rest.strip_prefix(prefix));
        let begins = |rest: &str| reference.contains(&format!("`{rest}"));
        begins(name) || rest.is_some_and(|rest| !prefix.is_empty() && begins(rest))
    })
}

#[test]
fn dashboard_asks_for_metrics_that_are_documented() {
    let queries = queries();
    assert!(queries.len() > 40, "{queries:?}");
    let reference = std::fs::read_to_string(REFERENCE).unwrap();
    for query in &queries {
        assert!(!query.contains('$'), "a variable that is none: {query}");
        for name in names(query) {
            assert!(is_documented(&reference, &name), "{name}");
        }
    }
    // All parts have a panel.
    for part in ["controller", "relay", "gateway", "packet", "jumpstart"] {
        let prefix = format!("tradewind_{part}_");
        assert!(queries.iter().any(|query| query.contains(&prefix)), "{part}");
    }
    assert!(!is_documented(&reference, "tradewind_relay_nonsense_total"));
}

#[test]
fn names_of_metrics_follow_the_conventions() {
    if !has("promtool", "names of metrics") {
        return;
    }
    let files = Files::new("promtool");
    let mut all = BTreeSet::new();
    for (_running, address) in &daemons(&files) {
        let metrics = page(*address, "1.1", "/metrics");
        assert!(metrics.ends_with("# EOF\n"), "{metrics}");
        let metrics = in_text_form(&metrics);
        let (is_content, said) = promtool(&["check", "metrics"], &metrics);
        assert!(is_content && said.is_empty(), "{address}: {said}");
        // The linter would tell.
        let wrong = metrics.replace("_total", "_sum_of");
        assert!(!promtool(&["check", "metrics"], &wrong).0);
        all.extend(names(&metrics));
    }
    let (is_content, said) = promtool(&["check", "rules", RULES], "");
    assert!(is_content && said.contains("SUCCESS"), "{said}");
    let rules = std::fs::read_to_string(RULES).unwrap();
    for name in names(&rules) {
        assert!(all.contains(&name), "an alert on `{name}`, which nobody has");
    }
}

/// Returns a query as a part of an address.
fn encoded(query: &str) -> String {
    query.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test]
fn prometheus_scrapes_and_evaluates_the_rules() {
    if !has("prometheus", "a real Prometheus") {
        return;
    }
    let files = Files::new("prometheus");
    let daemons = daemons(&files);
    let targets: Vec<String> = daemons.iter().map(|(_, address)| format!("'{address}'")).collect();
    let rules: PathBuf = std::fs::canonicalize(RULES).unwrap();
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
         rule_files: ['{}']\n\
         scrape_configs: [{{ job_name: t, static_configs: [{{ targets: [{}] }}] }}]\n",
        rules.display(),
        targets.join(", ")
    );
    files.write("prometheus.yml", config);
    let address = free();
    let mut server = Command::new("prometheus");
    server.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"]);
    server.arg(format!("--web.listen-address={address}")).current_dir(&files.0);
    let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _server = Running(server);
    let ask = |target: &str| -> Value {
        serde_json::from_str(&page(address, "1.0", target)).unwrap_or_default()
    };
    let count = |answer: &Value| answer["data"]["result"].as_array().map_or(0, Vec::len);
    until("all are scraped", || count(&ask("/api/v1/query?query=up==1")) == 3);
    let builds = ask("/api/v1/query?query=tradewind_build_info");
    assert_eq!(count(&builds), 3, "{builds}");
    let evaluated = || {
        let answer = ask("/api/v1/rules");
        let rules = answer["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        rules.iter().map(|rule| rule["health"].as_str().unwrap_or_default().to_owned()).collect()
    };
    until("rules are evaluated", || {
        let health: Vec<String> = evaluated();
        !health.is_empty() && health.iter().all(|health| health == "ok")
    });
    let pages: String = daemons.iter().map(|(_, at)| page(*at, "1.1", "/metrics")).collect();
    let has_samples = |name: &String| {
        pages.lines().any(|line| {
            line.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with(['{', ' ']))
        })
    };
    let mut asked = 0;
    for query in queries() {
        let target = format!("/api/v1/query?query={}", encoded(&query));
        let answer = ask(&target);
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        // Others are of what these daemons do not do, or of states that they are not in.
        let of_some = query.replace("instance=~\".*\"", "").contains(['~', '!']);
        if !of_some && names(&query).iter().all(has_samples) {
            until(&query, || count(&ask(&target)) > 0);
            asked += 1;
        }
    }
    assert!(asked > 15, "{asked}");
    let firing = ask("/api/v1/alerts");
    assert_eq!(firing["data"]["alerts"].as_array().map(Vec::len), Some(0), "{firing}");
}
