//! Every mistake of a user is reported in one line that says what and where, with a non-zero exit
//! code and without a panic. Needs no privileges: all of this is refused before anything is
//! created.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{Files, PROGRAM, command, text};

/// Makes a key in file `name`; returns its public half.
fn keygen(files: &Files, kind: &str, name: &str) -> String {
    files.prints(&["keygen", kind, name]).trim().to_owned()
}

fn tradewind(arguments: &[&str], directory: &Path) -> Output {
    command(arguments, directory).output().unwrap()
}

/// Arguments of every command that reads a file, without the file.
const READERS: [&[&str]; 12] = [
    &["relay", "--config"],
    &["gateway", "--config"],
    &["grant", "issue", "--key"],
    &["lab", "up"],
    &["lab", "serve"],
    &["controller", "run", "net", "--lab"],
    &["demo", "--scenario"],
    &["plan", "--problem"],
    &["probe", "rate", "127.0.0.1:1", "--secret"],
    &["probe", "responder", "--listen", "127.0.0.1:0", "--secret"],
    &["grant", "issue", "--key", "operator.key"],
    &["keygen", "identity", "--public"],
];

#[test]
fn public_half_is_printed_again() {
    let files = Files::new("public");
    for kind in ["identity", "operator"] {
        let public = keygen(&files, kind, kind);
        assert_eq!(files.prints(&["keygen", kind, kind, "--public"]).trim(), public);
    }
    files.refuses(&["keygen", "identity", "operator", "--public"], "tradewind: operator: ");
}

#[test]
fn unreadable_files_are_named() {
    let files = Files::new("files");
    keygen(&files, "operator", "operator.key");
    files.write("binary", [0xff, 0xfe, 0x00, 0x80]);
    files.write("empty", "");
    fs::create_dir(files.0.join("directory")).unwrap();
    for reader in READERS {
        for file in ["absent", "binary", "empty", "directory"] {
            let mut arguments = reader.to_vec();
            arguments.push(file);
            if reader == ["grant", "issue", "--key"] {
                arguments.push("specification");
            }
            files.refuses(&arguments, &format!("tradewind: {file}: "));
        }
    }
}

