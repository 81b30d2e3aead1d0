//! The steps of a deployment, decided from what a host has and what it should have. Pure: the same
//! observation gives the same steps, and one of a host that is as it should be gives none.

use std::net::IpAddr;

use tradewind_control::record::Role;
use tradewind_units::HostId;

/// The form in which the program is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A Debian package.
    Debian,
    /// The program alone.
    Program,
}

/// The state that a host should be in.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// The form of the package.
    pub(super) form: Form,
    /// SHA-256 of the package.
    pub(super) digest: String,
    /// SHA-256 of the ceiling, if the file of hosts names one.
    pub(super) ceiling: Option<String>,
    /// Its role in the overlay.
    pub(super) role: Role,
    /// The address at which neighbours reach it, if the file of hosts has one.
    pub(super) address: Option<IpAddr>,
    /// True if commands of the file of hosts start the agent, instead of systemd.
    pub(super) has_own_service: bool,
}

/// The state that a host is in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Observed {
    pub(super) has_dpkg: bool,
    pub(super) has_systemd: bool,
    /// Version of the installed Debian package.
    pub(super) package: Option<String>,
    /// Version of the installed program.
    pub(super) program: Option<String>,
    /// SHA-256 of what was deployed, if that is what is installed.
    pub(super) digest: Option<String>,
    /// SHA-256 of the ceiling.
    pub(super) ceiling: Option<String>,
    /// The name of the host at the controller that it has joined.
    pub(super) joined: Option<HostId>,
    /// The identity of that controller.
    pub(super) controller: Option<String>,
    /// True if the agent's folder is there.
    pub(super) has_home: bool,
    /// True if the files of a package before are there.
    pub(super) has_files: bool,
    /// True if files of a deployment before are there.
    pub(super) has_cache: bool,
    /// Files, services and processes of Tradewind that are not the agent's.
    pub(super) others: Vec<String>,
    pub(super) is_enabled: bool,
    pub(super) is_running: bool,
}

impl Observed {
    fn is_installed(&self) -> bool {
        self.package.is_some() || self.program.is_some()
    }

    /// Returns the installed version, in words.
    pub(super) fn version(&self) -> &str {
        self.package.as_deref().or(self.program.as_deref()).unwrap_or("nothing")
    }
}

/// The controller's knowledge of a host that has joined it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) role: Role,
    pub(super) address: IpAddr,
    pub(super) is_revoked: bool,
    pub(super) is_drained: bool,
    /// True if its agent is heard.
    pub(super) is_heard: bool,
    /// True if it runs what it should.
    pub(super) is_well: bool,
}

impl Known {
    /// Returns whether the file of hosts means this host, as far as the file can tell.
    fn is(&self, role: &Role, address: Option<IpAddr>) -> bool {
        self.role == *role && address.is_none_or(|address| address == self.address)
    }
}

/// A step of putting an agent on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Copy the package, and install it.
    Install,
    /// Run `tradewind doctor`.
    Doctor,
    /// Write the ceiling.
    SetCeiling,
    /// Get an invite, and join by it.
    Join,
    /// Start the agent, also at each boot.
    Start,
    /// End the agent and start it; relays and gateways go on.
    Restart,
    /// Wait until the controller hears the agent, and it runs what it should.
    AwaitAgent,
}

impl Step {
    /// Returns its name.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::Doctor => "doctor",
            Self::SetCeiling => "set-ceiling",
            Self::Join => "join",
            Self::Start => "start",
            Self::Restart => "restart",
            Self::AwaitAgent => "await-agent",
        }
    }
}

/// A step of undoing what has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Undo {
    /// End the agent.
    Stop,
    /// Revoke the host that has just joined.
    Revoke,
    /// Keep the ceiling, which leaving would remove.
    KeepCeiling,
    /// Leave the controller that it has just joined, or may have.
    Leave,
    /// Remove the package, and all of its files.
    Purge,
    /// Remove the package, and leave files from before.
    Remove,
    /// Install the package from before.
    PutBack,
    /// Write the ceiling from before.
    PutCeilingBack,
    /// Start the agent again.
    Restart,
}

/// A step of taking an agent away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removal {
    /// Have no plan use the host any more, and wait for its sessions.
    Drain,
    /// End the agent.
    Stop,
    /// Have the controller and its hosts trust the host no more. Before its folder is gone: later,
    /// nothing there tells which host it was.
    Revoke,
    /// End the processes, and remove the agent's folder.
    Leave,
    /// Remove the package and its files.
    Purge,
}

impl Removal {
    /// Returns its name.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Stop => "stop",
            Self::Leave => "leave",
            Self::Revoke => "revoke",
            Self::Purge => "purge",
        }
    }
}

