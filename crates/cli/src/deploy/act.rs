//! The steps of one host, done by ssh and by the controller's API.

use std::cell::RefCell;
use std::path::Path;
use std::thread::sleep;
use std::time::Instant;

use serde_json::Value;
use tradewind_config::{HostConfig, OwnService};
use tradewind_controller::Client;
use tradewind_controller::view::{
    HostState, HostView, Hosts, InviteAnswer, InviteRequest, InviteView,
};
use tradewind_units::{Duration, HostId};

use super::failure::{Failure, Reason};
use super::scripts;
use super::ssh::{self, Input};
use super::steps::{Observed, Removal, Step, Undo, Wanted, undo};
use crate::hosts::drain;
use crate::output;

/// Time that an invite lasts. Chosen: the host uses it at once.
const INVITE_MS: u64 = 600_000;
/// Time between two questions to the controller.
const ASK_EVERY: Duration = Duration::from_millis(300);

/// A host, and what is needed to deploy to it.
pub(super) struct Deployment<'a> {
    pub(super) host: &'a HostConfig,
    pub(super) client: &'a Client,
    pub(super) patience: Duration,
    pub(super) observed: &'a Observed,
    /// Its name at the controller, once it has joined.
    pub(super) joined: RefCell<Option<HostId>>,
    /// The words of doctor, once it has run.
    pub(super) doctor: RefCell<Option<String>>,
}

impl<'a> Deployment<'a> {
    pub(super) fn new(
        host: &'a HostConfig,
        client: &'a Client,
        patience: Duration,
        observed: &'a Observed,
    ) -> Self {
        let joined = RefCell::new(observed.joined.clone());
        Self { host, client, patience, observed, joined, doctor: RefCell::default() }
    }

    /// Takes the host's lock, does `work`, and gives the lock back. A host that is no longer as it
    /// was observed is left alone.
    pub(super) fn locked(&self, work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        let printed = self.on_host(&scripts::take_lock(), &Input::Nothing, Reason::Unsuited)?;
        let now = scripts::parse(&printed, self.service().is_some());
        let done = if now.as_ref() == Some(self.observed) {
            work()
        } else {
            Err(Failure::new(Reason::Unsuited, "it has changed since the look at it: run again"))
        };
        if let Err(failure) = self.script(&scripts::free_lock(), Reason::Failed) {
            self.tell(format_args!("it stays locked for an hour: {failure}"));
        }
        done
    }

    /// Does the steps. When one fails, undoes what has begun.
    pub(super) fn perform(
        &self,
        wanted: &Wanted,
        package: &Path,
        ceiling: Option<&str>,
        steps: &[Step],
    ) -> Result<(), Failure> {
        for (index, step) in steps.iter().enumerate() {
            let done = match step {
                Step::Install => self.install(wanted, package),
                Step::Doctor => self.examine(),
                Step::SetCeiling => {
                    let text = Input::Text(ceiling.unwrap_or_default());
                    let digest = wanted.ceiling.as_deref().unwrap_or_default();
                    self.on_host(&scripts::set_ceiling(digest), &text, Reason::Failed).map(drop)
                }
                Step::Join => self.join(wanted),
                Step::Start => self.serve(&scripts::start(self.service().as_ref())),
                Step::Restart => self.serve(&scripts::restart(self.service().as_ref(), true)),
                Step::AwaitAgent => self.await_agent(),
            };
            if let Err(failure) = done {
                return Err(self.undo(&steps[..=index], failure));
            }
        }
        // All is in effect: the next run would only install the same again.
        if let Err(failure) = self.script(&scripts::keep(), Reason::Failed) {
            self.tell(format_args!("the package is not kept there: {failure}"));
        }
        Ok(())
    }

    fn service(&self) -> Option<OwnService> {
        self.host.own_service()
    }

    fn on_host(&self, script: &str, input: &Input<'_>, reason: Reason) -> Result<String, Failure> {
        ssh::run(self.host, script, input, reason, ssh::WORK_LIMIT)
    }