#[test]
fn wrong_usage_takes_one_line_and_status_2() {
    let files = Files::new("usage");
    for (arguments, expected) in [
        (vec!["sail"], "'sail'"),
        (vec!["keygen"], "<KIND> <FILE>"),
        (vec!["keygen", "ship", "file"], "identity, operator"),
        (vec!["relay"], "--config"),
        (vec!["probe", "rtt"], "<TARGETS>"),
        (vec!["probe", "rtt", "127.0.0.1:1", "--interval", "-1s"], "not `-1s`"),
        (vec!["probe", "rtt", "127.0.0.1:1", "--samples", "-1"], "'-1'"),
        (vec!["probe", "rtt", "127.0.0.1:1", "127.0.0.1:2", "--samples", "0"], "1..=10000"),
        (vec!["probe", "rate", "127.0.0.1:1", "--volume", "-3MB"], "not `-3MB`"),
        (vec!["probe", "rate", "127.0.0.1:1", "--connections", "0"], "1..=64"),
        (vec!["probe", "rate", "127.0.0.1:1", "--connections", "65"], "1..=64"),
        (vec!["probe", "responder", "--listen", "here"], "'here'"),
        (vec!["grant", "show", "--operator", "twop_x", "grant"], "mistyped"),
        (vec!["lab", "exec", "a b", "--", "true"], "not `a b`"),
        (vec!["lab", "exec", "tokyo", "--", ""], "the COMMAND is empty"),
        (vec!["lab", "set", "a,b"], "<KEY=VALUE>"),
        (vec!["demo", "--seed", "-1"], "'-1' for '--seed"),
        (vec!["plan", "--problem", "p.toml", "--budget", "-1"], "'-1' for '--budget"),
    ] {
        files.refuses(&arguments, expected);
        assert_eq!(tradewind(&arguments, &files.0).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn invalid_topology_is_refused_with_line() {
    let files = Files::new("topology");
    let sites = "[[site]]\nid = 'a'\nlocation = { latitude = 1, longitude = 1 }\n\
                 [[site]]\nid = 'b'\nlocation = { latitude = 2, longitude = 2 }\n";
    let pair = |rest: &str| format!("{sites}[[pair]]\nbetween = ['a', 'b']\n{rest}");
    for (content, expected) in [
        ("[[site]]\nregion = 'gcp:mars-1'".to_owned(), "line 2: region `gcp:mars-1`"),
        (pair("rtt = '-3 ms'"), "line 9: duration"),
        (pair("loss = 1.5"), "line 9: ratio"),
        (pair("rate = '0 bit/s'"), "line 9: bandwidth"),
        (format!("{sites}[[pair]]\nbetween = ['a', 'c']"), "line 8: no site `c`"),
        ("= = =".to_owned(), "line 1: "),
        (format!("{sites}colour = 1"), "colour"),
    ] {
        files.write("bad.toml", content);
        for arguments in [["lab", "up", "bad.toml"], ["lab", "serve", "bad.toml"]] {
            let line = files.refuses(&arguments, expected);
            assert!(line.contains("bad.toml"), "{line}");
        }
    }
}

#[test]
fn without_a_lab_its_commands_say_so() {
    let files = Files::new("no-lab");
    for arguments in [
        vec!["lab", "down"],
        vec!["lab", "status"],
        vec!["lab", "set", "a,b", "rtt=30ms"],
        vec!["lab", "exec", "a", "--", "true"],
    ] {
        files.refuses(&arguments, "no lab is up");
    }
    files.write("place", "not a directory");
    files.refuses(&["lab", "status"], "place: not a directory");
}

#[test]
fn demo_checks_its_outputs_before_it_begins() {
    let files = Files::new("demo");
    files.refuses(&["demo", "--out", "absent"], "absent/demo.json: No such file");
    files.write("file", "");
    files.refuses(&["demo", "--out", "file"], "file/demo.json: Not a directory");

    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let scenario = fs::read_to_string(repository.join("examples/cp-real.toml")).unwrap();
    fs::copy(repository.join("examples/cp-real-wan.toml"), files.0.join("cp-real-wan.toml"))
        .unwrap();
    for (from, to, expected) in [
        (
            "gcp:us-west1",
            "gcp:mars-1",
            "altered.toml: line 26: `gcp:mars-1` has no host of its name in cp-real-wan.toml",
        ),
        ("\"tokyo\"]", "\"lima\"]", "altered.toml: line 13: `lima` has no host"),
        ("budget_usd = 6.0", "budget_usd = -6", "altered.toml: scenario: line "),
        ("cp-real-wan.toml\"", "absent.toml\"", "absent.toml: No such file"),
        ("cp-real-wan.toml\"", "altered.toml\"", "altered.toml: line "),
    ] {
        let altered = scenario.replace(from, to);
        assert_ne!(altered, scenario, "{from}");
        files.write("altered.toml", altered);
        files.refuses(&["demo", "--scenario", "altered.toml"], expected);
    }
}

#[test]
fn bad_keys_and_grants_are_distinguished() {
    let files = Files::new("grants");
    let operator = keygen(&files, "operator", "operator.key");
    let untrusted = keygen(&files, "operator", "untrusted.key");
    let gateway = keygen(&files, "identity", "gateway.key");
    files.refuses(&["keygen", "identity", "gateway.key"], "File exists");

    let specification = |expires: &str, relays: &str| {
        format!(
            "gateway = '{gateway}'\ndestinations = ['192.0.2.0/24:443']\nrelays = {relays}\n\
             expires = '{expires}'\n"
        )
    };
    files.write("grant.toml", specification("1 h", "'any'"));
    let issue = ["grant", "issue", "--key", "operator.key", "grant.toml"];
    let grant = text(&tradewind(&issue, &files.0).stdout);
    files.write("grant.txt", &grant);
    let key = fs::read_to_string(files.0.join("operator.key")).unwrap();
    let cut = files.write("cut.key", &key[..20]);
    fs::set_permissions(cut, fs::Permissions::from_mode(0o600)).unwrap();
    files.write("cut.txt", &grant[..60]);
    let mistyped = if &grant[40..41] == "a" { "b" } else { "a" };
    files.write("altered.txt", format!("{}{mistyped}{}", &grant[..40], &grant[41..]));

    let show = |operator: &str, file: &str, expected: &str| {
        files.refuses(&["grant", "show", "--operator", operator, file], expected);
    };
    show(&untrusted, "grant.txt", "not trusted here");
    show(&operator, "cut.txt", "cut off or mistyped");
    show(&operator, "altered.txt", "cut off or mistyped");
    show(
        &operator,
        "operator.key",
        "expected `twgrant_` and base32 digits as `tradewind grant issue`",
    );
    let with_key = |key: &str, expected: &str| {
        files.refuses(&["grant", "issue", "--key", key, "grant.toml"], expected);
    };
    with_key("cut.key", "cut off or mistyped; expected `twopkey_`");
    with_key("gateway.key", "this is a secret identity key");
    for (expires, relays, expected) in [
        ("-1 h", "'any'", "line 4"),
        ("10000 h", "'any'", "a span of at most a year"),
        ("2001-01-01T00:00:00Z", "'any'", "in the past"),
        ("1 h", "[]", "`relays` is empty"),
        ("1 h", "'all'", "line 3"),
    ] {
        files.write("grant.toml", specification(expires, relays));
        files.refuses(&issue, expected);
    }
}

#[test]
fn relay_refuses_unusable_configurations() {
    let files = Files::new("relay");
    let operator = keygen(&files, "operator", "operator.key");
    keygen(&files, "identity", "relay.key");
    let in_use = TcpListener::bind("127.0.0.1:0").unwrap();
    let in_use = in_use.local_addr().unwrap();
    let config = |listen: &str, key: &str, rest: &str| {
        format!(
            "listen = ['{listen}']\nidentity_file = '{key}'\noperators = ['{operator}']\n{rest}"
        )
    };
    let free = "127.0.0.1:0";
    // A resource that the host lacks now is no mistake in the file.
    let absent = ["already in use", "cannot assign"];
    for (content, expected) in [
        (config(&in_use.to_string(), "relay.key", ""), format!("{in_use}: address already in use")),
        (config("203.0.113.9:7", "relay.key", ""), "cannot assign".into()),
        (config("here", "relay.key", ""), "`listen[0]` (line 1)".into()),
        (config(free, "absent.key", ""), "identity file absent.key: no such file".into()),
        (config(free, "operator.key", ""), "this is a secret operator key".into()),
        (config(free, "relay.key", &format!("metrics = '{in_use}'")), "already in use".into()),
        (config(free, "relay.key", "workers = 0"), "workers".into()),
        (config(free, "relay.key", "[timeouts]\nidle = '-1 s'"), "`timeouts.idle` (line 5)".into()),
        (
            config(free, "relay.key", "[leg.dial]\ncongestion_control = 'wind'"),
            "congestion control `wind`".into(),
        ),
    ] {
        files.write("relay.toml", content);
        let relay = ["relay", "--config", "relay.toml"];
        let line = files.refuses(&relay, &expected);
        let status = if absent.iter().any(|words| line.contains(words)) { 1 } else { 2 };
        files.refuses_with(&relay, status, "relay.toml: ");
    }
    let responder = ["probe", "responder", "--listen", &in_use.to_string()];
    files.refuses(&responder, &format!("{in_use}: Address already in use"));
}

#[test]
fn gateway_refuses_expired_and_foreign_grants() {
    let files = Files::new("gateway");
    keygen(&files, "operator", "operator.key");
    let gateway = keygen(&files, "identity", "gateway.key");
    keygen(&files, "identity", "other.key");
    let config = |key: &str, grant: &str| {
        format!(
            "identity_file = '{key}'\ngrant = '{}'\nsocks5 = ['127.0.0.1:0']\n\
             [routes]\ndefault = ['remote']\n[[routes.relay]]\nname = 'remote'\n\
             address = '192.0.2.1:7000'\nidentity = '{gateway}'\n",
            grant.trim()
        )
    };
    let issue = |expires: &str| {
        let specification = format!(
            "gateway = '{gateway}'\ndestinations = ['*.example.com:443']\nrelays = 'any'\n\
             expires = '{expires}'\n"
        );
        files.write("grant.toml", specification);
        let made = tradewind(&["grant", "issue", "--key", "operator.key", "grant.toml"], &files.0);
        assert!(made.status.success(), "{made:?}");
        text(&made.stdout)
    };
    let arguments = ["gateway", "--config", "gateway.toml"];
    files.write("gateway.toml", config("other.key", &issue("1 h")));
    files.refuses(&arguments, "grant was issued to gateway");
    files.write("gateway.toml", config("gateway.key", ""));
    files.refuses(&arguments, "`grant` (line 2)");
    let over = issue("1 s");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    files.write("gateway.toml", config("gateway.key", &over));
    files.refuses(&arguments, "gateway.toml: grant expired");
}

#[test]
fn closed_pipe_is_no_error_but_a_full_disk_is() {
    let files = Files::new("output");
    let operator = keygen(&files, "operator", "operator.key");
    let gateway = keygen(&files, "identity", "gateway.key");
    let specification = format!(
        "gateway = '{gateway}'\ndestinations = ['*.example.com:443']\nrelays = 'any'\n\
         expires = '1 h'\n"
    );
    files.write("grant.toml", specification);
    let issue = ["grant", "issue", "--key", "operator.key", "grant.toml"];
    files.write("grant.txt", tradewind(&issue, &files.0).stdout);

    let show = ["grant", "show", "--operator", &operator, "grant.txt"];
    for arguments in [&show[..], &issue, &["--help"], &["lab", "--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(arguments, &files.0).stdout(writer).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "");
    }
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command(&show, &files.0).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), "tradewind: standard output: No space left on device\n");
    for arguments in [&["--help"][..], &["lab", "--help"], &["--version"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command(arguments, &files.0).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert_eq!(text(&output.stderr), "tradewind: print the help: No space left on device\n");
    }

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = command(&["sail"], &files.0).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(2), "nobody hears the complaint, the status still tells");
}

/// Runs the program where no file may grow, which it sees as a full disk.
fn on_a_full_disk(arguments: &[&str], files: &Files) -> Output {
    let mut shell = Command::new("sh");
    // Without the trap the kernel would kill it for the attempt (SIGXFSZ, 25).
    shell.args(["-c", "trap '' 25; ulimit -f 0; exec \"$0\" \"$@\"", PROGRAM]).args(arguments);
    shell.current_dir(&files.0).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn full_disk_leaves_no_partial_files() {
    let files = Files::new("full");
    let making = ["keygen", "identity", "relay.key"];
    let output = on_a_full_disk(&making, &files);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    assert_eq!(text(&output.stderr), "tradewind: relay.key: write the key: File too large\n");
    keygen(&files, "identity", "relay.key");

    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let problem = repository.join("examples/plan/four-cities.toml");
    let plan = ["plan", "--problem", problem.to_str().unwrap(), "--out", "plan.json"];
    files.write("plan.json", "an earlier plan");
    let output = on_a_full_disk(&plan, &files);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("plan.json: File too large"), "{output:?}");
    assert_eq!(fs::read_to_string(files.0.join("plan.json")).unwrap(), "an earlier plan");
    assert!(tradewind(&plan, &files.0).status.success());
    assert!(fs::read_to_string(files.0.join("plan.json")).unwrap().starts_with('{'));
    assert_eq!(fs::read_dir(&files.0).unwrap().count(), 2, "the key and the plan");
}

#[test]
fn unanswered_probe_shows_no_table() {
    let files = Files::new("no-answers");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let output = tradewind(&["probe", "rtt", &closed, "--samples", "1"], &files.0);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""));
    assert!(text(&output.stderr).contains("connection refused"), "{output:?}");
    files.refuses(&["probe", "rtt", "10.200.0.2"], "expected HOST:PORT");
}

