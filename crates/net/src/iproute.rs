//! `ip` and `tc`: devices, addresses, routes and shapers of a namespace, in batches.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::error::{NetError, Result};
use crate::netns::Namespace;

/// A program of the iproute2 suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// Devices, addresses and routes.
    Ip,
    /// Queues and shapers.
    Tc,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Tc => "tc",
        }
    }
}

/// Runs `lines` (one command each, without the tool's name) inside `namespace`, in order. The
/// first that fails ends the batch.
///
/// # Errors
/// When the tool is missing, or refuses a line: the error holds that line.
pub fn batch(namespace: &Namespace, tool: Tool, lines: &[String]) -> Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    namespace.run(|| run(tool, lines))?
}

fn run(tool: Tool, lines: &[String]) -> Result<()> {
    let name = tool.name();
    let mut child = command(name)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| start_error(tool, source))?;
    let mut stdin = child.stdin.take().expect("standard input was asked to be a pipe");
    // A tool that stops at a bad line closes its input; its own message tells the reason.
    let _ = stdin.write_all((lines.join("\n") + "\n").as_bytes());
    drop(stdin);
    let output = child
        .wait_with_output()
        .map_err(|source| NetError::system(format!("wait for {name}"), source))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(NetError::Tool { tool: name, input: failed_line(&stderr, lines), message: gist(&stderr) })
}

/// Runs the tool once with `words`, in the calling thread's namespace, and returns its output.
///
/// # Errors
/// When the tool is missing, or refuses: the error holds the words.
pub fn ask(tool: Tool, words: &[&str]) -> Result<String> {
    let output = command(tool.name())
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| start_error(tool, source))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = gist(&String::from_utf8_lossy(&output.stderr));
    Err(NetError::Tool { tool: tool.name(), input: words.join(" "), message })
}

/// Returns the command of the tool `name`, found also in directories that an ordinary user's PATH
/// lacks.
pub(crate) fn command(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(name);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

fn start_error(tool: Tool, source: std::io::Error) -> NetError {
    if source.kind() == std::io::ErrorKind::NotFound {
        return NetError::MissingTool { tool: tool.name(), package: "iproute2" };
    }
    NetError::system(format!("start {}", tool.name()), source)
}

/// Checks that the tool is installed.
///
/// # Errors
/// When it is not; the error names the package that holds it.
pub fn require(tool: Tool) -> Result<()> {
    let mut version = command(tool.name());
    version.arg("-V").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().map(|_| ()).map_err(|source| start_error(tool, source))
}

/// Returns the line that `Command failed -:N` refers to; the first line when the tool names none.
fn failed_line(stderr: &str, lines: &[String]) -> String {
    let number = stderr.rsplit_once("-:").and_then(|(_, rest)| rest.trim().parse::<usize>().ok());
    let at = number.unwrap_or(1).saturating_sub(1);
    lines.get(at).or(lines.first()).cloned().unwrap_or_default()
}

fn gist(stderr: &str) -> String {
    stderr.lines().next().unwrap_or("no message").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_line_is_reported() {
        let lines = ["link set lo up".to_owned(), "addr add 10.0.0.1 dev none".to_owned()];
        let stderr = "Cannot find device \"none\"\nCommand failed -:2\n";
        assert_eq!(failed_line(stderr, &lines), lines[1]);
        assert_eq!(gist(stderr), "Cannot find device \"none\"");
    }
}
