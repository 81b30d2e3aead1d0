//! The lab's figures, asserted: `cargo run -p xtask -- test-lab BINARY`.
//!
//! Runs the fidelity suite and the demo on real kernel TCP and holds their figures to what is promised. The lab says of each run
//! whether it kept time; a run that did not is tried again, three times in all, and is then *invalid*: neither passed nor failed.
//!
//! | step | asserts |
//! |---|---|
//! | fidelity | the emulator does what it is told (`lab/examples/fidelity`) |
//! | demo | acceleration of 2 at least, prediction within 25 % at the median, content, budget, nothing left behind |
//! | altered path | the plan follows the measurements: a region made far is no longer used |
//! | interrupt | Ctrl-C ends the demo and leaves nothing behind |

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Tries of a step whose run was invalid.
const TRIES: usize = 3;
/// Exit code of a run that the lab calls invalid, as of the product and of the fidelity suite.
const INVALID: i32 = 3;
/// What the demo must reach.
const LEAST_ACCELERATION: f64 = 2.0;
const LARGEST_MEDIAN_ERROR: f64 = 0.25;
/// The region that is made far, and by how much: a path over it takes longer than any other.
const FAR_REGION: &str = "gcp:asia-northeast1";
const FAR_RTT: &str = "900 ms";
/// When the demo is interrupted: while it measures.
const INTERRUPT_AFTER: Duration = Duration::from_secs(4);
/// Longest that an interrupted demo may take to end.
const LONGEST_END: Duration = Duration::from_secs(10);

/// What a step came to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Pass(String),
    Fail(String),
    Invalid(String),
}

/// One step: what it asserts is its verdict's text.
type Step = fn(&Lab) -> Verdict;

/// Runs all steps; tells each verdict, and the whole one by exit code and in `verdict_file`.
pub(crate) fn run(root: &Path, binary: &Path, verdict_file: Option<&Path>) -> ExitCode {
    let lab = Lab { root, binary, out: std::env::temp_dir().join("tradewind-test-lab") };
    if let Err(error) = fs::create_dir_all(&lab.out) {
        eprintln!("test-lab: {}: {error}", lab.out.display());
        return ExitCode::FAILURE;
    }
    let steps: [(&str, Step); 4] = [
        ("fidelity", fidelity),
        ("demo", demo),
        ("altered path", altered_path),
        ("interrupt", interrupt),
    ];
    let mut counts = [0; 3];
    for (name, step) in steps {
        println!("test-lab: {name} ...");
        let (slot, word, text) = match step(&lab) {
            Verdict::Pass(text) => (0, "pass", text),
            Verdict::Fail(text) => (1, "FAIL", text),
            Verdict::Invalid(text) => (2, "INVALID", text),
        };
        counts[slot] += 1;
        println!("test-lab: {name}: {word}: {text}");
    }
    let _ = fs::remove_dir_all(&lab.out);
    let [passed, failed, invalid] = counts;
    println!("test-lab: {passed} passed, {failed} failed, {invalid} invalid");
    let (word, code) = match counts {
        [_, 0, 0] => ("pass", ExitCode::SUCCESS),
        [_, 0, _] => ("invalid", ExitCode::from(3)),
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

struct Lab<'a> {
    root: &'a Path,
    binary: &'a Path,
    out: PathBuf,
}

fn fidelity(lab: &Lab) -> Verdict {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.current_dir(lab.root);
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
        "acceleration {acceleration:.2} (predicted {:.2}), prediction off by {:.1} % at the median, ${:.2} of ${:.2}",
        number("acceleration_predicted"),
        error * 100.0,
        number("cost_usd"),
        number("budget_usd")
    );
    let flows = report["flows"].as_array().cloned().unwrap_or_default();
    let hashes = flows.len() == 12 && flows.iter().all(|flow| flow["sha256_ok"] == true);
    // Written so that NaN fails.
    let holds = hashes
        && acceleration >= LEAST_ACCELERATION
        && error <= LARGEST_MEDIAN_ERROR
        && number("cost_usd") <= number("budget_usd");
    if holds {
        Verdict::Pass(figures)
    } else {
        Verdict::Fail(format!("{figures}, hashes right: {hashes}"))
    }
}