#[test]
fn wrong_usage_ends_with_two_and_names_its_flag() {
    let files = Files::new("usage-of-files");
    let rate = ["probe", "rate", "127.0.0.1:1"];
    for (arguments, expected) in [
        ([&rate[..], &["--duration", "0s"]].concat(), "--duration: at least 100 ms, not `0"),
        (
            [&rate[..], &["--max-rate", "1 Mbit/s", "--direction", "download"]].concat(),
            "--max-rate: only with uploads",
        ),
        (
            vec!["probe", "responder", "--listen", "127.0.0.1:0", "--max-tests", "0"],
            "--max-tests: 1 to 1024, not `0`",
        ),
        (vec!["forward", "x"], "expected LISTEN=TO"),
    ] {
        files.refuses(&arguments, expected);
        assert_eq!(tradewind(&arguments, &files.0).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn doctor_accepts_output_and_format_flags() {
    let files = Files::new("doctor");
    for flag in ["-o", "--output", "--format"] {
        let output = tradewind(&["doctor", flag, "json"], &files.0);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["schema_version"], 1, "{flag}");
    }
}

#[test]
fn unusable_runtime_directory_is_reported() {
    let files = Files::new("place");
    let open = files.0.join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let long = files.0.join("x".repeat(120));
    for (place, expected) in [(&open, "others may write there"), (&long, "has at most 107")] {
        let mut status = command(&["lab", "status"], &files.0);
        let output = status.env("TRADEWIND_RUNTIME_DIR", place).output().unwrap();
        let line = text(&output.stderr);
        assert!(line.contains(expected) && line.contains("TRADEWIND_RUNTIME_DIR"), "{line}");
        assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
    }
}

#[test]
fn endless_file_is_refused() {
    let files = Files::new("endless");
    let mut child = command(&["relay", "--config", "/dev/zero"], &files.0)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    child.stderr.take().unwrap().read_to_string(&mut line).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2));
    assert!(line.starts_with("tradewind: /dev/zero: longer than 64 MiB"), "{line}");
}

#[test]
fn invalid_file_is_usage_error() {
    let files = Files::new("senseless");
    files.write("bad.toml", "nonsense = 1");
    keygen(&files, "operator", "op.key");
    for (arguments, file) in [
        ("relay --config bad.toml", "bad.toml"),
        ("relay --config absent.toml", "absent.toml"),
        ("gateway --config bad.toml", "bad.toml"),
        ("netcheck --probe --config bad.toml", "bad.toml"),
        ("doctor --config bad.toml", "bad.toml"),
        ("jumpstart run --config bad.toml", "bad.toml"),
        ("lab up bad.toml", "bad.toml"),
        ("grant issue --key op.key bad.toml", "bad.toml"),
        ("grant issue --key bad.toml bad.toml", "bad.toml"),
        ("plan --problem bad.toml", "bad.toml"),
        ("route aws:us-east-1 moon", "`moon`"),
    ] {
        files.refuses_with(arguments, 2, file);
    }
}
