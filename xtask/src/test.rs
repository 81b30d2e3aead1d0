//! All tests, and a second chance for those that meet the kernel: `cargo run -p xtask -- test`.
//!
//! Crates above the pure floors run real sockets, processes and clocks, on machines that may be busy with other things. A test target
//! of theirs that fails runs once more, alone. If it passes then it is *flaky*: said aloud, counted as passed, and a defect to be
//! mended. What fails twice, and whatever fails on a pure floor, has failed.
//!
//! A test that cannot run here says `SKIPPED` on standard error, and why. Cargo counts it as passed; here it is told at the end that it proves nothing,
//! and with `TRADEWIND_SKIP=fail` in the environment it has failed.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::floors;

/// What is to become of skipped tests: they fail if it is `fail`.
const SKIP: &str = "TRADEWIND_SKIP";

/// Runs all test targets of the workspace at `root`.
pub(crate) fn run(root: &Path) -> ExitCode {
    let mut all = cargo(root, &["--workspace", "--all-targets", "--no-fail-fast"]);
    let (passed, said) = match heard(&mut all) {
        Ok(heard) => heard,
        Err(error) => {
            eprintln!("test: cargo: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (passed, again) = if passed { (true, Vec::new()) } else { run_again(root, &said) };
    let said = [said, again].concat();
    let skipped = skipped_tests(&said);
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

/// Runs what failed again, as far as that may be; whether all of it passes then, and what it said.
fn run_again(root: &Path, said: &[String]) -> (bool, Vec<String>) {
    let failed = failed_targets(said);
    // Nothing named: it did not even compile.
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
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--locked"]).args(arguments).current_dir(root);
    cargo
}

/// Runs `command` to its end; whether it succeeded, and the lines of its standard error, which are passed on as they come.
fn heard(command: &mut Command) -> std::io::Result<(bool, Vec<String>)> {
    let mut child = command.stderr(Stdio::piped()).spawn()?;
    let mut lines = Vec::new();
    for line in BufReader::new(child.stderr.take().expect("is piped")).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        eprintln!("{line}");
        lines.push(line);
    }
    Ok((child.wait()?.success(), lines))
}

/// What tests have said that did not run.
fn skipped_tests(said: &[String]) -> Vec<&str> {
    // Tests run side by side: one may have written into another's line.
    said.iter().filter_map(|line| line.find("SKIPPED").map(|at| &line[at..])).collect()
}

/// The targets that cargo lists at its end, each as the arguments that run it again.
fn failed_targets(said: &[String]) -> Vec<Vec<&str>> {
    let listed = said.iter().filter_map(|line| line.strip_prefix("    `")?.strip_suffix('`'));
    listed.map(|arguments| arguments.split(' ').collect()).collect()
}

/// Whether the target's crate is above the pure floors.
fn may_run_again(target: &[&str]) -> bool {
    let package = target.iter().skip_while(|word| **word != "-p").nth(1);
    package.is_some_and(|package| !floors::is_pure(package.trim_start_matches("tradewind-")))
}

fn passes_alone(root: &Path, target: &[&str], said: &mut Vec<String>) -> bool {
    println!("test: `{}` failed and runs again, alone", target.join(" "));
    heard(&mut cargo(root, target)).is_ok_and(|(passed, lines)| {
        said.extend(lines);
        passed
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_run_is_told() {
        let said = [
            "     Running tests/mtu.rs (target/debug/deps/mtu-1)",
            "SKIPPED nothing_is_cut: no right to make network namespaces",
            "test a ... SKIPPED: no nft",
        ]
        .map(str::to_owned);
        let told = skipped_tests(&said);
        assert_eq!(told[0], "SKIPPED nothing_is_cut: no right to make network namespaces");
        assert_eq!(told[1..], ["SKIPPED: no nft"]);
    }

    #[test]
    fn what_cargo_lists_runs_again_unless_it_is_pure() {
        let said = [
            "     Running unittests src/lib.rs (target/debug/deps/tradewind_wan-1)",
            "error: test failed, to rerun pass `-p tradewind-wan --lib`",
            "error: 3 targets failed:",
            "    `-p tradewind-wan --lib`",
            "    `-p tradewind-relay --test stream`",
            "    `-p tradewind --test packets`",
        ]
        .map(str::to_owned);
        let failed = failed_targets(&said);
        assert_eq!(failed[1], ["-p", "tradewind-relay", "--test", "stream"]);
        let again: Vec<bool> = failed.iter().map(|target| may_run_again(target)).collect();
        assert_eq!(again, [false, true, true]);
        assert!(!may_run_again(&["--lib"]), "of whom nothing is known");
    }
}
