//! The lab's figures, asserted: `cargo run -p xtask -- test-lab BINARY`, with `tradewind-papers`
//! beside it; `make test-lab STEPS='"demo" "first byte"'` runs some steps alone.
//!
//! Runs the fidelity suite, the demo and experiments on real kernel TCP and compares their figures
//! with the promised ones. The lab reports of each run whether it kept time; a run that did not is
//! tried again, three times in all, and is then *invalid*: neither passed nor failed.
//!
//! | step | asserts |
//! |---|---|
//! | fidelity | the emulator follows its settings (`crates/lab/examples/fidelity`) |
//! | demo | acceleration of 2 at least, prediction within 25 % at the median, content, budget, three minutes, nothing left behind |
//! | altered path | the plan follows the measurements: a region moved far away is no longer used |
//! | interrupt | Ctrl-C ends the demo and leaves nothing behind |
//! | killed relay | its agent starts a relay that is killed again: content, nothing left behind |
//! | without root | an ordinary user's demo, hosts attached by packet sockets: content, nothing left behind |
//! | overlay | `controller run --lab`: from nothing to a plan in 90 s, acceleration of 2 at least, as predicted within 25 %, content; flows leave a slow leg within a minute and no session breaks; without a budget all direct, no relay; nothing left behind |
//! | first byte | over a warm chain, by port forward and by TPROXY: after at most one end-to-end round trip and two access handshakes |
//! | failover | new sessions avoid a dead path within 1 s or three round trips, a slow one within 2 s, fall back to direct, and none of them fails |
//! | packets | recovery resumes within 2 s of a relay's return, while the Internet path carries on; packets bypass a dead gateway within 1 s |
//! | splitting | forwarding < two splitting relays < best three <= Quick-Start `[CDD III-A]`, and warm Quick-Start within 20 % of the lower bound |
//! | fairness | a lone download with `paced-start` ends within 15 % of the time by round trips and its rate, and loses no more than Cubic |
//! | chains | files arrive sooner over two relays than over two HAProxys: in half the time with default settings, and sooner than with tuned kernels; skipped without HAProxy |
//! | soak | sessions of all kinds under faults: no byte altered, none unaccounted for, none broken without a fault, nothing grows |

mod overlay;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The binary of the experiments, beside the product's.
const PAPERS: &str = "tradewind-papers";
/// Tries of a step whose run was invalid.
const TRIES: usize = 3;
/// Exit code of a run that the lab calls invalid, the same as the product's and the fidelity
/// suite's.
const INVALID: i32 = 3;
/// Required figures of the demo.
const MIN_ACCELERATION: f64 = 2.0;
const MAX_MEDIAN_ERROR: f64 = 0.25;
/// Longest duration of a demo, and of a quick one, in seconds.
const MAX_DEMO_S: f64 = 180.0;
const MAX_QUICK_DEMO_S: f64 = 45.0;
/// An ordinary user: nobody, on all Linux systems.
const ORDINARY_USER: &str = "65534";
/// The region that is moved away, and its round-trip time: a path over it takes longer than any
/// other.
const FAR_REGION: &str = "gcp:asia-northeast1";
const FAR_RTT: &str = "900 ms";
/// Time after which the demo is interrupted: while it measures.
const INTERRUPT_AFTER: Duration = Duration::from_secs(4);
/// Longest wait for relays.
const MAX_WAIT: Duration = Duration::from_secs(120);
/// Longest time for an interrupted demo to end.
const MAX_END: Duration = Duration::from_secs(10);

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Pass(String),
    Fail(String),
    Invalid(String),
    /// A program that it needs is not installed: its name.
    Skipped(String),
}

/// Findings that must hold in their experiments' quick runs, by the beginnings of their sentences:
/// the others need more repeats, or are expected to fail.
const SPLITTING: [&str; 2] =
    ["forwarding < splitting at two relays <", "ours: without access loss, warm Quick-Start"];
const FAIRNESS: [&str; 4] = [
    "ours: paced-start, receiver dials ends within",
    "ours: paced-start, warm ends within",
    "ours: paced-start, receiver dials loses no more",
    "ours: paced-start, warm loses no more",
];
const CHAINS: [&str; 2] = ["ours: 100 kB", "ours: 4 MB"];

/// One step; its verdict's text says what it asserts.
type Step = fn(&Lab) -> Verdict;