/// Returns the steps that put a host into the state that it should be in, or why there are none.
pub(super) fn steps(
    wanted: &Wanted,
    observed: &Observed,
    known: Option<&Known>,
) -> Result<Vec<Step>, String> {
    check_form(wanted, observed)?;
    match (&observed.joined, known) {
        (Some(host), None) => {
            return Err(format!("has joined another controller, as `{host}`: it must leave first"));
        }
        (Some(host), Some(known)) if known.is_revoked => {
            return Err(format!("`{host}` is revoked: run with --remove, then again"));
        }
        (Some(host), Some(known)) if !known.is(&wanted.role, wanted.address) => {
            return Err(format!(
                "`{host}` has another role, place or address at the controller: with those in the \
                 file, run with --remove; then change them"
            ));
        }
        _ => {}
    }
    let mut steps = Vec::new();
    if observed.digest.as_ref() != Some(&wanted.digest) {
        steps.extend([Step::Install, Step::Doctor]);
    }
    if wanted.ceiling.is_some() && wanted.ceiling != observed.ceiling {
        steps.push(Step::SetCeiling);
    }
    if observed.joined.is_none() {
        steps.push(Step::Join);
    }
    if !observed.is_running {
        steps.push(Step::Start);
    } else if !steps.is_empty() || !observed.is_enabled {
        // To start what runs would do nothing.
        steps.push(Step::Restart);
    }
    if !steps.is_empty() || known.is_none_or(|known| !known.is_well) {
        steps.push(Step::AwaitAgent);
    }
    Ok(steps)
}

/// Refuses a package that the host cannot take.
fn check_form(wanted: &Wanted, observed: &Observed) -> Result<(), String> {
    match wanted.form {
        Form::Debian if !observed.has_dpkg => {
            return Err("has no dpkg: give the program itself as `package`".to_owned());
        }
        Form::Debian if observed.package.is_none() && observed.program.is_some() => {
            let problem = "has the program without its package: remove /usr/bin/tradewind first";
            return Err(problem.to_owned());
        }
        Form::Program if observed.package.is_some() => {
            return Err("has a Debian package: give a newer one as `package`".to_owned());
        }
        _ => {}
    }
    if !observed.has_systemd && !wanted.has_own_service {
        return Err("has no systemd: give the commands `start` and `stop`".to_owned());
    }
    Ok(())
}

/// Returns the steps that leave a host as it was `observed`, after `begun` ones of which the last
/// has failed.
pub(super) fn undo(begun: &[Step], observed: &Observed) -> Vec<Undo> {
    let has = |step: Step| begun.contains(&step);
    let mut undo = Vec::new();
    if has(Step::Start) || has(Step::Restart) {
        undo.push(Undo::Stop);
    }
    if has(Step::Join) {
        undo.push(Undo::Revoke);
        if observed.has_home && !has(Step::SetCeiling) {
            undo.push(Undo::KeepCeiling);
        }
        // Also after a join that failed: its answer may have been lost.
        undo.push(Undo::Leave);
    }
    if has(Step::SetCeiling) || undo.contains(&Undo::KeepCeiling) {
        undo.push(Undo::PutCeilingBack);
    }
    if has(Step::Install) {
        undo.push(if observed.is_installed() {
            Undo::PutBack
        } else if observed.has_files {
            Undo::Remove
        } else {
            Undo::Purge
        });
    }
    if observed.is_running && !undo.is_empty() {
        undo.push(Undo::Restart);
    }
    undo
}

