//! All tests, with a second run of failed ones that use the kernel: `cargo run -p xtask -- test`.
//!
//! Crates above the pure layers use real sockets, processes and clocks, on machines that may be
//! busy with other things. A failed test target of theirs runs once more, alone. If it passes then
//! it is *flaky*: reported, counted as passed, and a defect to be mended. A target that fails
//! twice, or belongs to a pure layer, has failed.
//!
//! A test that cannot run here prints `SKIPPED` to standard error, with the reason. Cargo counts it
//! as passed; here it is reported at the end as proving nothing, and with `TRADEWIND_SKIP=fail` in
//! the environment it has failed.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::layers;

/// The environment variable that decides about skipped tests: they fail if it is `fail`.
const SKIP: &str = "TRADEWIND_SKIP";

/// Runs all test targets of the workspace at `root`.
pub(crate) fn run(root: &Path) -> ExitCode {
    let mut all = cargo(root, &["--workspace", "--all-targets", "--no-fail-fast"]);
    let (passed, output) = match run_and_pass_on(&mut all) {
        Ok(ended) => ended,
        Err(error) => {
            eprintln!("test: cargo: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (passed, again) = if passed { (true, Vec::new()) } else { run_again(root, &output) };
    let output = [output, again].concat();
    let skipped = skipped_tests(&output);
    for line in &skipped {
        println!("test: {line}");
    }
    let mut may_skip = true;
    if !skipped.is_empty() {
        may_skip = std::env::var_os(SKIP).is_none_or(|what| what != "fail");
        let word = if may_skip { "skipped" } else { "FAILED, since skipped" };
        println!("test: {} {word}: what they would show is unproven here", skipped.len());
    }
    if passed && may_skip { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs failed targets again, if they may be; returns whether all pass then, and their output.
fn run_again(root: &Path, output: &[String]) -> (bool, Vec<String>) {
    let failed = failed_targets(output);
    // No target is named: the build failed.
    let (mut all_pass, mut again) = (!failed.is_empty(), Vec::new());
    for target in failed {
        let passes = may_run_again(&target) && passes_alone(root, &target, &mut again);
        let word = if passes { "FLAKY" } else { "FAILED" };
        let how = if passes { " failed, and passed when it ran again, alone" } else { "" };
        println!("test: {word}: `{}`{how}", target.join(" "));
        all_pass &= passes;
    }
    (all_pass, again)
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut cargo = crate::cargo(root);
    cargo.args(["test", "--locked"]).args(arguments);
    cargo
}

/// Runs `command` to its end; returns whether it succeeded, and the lines of its standard error,
/// which are also passed on as they arrive.
fn run_and_pass_on(command: &mut Command) -> std::io::Result<(bool, Vec<String>)> {
    let mut child = command.stderr(Stdio::piped()).spawn()?;
    let mut lines = Vec::new();
    for line in BufReader::new(child.stderr.take().expect("is piped")).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        eprintln!("{line}");
        lines.push(line);
    }
    Ok((child.wait()?.success(), lines))
}

/// Returns the messages of tests that were skipped.
fn skipped_tests(output: &[String]) -> Vec<&str> {
    // Tests run side by side: one may have written into another's line.
    output.iter().filter_map(|line| line.find("SKIPPED").map(|at| &line[at..])).collect()
}

/// Returns the targets that cargo lists at its end, each as the arguments that run it again.
fn failed_targets(output: &[String]) -> Vec<Vec<&str>> {
    let listed = output.iter().filter_map(|line| line.strip_prefix("    `")?.strip_suffix('`'));
    listed.map(|arguments| arguments.split(' ').collect()).collect()
}

/// Returns whether the target's crate is above the pure layers.
fn may_run_again(target: &[&str]) -> bool {
    let package = target.iter().skip_while(|word| **word != "-p").nth(1);
    package.is_some_and(|package| !layers::is_pure(package.trim_start_matches("tradewind-")))
}

fn passes_alone(root: &Path, target: &[&str], output: &mut Vec<String>) -> bool {
    println!("test: `{}` failed and runs again, alone", target.join(" "));
    run_and_pass_on(&mut cargo(root, target)).is_ok_and(|(passed, lines)| {
        output.extend(lines);
        passed
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_tests_are_reported() {
        let output = [
            "     Running tests/mtu.rs (target/debug/deps/mtu-1)",
            "SKIPPED nothing_is_cut: no right to make network namespaces",
            "test a ... SKIPPED: no nft",
        ]
        .map(str::to_owned);
        let skipped = skipped_tests(&output);
        assert_eq!(skipped[0], "SKIPPED nothing_is_cut: no right to make network namespaces");
        assert_eq!(skipped[1..], ["SKIPPED: no nft"]);
    }

    #[test]
    fn failed_targets_run_again_unless_pure() {
        let output = [
            "     Running unittests src/lib.rs (target/debug/deps/tradewind_wan-1)",
            "error: test failed, to rerun pass `-p tradewind-wan --lib`",
            "error: 3 targets failed:",
            "    `-p tradewind-wan --lib`",
            "    `-p tradewind-relay --test stream`",
            "    `-p tradewind --test packets`",
        ]
        .map(str::to_owned);
        let failed = failed_targets(&output);
        assert_eq!(failed[1], ["-p", "tradewind-relay", "--test", "stream"]);
        let again: Vec<bool> = failed.iter().map(|target| may_run_again(target)).collect();
        assert_eq!(again, [false, true, true]);
        assert!(!may_run_again(&["--lib"]), "of whom nothing is known");
    }
}
