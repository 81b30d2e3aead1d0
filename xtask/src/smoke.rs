//! Every bench, example and experiment that the docs quote, in its shortest form: `cargo run -p
//! xtask -- smoke BINARY`, with `tradewind-papers` beside it.
//!
//! Nothing here asserts a figure that depends on the machine. A run proves that the program still
//! starts, measures, judges and ends, and that the commands quoted in the docs exist. If the
//! machine lacks something (rights, data), the program reports it.
//!
//! Programs are built without optimization, as tests are: their speed does not matter here. Those
//! that need no lab run side by side.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::side_by_side;

/// Longest duration of one program, after which it is assumed to hang. Chosen: five times the
/// longest on an idle machine, the bench beside HAProxy.
const MAX: Duration = Duration::from_secs(600);
/// Time between two checks whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Exit code of a program that could not measure here, the same as the lab's.
const INVALID: i32 = 3;

/// The binary of the experiments, beside the product's.
const PAPERS: &str = "tradewind-papers";
/// The folders of built-in scenarios: the papers', and the demo's.
const SCENARIOS: [&str; 2] = ["papers/scenarios", "examples"];

/// Programs of this workspace, below the build folder, and their arguments.
const PROGRAMS: [(&str, &[&str]); 18] = [
    // The longest two come first.
    ("examples/control_holds", &["1"]),
    ("examples/capacity", &["2 Gbit/s"]),
    ("tradewind-bench-packets", &["--quick"]),
    ("examples/fec_speed", &["--quick"]),
    ("examples/header_cost", &["--quick"]),
    ("examples/accept", &[]),
    ("examples/flow", &[]),
    ("examples/four_cities", &["5", "2"]),
    ("examples/heuristics_hold", &["3"]),
    ("examples/control_scale", &["20", "20"]),
    ("examples/agents_at_once", &["25"]),
    ("examples/routing", &[]),
    ("examples/speculative", &["--quick"]),
    ("examples/jump_costs", &["--quick"]),
    ("examples/core_rate", &["--quick"]),
    ("examples/exact_time", &["1", "3"]),
    ("examples/planner_times", &["1", "6", "4"]),
    ("examples/auto_holds", &["--work", "150000", "0", "1"]),
];
/// Experiments without a lab.
const NUMERIC: [&str; 11] = [
    "cp-budget",
    "cp-cost",
    "jq-cost",
    "jq-delay",
    "jq-fec",
    "jq-straggler",
    "lab-day",
    "rt-cmax",
    "rt-model",
    "rt-traffic",
    "trn-day",
];
/// Experiments on the lab, their first part alone.
const ON_LAB: [&str; 12] = [
    "cdd-cc",
    "cdd-four",
    "cdd-hops",
    "cdd-sequence",
    "cp-model-lab",
    "jq-mobile",
    "jq-recovery-lab",
    "packet-uplink",
    "rt-guard",
    "rt-probes",
    "rt-ramp",
    "trn-tuned",
];
/// Quoted experiments that `test-lab` or `make test` run.
const ELSEWHERE: [&str; 5] = ["cp-real", "jq-recovery", "jq-tcp", "jq-video", "packet-failover"];