/// The topology is altered; the scenario that the planner reads is not.
fn altered_path(lab: &Lab) -> Verdict {
    let used = match valid_demo(lab, &["--quick"]) {
        Ok(report) => uses(&report, FAR_REGION),
        Err(verdict) => return verdict,
    };
    if !used {
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
        Ok(_) => {
            Verdict::Pass(format!("{FAR_REGION} is used, and no longer once it is {FAR_RTT} away"))
        }
        Err(verdict) => verdict,
    }
}

fn altered_scenario(lab: &Lab) -> Result<PathBuf, String> {
    let named = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let scenarios = lab.root.join("scenarios");
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

fn interrupt(lab: &Lab) -> Verdict {
    let before = Traces::now();
    let mut command = lab.demo(&["--quick"]);
    let mut child = match command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
        Ok(child) => child,
        Err(error) => return Verdict::Fail(format!("cannot run the demo: {error}")),
    };
    std::thread::sleep(INTERRUPT_AFTER);
    let signalled = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    if !signalled.is_ok_and(|status| status.success()) {
        let _ = child.kill();
        return Verdict::Fail("the demo had ended before it could be interrupted".into());
    }
    let since = Instant::now();
    while since.elapsed() < LONGEST_END {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => {
                return Verdict::Fail("an interrupted demo claims success".into());
            }
            Ok(Some(_)) => {
                return match Traces::now().beyond(&before) {
                    Some(left) => Verdict::Fail(left),
                    None => Verdict::Pass("nothing was left behind".into()),
                };
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    let _ = child.kill();
    Verdict::Fail(format!("the demo still ran {LONGEST_END:?} after Ctrl-C"))
}

impl Lab<'_> {
    fn demo(&self, more: &[&str]) -> Command {
        let mut command = Command::new(self.binary);
        command.args(["demo", "--output", "json", "--out"]).arg(&self.out).args(more);
        command
    }
}

/// The report of a demo during which the lab kept time.
fn valid_demo(lab: &Lab, more: &[&str]) -> Result<Value, Verdict> {
    let mut reasons = String::new();
    for _ in 0..TRIES {
        let output = lab.demo(more).stderr(Stdio::piped()).output();
        let output =
            output.map_err(|error| Verdict::Fail(format!("cannot run the demo: {error}")))?;
        let report: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        match (output.status.code(), report) {
            (Some(0), Some(report)) => return Ok(report),
            (Some(INVALID), Some(report)) => reasons = report["invalid_because"].to_string(),
            _ => {
                let text = String::from_utf8_lossy(&output.stderr);
                let last = text.lines().last().unwrap_or("without a word").to_owned();
                return Err(Verdict::Fail(format!(
                    "the demo ended with {}: {last}",
                    output.status
                )));
            }
        }
    }
    Err(Verdict::Invalid(format!("in each of {TRIES} tries: {reasons}")))
}

/// What a demo could leave behind.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Traces {
    network_namespaces: BTreeSet<PathBuf>,
    processes: BTreeSet<PathBuf>,
    files: BTreeSet<PathBuf>,
}

impl Traces {
    /// What is there; the kernel takes namespaces away a moment after their last process.
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

    /// What is here and was not there before, in words.
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
    fn what_is_left_behind_is_named() {
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
    fn a_region_on_a_path_is_found() {
        let report = serde_json::json!({"flows": [{"path": []}, {"path": ["gcp:a", "gcp:b"]}]});
        assert!(uses(&report, "gcp:b"));
        assert!(!uses(&report, "gcp:c"));
        assert!(!uses(&Value::Null, "gcp:b"));
    }
}