/// All steps by their names, in order.
const STEPS: [(&str, Step); 14] = [
    ("fidelity", fidelity),
    ("demo", demo),
    ("altered path", altered_path),
    ("interrupt", interrupt),
    ("killed relay", killed_relay),
    ("without root", without_root),
    ("overlay", overlay::overlay),
    ("first byte", |lab| experiment(lab, "stream-first-byte", &[])),
    ("failover", |lab| experiment(lab, "stream-failover", &[])),
    ("packets", |lab| experiment(lab, "packet-failover", &[])),
    ("splitting", |lab| experiment(lab, "cdd-split", &SPLITTING)),
    ("fairness", |lab| experiment(lab, "cdd-fair", &FAIRNESS)),
    ("chains", chains),
    ("soak", |lab| experiment(lab, "soak", &[])),
];

/// Runs the steps of these names, or all; prints each verdict, and gives the overall one by exit
/// code and in `verdict_file`.
pub(crate) fn run(
    root: &Path,
    binary: &Path,
    verdict_file: Option<&Path>,
    names: &[String],
) -> ExitCode {
    if let Some(unknown) = names.iter().find(|name| !STEPS.iter().any(|(step, _)| step == name)) {
        let known = STEPS.map(|(step, _)| step).join(", ");
        eprintln!("test-lab: no step is called `{unknown}`; there are: {known}");
        return ExitCode::from(2);
    }
    let out = match empty_folder("tradewind-test-lab") {
        Ok(out) => out,
        Err(error) => {
            eprintln!("test-lab: {error}");
            return ExitCode::FAILURE;
        }
    };
    let lab = Lab { root, binary, out };
    let is_asked = |name: &str| names.is_empty() || names.iter().any(|asked| asked == name);
    let mut counts = [0; 4];
    for (name, step) in STEPS.into_iter().filter(|(name, _)| is_asked(name)) {
        println!("test-lab: {name} ...");
        let (slot, word, text) = match step(&lab) {
            Verdict::Pass(text) => (0, "pass", text),
            Verdict::Fail(text) => (1, "FAIL", text),
            Verdict::Invalid(text) => (2, "INVALID", text),
            Verdict::Skipped(text) => (3, "SKIPPED", text),
        };
        counts[slot] += 1;
        println!("test-lab: {name}: {word}: {text}");
    }
    let _ = fs::remove_dir_all(&lab.out);
    let [passed, failed, invalid, skipped] = counts;
    println!("test-lab: {passed} passed, {failed} failed, {invalid} invalid, {skipped} skipped");
    let (word, code) = match counts {
        [_, 0, 0, _] => ("pass", ExitCode::SUCCESS),
        [_, 0, _, _] => ("invalid", ExitCode::from(3)),
        _ => ("fail", ExitCode::FAILURE),
    };
    if let Some(file) = verdict_file
        && let Err(error) = fs::write(file, word)
    {
        eprintln!("test-lab: {}: {error}", file.display());
        return ExitCode::FAILURE;
    }
    code
}

/// Returns a folder of this name for scratch files, without what a run left that was killed.
fn empty_folder(name: &str) -> Result<PathBuf, String> {
    let folder = std::env::temp_dir().join(name);
    let removed = match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir(&folder),
    };
    removed.map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

struct Lab<'a> {
    root: &'a Path,
    binary: &'a Path,
    out: PathBuf,
}

fn fidelity(lab: &Lab) -> Verdict {
    let mut command = crate::cargo(lab.root);
    command.args(["run", "--locked", "--release", "--quiet", "-p", "tradewind-lab"]);
    command.args(["--example", "fidelity"]);
    match command.status().map(|status| status.code()) {
        Ok(Some(0)) => Verdict::Pass("see the table above".into()),
        Ok(Some(INVALID)) => Verdict::Invalid("the lab did not keep time".into()),
        Ok(code) => Verdict::Fail(format!("exit code {code:?}; see the table above")),
        Err(error) => Verdict::Fail(format!("cannot run it: {error}")),
    }
}

