//! Commands on a host, by the system's own `ssh`: with the user's configuration, agent and known
//! hosts. Nothing asks, and host keys are always checked. Time and output have bounds: a host may
//! be slow, full or hostile.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, sleep};
use std::time::Instant;

use tradewind_config::HostConfig;
use tradewind_units::Duration;

use super::failure::{Failure, Reason};

/// Exit code of a script whose user is not root and cannot become it.
const NO_RIGHTS: i32 = 77;
/// Exit code of a script whose request the controller refuses.
pub(super) const REFUSED: i32 = 78;
/// Exit code of `ssh` itself.
const SSH_FAILED: i32 = 255;

/// Longest time of a look at a host. Chosen: several times that of a slow one.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(60);
/// Longest time of any other script. Chosen: a package over a slow line, or a busy dpkg.
pub(super) const WORK_LIMIT: Duration = Duration::from_secs(600);
/// Most bytes that are read of each stream. Chosen: far above what the scripts print.
const MAX_BYTES: u64 = 1 << 20;
/// Time between two looks whether `ssh` has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Longest wait for the rest of its output then, which a process that it left may hold open.
const REST_LIMIT: Duration = Duration::from_secs(1);

/// The standard input of a command.
pub(super) enum Input<'a> {
    Nothing,
    Text(&'a str),
    File(&'a Path),
}

/// Runs `script` as root on a host by `sh` for up to `limit`, and returns what it printed.
///
/// # Errors
/// When the host is not reached or gives no rights; for `reason`, when the script fails.
pub(super) fn run(
    host: &HostConfig,
    script: &str,
    input: &Input<'_>,
    reason: Reason,
    limit: Duration,
) -> Result<String, Failure> {
    let output = command(host, script, input)
        .and_then(|command| exchange(command, input, limit))
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

fn command(host: &HostConfig, script: &str, input: &Input<'_>) -> io::Result<Command> {
    // Without a terminal, as the `ssh` of a jump host has options of its own and would ask there.
    let mut command = Command::new("setsid");
    command.arg("ssh").env("SSH_ASKPASS_REQUIRE", "never");
    // The first value of an option counts: nothing may make `ssh` ask, or trust any key. A
    // connection that it shared would hold its output open.
    command.args(["-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]);
    command.args(["-o", "ControlMaster=no"]);
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
    Ok(command)
}

/// Runs a command for up to `limit`.
fn exchange(mut command: Command, input: &Input<'_>, limit: Duration) -> io::Result<Output> {
    let begun = Instant::now();
    let mut child = command.spawn()?;
    if let (Input::Text(text), Some(mut stdin)) = (input, child.stdin.take()) {
        let text = (*text).to_owned();
        // What the command says tells why it does not read.
        thread::spawn(move || drop(stdin.write_all(text.as_bytes())));
    }
    let (stdout, stderr) = (child.stdout.take().map(collect), child.stderr.take().map(collect));
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            let problem = format!("no end after {} s", limit.as_secs());
            return Err(io::Error::new(ErrorKind::TimedOut, problem));
        }
        sleep(LOOK_EVERY);
    };
    let rest = |stream: Option<Receiver<Vec<u8>>>| {
        let bytes = stream.and_then(|it| it.recv_timeout(REST_LIMIT).ok()).unwrap_or_default();
        let is_cut = bytes.len() as u64 >= MAX_BYTES;
        if is_cut { Err(io::Error::other("it prints more than a MiB")) } else { Ok(bytes) }
    };
    Ok(Output { status, stdout: rest(stdout)?, stderr: rest(stderr)? })
}

/// Reads a stream to its end, or the most that is read.
fn collect(stream: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _broken = stream.take(MAX_BYTES).read_to_end(&mut bytes);
        let _nobody_waits = sender.send(bytes);
    });
    receiver
}

/// Returns the line for the remote user's shell that has root's `sh` run `script`.
fn as_root(script: &str, by_sudo: bool) -> String {
    let script = quoted(script);
    let user = r#"[ "$(id -u)" = 0 ]"#;
    let line = if by_sudo {
        format!(
            "{user} && exec sh -c {script}; sudo -n sh -c : </dev/null >/dev/null 2>&1 || \
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

/// Returns the line that tells why a command failed: the one that dpkg announces, its own error, or
/// the last one.
fn first_cause(said: &str) -> String {
    let lines = || said.lines().filter(|line| !line.trim().is_empty());
    let announced = ["prevent configuration of", "error processing"]
        .iter()
        .find_map(|words| lines().skip_while(|line| !line.contains(words)).nth(1));
    let own = || lines().find_map(|line| line.strip_prefix("dpkg: error: "));
    let line = announced.or_else(own).or_else(|| lines().next_back()).unwrap_or_default().trim();
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

    fn of_shell(script: &str, input: &Input<'_>, limit: Duration) -> io::Result<Output> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        exchange(command, input, limit)
    }

    #[test]
    fn commands_have_bounds_of_time_and_output() {
        let said = of_shell("cat; echo why >&2; exit 3", &Input::Text("in"), WORK_LIMIT).unwrap();
        assert_eq!(
            (said.status.code(), &*said.stdout, &*said.stderr),
            (Some(3), &b"in"[..], &b"why\n"[..])
        );
        let late = of_shell("exec sleep 600", &Input::Nothing, Duration::from_millis(50));
        assert_eq!(late.unwrap_err().kind(), ErrorKind::TimedOut);
        let much = of_shell("exec cat /dev/zero", &Input::Nothing, WORK_LIMIT).unwrap_err();
        assert!(much.to_string().contains("MiB"), "{much}");
    }

    #[test]
    fn nothing_asks_and_every_host_key_is_checked() {
        let text = "[[host]]\nname = \"h\"\nrole = \"relay\"\nregion = \"gcp:asia-east1\"\n\
                    package = \"p.deb\"\nssh_options = [\"-o\", \"StrictHostKeyChecking=no\"]\n";
        let hosts = tradewind_config::HostsConfig::parse(text, Path::new("")).unwrap();
        let command = command(&hosts.host[0], "true", &Input::Nothing).unwrap();
        let all: Vec<_> = command.get_args().filter_map(|it| it.to_str()).collect();
        let place = |option: &str| all.iter().position(|it| *it == option).unwrap();
        assert!(place("StrictHostKeyChecking=yes") < place("StrictHostKeyChecking=no"), "{all:?}");
        assert!(place("BatchMode=yes") < place("StrictHostKeyChecking=no"), "{all:?}");
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
                "dpkg: error: dpkg frontend lock was locked by another process with pid 7\n\
                 Note: removing the lock file is always wrong",
                "dpkg frontend lock",
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