    fn script(&self, script: &str, reason: Reason) -> Result<(), Failure> {
        self.on_host(script, &Input::Nothing, reason).map(drop)
    }

    fn serve(&self, script: &str) -> Result<(), Failure> {
        self.script(script, Reason::AgentNotStarted)
    }

    fn tell(&self, what: impl std::fmt::Display) {
        output::note(format_args!("{}: {what}", self.host.name));
    }

    fn install(&self, wanted: &Wanted, package: &Path) -> Result<(), Failure> {
        self.tell(format_args!("installs {}, has {}", package.display(), self.observed.version()));
        self.on_host(&scripts::copy(&wanted.digest), &Input::File(package), Reason::Failed)?;
        self.script(&scripts::install(wanted.form), Reason::PackageRefused)
    }

    fn examine(&self) -> Result<(), Failure> {
        let found = self.on_host(&scripts::doctor(), &Input::Nothing, Reason::DoctorFailed)?;
        let words = doctor_words(&found);
        self.tell(format_args!("doctor: {words}"));
        *self.doctor.borrow_mut() = Some(words);
        Ok(())
    }

    /// Hands an invite over on standard input: arguments are seen by all. What the host says of its
    /// name counts for nothing: the controller tells who has used the invite.
    fn join(&self, wanted: &Wanted) -> Result<(), Failure> {
        let request = InviteRequest { role: wanted.role.clone(), ttl_ms: INVITE_MS };
        let answer: InviteAnswer = self.client.post("/v1/invites", &request)?;
        let line = format!("{}\n", answer.invite);
        let script = scripts::join(self.host.address);
        let done = self.on_host(&script, &Input::Text(&line), Reason::ControllerUnreachable);
        let used = self.client.get::<InviteView>(&format!("/v1/invites/{}", answer.id));
        let used = used.map_err(|error| {
            let failure = Failure::from(error);
            let detail = format!("{}; it may have joined: `tradewind hosts`", failure.detail);
            Failure::new(failure.reason, detail)
        })?;
        if let Some(name) = used.host {
            self.tell(format_args!("joined as {name}"));
            *self.joined.borrow_mut() = Some(name);
            return done.map(drop);
        }
        let unused = || Failure::new(Reason::JoinRefused, "no host has used its invite");
        Err(done.err().unwrap_or_else(unused))
    }

    fn hosts(&self) -> Result<Vec<HostView>, Failure> {
        Ok(self.client.get::<Hosts>("/v1/hosts")?.hosts)
    }

    /// Returns what the controller knows of the host.
    fn view(&self) -> Result<Option<HostView>, Failure> {
        let joined = self.joined.borrow();
        Ok(self.hosts()?.into_iter().find(|host| Some(&host.id) == joined.as_ref()))
    }

    /// Waits until the controller hears the agent, and it runs what it should. The agent has been
    /// started by now: of a host that had joined before, only a later report counts.
    fn await_agent(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        let seen = |view: Option<&HostView>| view.and_then(|view| view.seen_unix_ms);
        let had_joined = self.observed.joined.is_some();
        let before = if had_joined { seen(self.view()?.as_ref()) } else { None };
        loop {
            let view = self.view()?;
            let state = view.as_ref().map(|view| view.state);
            let is_new = seen(view.as_ref()) > before;
            if is_new && matches!(state, Some(HostState::Well | HostState::Drained)) {
                self.tell("the controller hears its agent");
                return Ok(());
            }
            if begun.elapsed() >= self.patience {
                let state = state.map_or("unknown", HostState::as_str);
                let refused = view.and_then(|view| view.refused).map(|refused| refused.reason);
                let why = refused.map(|why| format!(" ({why})")).unwrap_or_default();
                let span = self.patience.as_secs();
                let detail = format!("after {span} s the controller says: {state}{why}");
                return Err(Failure::new(Reason::AgentNotConnected, detail));
            }
            sleep(ASK_EVERY);
        }
    }

