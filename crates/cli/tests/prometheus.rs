//! Metrics and alert rules as Prometheus reads them: its linter, and a server that scrapes.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::daemon::{skipped, until};
use common::{Files, command, text};
use serde_json::Value;

/// The alert rules that users copy.
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/alerts.yml");

/// The configuration that reads what runs on a host.
const SCRAPES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/prometheus.yml");

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

/// Starts a controller, a relay, a gateway with a path over it, and jump-start's daemon, which
/// changes nothing; returns them with the addresses of their metrics.
fn daemons(files: &Files) -> [(Running, SocketAddr); 4] {
    let keygen = |words: &str| files.prints(&format!("keygen {words}")).trim().to_owned();
    let (identity, operator) = (keygen("identity relay.key"), keygen("operator operator.key"));
    let holder = keygen("identity gateway.key");
    files.write(
        "grant.toml",
        format!(
            "gateway = '{holder}'\ndestinations = ['192.0.2.1:9']\nrelays = 'any'\n\
             expires = '1 h'\n"
        ),
    );
    let grant = files.prints("grant issue --key operator.key grant.toml");
    let [controller, relay, gateway, jumpstart] = [free(), free(), free(), free()];
    let at = free();
    files.prints(
        "controller init net --agents 127.0.0.1:0 --api 127.0.0.1:0 --advertise 192.0.2.1:7440",
    );
    let settings = files.read("net/controller.toml");
    files.write("net/controller.toml", format!("{settings}metrics = \"{controller}\"\n"));
    files.write(
        "relay.toml",
        format!(
            "listen = ['{at}']\nidentity_file = 'relay.key'\noperators = ['{operator}']\n\
             metrics = '{relay}'\n[packet]\nlisten = '127.0.0.1:0'\n"
        ),
    );
    files.write(
        "gateway.toml",
        format!(
            "identity_file = 'gateway.key'\ngrant = '{}'\ndirect = true\nmetrics = '{gateway}'\n\
             [[forward]]\nlisten = '127.0.0.1:0'\nto = '192.0.2.1:9'\n\
             [routes]\ndefault = ['hamina']\ndefault_fallback = ['direct']\n\
             [[routes.relay]]\nname = 'hamina'\naddress = '{at}'\nidentity = '{identity}'\n",
            grant.trim()
        ),
    );
    files.write("jumpstart.toml", format!("metrics = '{jumpstart}'\n"));
    let learn = "jumpstart run --dry-run --config jumpstart.toml --socket jumpstart.sock";
    [
        (start(files, "controller run net", controller), controller),
        (start(files, "relay --config relay.toml", relay), relay),
        (start(files, "gateway --config gateway.toml", gateway), gateway),
        (start(files, learn, jumpstart), jumpstart),
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

/// Returns a program of Prometheus: this host's, or the one that `scripts/setup.sh test` has put
/// into the target folder.
fn tool(name: &str) -> Command {
    let target = Path::new(common::PROGRAM).ancestors().nth(2).unwrap();
    let unpacked = target.join("tools/prometheus/usr/bin").join(name);
    Command::new(if unpacked.exists() { unpacked } else { name.into() })
}

/// Runs `promtool` with this standard input; returns whether it is content, and what it says.
fn promtool(arguments: &[&str], input: &str) -> (bool, String) {
    let mut tool = tool("promtool");
    tool.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tool = tool.spawn().unwrap();
    tool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

/// Returns whether a program is there; says aloud that the test is left out otherwise.
fn has(program: &str, test: &str) -> bool {
    let is_there = tool(program).arg("--version").output().is_ok();
    if !is_there {
        skipped(test, &format!("needs {program} (`scripts/setup.sh test`, Debian: prometheus)"));
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
    let (is_content, said) = promtool(&["check", "config", SCRAPES], "");
    assert!(is_content, "{said}");
    let (is_content, said) = promtool(&["check", "rules", RULES], "");
    assert!(is_content && said.contains("SUCCESS"), "{said}");
    let rules = std::fs::read_to_string(RULES).unwrap();
    for name in names(&rules) {
        assert!(all.contains(&name), "an alert on `{name}`, which nobody has");
    }
}

/// The values of each label of a metric.
type Labels = BTreeMap<String, BTreeSet<String>>;

/// Returns what stands between braces, as labels with their values.
fn labels(text: &str) -> Vec<(String, String)> {
    let parts = text.split_terminator('"').collect::<Vec<_>>();
    let pairs = parts.chunks_exact(2);
    pairs.map(|pair| (pair[0].trim_matches([',', ' ']).to_owned(), pair[1].to_owned())).collect()
}

/// Returns the metrics of these pages, by the names of their samples.
fn series(pages: &str) -> BTreeMap<String, Labels> {
    let mut all = BTreeMap::<String, Labels>::new();
    for line in pages.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap_or(line.len()));
        let metric = all.entry(name.to_owned()).or_default();
        let within = rest.strip_prefix('{').and_then(|rest| rest.rsplit_once('}'));
        for (label, value) in within.map(|(within, _)| labels(within)).unwrap_or_default() {
            metric.entry(label.trim_end_matches('=').to_owned()).or_default().insert(value);
        }
    }
    all
}

/// Returns what is wrong with the labels that a query asks for, by those that are exported.
fn wrong_labels(query: &str, exported: &BTreeMap<String, Labels>) -> Vec<String> {
    let mut wrong = Vec::new();
    let known = |label: &str| ["instance", "job"].contains(&label);
    for (at, _) in query.match_indices("tradewind_") {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if query[..at].ends_with(is_part) {
            continue;
        }
        let text = &query[at..];
        let (name, rest) = text.split_at(text.find(|c| !is_part(c)).unwrap_or(text.len()));
        let Some(metric) = exported.get(name) else {
            wrong.push(format!("nobody exports `{name}`"));
            continue;
        };
        let within = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        for (label, value) in within.map(|(within, _)| labels(within)).unwrap_or_default() {
            let is_pattern = label.ends_with('~');
            let label = label.trim_end_matches(['=', '~', '!']);
            let Some(values) = metric.get(label) else {
                if !known(label) {
                    wrong.push(format!("`{name}` has no label `{label}`"));
                }
                continue;
            };
            for one in if is_pattern { value.split('|').collect() } else { vec![&*value] } {
                let (beginning, is_whole) = match one.find(".+").filter(|_| is_pattern) {
                    Some(end) => (&one[..end], false),
                    None => (one, true),
                };
                let fits = |value: &String| {
                    if is_whole { value == beginning } else { value.starts_with(beginning) }
                };
                if !values.iter().any(fits) {
                    wrong.push(format!("`{label}` of `{name}` is never `{one}`"));
                }
            }
        }
    }
    // Labels by which sums are made, and those that texts of alerts name.
    let grouped = query.split("by (").skip(1).filter_map(|rest| rest.split_once(')'));
    let grouped = grouped.flat_map(|(list, _)| list.split(','));
    let told = query.split("$labels.").skip(1).filter_map(|rest| rest.split_once(' '));
    for label in grouped.chain(told.map(|(label, _)| label)).map(str::trim) {
        let has = |name: &String| exported.get(name).is_some_and(|it| it.contains_key(label));
        if !known(label) && !names(query).iter().any(has) {
            wrong.push(format!("nothing has the label `{label}`"));
        }
    }
    wrong
}

#[test]
fn queries_ask_for_labels_that_are_exported() {
    let files = Files::new("labels");
    let daemons = daemons(&files);
    let pages: String = daemons.iter().map(|(_, at)| page(*at, "1.1", "/metrics")).collect();
    let exported = series(&pages);
    let rules = std::fs::read_to_string(RULES).unwrap();
    let rules = rules.split("- alert:").skip(1).map(str::to_owned);
    for query in queries().into_iter().chain(rules) {
        let wrong = wrong_labels(&query, &exported);
        assert_eq!(wrong, [""; 0], "{query}");
    }
    // The check would tell.
    for (query, expected) in [
        ("tradewind_nonsense", "nobody exports `tradewind_nonsense`"),
        (
            "tradewind_gateway_path_state{instance=~\".*\", state!=\"up\"}",
            "`state` of `tradewind_gateway_path_state` is never `up`",
        ),
        (
            "tradewind_packet_datagrams_total{outcome=~\"accepted|found_.+\"}",
            "`outcome` of `tradewind_packet_datagrams_total` is never `found_.+`",
        ),
        (
            "tradewind_relay_open_sessions{colour=\"red\"}",
            "`tradewind_relay_open_sessions` has no label `colour`",
        ),
        ("sum by (colour) (tradewind_relay_open_sessions)", "nothing has the label `colour`"),
    ] {
        assert_eq!(wrong_labels(query, &exported), [expected], "{query}");
    }
}

/// Returns what is wrong with the names and headings of these metrics, by the conventions of
/// Prometheus.
fn wrong_names(metrics: &str) -> Vec<String> {
    /// Units that are no base units.
    const UNITS: [&str; 14] = [
        "ms",
        "millis",
        "milliseconds",
        "microseconds",
        "nanoseconds",
        "minutes",
        "hours",
        "days",
        "kilobytes",
        "megabytes",
        "bits",
        "kb",
        "mb",
        "percent",
    ];
    let kinds: BTreeMap<&str, &str> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let has_help = |name: &str| metrics.contains(&format!("# HELP {name} "));
    let mut wrong = Vec::new();
    for name in series(metrics).into_keys() {
        let families = ["_total", "_info", "_bucket", "_sum", "_count", ""];
        let family = families.iter().filter_map(|end| name.strip_suffix(end));
        let Some(family) = family.into_iter().find(|family| kinds.contains_key(family)) else {
            wrong.push(format!("{name} has no TYPE"));
            continue;
        };
        if !has_help(family) {
            wrong.push(format!("{name} has no HELP"));
        }
        if (kinds[family] == "counter") != name.ends_with("_total") {
            wrong.push(format!("{name} is a {}", kinds[family]));
        }
    }
    // Also of those that have no series yet.
    for name in kinds.keys() {
        if let Some(unit) = name.split('_').find(|word| UNITS.contains(word)) {
            wrong.push(format!("{name}: {unit} is no base unit"));
        }
    }
    wrong
}

#[test]
fn metrics_have_base_units_and_headings() {
    let files = Files::new("units");
    for (_running, address) in &daemons(&files) {
        let metrics = page(*address, "1.1", "/metrics");
        assert!(metrics.ends_with("# EOF\n"), "{metrics}");
        assert_eq!(wrong_names(&metrics), [""; 0], "{metrics}");
    }
    let wrong = "# TYPE a_ms gauge\na_ms 1\nb 2\n# HELP c x\n# TYPE c counter\nc 1\n";
    let expected =
        ["a_ms has no HELP", "b has no TYPE", "c is a counter", "a_ms: ms is no base unit"];
    assert_eq!(wrong_names(wrong), expected);
}

/// Checks whether an alert fires an hour after these series began, a sample a minute.
fn fires(files: &Files, series: &str, alert: &str, expected: bool) {
    let rules = std::fs::canonicalize(RULES).unwrap();
    let samples = if expected { "[{ labels: '{}', value: 1 }]" } else { "[]" };
    let text = format!(
        "rule_files: ['{}']\nevaluation_interval: 1m\ntests:\n- interval: 1m\n  \
         input_series:\n{series}  promql_expr_test:\n  - expr: \
         count(ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}})\n    eval_time: 1h\n    \
         exp_samples: {samples}\n",
        rules.display()
    );
    let file = files.write("rules.yml", text);
    let (is_so, said) = promtool(&["test", "rules", file.to_str().unwrap()], "");
    assert!(is_so, "{alert}: {series}: {said}");
}

#[test]
fn alerts_fire_when_something_is_to_be_done() {
    if !has("promtool", "alerts") {
        return;
    }
    let files = Files::new("alerts");
    let series =
        |name: &str, values: &str| format!("  - series: '{name}'\n    values: '{values}'\n");
    let failing = series("tradewind_controller_plans_failed_total{instance=\"c\"}", "0+1x60");
    let hosts = |count| {
        let name =
            |state: &str| format!("tradewind_controller_hosts{{instance=\"c\",state=\"{state}\"}}");
        series(&name("well"), count) + &series(&name("revoked"), "1+0x60")
    };
    fires(&files, &(failing.clone() + &hosts("1+0x60")), "TradewindPlansFail", true);
    fires(&files, &(failing + &hosts("0+0x60")), "TradewindPlansFail", false);
    let reloads = |values: &str| {
        ["relay", "gateway"].map(|program| {
            let name = format!("tradewind_{program}_config_last_reload_successful");
            series(&format!("{name}{{instance=\"{program}\"}}"), values)
        })
    };
    for refused in reloads("1+0x50 0+0x10") {
        fires(&files, &refused, "TradewindConfigRefused", true);
    }
    fires(&files, &reloads("0+0x50 1+0x10").concat(), "TradewindConfigRefused", false);
    let up =
        |job: &str, values: &str| series(&format!("up{{job=\"{job}\",instance=\"h\"}}"), values);
    fires(&files, &up("tradewind-hosts", "1+0x50 0+0x10"), "TradewindProcessDown", true);
    fires(&files, &up("tradewind-hosts", "0+0x60"), "TradewindProcessDown", false);
    fires(&files, &up("other", "1+0x50 0+0x10"), "TradewindProcessDown", false);
    let packets = |outcome: &str, values: &str| {
        let labels = format!("{{instance=\"g\",outcome=\"{outcome}\"}}");
        series(&format!("tradewind_packet_datagrams_total{labels}"), values)
    };
    let delivered = packets("delivered", "0+100x60");
    let (many, few) = (packets("late", "0+10x60"), packets("late", "0+1x60"));
    fires(&files, &(delivered.clone() + &many), "TradewindPacketsLate", true);
    fires(&files, &(delivered + &few), "TradewindPacketsLate", false);
    let paths = |values: &str| series("tradewind_packet_paths_up{instance=\"g\"}", values);
    fires(&files, &paths("2+0x40 1+0x20"), "TradewindPacketPathsLost", true);
    fires(&files, &paths("0+0x60"), "TradewindPacketPathsLost", false);
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
    let rules = std::fs::canonicalize(RULES).unwrap();
    // The one that users copy, faster and with these processes.
    let config = std::fs::read_to_string(SCRAPES).unwrap();
    let config = config.replace(": 15s", ": 1s");
    let config = config.replace("alerts.yml", rules.to_str().unwrap());
    let listed = "\"127.0.0.1:9101\", \"127.0.0.1:9102\"";
    assert!(config.contains(listed) && config.contains(": 1s"), "{config}");
    let config = config.replace(listed, &targets.join(", "));
    files.write("prometheus.yml", config);
    let address = free();
    let mut server = tool("prometheus");
    server.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"]);
    server.arg(format!("--web.listen-address={address}")).current_dir(&files.0);
    let server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _server = Running(server);
    let ask = |target: &str| -> Value {
        serde_json::from_str(&page(address, "1.0", target)).unwrap_or_default()
    };
    let count = |answer: &Value| answer["data"]["result"].as_array().map_or(0, Vec::len);
    until("all are scraped", || count(&ask("/api/v1/query?query=up==1")) == daemons.len());
    let builds = ask("/api/v1/query?query=tradewind_build_info");
    assert_eq!(count(&builds), daemons.len(), "{builds}");
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
        // Others are of what these daemons do not do; comparisons, of states that they are not in.
        if !query.contains("==") && names(&query).iter().all(has_samples) {
            until(&query, || count(&ask(&target)) > 0);
            asked += 1;
        }
    }
    assert!(asked > 15, "{asked}");
    let firing = ask("/api/v1/alerts");
    assert_eq!(firing["data"]["alerts"].as_array().map(Vec::len), Some(0), "{firing}");
}