/// Runs all of them; the first word of each line on standard output is the result of one.
pub(crate) fn run(root: &Path, binary: &Path) -> ExitCode {
    let failed = AtomicUsize::new(0);
    let report = |name: &str, outcome: Result<Duration, String>| match outcome {
        Ok(took) => println!("smoke: {name}: ran, {:.1} s", took.as_secs_f64()),
        Err(why) => {
            failed.fetch_add(1, Ordering::Relaxed);
            println!("smoke: {name}: FAIL: {why}");
        }
    };
    for name in quoted_experiments(root) {
        let file = format!("{name}.toml");
        let is_known = SCENARIOS.iter().any(|folder| root.join(folder).join(&file).is_file());
        if !is_known {
            report(&name, Err("the docs quote it, and it has no scenario file".to_owned()));
        }
        if !is_run(&name) {
            report(&name, Err("the docs quote it, and nothing runs it".to_owned()));
        }
    }
    // All at once, with the features of the whole workspace: for a single package its dependencies
    // would be rebuilt.
    let mut build = crate::cargo(root);
    build.args(["build", "--locked", "--quiet", "--workspace", "--bins", "--examples"]);
    match build.status() {
        Ok(status) if status.success() => {}
        _ => return ExitCode::FAILURE,
    }
    let run = |one: &Run| {
        let mut command = Command::new(&one.path);
        report(one.name, finish(one.name, command.args(&one.arguments).current_dir(root)));
    };
    side_by_side(&without_lab(&built_in(root), binary), run);
    let papers = binary.with_file_name(PAPERS);
    for name in ON_LAB {
        run(&Run::new(name, &papers, &["run", name, "--quick", "--first-part"]));
    }
    if failed.into_inner() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One run of a program.
struct Run {
    name: &'static str,
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Run {
    fn new(name: &'static str, path: &Path, arguments: &[&str]) -> Self {
        Self { name, path: path.to_owned(), arguments: arguments.iter().map(Into::into).collect() }
    }
}

/// Returns the runs that need no lab, of programs built in `folder` and of the experiments.
fn without_lab(folder: &Path, binary: &Path) -> Vec<Run> {
    let program =
        |(name, arguments): (&'static str, &[&str])| Run::new(name, &folder.join(name), arguments);
    let mut bench = program((
        "tradewind-bench-relay",
        &["--quick", "--rounds=1", "--window=0.1", "--pinning=unpinned", "--tradewind"],
    ));
    bench.arguments.push(binary.into());
    let papers = binary.with_file_name(PAPERS);
    let numeric = NUMERIC.map(|name| Run::new(name, &papers, &["run", name, "--quick"]));
    PROGRAMS.map(program).into_iter().chain([bench]).chain(numeric).collect()
}

/// Returns the folder of programs that are built without optimization.
fn built_in(root: &Path) -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root.join(target).join("debug")
}

/// Returns whether an experiment is run, here or elsewhere.
fn is_run(name: &str) -> bool {
    NUMERIC.into_iter().chain(ON_LAB).chain(ELSEWHERE).any(|known| known == name)
}

/// Returns the experiments that the Markdown files quote.
fn quoted_experiments(root: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in crate::files_with(".md", root).unwrap_or_default() {
        names.extend(quoted_in(&fs::read_to_string(root.join(file)).unwrap_or_default()));
    }
    names
}

/// Returns the names after `tradewind-papers run` in a text.
fn quoted_in(text: &str) -> impl Iterator<Item = String> {
    text.split("tradewind-papers run ").skip(1).filter_map(|rest| {
        let is_part = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-';
        let name: String = rest.chars().take_while(is_part).collect();
        (name.contains('-') && !name.starts_with('-')).then_some(name)
    })
}

/// Runs a program to its end; returns its duration, or the end of its output as the error.
fn finish(name: &str, command: &mut Command) -> Result<Duration, String> {
    let begun = Instant::now();
    let output = tempfile(name);
    let file =
        fs::File::create(&output).map_err(|error| format!("{}: {error}", output.display()))?;
    let both = file.try_clone().map_err(|error| error.to_string())?;
    command.stdin(Stdio::null()).stdout(file).stderr(both);
    let mut child = command.spawn().map_err(|error| format!("cannot run it: {error}"))?;
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status.code()),
            Ok(None) if begun.elapsed() < MAX => std::thread::sleep(LOOK_EVERY),
            Ok(None) => {
                // It may have ended meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                break Err(format!("it did not end within {MAX:?}"));
            }
            Err(error) => break Err(error.to_string()),
        }
    };
    let text = fs::read_to_string(&output).unwrap_or_default();
    let _ = fs::remove_file(&output);
    match ended? {
        Some(0 | INVALID) => Ok(begun.elapsed()),
        code => {
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(8)..].join("\n");
            Err(format!("exit code {code:?}\n{last}"))
        }
    }
}

fn tempfile(name: &str) -> PathBuf {
    let name = name.replace('/', "-");
    std::env::temp_dir().join(format!("tradewind-smoke-{}-{name}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_experiments_are_all_run() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let quoted = quoted_experiments(&root);
        assert!(quoted.len() > 10, "{quoted:?}");
        let unrun: Vec<&String> = quoted.iter().filter(|name| !is_run(name)).collect();
        assert!(unrun.is_empty(), "{unrun:?}");
    }

    #[test]
    fn quoted_experiments_are_found_with_their_names() {
        let text = "`tradewind-papers run jq-cost --quick`, `tradewind-papers run FILE`, \
                    tradewind-papers run cdd-e2e.";
        assert_eq!(quoted_in(text).collect::<Vec<_>>(), ["jq-cost", "cdd-e2e"]);
    }
}
