//! All tests, side by side, with a second run of failed ones that use the kernel: `cargo run -p
//! xtask -- test`.
//!
//! Cargo builds the tests, and would run one program after the other. Most of the time is spent
//! waiting for sockets, processes and clocks, so here as many programs run at once as there are
//! processors. What a program prints is shown as a whole when it ends.
//!
//! Crates above the pure layers use real sockets, processes and clocks, on machines that may be
//! busy with other things. A failed program of theirs runs once more, alone. If it passes then it
//! is *flaky*: reported, counted as passed, and a defect to be mended. A program that fails twice,
//! or belongs to a pure layer, has failed.
//!
//! A test that cannot run here prints `SKIPPED`, with the reason, and counts as passed; at the end
//! it is reported as proving nothing, and with `TRADEWIND_SKIP=fail` in the environment it has
//! failed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use serde::Deserialize;

use crate::layers;
use crate::side_by_side;

/// The environment variable that decides about skipped tests: they fail if it is `fail`.
const SKIP: &str = "TRADEWIND_SKIP";

/// A program of tests.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    /// Its name, as Cargo's arguments have it: `-p tradewind-relay --test stream`.
    name: String,
    path: PathBuf,
    /// The folder of its package, in which it runs.
    folder: PathBuf,
    is_pure: bool,
}

/// The end of a program.
struct Ended {
    passed: bool,
    output: String,
}