fn demo(lab: &Lab) -> Verdict {
    let before = Traces::now();
    let report = match valid_demo(lab, &[]) {
        Ok(report) => report,
        Err(verdict) => return verdict,
    };
    if let Some(left) = Traces::now().beyond(&before) {
        return Verdict::Fail(left);
    }
    let number = |key: &str| report[key].as_f64().unwrap_or(f64::NAN);
    let acceleration = number("acceleration");
    let error = number("prediction_error_median");
    let figures = format!(
        "acceleration {acceleration:.2} (predicted {:.2}), \
         prediction off by {:.1} % at the median, ${:.2} of ${:.2}, {:.0} s",
        number("acceleration_predicted"),
        error * 100.0,
        number("cost_usd"),
        number("budget_usd"),
        seconds(&report)
    );
    let flows = report["flows"].as_array().cloned().unwrap_or_default();
    let hashes = flows.len() == 12 && flows.iter().all(|flow| flow["sha256_ok"] == true);
    // Written so that NaN fails.
    let holds = hashes
        && seconds(&report) <= MAX_DEMO_S
        && acceleration >= MIN_ACCELERATION
        && error <= MAX_MEDIAN_ERROR
        && number("cost_usd") <= number("budget_usd");
    if holds {
        Verdict::Pass(figures)
    } else {
        Verdict::Fail(format!("{figures}, hashes right: {hashes}"))
    }
}

/// Checks a demo whose topology is altered, while the scenario that the planner reads is not.
fn altered_path(lab: &Lab) -> Verdict {
    let usual = match valid_demo(lab, &["--quick"]) {
        Ok(report) => report,
        Err(verdict) => return verdict,
    };
    let took = seconds(&usual);
    if took > MAX_QUICK_DEMO_S {
        return Verdict::Fail(format!(
            "a quick demo took {took:.0} s, more than {MAX_QUICK_DEMO_S}"
        ));
    }
    if !uses(&usual, FAR_REGION) {
        return Verdict::Fail(format!(
            "{FAR_REGION} is not used to begin with: alter another region"
        ));
    }
    let scenario = match altered_scenario(lab) {
        Ok(scenario) => scenario,
        Err(error) => return Verdict::Fail(error),
    };
    match valid_demo(lab, &["--quick", "--scenario", &scenario.to_string_lossy()]) {
        Ok(report) if uses(&report, FAR_REGION) => {
            Verdict::Fail(format!("{FAR_REGION} is {FAR_RTT} away and still used"))
        }
        Ok(_) => Verdict::Pass(format!(
            "{FAR_REGION} is used, and no longer once it is {FAR_RTT} away; \
             a quick demo took {took:.0} s"
        )),
        Err(verdict) => verdict,
    }
}

fn altered_scenario(lab: &Lab) -> Result<PathBuf, String> {
    let named = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let scenarios = lab.root.join("examples");
    let read = |name: &str| {
        let path = scenarios.join(name);
        fs::read_to_string(&path).map_err(|error| named(&path, error))
    };
    let scenario = read("cp-real.toml")?;
    let mut topology = read("cp-real-wan.toml")?;
    for site in ["hamina", "london", "sao-paulo", "tokyo"] {
        let pair =
            format!("\n[[pair]]\nbetween = [\"{site}\", \"{FAR_REGION}\"]\nrtt = \"{FAR_RTT}\"\n");
        topology.push_str(&pair);
    }
    let path = lab.out.join("altered.toml");
    fs::write(&path, scenario).map_err(|error| named(&path, error))?;
    let wan = lab.out.join("cp-real-wan.toml");
    fs::write(&wan, topology).map_err(|error| named(&wan, error))?;
    Ok(path)
}

fn uses(report: &Value, region: &str) -> bool {
    let flows = report["flows"].as_array().map(Vec::as_slice).unwrap_or_default();
    let paths = flows.iter().filter_map(|flow| flow["path"].as_array());
    paths.flatten().any(|relay| relay == region)
}

