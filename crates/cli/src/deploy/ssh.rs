//! Commands on a host, by the system's own `ssh`: with the user's configuration, agent and known
//! hosts. Nothing asks, and host keys are always checked.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tradewind_config::HostConfig;

use super::failure::{Failure, Reason};

/// Exit code of a script whose user is not root and cannot become it.
const NO_RIGHTS: i32 = 77;
/// Exit code of a script whose request the controller refuses.
pub(super) const REFUSED: i32 = 78;
/// Exit code of `ssh` itself.
const SSH_FAILED: i32 = 255;

/// The standard input of a command.
pub(super) enum Input<'a> {
    Nothing,
    Text(&'a str),
    File(&'a Path),
}

/// Runs `script` as root on a host by `sh`, and returns what it printed.
///
/// # Errors
/// When the host is not reached or gives no rights; for `reason`, when the script fails.
pub(super) fn run(
    host: &HostConfig,
    script: &str,
    input: &Input<'_>,
    reason: Reason,
) -> Result<String, Failure> {
    let output = exchange(host, script, input)
        .map_err(|error| Failure::new(Reason::Failed, format!("ssh: {error}")))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        // What a host prints may reach a terminal.
        Some(0) => Ok(String::from_utf8_lossy(&output.stdout)
            .replace(|c: char| c.is_control() && c != '\n', " ")),
        Some(SSH_FAILED) => Err(Failure::new(of_ssh(&said), first_cause(&said))),
        Some(NO_RIGHTS) => {
            let how = if host.sudo == Some(true) {
                "`sudo -n` does not let the user become root"
            } else {
                "the user is not root; `sudo = true` would have it become root"
            };
            Err(Failure::new(Reason::NoRights, how))
        }
        Some(REFUSED) => Err(Failure::new(Reason::JoinRefused, first_cause(&said))),
        code => {
            let is_full = said.contains("No space left on device");
            let reason = if is_full { Reason::NoSpace } else { reason };
            let cause = first_cause(&said);
            let silent = || format!("it ended with {}", code.unwrap_or_default());
            Err(Failure::new(reason, if cause.is_empty() { silent() } else { cause }))
        }
    }
}

fn exchange(host: &HostConfig, script: &str, input: &Input<'_>) -> std::io::Result<Output> {
    let mut command = Command::new("ssh");
    // The first value of an option counts: nothing may make `ssh` ask.
    command.args(["-T", "-o", "BatchMode=yes"]);
    command.args(host.ssh_options.iter().flatten());
    command.args(["-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15"]);
    if let Some(port) = host.port {
        command.arg("-p").arg(port.to_string());
    }
    command.arg("--").arg(host.destination());
    command.arg(as_root(script, host.sudo == Some(true)));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(match input {
        Input::Nothing => Stdio::null(),
        Input::Text(_) => Stdio::piped(),
        Input::File(file) => File::open(file)?.into(),
    });
    let mut child = command.spawn()?;
    if let (Input::Text(text), Some(mut stdin)) = (input, child.stdin.take()) {
        match stdin.write_all(text.as_bytes()) {
            // What the command says tells why it does not read.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
    }
    child.wait_with_output()
}

/// Returns the line for the remote user's shell that has root's `sh` run `script`.
fn as_root(script: &str, by_sudo: bool) -> String {
    let script = quoted(script);
    let user = r#"[ "$(id -u)" = 0 ]"#;
    let line = if by_sudo {
        format!(
            "{user} && exec sh -c {script}; sudo -n true </dev/null >/dev/null 2>&1 || \
             exit {NO_RIGHTS}; exec sudo -n sh -c {script}"
        )
    } else {
        format!("{user} || exit {NO_RIGHTS}; exec sh -c {script}")
    };
    format!("sh -c {}", quoted(&line))
}

/// Returns `text` as one word of a shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns the reason why `ssh` itself failed.
fn of_ssh(said: &str) -> Reason {
    if said.contains("Host key verification failed") {
        Reason::HostKey
    } else if said.contains("Permission denied (") {
        Reason::KeyRefused
    } else {
        Reason::Unreachable
    }
}

/// Returns the line that tells why a command failed: the last one, or the one that dpkg announces.
fn first_cause(said: &str) -> String {
    let lines = || said.lines().filter(|line| !line.trim().is_empty());
    let announced = ["prevent configuration of", "error processing"]
        .iter()
        .find_map(|words| lines().skip_while(|line| !line.contains(words)).nth(1));
    let line = announced.or_else(|| lines().next_back()).unwrap_or_default().trim();
    line.strip_prefix("tradewind: ").unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_reach_the_shell_unchanged() {
        let script = "printf '%s|' \"it's\" '$HOME' `echo 1`\necho \"\\$x\"";
        let direct = Command::new("sh").args(["-c", script]).output().unwrap();
        let line = format!("sh -c {}", quoted(&format!("exec sh -c {}", quoted(script))));
        let quoted = Command::new("sh").args(["-c", &line]).output().unwrap();
        assert!(direct.status.success(), "{direct:?}");
        assert_eq!(quoted.stdout, direct.stdout);
    }

    #[test]
    fn failures_of_ssh_are_told_apart() {
        for (said, expected) in [
            ("ssh: connect to host 192.0.2.1 port 22: Connection refused", Reason::Unreachable),
            ("ssh: Could not resolve hostname x: Name or service not known", Reason::Unreachable),
            ("admin@192.0.2.1: Permission denied (publickey).", Reason::KeyRefused),
            ("No ED25519 host key is known\nHost key verification failed.", Reason::HostKey),
        ] {
            assert_eq!(of_ssh(said), expected, "{said}");
        }
    }

    #[test]
    fn cause_is_one_line() {
        for (said, expected) in [
            ("", ""),
            ("warning\ntradewind: controller 192.0.2.1:7440: no route\n\n", "controller 192"),
            (
                "dpkg: error processing package tradewind (--install):\n installed script failed\n\
                 Errors were encountered while processing:\n tradewind",
                "installed script",
            ),
            (
                "dpkg: dependency problems prevent configuration of tradewind:\n tradewind depends \
                 on passwd; however:\n\ndpkg: error processing package tradewind (--install):\n \
                 dependency problems",
                "tradewind depends on passwd",
            ),
        ] {
            assert!(first_cause(said).starts_with(expected), "{said}: {}", first_cause(said));
        }
    }
}
