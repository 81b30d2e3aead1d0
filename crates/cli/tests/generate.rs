//! `tradewind generate`: the committed reference is that of the program, every command has a manual
//! page that is valid, and bash completes commands, options and values.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Files, text};

/// Names of the commands in the reference's headings, without `tradewind`.
fn commands(reference: &str) -> Vec<&str> {
    let headings = reference.lines().filter(|line| line.starts_with("##"));
    headings.filter_map(|line| line.split_once(" tradewind ").map(|(_, name)| name)).collect()
}

#[test]
fn committed_reference_is_fresh() {
    let files = Files::new("reference");
    files.prints("generate reference made");
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let mut names = Vec::new();
    for made in fs::read_dir(files.0.join("made")).unwrap() {
        let name = made.unwrap().file_name().into_string().unwrap();
        let committed = fs::read_to_string(committed.join(&name)).unwrap();
        let is_fresh = files.read(&format!("made/{name}")) == committed;
        assert!(is_fresh, "docs/reference/{name} is old: run `make reference`, and commit it");
        names.push(name);
    }
    names.sort();
    let expected = [
        "commands.md",
        "gateway.md",
        "hosts.md",
        "jumpstart.md",
        "machines.md",
        "problem.md",
        "relay.md",
    ];
    assert_eq!(names, expected);
}

#[test]
fn every_command_has_a_manual_page() {
    let files = Files::new("man");
    files.prints("generate man pages");
    files.prints("generate reference made");
    let reference = files.read("made/commands.md");
    let commands = commands(&reference);
    assert!(commands.len() > 20, "{commands:?}");
    let groff = Command::new("groff").arg("--version").output();
    if let Err(error) = &groff {
        eprintln!("SKIPPED every_command_has_a_manual_page: without groff's warnings: {error}");
    }
    for command in commands {
        let name = format!("pages/tradewind-{}.1", command.replace(' ', "-"));
        let page = files.read(&name);
        for part in [".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"] {
            assert!(page.lines().any(|line| line.starts_with(part)), "{name}: no {part}");
        }
        if groff.is_ok() {
            let mut groff = Command::new("groff");
            let output = groff.args(["-man", "-ww", "-z", &name]).current_dir(&files.0).output();
            assert_eq!(text(&output.unwrap().stderr), "", "{name}");
        }
    }
}

/// Returns what bash proposes for the last of these words, which are typed.
fn proposed(files: &Files, words: &[&str]) -> Vec<String> {
    let script = "source completions.bash
        words=(\"$@\")
        COMP_WORDS=(\"${words[@]}\")
        COMP_CWORD=$((${#words[@]} - 1))
        complete -p tradewind >&2
        _tradewind tradewind \"${words[-1]}\" \"${words[-2]}\"
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-euc", script, "bash"]).args(words).current_dir(&files.0);
    let output = bash.output().unwrap();
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{words:?}: {stderr}");
    // The function is the one that bash calls for the program.
    assert!(stderr.contains("-F _tradewind"), "{stderr}");
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    let files = Files::new("completions");
    files.write("completions.bash", files.prints("generate completions bash"));
    assert_eq!(proposed(&files, &["tradewind", "netc"]), ["netcheck"]);
    assert_eq!(proposed(&files, &["tradewind", "jumpstart", "st"]), ["status"]);
    assert_eq!(proposed(&files, &["tradewind", "plan", "compare", "--dead"]), ["--deadline"]);
    let algorithms = ["tradewind", "plan", "--algorithm", "exact"];
    assert_eq!(proposed(&files, &algorithms), ["exact-cp", "exact"]);
}

#[test]
fn other_shells_know_the_commands() {
    let files = Files::new("other-shells");
    for shell in ["fish", "zsh"] {
        let script = files.prints(&["generate", "completions", shell]);
        for command in ["gateway", "jumpstart", "netcheck"] {
            assert!(script.contains(command), "{shell}: no {command}");
        }
    }
}