/// Returns the total duration of a demo's steps.
fn seconds(report: &Value) -> f64 {
    let steps = report["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    steps.iter().map(|step| step["seconds"].as_f64().unwrap_or(f64::NAN)).sum()
}

fn interrupt(lab: &Lab) -> Verdict {
    ended_by(lab, MAX_END, |demo| {
        std::thread::sleep(INTERRUPT_AFTER);
        signal("-INT", demo)
    })
}

/// Checks a demo whose relay is killed as soon as it runs: its agent starts it again, while flows
/// are carried direct.
fn killed_relay(lab: &Lab) -> Verdict {
    let before = Traces::now();
    let mut command = lab.demo(&["--quick"]);
    let child = match command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return Verdict::Fail(format!("cannot run the demo: {error}")),
    };
    let since = Instant::now();
    let mut killed = None;
    while killed.is_none() && since.elapsed() < MAX_WAIT {
        std::thread::sleep(Duration::from_millis(20));
        killed = relays_of(child.id()).first().copied().filter(|relay| signal("-KILL", *relay));
    }
    let output = match child.wait_with_output() {
        Ok(output) => output,
        Err(error) => return Verdict::Fail(format!("cannot await the demo: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().last().unwrap_or("without a word").to_owned();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let flows = report["flows"].as_array().map(Vec::as_slice).unwrap_or_default();
    let all_ok = flows.len() == 12 && flows.iter().all(|flow| flow["sha256_ok"] == true);
    match (killed, Traces::now().beyond(&before)) {
        (_, Some(left)) => Verdict::Fail(left),
        (None, None) => Verdict::Fail("no relay ran".into()),
        // Its times are not asserted, so a late lab does not matter.
        (Some(_), None) if all_ok => Verdict::Pass("12 flows by hash, with the relay again".into()),
        (Some(_), None) => Verdict::Fail(format!("the demo ended with {}: {last}", output.status)),
    }
}

fn signal(signal: &str, process: u32) -> bool {
    let sent = Command::new("kill").args([signal, &process.to_string()]).status();
    sent.is_ok_and(|status| status.success())
}

/// Returns the relays that the agents of a demo have started.
fn relays_of(demo: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let read = |process: u32, name: &str| fs::read_to_string(format!("/proc/{process}/{name}"));
    let parent = |process: u32| -> Option<u32> {
        let status = read(process, "status").ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:\t"))?.trim().parse().ok()
    };
    let is_relay = |process: &u32| {
        parent(*process).and_then(parent) == Some(demo)
            && read(*process, "cmdline").is_ok_and(|text| text.contains("\0relay\0"))
    };
    processes.filter(is_relay).collect()
}

/// Checks that a demo ended by `end` does not claim success, gives the reason in at most one line,
/// and leaves nothing behind.
fn ended_by(lab: &Lab, longest: Duration, end: impl Fn(u32) -> bool) -> Verdict {
    let before = Traces::now();
    let mut command = lab.demo(&["--quick"]);
    let mut child = match command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return Verdict::Fail(format!("cannot run the demo: {error}")),
    };
    if !end(child.id()) {
        let _ = child.kill();
        let _ = child.wait();
        return Verdict::Fail("the demo had ended before anything could be done to it".into());
    }
    let since = Instant::now();
    while since.elapsed() < longest {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => {
                return Verdict::Fail("a demo that was ended claims success".into());
            }
            Ok(Some(_)) => {
                let mut stderr = String::new();
                if let Some(mut errors) = child.stderr.take() {
                    let _ = std::io::Read::read_to_string(&mut errors, &mut stderr);
                }
                let last = stderr.lines().last().unwrap_or("without a word").to_owned();
                return match Traces::now().beyond(&before) {
                    Some(left) => Verdict::Fail(left),
                    None if stderr.contains("panicked") => Verdict::Fail(last),
                    None => Verdict::Pass(format!("nothing was left behind; `{last}`")),
                };
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    let _ = child.kill();
    Verdict::Fail(format!("the demo still ran {longest:?} after that"))
}

/// Checks a demo as an ordinary user, who may not open `/dev/net/tun`, nor hold a real-time
/// priority.
fn without_root(lab: &Lab) -> Verdict {
    let before = Traces::now();
    let made = empty_folder("tradewind-test-lab-user").and_then(|out| {
        let owned = std::os::unix::fs::chown(&out, Some(65534), Some(65534));
        owned.map(|()| out.clone()).map_err(|error| format!("{}: {error}", out.display()))
    });
    let out = match made {
        Ok(out) => out,
        Err(error) => return Verdict::Invalid(error),
    };
    let binary = out.join("tradewind");
    let copied = fs::copy(lab.binary, &binary);
    let verdict = match copied {
        Ok(_) => demo_of_user(&out, &binary),
        Err(error) => Verdict::Fail(format!("{}: {error}", binary.display())),
    };
    let _ = fs::remove_dir_all(&out);
    match (verdict, Traces::now().beyond(&before)) {
        (Verdict::Pass(_) | Verdict::Invalid(_), Some(left)) => Verdict::Fail(left),
        (verdict, _) => verdict,
    }
}

fn demo_of_user(out: &Path, binary: &Path) -> Verdict {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", ORDINARY_USER, "--regid", ORDINARY_USER, "--clear-groups"]);
    command.arg(binary).args(["demo", "--strict", "--quick", "--output", "json", "--out"]).arg(out);
    command.current_dir(out).env("HOME", out);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return Verdict::Fail(format!("cannot run setpriv: {error}")),
    };
    let report: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    let Some(report) = report else {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let last = text.lines().last().unwrap_or("without a word").to_owned();
        // A kernel may forbid it; then it is unproven here, and not wrong.
        return if last.contains("user namespace") {
            Verdict::Invalid(last)
        } else {
            Verdict::Fail(last)
        };
    };
    // Its times are not asserted, so a late lab does not matter.
    let flows = report["flows"].as_array().cloned().unwrap_or_default();
    if flows.len() == 12 && flows.iter().all(|flow| flow["sha256_ok"] == true) {
        Verdict::Pass(format!("12 flows by hash in {:.0} s", seconds(&report)))
    } else {
        Verdict::Fail(format!("content: {flows:?}"))
    }
}

impl Lab<'_> {
    fn demo(&self, more: &[&str]) -> Command {
        let mut command = Command::new(self.binary);
        command.args(["demo", "--strict", "--output", "json", "--out"]).arg(&self.out).args(more);
        command
    }
}

/// Compares chains of relays with chains of HAProxy, which not every machine has.
fn chains(lab: &Lab) -> Verdict {
    let mut haproxy = Command::new("haproxy");
    match haproxy.arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => experiment(lab, "stream-chains", &CHAINS),
        _ => Verdict::Skipped("HAProxy is not installed (`make setup-bench`)".into()),
    }
}

/// Checks that every finding of an experiment holds, or only those whose sentences begin like one
/// of `only`: in the first run, or else in two with other seeds.
fn experiment(lab: &Lab, name: &str, only: &[&str]) -> Verdict {
    let run = |seed: &str| {
        let valid = valid(name, || {
            let mut command = Command::new(lab.binary.with_file_name(PAPERS));
            command.args(["run", name, "--quick", "--seed", seed, "--output", "json"]);
            command
        });
        valid.map_or_else(|verdict| verdict, |record| judge(&record, only))
    };
    let first = run("1");
    let Verdict::Fail(why) = &first else { return first };
    println!("{name}, seed 1: {why}; two more must hold");
    match run("2") {
        Verdict::Pass(_) => run("3"),
        other => other,
    }
}

fn judge(record: &Value, only: &[&str]) -> Verdict {
    let findings = record["findings"].as_array().map(Vec::as_slice).unwrap_or_default();
    let begins_with = |finding: &&Value, begin: &str| {
        finding["paper"].as_str().is_some_and(|paper| paper.starts_with(begin))
    };
    if let Some(begin) =
        only.iter().find(|begin| !findings.iter().any(|it| begins_with(&it, begin)))
    {
        return Verdict::Fail(format!("no finding begins with `{begin}`"));
    }
    let is_held = |it: &&Value| only.is_empty() || only.iter().any(|begin| begins_with(it, begin));
    let findings: Vec<&Value> = findings.iter().filter(is_held).collect();
    let describe = |finding: &&Value| {
        let text = |key: &str| finding[key].as_str().unwrap_or_default().to_owned();
        format!("{}: {}", text("paper"), text("ours"))
    };
    let broken: Vec<String> =
        findings.iter().filter(|finding| finding["holds"] != true).map(describe).collect();
    if findings.is_empty() {
        return Verdict::Fail("it found nothing".into());
    }
    if !broken.is_empty() {
        return Verdict::Fail(broken.join("; "));
    }
    Verdict::Pass(findings.iter().map(describe).collect::<Vec<_>>().join("; "))
}

/// Returns the report of a demo during which the lab kept time.
fn valid_demo(lab: &Lab, more: &[&str]) -> Result<Value, Verdict> {
    valid("the demo", || lab.demo(more))
}

/// Returns the output of a run during which the lab kept time.
fn valid(name: &str, run: impl Fn() -> Command) -> Result<Value, Verdict> {
    let mut reasons = String::new();
    for _ in 0..TRIES {
        let output = run().stderr(Stdio::piped()).output();
        let output =
            output.map_err(|error| Verdict::Fail(format!("cannot run {name}: {error}")))?;
        let report: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        match (output.status.code(), report) {
            (Some(0), Some(report)) => return Ok(report),
            (Some(INVALID), Some(report)) => reasons = report["invalid_because"].to_string(),
            _ => {
                let text = String::from_utf8_lossy(&output.stderr);
                let last = text.lines().last().unwrap_or("without a word").to_owned();
                return Err(Verdict::Fail(format!("{name} ended with {}: {last}", output.status)));
            }
        }
    }
    Err(Verdict::Invalid(format!("in each of {TRIES} tries: {reasons}")))
}

/// Traces that a demo could leave behind.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Traces {
    network_namespaces: BTreeSet<PathBuf>,
    processes: BTreeSet<PathBuf>,
    files: BTreeSet<PathBuf>,
}