    /// Undoes what has begun, and returns the failure with what could not be undone.
    fn undo(&self, begun: &[Step], failure: Failure) -> Failure {
        self.tell(format_args!("{failure}; goes back to {}", self.observed.version()));
        let mut failure = failure;
        for step in undo(begun, self.observed) {
            if let Err(error) = self.undo_one(step) {
                let detail = format!("{}; left half done: {}", failure.detail, error.detail);
                failure = Failure::new(failure.reason, detail);
                break;
            }
        }
        failure
    }

    fn undo_one(&self, step: Undo) -> Result<(), Failure> {
        let service = self.service();
        match step {
            Undo::Stop => {
                let stop = scripts::stop(service.as_ref(), self.observed.is_enabled);
                self.serve(&stop)
            }
            Undo::Revoke => match &*self.joined.borrow() {
                Some(host) => Ok(self.client.act(&format!("/v1/hosts/{host}/revoke"))?),
                None => Ok(()),
            },
            Undo::KeepCeiling => self.script(&scripts::keep_ceiling(), Reason::Failed),
            Undo::Leave => self.script(&scripts::leave(), Reason::Failed),
            Undo::Purge => self.script(&scripts::remove(true), Reason::Failed),
            Undo::Remove => self.script(&scripts::remove(false), Reason::Failed),
            Undo::PutBack => {
                let is_kept = self.observed.digest.is_some();
                self.script(&scripts::put_back(is_kept), Reason::PackageRefused)
            }
            Undo::PutCeilingBack => self.script(&scripts::put_ceiling_back(), Reason::Failed),
            Undo::Restart => {
                self.serve(&scripts::restart(service.as_ref(), self.observed.is_enabled))
            }
        }
    }

    /// Takes the agent and the package away.
    pub(super) fn take_away(&self, steps: &[Removal]) -> Result<(), Failure> {
        let service = self.service();
        for step in steps {
            match step {
                Removal::Drain => self.drain()?,
                Removal::Stop => self.serve(&scripts::stop(service.as_ref(), false))?,
                Removal::Leave => self.script(&scripts::leave(), Reason::Failed)?,
                Removal::Revoke => {
                    if let Some(host) = &*self.joined.borrow() {
                        self.client.act(&format!("/v1/hosts/{host}/revoke"))?;
                    }
                }
                Removal::Purge => self.script(&scripts::remove(true), Reason::PackageRefused)?,
            }
        }
        Ok(())
    }

    /// Has no plan use the host any more, and waits until its sessions have ended, or for so long.
    fn drain(&self) -> Result<(), Failure> {
        let joined = self.joined.borrow().clone();
        let Some(host) = joined else { return Ok(()) };
        self.tell("drains");
        drain(self.client, &[host], self.patience)?;
        Ok(())
    }
}

/// Returns what `tradewind doctor -o json` found, in one line. A greeting may stand before it.
fn doctor_words(found: &str) -> String {
    let report = found.find('{').and_then(|at| found.get(at..));
    let Some(report) = report.and_then(|it| serde_json::from_str::<Value>(it).ok()) else {
        return "it says nothing that can be read".to_owned();
    };
    let text = |key: &str| report[key].as_str().unwrap_or("unknown").to_owned();
    let features = report["kernel_features"].as_array();
    let missing = features.into_iter().flatten().filter(|feature| feature["works"] == false);
    let missing: Vec<&str> = missing.filter_map(|it| it["kernel_feature"].as_str()).collect();
    let without = match missing[..] {
        [] => String::new(),
        _ => format!("; without {}", missing.join(", ")),
    };
    let (kernel, window) = (text("kernel"), text("initial_window"));
    format!("nothing needed is missing; Linux {kernel}, initial windows: {window}{without}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_is_one_line() {
        let found = r#"{"kernel": "6.1", "initial_window": "none", "kernel_features": [
            {"kernel_feature": "splice", "works": true}, {"kernel_feature": "tun", "works": false}
        ]}"#;
        let expected = "nothing needed is missing; Linux 6.1, initial windows: none; without tun";
        assert_eq!(doctor_words(found), expected);
        assert_eq!(doctor_words(&format!("Welcome!\n{found}")), expected);
        assert!(doctor_words("Welcome!").contains("nothing that can be read"));
    }
}
