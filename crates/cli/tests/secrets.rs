//! Files with secrets that others may read.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::fs::{Permissions, set_permissions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use common::{Files, command};
use tradewind_grant::{IdentityKey, OperatorKey};

/// Returns the message of the program about the file `name` and its exit code, or the first line
/// that it prints where it goes on.
fn message_of(files: &Files, words: &str, name: &str, mode: u32) -> (String, Option<i32>) {
    set_permissions(files.0.join(name), Permissions::from_mode(mode)).unwrap();
    let mut command = command(words, &files.0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.contains("ready") {
        child.kill().unwrap();
    }
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    (line, child.wait().unwrap().code())
}

#[test]
fn world_readable_secrets_are_refused() {
    let files = Files::new("secrets");
    files.write("secret", "a secret of probes\n");
    let identity = IdentityKey::from_entropy([1; 32]).to_secret_text();
    let operator = OperatorKey::from_entropy([2; 32]).public();
    let identity = format!("identity = '{}'\n", *identity);
    let listen = "listen = ['127.0.0.1:0']\nworkers = 1\n";
    files.write("relay.toml", format!("{identity}{listen}operators = ['{operator}']\n"));
    let forward = "[[forward]]\nlisten = '127.0.0.1:0'\nto = '192.0.2.1:9'\n";
    files.write("gateway.toml", format!("{identity}direct = true\nworkers = 1\n{forward}"));
    for (words, name) in [
        ("probe responder --listen 127.0.0.1:0 --secret secret", "secret"),
        ("relay --config relay.toml", "relay.toml"),
        ("gateway --config gateway.toml", "gateway.toml"),
    ] {
        for mode in [0o644, 0o660] {
            let (line, code) = message_of(&files, words, name, mode);
            let expected = format!("others may read or change it (mode {mode:o}); `chmod 600` it");
            assert!(line.contains(name) && line.contains(&expected), "{words}: {line}");
            assert_eq!(code, Some(2), "{words}: {line}");
        }
        let (line, _) = message_of(&files, words, name, 0o600);
        assert!(line.contains("\"ready\""), "{words}: {line}");
    }
    let (line, code) =
        message_of(&files, "probe rate 127.0.0.1:9 --secret secret", "secret", 0o604);
    assert!(line.contains("(mode 604)") && code == Some(2), "{line}");
}