/// Runs all tests of the workspace at `root`.
pub(crate) fn run(root: &Path) -> ExitCode {
    let programs = match programs(root) {
        Ok(programs) => programs,
        Err(problem) => {
            eprintln!("test: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let ended = side_by_side(&programs, run_one);
    let mut all_pass = true;
    let mut skipped = Vec::new();
    for (program, mut ended) in programs.iter().zip(ended) {
        if !ended.passed {
            let again = (!program.is_pure).then(|| {
                println!("test: `{}` failed and runs again, alone", program.name);
                run_one(program)
            });
            let passes = again.as_ref().is_some_and(|again| again.passed);
            let word = if passes { "FLAKY" } else { "FAILED" };
            let how = if passes { " failed, and passed when it ran again, alone" } else { "" };
            println!("test: {word}: `{}`{how}", program.name);
            all_pass &= passes;
            ended = again.unwrap_or(ended);
        }
        skipped.extend(skipped_tests(&ended.output).map(str::to_owned));
    }
    for line in &skipped {
        println!("test: {line}");
    }
    let mut may_skip = true;
    if !skipped.is_empty() {
        may_skip = std::env::var_os(SKIP).is_none_or(|what| what != "fail");
        let word = if may_skip { "skipped" } else { "FAILED, since skipped" };
        println!("test: {} {word}: what they would show is unproven here", skipped.len());
    }
    if all_pass && may_skip { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Builds all tests, and returns their programs by name.
fn programs(root: &Path) -> Result<Vec<Program>, String> {
    let mut cargo = crate::cargo(root);
    cargo.args(["test", "--locked", "--workspace", "--all-targets", "--no-run"]);
    // Warnings and errors go to standard error, as usual.
    cargo.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = cargo.output().map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err("the tests cannot be built".to_owned());
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let programs: Result<Vec<Option<Program>>, String> = messages.lines().map(program_of).collect();
    let mut programs: Vec<Program> = programs?.into_iter().flatten().collect();
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    if programs.is_empty() { Err("Cargo names no tests".to_owned()) } else { Ok(programs) }
}

/// Returns the program of tests of one of Cargo's messages, if it is about one.
fn program_of(message: &str) -> Result<Option<Program>, String> {
    #[derive(Deserialize)]
    struct Reason {
        reason: String,
    }
    #[derive(Deserialize)]
    struct Artifact {
        package_id: String,
        manifest_path: PathBuf,
        target: Target,
        profile: Profile,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }
    let unread = |error| format!("a message of Cargo cannot be read: {error}: {message}");
    let Reason { reason } = serde_json::from_str(message).map_err(unread)?;
    if reason != "compiler-artifact" {
        return Ok(None);
    }
    let Artifact { package_id, manifest_path, target, profile, executable } =
        serde_json::from_str(message).map_err(unread)?;
    let Some(path) = executable.filter(|_| profile.test) else { return Ok(None) };
    let folder = manifest_path.parent().unwrap_or(Path::new("/")).to_owned();
    let package = package_of(&package_id, &folder);
    let which = match target.kind.first().map(String::as_str) {
        Some(kind @ ("bin" | "example" | "test" | "bench")) => format!("--{kind} {}", target.name),
        _ => "--lib".to_owned(),
    };
    let is_pure = layers::is_pure(package.trim_start_matches("tradewind-"));
    Ok(Some(Program { name: format!("-p {package} {which}"), path, folder, is_pure }))
}

/// Returns the name in a package's id: `path+file:///w/crates/relay#tradewind-relay@0.1.0`, or
/// `path+file:///w/xtask#0.1.0` where the folder has the same name.
fn package_of(id: &str, folder: &Path) -> String {
    let name = id.rsplit_once('#').and_then(|(_, rest)| rest.split_once('@'));
    name.map_or_else(
        || folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        |(name, _)| name.to_owned(),
    )
}

/// Runs a program to its end, and shows what it printed.
fn run_one(program: &Program) -> Ended {
    let begun = Instant::now();
    // A program that hangs is known by this line.
    println!("test: {} begins", program.name);
    let ended = output_of(program).unwrap_or_else(|error| Ended {
        passed: false,
        output: format!("{}: {error}\n", program.path.display()),
    });
    let took = begun.elapsed().as_secs_f64();
    print!("test: {}, {took:.1} s\n{}", program.name, ended.output);
    ended
}

/// Writes the output to a file: a pipe stays open as long as any process that a test has left.
fn output_of(program: &Program) -> io::Result<Ended> {
    let name = program.path.file_name().unwrap_or_default().to_string_lossy();
    let path = std::env::temp_dir().join(format!("tradewind-test-{}-{name}", std::process::id()));
    let file = File::create(&path)?;
    let mut command = Command::new(&program.path);
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let status = command.status();
    let output = fs::read(&path);
    fs::remove_file(&path)?;
    let mut output = String::from_utf8_lossy(&output?).into_owned();
    let status = status?;
    if !status.success() {
        output.push_str(&format!("ended with {status}\n"));
    }
    Ok(Ended { passed: status.success(), output })
}

/// Returns the messages of tests that were skipped.
fn skipped_tests(output: &str) -> impl Iterator<Item = &str> {
    // Tests run side by side: one may have written into another's line.
    output.lines().filter_map(|line| line.find("SKIPPED").map(|at| &line[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_tests_are_reported() {
        let output = "running 3 tests\n\
             SKIPPED nothing_is_cut: no right to make network namespaces\n\
             test a ... SKIPPED: no nft\n";
        let skipped: Vec<&str> = skipped_tests(output).collect();
        assert_eq!(skipped[0], "SKIPPED nothing_is_cut: no right to make network namespaces");
        assert_eq!(skipped[1..], ["SKIPPED: no nft"]);
    }

    fn message(id: &str, kind: &str, is_test: bool) -> String {
        let folder = id.split('#').next().unwrap();
        serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": format!("path+file:///w/{id}"),
            "manifest_path": format!("/w/{folder}/Cargo.toml"),
            "target": { "name": "stream", "kind": [kind] },
            "profile": { "test": is_test },
            "executable": "/t/debug/deps/stream-1",
        })
        .to_string()
    }

    #[test]
    fn programs_are_those_of_tests() {
        let of = |id, kind| program_of(&message(id, kind, true)).unwrap().unwrap();
        let program = of("crates/relay#tradewind-relay@0.1.0", "test");
        assert_eq!(program.name, "-p tradewind-relay --test stream");
        assert_eq!(program.folder, Path::new("/w/crates/relay"));
        let units = of("crates/units#tradewind-units@0.1.0", "lib");
        assert_eq!(units.name, "-p tradewind-units --lib");
        assert!(!program.is_pure && units.is_pure);
        assert_eq!(of("xtask#0.1.0", "bin").name, "-p xtask --bin stream");
        let no_test = message("xtask#0.1.0", "bin", false);
        assert_eq!(program_of(&no_test), Ok(None));
        assert_eq!(program_of(r#"{"reason":"build-finished","success":true}"#), Ok(None));
        assert!(program_of(r#"{"reason":"compiler-artifact"}"#).is_err());
    }

    #[test]
    fn ends_are_in_order_and_failures_are_told() {
        let shell = |name: &str| Program {
            name: name.to_owned(),
            path: format!("/bin/{name}").into(),
            folder: "/".into(),
            is_pure: false,
        };
        let ended = side_by_side(&["false", "pwd", "none"].map(shell), run_one);
        let passed: Vec<bool> = ended.iter().map(|ended| ended.passed).collect();
        assert_eq!(passed, [false, true, false]);
        assert_eq!(ended[1].output, "/\n");
        assert_eq!(ended[0].output, "ended with exit status: 1\n");
        assert!(ended[2].output.starts_with("/bin/none: "), "{}", ended[2].output);
    }
}
