//! `tradewind password` makes a hash that a gateway's configuration accepts.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use tradewind_config::GatewayConfig;

/// Returns the command's output for `input`, or its error.
fn password(input: &[u8]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tradewind"))
        .arg("password")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    command.stdin.take().unwrap().write_all(input).unwrap();
    let output = command.wait_with_output().unwrap();
    let [hash, error] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    if output.status.success() { Ok(hash.trim().to_owned()) } else { Err(error) }
}

#[test]
fn password_hash_is_accepted_by_gateway() {
    let hash = password(b"correct horse\n").unwrap();
    let text = format!(
        "socks5 = ['0.0.0.0:1080']\nexpose = true\n[[user]]\nname = 'ann'\npassword = '{hash}'"
    );
    let config = GatewayConfig::parse(&text).unwrap();
    assert!(config.user[0].password.is_of(b"correct horse"));
    assert!(!hash.contains("horse"));
    let refused = password(b"\n").unwrap_err();
    assert!(refused.contains("a password of 0 bytes: expected 1 to 255"), "{refused}");
}
