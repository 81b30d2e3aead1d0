//! What a relay's or gateway's process gives up before it serves anybody.

use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, bail};
use tradewind_net::handover::{self, Program};
use tradewind_net::privileges::{Account, Capability, become_user, is_root, keep_only};
use tradewind_net::sandbox;

/// The user that a daemon goes on as which root has started, unless another is named.
const DEFAULT_USER: &str = "tradewind";

/// Goes on as the user `named`, if root has started this process with the configuration `file`,
/// with the capabilities `keep`, and in the sandbox, unless root is named. Returns lines to be told
/// in the log; no thread may run yet.
///
/// # Errors
/// When there is no such user, or the kernel refuses a step: the process must end then.
pub(crate) fn give_up(
    named: Option<&str>,
    keep: &[Capability],
    file: &Path,
) -> anyhow::Result<Vec<String>> {
    let mut told = Vec::new();
    if is_root() {
        match leave_root(named, keep)? {
            Root::Chosen => {
                sandbox::unhide()?;
                return Ok(told);
            }
            Root::Kept(why) => told.push(why),
            Root::Left(user) => told.extend(out_of_reach(&user, file)),
        }
    } else {
        let lacking = keep_only(keep)?;
        if handover::is_successor() {
            told.extend(lacking.iter().map(|capability| {
                format!(
                    "the process before this one has not kept {capability}, which this \
                     configuration takes: restart it instead of upgrading it"
                )
            }));
        }
    }
    sandbox::enter(keep)?;
    Ok(told)
}

/// What became of root's rights.
enum Root {
    /// Another user is in their place.
    Left(String),
    /// They stay, since that is wanted.
    Chosen,
    /// They stay, for this reason.
    Kept(String),
}

/// Goes on as another user than root, if there is one.
fn leave_root(named: Option<&str>, keep: &[Capability]) -> anyhow::Result<Root> {
    let name = named.unwrap_or(DEFAULT_USER);
    let account = Account::find(name)?;
    if account.as_ref().is_some_and(Account::is_root) {
        return Ok(Root::Chosen);
    }
    if sandbox::is_inherited() {
        return Ok(Root::Kept(format!(
            "runs as root, as the process before this one: restart it to have it go on as `{name}`"
        )));
    }
    let why = match account {
        Some(account) => match account.out_of_reach() {
            None => {
                become_user(&account, keep).context("give root's rights up")?;
                return Ok(Root::Left(account.name().to_owned()));
            }
            Some(why) => why,
        },
        None => "no such user on this host",
    };
    if named.is_some() {
        bail!("user `{name}`: {why}");
    }
    Ok(Root::Kept(format!(
        "runs as root, since there is no other user for it (`{name}`: {why}): make that one \
         (systemd/tradewind.sysusers.conf), name another by `run_as`, or say `run_as = \"root\"`"
    )))
}

/// Tells what `user`, who this process is of now, cannot reach and will need.
fn out_of_reach(user: &str, file: &Path) -> Vec<String> {
    let mut told = Vec::new();
    if File::open(file).is_err() {
        told.push(format!(
            "{}: user `{user}` may not read it, so that SIGHUP and SIGUSR2 change nothing: \
             `chgrp {user}` and `chmod 640` it",
            file.display()
        ));
    }
    if let Ok(program) = Program::of_this_process()
        && !program.may_start()
    {
        told.push(format!(
            "{}: user `{user}` may not start it, so that SIGUSR2 changes nothing",
            program.path().display()
        ));
    }
    told
}
