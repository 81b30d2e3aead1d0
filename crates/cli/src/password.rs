//! `tradewind password`: hashes a proxy user's password.

use std::io::{BufRead as _, IsTerminal as _, Read as _};
use std::process::ExitCode;

use anyhow::Context as _;
use tradewind_config::users::Hashed;

use crate::output::{self, BadFile, Outcome};

/// Most bytes that are read; far above the longest password.
const MAX_BYTES: u64 = 4096;

pub(crate) fn run() -> Outcome {
    let password = read()?;
    let entropy = tradewind_net::entropy::bytes().context("read the system's entropy")?;
    let hashed = Hashed::of(password.as_bytes(), &entropy).map_err(BadFile)?;
    output::line(hashed.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the first line of standard input; on a terminal with a prompt and without echo.
fn read() -> anyhow::Result<String> {
    if std::io::stdin().is_terminal() {
        return rpassword::prompt_password("Password: ").context("read the password");
    }
    let mut line = String::new();
    let mut input = std::io::stdin().lock().take(MAX_BYTES);
    input.read_line(&mut line).context("standard input: read the password")?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
