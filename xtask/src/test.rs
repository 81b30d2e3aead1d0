//! All tests, and a second chance for those that meet the kernel: `cargo run -p xtask -- test`.
//!
//! Crates above the pure floors run real sockets, processes and clocks, on machines that may be busy with other things. A test target
//! of theirs that fails runs once more, alone. If it passes then it is *flaky*: said aloud, counted as passed, and a defect to be
//! mended. What fails twice, and whatever fails on a pure floor, has failed.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::floors;

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
    if passed {
        return ExitCode::SUCCESS;
    }
    let failed = failed_targets(&said);
    let (flaky, broken): (Vec<_>, Vec<_>) =
        failed.iter().partition(|target| may_run_again(target) && passes_alone(root, target));
    for target in &flaky {
        println!("test: FLAKY: `{}` failed, and passed when it ran again, alone", target.join(" "));
    }
    for target in &broken {
        println!("test: FAILED: `{}`", target.join(" "));
    }
    // Nothing named: it did not even compile.
    if failed.is_empty() || !broken.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
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

fn passes_alone(root: &Path, target: &[&str]) -> bool {
    println!("test: `{}` failed and runs again, alone", target.join(" "));
    cargo(root, target).status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

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