impl Traces {
    /// Returns the current traces; the kernel removes namespaces a moment after their last process.
    fn now() -> Self {
        std::thread::sleep(Duration::from_millis(500));
        let entries = |folder: &Path| {
            let read = fs::read_dir(folder).into_iter().flatten();
            read.filter_map(|entry| Some(entry.ok()?.path())).collect::<Vec<_>>()
        };
        let processes = entries(Path::new("/proc"));
        let namespaces =
            processes.iter().filter_map(|path| fs::read_link(path.join("ns/net")).ok());
        let is_ours = |path: &&PathBuf| {
            fs::read_link(path.join("exe")).is_ok_and(|exe| exe.ends_with("tradewind"))
        };
        let is_scratch = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("tradewind-demo-")
        };
        Self {
            network_namespaces: namespaces.collect(),
            processes: processes.iter().filter(is_ours).cloned().collect(),
            files: entries(&std::env::temp_dir()).into_iter().filter(is_scratch).collect(),
        }
    }

    /// Describes traces that are here and were not there before.
    fn beyond(&self, before: &Self) -> Option<String> {
        let kinds = [
            ("namespaces", &self.network_namespaces, &before.network_namespaces),
            ("processes", &self.processes, &before.processes),
            ("files", &self.files, &before.files),
        ];
        kinds.iter().find_map(|(kind, now, then)| {
            let more: Vec<_> = now.difference(then).collect();
            (!more.is_empty()).then(|| format!("left behind: {kind} {more:?}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_over_traces_are_named() {
        let before = Traces {
            network_namespaces: BTreeSet::from(["net:[1]".into()]),
            processes: BTreeSet::new(),
            files: BTreeSet::new(),
        };
        assert_eq!(before.beyond(&before), None);
        let after = Traces { processes: BTreeSet::from(["/proc/7".into()]), ..before.clone() };
        assert!(after.beyond(&before).unwrap().contains("/proc/7"));
    }

    #[test]
    fn experiment_passes_if_all_findings_hold() {
        let record = |holds: &[bool]| {
            let finding =
                |holds| serde_json::json!({"paper": "soon", "holds": holds, "ours": "1 s"});
            serde_json::json!({"findings": holds.iter().map(finding).collect::<Vec<_>>()})
        };
        let passed = Verdict::Pass("soon: 1 s; soon: 1 s".into());
        assert_eq!(judge(&record(&[true, true]), &[]), passed);
        assert_eq!(judge(&record(&[true, false]), &[]), Verdict::Fail("soon: 1 s".into()));
        assert!(matches!(judge(&record(&[]), &[]), Verdict::Fail(_)));
    }

    #[test]
    fn required_findings_must_exist() {
        let finding =
            |paper: &str, holds| serde_json::json!({"paper": paper, "holds": holds, "ours": "x"});
        let record =
            serde_json::json!({"findings": [finding("near: a", true), finding("far: b", false)]});
        assert_eq!(judge(&record, &["near"]), Verdict::Pass("near: a: x".into()));
        assert_eq!(judge(&record, &["near", "far"]), Verdict::Fail("far: b: x".into()));
        assert!(matches!(judge(&record, &["near", "soon"]), Verdict::Fail(_)));
    }

    #[test]
    fn region_on_a_path_is_found() {
        let report = serde_json::json!({"flows": [{"path": []}, {"path": ["gcp:a", "gcp:b"]}]});
        assert!(uses(&report, "gcp:b"));
        assert!(!uses(&report, "gcp:c"));
        assert!(!uses(&Value::Null, "gcp:b"));
    }
}