/// Returns the steps that take the agent and the package away from a host, or why there are none.
pub(super) fn removal(
    observed: &Observed,
    known: Option<&Known>,
    role: &Role,
    address: Option<IpAddr>,
    has_own_service: bool,
) -> Result<Vec<Removal>, String> {
    if !observed.others.is_empty() {
        return Err(format!("more of Tradewind lives there: {}", observed.others.join(", ")));
    }
    if let (Some(host), None) = (&observed.joined, known) {
        return Err(format!("has joined another controller, as `{host}`"));
    }
    if let (Some(host), false) = (&observed.joined, known.is_none_or(|it| it.is(role, address))) {
        return Err(format!(
            "says that it is `{host}`, which has another role, place or address at the controller"
        ));
    }
    if observed.is_running && !observed.has_systemd && !has_own_service {
        return Err("has no systemd: give the commands `start` and `stop`".to_owned());
    }
    let mut steps = Vec::new();
    let trusted = known.filter(|known| !known.is_revoked);
    if trusted.is_some_and(|known| known.is_heard && !known.is_drained) {
        steps.push(Removal::Drain);
    }
    if observed.is_enabled || observed.is_running {
        steps.push(Removal::Stop);
    }
    if trusted.is_some() {
        steps.push(Removal::Revoke);
    }
    if observed.has_home {
        steps.push(Removal::Leave);
    }
    if observed.is_installed() || observed.has_files || observed.has_cache {
        steps.push(Removal::Purge);
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(region: &str) -> Role {
        let relay_type = "standard".parse().unwrap();
        Role::Relay { region: region.parse().unwrap(), relay_type }
    }

    fn wanted() -> Wanted {
        Wanted {
            form: Form::Debian,
            digest: "new".to_owned(),
            ceiling: Some("narrow".to_owned()),
            role: role("gcp:asia-east1"),
            address: None,
            has_own_service: false,
        }
    }

    fn clean() -> Observed {
        Observed { has_dpkg: true, has_systemd: true, ..Observed::default() }
    }

    fn deployed() -> Observed {
        Observed {
            package: Some("1".to_owned()),
            program: Some("1".to_owned()),
            digest: Some("new".to_owned()),
            ceiling: Some("narrow".to_owned()),
            joined: Some("r-1".parse().unwrap()),
            has_home: true,
            has_files: true,
            is_enabled: true,
            is_running: true,
            ..clean()
        }
    }

    fn known() -> Known {
        Known {
            role: role("gcp:asia-east1"),
            address: "192.0.2.7".parse().unwrap(),
            is_revoked: false,
            is_drained: false,
            is_heard: true,
            is_well: true,
        }
    }

    #[test]
    fn clean_host_gets_all_and_a_deployed_one_nothing() {
        use Step::{AwaitAgent, Doctor, Install, Join, SetCeiling, Start};
        let all = [Install, Doctor, SetCeiling, Join, Start, AwaitAgent];
        assert_eq!(steps(&wanted(), &clean(), None).unwrap(), all);
        assert_eq!(steps(&wanted(), &deployed(), Some(&known())).unwrap(), []);
    }

    #[test]
    fn each_difference_has_its_steps() {
        use Step::{AwaitAgent, Doctor, Install, Join, Restart, SetCeiling, Start};
        let of = |change: &dyn Fn(&mut Observed)| {
            let mut observed = deployed();
            change(&mut observed);
            let known = observed.joined.is_some().then(known);
            steps(&wanted(), &observed, known.as_ref()).unwrap()
        };
        let upgraded = of(&|observed| observed.digest = Some("old".to_owned()));
        assert_eq!(upgraded, [Install, Doctor, Restart, AwaitAgent]);
        // The package of another version, put there by another hand.
        let replaced = of(&|observed| observed.digest = None);
        assert_eq!(replaced, [Install, Doctor, Restart, AwaitAgent]);
        assert_eq!(of(&|observed| observed.ceiling = None), [SetCeiling, Restart, AwaitAgent]);
        assert_eq!(of(&|observed| observed.joined = None), [Join, Restart, AwaitAgent]);
        assert_eq!(of(&|observed| observed.is_running = false), [Start, AwaitAgent]);
        // To start what runs would do nothing.
        assert_eq!(of(&|observed| observed.is_enabled = false), [Restart, AwaitAgent]);
        let by_hand = of(&|observed| {
            (observed.is_enabled, observed.ceiling) = (false, None);
        });
        assert_eq!(by_hand, [SetCeiling, Restart, AwaitAgent]);
        let refuses = Known { is_well: false, ..known() };
        assert_eq!(steps(&wanted(), &deployed(), Some(&refuses)).unwrap(), [AwaitAgent]);
        let any_ceiling = Wanted { ceiling: None, ..wanted() };
        assert_eq!(steps(&any_ceiling, &deployed(), Some(&known())).unwrap(), []);
    }

    #[test]
    fn refusals_say_why() {
        let refused = |wanted: &Wanted, observed: &Observed, known: Option<&Known>| {
            steps(wanted, observed, known).unwrap_err()
        };
        let (wanted, deployed) = (wanted(), deployed());
        assert!(refused(&wanted, &deployed, None).contains("another controller, as `r-1`"));
        let revoked = Known { is_revoked: true, ..known() };
        assert!(refused(&wanted, &deployed, Some(&revoked)).contains("revoked"));
        let elsewhere = Known { role: role("aws:eu-west-1"), ..known() };
        assert!(refused(&wanted, &deployed, Some(&elsewhere)).contains("another role, place"));
        let moved = Wanted { address: "192.0.2.8".parse().ok(), ..wanted.clone() };
        assert!(refused(&moved, &deployed, Some(&known())).contains("address"));
        let no_dpkg = Observed { has_dpkg: false, ..clean() };
        assert!(refused(&wanted, &no_dpkg, None).contains("no dpkg"));
        let program = Wanted { form: Form::Program, ..wanted.clone() };
        assert!(refused(&program, &deployed, Some(&known())).contains("Debian package"));
        assert!(steps(&program, &no_dpkg, None).is_ok());
        let bare = Observed { program: Some("1".to_owned()), ..clean() };
        assert!(refused(&wanted, &bare, None).contains("without its package"));
        let no_systemd = Observed { has_systemd: false, ..clean() };
        assert!(refused(&wanted, &no_systemd, None).contains("`start`"));
        let own = Wanted { has_own_service: true, ..wanted };
        assert!(steps(&own, &no_systemd, None).is_ok());
    }

    #[test]
    fn undoing_leaves_what_was_there() {
        use Step::{Doctor, Install, Join, Restart, SetCeiling, Start};
        assert_eq!(undo(&[Install], &clean()), [Undo::Purge]);
        assert_eq!(undo(&[Install, Doctor], &clean()), [Undo::Purge]);
        let all = [Install, Doctor, SetCeiling, Join, Start];
        let expected = [Undo::Stop, Undo::Revoke, Undo::Leave, Undo::PutCeilingBack, Undo::Purge];
        assert_eq!(undo(&all, &clean()), expected);
        // The owner's ceiling was there before the host joined.
        let owned = Observed { joined: None, is_running: false, ..deployed() };
        let expected = [Undo::Revoke, Undo::KeepCeiling, Undo::Leave, Undo::PutCeilingBack];
        assert_eq!(undo(&[Join], &owned), expected);
        let expected = [Undo::Revoke, Undo::Leave, Undo::PutCeilingBack];
        assert_eq!(undo(&[SetCeiling, Join], &owned), expected);
        // Keys of a package that was removed stay.
        let removed = Observed { has_files: true, ..clean() };
        assert_eq!(undo(&[Install], &removed), [Undo::Remove]);
        let upgrade = [Install, Doctor, Restart];
        let expected = [Undo::Stop, Undo::PutBack, Undo::Restart];
        assert_eq!(undo(&upgrade, &deployed()), expected);
        let stopped = Observed { is_running: false, ..deployed() };
        assert_eq!(undo(&[Start], &stopped), [Undo::Stop]);
        let ceiling = [SetCeiling, Restart];
        let expected = [Undo::Stop, Undo::PutCeilingBack, Undo::Restart];
        assert_eq!(undo(&ceiling, &deployed()), expected);
        assert_eq!(undo(&[Step::AwaitAgent], &deployed()), []);
    }

    fn removed(
        observed: &Observed,
        known: Option<&Known>,
        has_own_service: bool,
    ) -> Result<Vec<Removal>, String> {
        removal(observed, known, &role("gcp:asia-east1"), None, has_own_service)
    }

    #[test]
    fn removal_takes_away_what_is_there_and_nothing_of_others() {
        use Removal::{Drain, Leave, Purge, Revoke, Stop};
        let all = [Drain, Stop, Revoke, Leave, Purge];
        assert_eq!(removed(&deployed(), Some(&known()), false).unwrap(), all);
        assert_eq!(removed(&clean(), None, false).unwrap(), []);
        let cached = Observed { has_cache: true, ..clean() };
        assert_eq!(removed(&cached, None, false).unwrap(), [Purge]);
        let away = Known { is_heard: false, ..known() };
        let expected = [Stop, Revoke, Leave, Purge];
        assert_eq!(removed(&deployed(), Some(&away), false).unwrap(), expected);
        let revoked = Known { is_revoked: true, ..known() };
        let expected = [Stop, Leave, Purge];
        assert_eq!(removed(&deployed(), Some(&revoked), false).unwrap(), expected);
        let shared = Observed { others: vec!["/var/lib/tradewind/net".to_owned()], ..deployed() };
        assert!(removed(&shared, Some(&known()), false).unwrap_err().contains("tradewind/net"));
        assert!(removed(&deployed(), None, false).unwrap_err().contains("another controller"));
        let no_systemd = Observed { has_systemd: false, ..deployed() };
        assert!(removed(&no_systemd, Some(&known()), false).is_err());
        assert_eq!(removed(&no_systemd, Some(&known()), true).unwrap(), all);
    }

    #[test]
    fn removal_believes_no_host_that_it_is_another() {
        let relay = Known { role: role("aws:eu-west-1"), ..known() };
        assert!(removed(&deployed(), Some(&relay), false).unwrap_err().contains("`r-1`"));
        let (place, elsewhere) = (role("gcp:asia-east1"), "192.0.2.8".parse().ok());
        assert!(removal(&deployed(), Some(&known()), &place, elsewhere, false).is_err());
        let here = Some(known().address);
        assert!(removal(&deployed(), Some(&known()), &place, here, false).is_ok());
    }
}
