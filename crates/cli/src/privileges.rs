//! The rights that a long-running process drops before it serves.

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use tradewind_net::handover::Program;
use tradewind_net::privileges::{
    Account, Capability, DEFAULT_USER, become_user, is_root, keep_only,
};
use tradewind_net::sandbox;

use crate::output::BadFile;

/// The rights that a process keeps.
#[derive(Default)]
pub(crate) struct RetainedRights<'a> {
    /// The user to continue as when root has started it, if one is named.
    pub(crate) user: Option<&'a str>,
    /// The capabilities that it needs all its life.
    pub(crate) capabilities: &'a [Capability],
    /// The capabilities among these that its workers need.
    pub(crate) of_workers: &'a [Capability],
    /// True to stay root, since the files that it writes to are root's.
    pub(crate) stays_root: bool,
    /// The configuration file that it was started with, and may read again.
    pub(crate) file: Option<&'a Path>,
}

impl RetainedRights<'_> {
    /// Drops all rights but these: continues as another user if root has started this process, with
    /// these capabilities, in the sandbox; stays root if root is named as the user. Returns lines
    /// for the log; no thread may run yet.
    ///
    /// # Errors
    /// When there is no such user, or the kernel refuses a step: the process must end then.
    pub(crate) fn drop_others(&self) -> anyhow::Result<Vec<String>> {
        let warnings = if is_root() {
            match self.leave_root()? {
                Root::Chosen => {
                    sandbox::unhide()?;
                    return Ok(Vec::new());
                }
                Root::Left(user) => self.out_of_reach(&user),
                Root::Stays(why) => {
                    let mut warnings: Vec<_> = why.into_iter().collect();
                    warnings.extend(self.give_capabilities_up()?);
                    warnings.extend(self.out_of_reach("root"));
                    warnings
                }
            }
        } else {
            self.give_capabilities_up()?
        };
        sandbox::enter(self.capabilities, self.of_workers)?;
        Ok(warnings)
    }

    /// Continues as another user than root, if there is one and the process need not stay root.
    fn leave_root(&self) -> anyhow::Result<Root> {
        if self.stays_root {
            return Ok(Root::Stays(None));
        }
        let name = self.user.unwrap_or(DEFAULT_USER);
        let account = Account::find(name)?;
        if account.as_ref().is_some_and(Account::is_root) {
            return Ok(Root::Chosen);
        }
        if sandbox::is_inherited() {
            return Ok(Root::Stays(Some(format!(
                "runs as root, as the process before this one: restart it to have it go on as \
                 `{name}`"
            ))));
        }
        let (why, cure) = match account {
            Some(account) => match account.out_of_reach() {
                None => {
                    become_user(&account, self.capabilities).context("give root's rights up")?;
                    return Ok(Root::Left(account.name().to_owned()));
                }
                Some(why) => (why, "start it where it can be"),
            },
            None => (
                "no such user on this host",
                "make it (`systemd-sysusers systemd/tradewind.sysusers.conf`, or `useradd \
                 --system --no-create-home --shell /usr/sbin/nologin tradewind`)",
            ),
        };
        if self.user.is_some() {
            return Err(BadFile(format!("user `{name}`: {why}")).into());
        }
        Ok(Root::Stays(Some(format!(
            "runs as root, with the capabilities that it takes alone, since there is no other user \
             for it (`{name}`: {why}): {cure}, or name another user"
        ))))
    }

    /// Drops capabilities that are not needed, and reports those missing that the previous process
    /// should have retained.
    fn give_capabilities_up(&self) -> anyhow::Result<Vec<String>> {
        let mut lacking = keep_only(self.capabilities)?;
        // Workers can use another capability.
        lacking.retain(|capability| *capability != Capability::NetRaw);
        // One that an agent has started has what the agent has.
        if !sandbox::is_inherited() {
            return Ok(Vec::new());
        }
        let describe = |capability: &Capability| {
            format!(
                "the process before this one has not kept {capability}, which this configuration \
                 takes: restart it instead of upgrading it"
            )
        };
        Ok(lacking.iter().map(describe).collect())
    }

    /// Returns lines about files that `user`, as which this process runs now, needs and cannot
    /// reach.
    fn out_of_reach(&self, user: &str) -> Vec<String> {
        let Some(file) = self.file else { return Vec::new() };
        let mut warnings = Vec::new();
        if File::open(file).is_err() {
            warnings.push(format!(
                "{}: user `{user}` may not read it, so that SIGHUP and SIGUSR2 change nothing: \
                 `chgrp {user}` and `chmod 640` it",
                file.display()
            ));
        }
        if let Ok(program) = Program::of_this_process()
            && !program.may_start()
        {
            warnings.push(format!(
                "{}: user `{user}` may not start it, so that SIGUSR2 changes nothing",
                program.path().display()
            ));
        }
        warnings
    }
}

/// Drops the capabilities that were retained, since the work that needed them is done; no thread
/// may run yet.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn give_capabilities_up() -> anyhow::Result<()> {
    if sandbox::is_bound() {
        keep_only(&[])?;
    }
    Ok(())
}

/// The outcome of the drop of root's rights.
enum Root {
    /// The process runs as another user.
    Left(String),
    /// The process stays root by request.
    Chosen,
    /// The process stays root without the other capabilities; the reason is set if it is to be
    /// logged.
    Stays(Option<String>),
}
